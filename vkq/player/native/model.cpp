#include "model.hpp"

#include <cstdio>
#include <cstring>

namespace vkq::player {

static constexpr uint64_t MOST_CACHE = uint64_t(1) << 28;

Model::Model(Gpu &g, Bytes b, const char *cachePath) : gpu(g), bytes(std::move(b)) {
  file = read(bytes.data.get(), bytes.count);
  std::lock_guard<std::mutex> turn(gpu.turn);
  try {
    gpu.guard([&] {
      openCache(cachePath);
      takePlan();
    });
  } catch (...) {
    if (cache) gpu.vkDestroyPipelineCache(gpu.device, cache, nullptr);
    throw;
  }
  if (cachePath) saveCache(cachePath);
}

Model::~Model() {
  std::lock_guard<std::mutex> turn(gpu.turn);
  playing.reset();
  if (cache) gpu.vkDestroyPipelineCache(gpu.device, cache, nullptr);
}

// A cache of another driver, or a damaged one, is ignored: drivers check the header that Vulkan prescribes.
void Model::openCache(const char *path) {
  std::vector<char> known;
  if (FILE *stream = path ? std::fopen(path, "rb") : nullptr) {
    char block[1 << 16];
    for (size_t n; known.size() < MOST_CACHE && (n = std::fread(block, 1, sizeof block, stream)) > 0;)
      known.insert(known.end(), block, block + n);
    std::fclose(stream);
  }
  const VkPhysicalDeviceProperties &p = gpu.properties;
  const uint32_t head[]{32, 1, p.vendorID, p.deviceID};
  const bool ours = known.size() >= 32 && !std::memcmp(known.data(), head, sizeof head) &&
                    !std::memcmp(known.data() + 16, p.pipelineCacheUUID, VK_UUID_SIZE);
  VkPipelineCacheCreateInfo info{VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
  info.initialDataSize = cached = ours ? known.size() : 0;
  info.pInitialData = known.data();
  VKQ_CALL(gpu, vkCreatePipelineCache, gpu.device, &info, nullptr, &cache);
}

// Written whole or not at all, where pipelines came to it; a cache that cannot be written costs only time.
void Model::saveCache(const char *path) {
  size_t size = 0;
  if (gpu.vkGetPipelineCacheData(gpu.device, cache, &size, nullptr) < 0 || size <= cached) return;
  std::vector<char> data(size);
  if (gpu.vkGetPipelineCacheData(gpu.device, cache, &size, data.data()) < 0) return;
  const std::string partial = std::string(path) + ".part";
  FILE *stream = std::fopen(partial.c_str(), "wb");
  if (!stream) return;
  const bool whole = std::fwrite(data.data(), 1, size, stream) == size;
  if (std::fclose(stream) || !whole || std::rename(partial.c_str(), path)) std::remove(partial.c_str());
}

void Model::takePlan() {
  for (const Plan &plan : file.plans) {
    try {
      playing = std::make_unique<Playing>(gpu, file, plan, cache);
      if (answersRightly(plan)) {
        described = plan.kind + ": " + plan.about + described;
        return;
      }
      described += "\n" + plan.kind + ": not taken, its known answer comes out with other bytes";
    } catch (const Error &error) {
      if (error.status != VKQ_DEVICE) throw;
      described += "\n" + plan.kind + ": not taken, " + error.what();
    }
    playing.reset();
  }
  const std::string name = gpu.properties.deviceName;
  throw Error(VKQ_DEVICE, "no plan of the file runs on " + name + ":" + described);
}

bool Model::answersRightly(const Plan &plan) {
  std::vector<std::vector<uint8_t>> given;
  std::vector<const void *> inputs;
  for (const Array &one : file.inputs) given.push_back(one.answer.whole());
  for (const auto &one : given) inputs.push_back(one.data());
  std::vector<std::vector<uint8_t>> results;
  std::vector<void *> outputs;
  for (const Array &one : file.outputs) results.emplace_back(one.bytes ? one.bytes : 1);
  for (auto &one : results) outputs.push_back(one.data());
  playing->run(inputs.data(), outputs.data());
  for (size_t i = 0; i < results.size(); i++)
    if (std::memcmp(results[i].data(), plan.answers[i].whole().data(), file.outputs[i].bytes)) return false;
  return true;
}

void Model::run(const void *const *inputs, void *const *outputs) {
  for (size_t i = 0; i < file.inputs.size(); i++) {
    const Array &a = file.inputs[i];
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
  gpu.guard([&] { playing->run(inputs, outputs); });
}

}  // namespace vkq::player
