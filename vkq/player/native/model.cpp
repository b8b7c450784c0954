#include "model.hpp"

#include <cstring>

namespace vkq::player {

static constexpr uint64_t MOST_CACHE = uint64_t(1) << 28;
static constexpr uint32_t HEAD = 32;  // bytes of a pipeline cache's header

Model::Model(Gpu &g, Bytes b, const char *path)
    : gpu(g), bytes(std::move(b)), file(read(bytes.data.get(), bytes.count)), cachePath(path ? path : "") {
  for (const Shapes &one : file.sets) variants.push_back({one, "", nullptr});
  try {
    load(0);
  } catch (...) {
    if (cache) gpu.vkDestroyPipelineCache(gpu.device, cache, nullptr);
    throw;
  }
}

void Model::load(size_t number) {
  std::lock_guard<std::mutex> turn(gpu.turn);
  if (variants[number].playing) return;
  gpu.guard([&] {
    if (!cache) openCache();
    takePlan(variants[number]);
  });
  saveCache();
}

Model::~Model() {
  std::lock_guard<std::mutex> turn(gpu.turn);
  variants.clear();
  if (cache) gpu.vkDestroyPipelineCache(gpu.device, cache, nullptr);
}

// Reads the pipeline cache from its file. Ignores a cache whose header names another device or driver, or is
// damaged.
void Model::openCache() {
  std::vector<char> kept = content(cachePath, MOST_CACHE);
  const VkPhysicalDeviceProperties &p = gpu.properties;
  const uint32_t head[]{HEAD, 1, p.vendorID, p.deviceID};
  const bool ours = kept.size() >= HEAD && !std::memcmp(kept.data(), head, sizeof head) &&
                    !std::memcmp(kept.data() + 16, p.pipelineCacheUUID, VK_UUID_SIZE);
  if (!ours) kept.clear();
  cached = kept.size();
  if (cached == HEAD) kept.clear();  // a cache without pipelines: SwiftShader would prepend another header
  VkPipelineCacheCreateInfo info{VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
  info.initialDataSize = kept.size();
  info.pInitialData = kept.data();
  proofs = std::make_unique<Proofs>(gpu, cachePath, kept, bytes.data.get());
  VKQ_CALL(gpu, vkCreatePipelineCache, gpu.device, &info, nullptr, &cache);
}

// Writes the cache if it has grown. Ignores write errors, because they only make the next start slower.
void Model::saveCache() {
  size_t size = 0;
  if (cachePath.empty()) return;
  if (gpu.vkGetPipelineCacheData(gpu.device, cache, &size, nullptr) < 0 || size <= cached) return;
  std::vector<char> data(size);
  if (gpu.vkGetPipelineCacheData(gpu.device, cache, &size, data.data()) < 0) return;
  if (replace(cachePath, data.data(), size)) cached = size;
}

// Returns shapes as text, in the form of `vkq export --shape`.
static std::string told(const Shapes &shapes) {
  std::string text;
  for (const Array &one : shapes.inputs) {
    text += (text.empty() ? "" : " ") + one.name + "=";
    for (size_t i = 0; i < one.shape.size(); i++) text += (i ? "x" : "") + std::to_string(one.shape[i]);
  }
  return text;
}

// Returns all sets of shapes of the file as text; `taken` is marked.
static std::string told(const File &file, const Shapes *taken) {
  std::string text;
  for (const Shapes &one : file.sets)
    text += (text.empty() ? "" : "; ") + told(one) + (&one == taken ? " (these)" : "");
  return text;
}

size_t Model::find(const uint64_t *const *sizes) const {
  std::string given;
  for (size_t number = 0; number < variants.size(); number++) {
    bool same = true;
    Shapes asked;
    for (const Array &one : variants[number].shapes.inputs) {
      const uint64_t *its = sizes[asked.inputs.size()];
      asked.inputs.push_back(one);
      asked.inputs.back().shape.assign(its, its + one.shape.size());
      same = same && asked.inputs.back().shape == one.shape;
    }
    if (same) return number;
    given = told(asked);
  }
  throw Error(VKQ_ARGUMENT,
              "the file does not hold the shapes " + given + "; it holds " + told(file, nullptr));
}

static constexpr char PROVEN[] = "\nknown answer: not run again, this driver reproduced it for this file";

void Model::takePlan(Variant &of) {
  std::string &described = of.described;
  described.clear();
  const size_t set = &of - variants.data();
  for (const Plan &plan : of.shapes.plans) {
    const size_t number = &plan - of.shapes.plans.data();
    try {
      const bool proven = proofs->has(set, number);
      of.playing = played(of.shapes, plan, proven);
      if (of.playing) {
        proofs->add(set, number);
        described = plan.kind + ": " + plan.about + described;
        if (proven) described += PROVEN;
        if (file.sets.size() > 1) described += "\nshapes: " + told(file, &of.shapes);
        return;
      }
      described += "\n" + plan.kind + ": not taken, its known answer comes out with other bytes";
    } catch (const Error &error) {
      if (error.status != VKQ_DEVICE) throw;
      described += "\n" + plan.kind + ": not taken, " + error.what();
    }
  }
  const std::string name = gpu.properties.deviceName;
  throw Error(VKQ_DEVICE, "no plan of the file runs on " + name + ":" + described);
}

using Content = std::vector<std::vector<uint8_t>>;

// Returns the lowest allowed number for each element: 0, or the bound of an int32 input.
static std::vector<uint8_t> lowest(const Array &one) {
  std::vector<uint8_t> content(one.bytes);
  if (one.type != VKQ_INT32) return content;
  const int32_t low = static_cast<int32_t>(one.low);
  for (uint64_t at = 0; at < one.bytes; at += 4) std::memcpy(content.data() + at, &low, 4);
  return content;
}

// Returns the inputs of the known answer, or, with `others`, different inputs.
static Content given(const Shapes &shapes, bool others) {
  Content content;
  for (const Array &one : shapes.inputs) content.push_back(others ? lowest(one) : one.answer.whole());
  return content;
}

static std::vector<const void *> pointers(const Content &content) {
  std::vector<const void *> found;
  for (const auto &one : content) found.push_back(one.data());
  return found;
}

// Returns true if the plan must run on other inputs before the known answer. Some GPU drivers compute wrong
// results from the second run on, because texel buffers still have the content of the first run.
static bool playsOthersFirst(const Gpu &gpu, const Plan &plan) {
  bool texels = false;
  for (const Program &one : plan.programs) texels = texels || one.texels;
  return texels || gpu.properties.deviceType != VK_PHYSICAL_DEVICE_TYPE_CPU;
}

// Loads a plan, runs it on the inputs of the known answer, and returns it; null if an output differs from the
// known answer. `proven`: load the plan without running it.
std::unique_ptr<Playing> Model::played(const Shapes &shapes, const Plan &plan, bool proven) {
  if (proven) return std::make_unique<Playing>(gpu, shapes, plan, cache, known, nullptr);
  Content results;
  std::vector<void *> outputs;
  for (const Array &one : shapes.outputs) results.emplace_back(one.bytes ? one.bytes : 1);
  for (auto &one : results) outputs.push_back(one.data());
  const bool others = playsOthersFirst(gpu, plan);
  const Content first = given(shapes, others);
  auto made = std::make_unique<Playing>(gpu, shapes, plan, cache, known, pointers(first).data());
  if (others)
    made->run(pointers(given(shapes, false)).data(), outputs.data());
  else
    made->read(outputs.data());
  for (size_t i = 0; i < results.size(); i++)
    if (std::memcmp(results[i].data(), plan.answers[i].whole().data(), shapes.outputs[i].bytes)) return {};
  return made;
}

void Model::run(size_t number, const void *const *inputs, void *const *outputs) {
  const Variant &of = variants[number];
  for (size_t i = 0; i < of.shapes.inputs.size(); i++) {
    const Array &a = of.shapes.inputs[i];
    if (a.type != VKQ_INT32 || !inputs[i]) continue;
    for (uint64_t k = 0; k < a.bytes / 4; k++) {
      int32_t value;
      std::memcpy(&value, static_cast<const uint8_t *>(inputs[i]) + 4 * k, 4);
      if (value < a.low || value > a.high)
        throw Error(VKQ_ARGUMENT, "input " + a.name + " holds " + std::to_string(value) + " at element " +
                                      std::to_string(k) + "; the model takes " + std::to_string(a.low) +
                                      " to " + std::to_string(a.high));
    }
  }
  std::lock_guard<std::mutex> turn(gpu.turn);
  gpu.guard([&] { of.playing->run(inputs, outputs); });
}

}  // namespace vkq::player
