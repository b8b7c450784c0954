// Gives a plan its memory and pipelines; record.cpp records its commands.
#include <algorithm>
#include <cstring>

#include "model.hpp"

namespace vkq::player {

static constexpr uint64_t CHUNK = uint64_t(1) << 28;  // most bytes of weights that share a buffer
static constexpr uint64_t BETWEEN = 256;              // alignment of arrays in a buffer

Playing::Playing(Gpu &g, const Shapes &s, const Plan &p, VkPipelineCache cache, Weights &known,
                 const void *const *first)
    : gpu(g), shapes(s), plan(p), plays(first) {
  try {
    checkNeeds();
    programs.resize(plan.programs.size());
    std::map<Blob::Key, Code> codes;
    for (const Program &one : plan.programs) codes[one.spirv.key()];
    Together pipelines(programs.size(), [&](size_t i) {
      compile(plan.programs[i], programs[i], codes.at(plan.programs[i].spirv.key()), cache);
    });
    places.resize(plan.slots);
    placeArrays();
    // The last part may begin in the middle of a vector, and its last vector is bound as a whole.
    if (plan.scratchBytes)
      scratch = std::make_unique<Buffer>(gpu, aligned(plan.scratchBytes, VECTOR) + VECTOR, false);
    for (const Part &one : plan.scratch) places[one.slot] = {scratch->handle, one.offset, one.bytes};
    makeCommands();
    placeWeights(known);
    makeSets();
    if (plays) write(first);
    record(pipelines);
  } catch (...) {
    release();
    throw;
  }
}

Playing::~Playing() { release(); }

void Playing::release() {
  settle();
  if (fence) gpu.vkDestroyFence(gpu.device, fence, nullptr);
  if (pool) gpu.vkDestroyCommandPool(gpu.device, pool, nullptr);
  if (sets) gpu.vkDestroyDescriptorPool(gpu.device, sets, nullptr);
  for (VkBufferView view : views) gpu.vkDestroyBufferView(gpu.device, view, nullptr);
  for (const Compiled &one : programs) {
    if (one.pipeline) gpu.vkDestroyPipeline(gpu.device, one.pipeline, nullptr);
    if (one.layout) gpu.vkDestroyPipelineLayout(gpu.device, one.layout, nullptr);
    if (one.setLayout) gpu.vkDestroyDescriptorSetLayout(gpu.device, one.setLayout, nullptr);
  }
}

void Playing::checkNeeds() const {
  for (const Need &need : plan.needs) {
    const bool equal = need.name[0] == '=';
    const auto found = gpu.facts.find(need.name.substr(equal));
    const uint64_t have = found == gpu.facts.end() ? 0 : found->second;
    if (equal ? have != need.value : have < need.value)
      throw Error(VKQ_DEVICE, "it needs " + need.name.substr(equal) + (equal ? " = " : " of ") +
                                  std::to_string(need.value) + ", the device has " + std::to_string(have));
  }
  const uint64_t alignment = std::max(gpu.properties.limits.minStorageBufferOffsetAlignment,
                                      gpu.properties.limits.minTexelBufferOffsetAlignment);
  if (plan.alignment % alignment || BETWEEN % alignment)
    throw Error(VKQ_DEVICE, "it aligns arrays to " + std::to_string(plan.alignment) +
                                " bytes; the device requires " + std::to_string(alignment));
}

void Playing::placeArrays() {
  uint64_t at = 0;
  for (const auto *some : {&shapes.inputs, &shapes.outputs})
    for (const Array &one : *some) {
      arrayAt.push_back(at);
      at += aligned(one.stored, BETWEEN);
    }
  arrays = std::make_unique<Buffer>(gpu, at, false);
  if (!arrays->mapped) host = std::make_unique<Buffer>(gpu, at, true);
  for (size_t i = 0; i < shapes.inputs.size(); i++)
    places[i] = {arrays->handle, arrayAt[i], shapes.inputs[i].stored};
  for (size_t i = 0; i < plan.results.size(); i++)
    if (plan.results[i].slot >= int64_t(shapes.inputs.size()))
      places[plan.results[i].slot] = {arrays->handle, arrayAt[shapes.inputs.size() + i],
                                      shapes.outputs[i].stored};
}

static Words words(const Constant &one) { return {one.blob.key(), one.sizes, one.strides}; }

// Stores each constant once, even if several slots or the plans for other shapes read it. A constant that
// a step writes (a counter) is stored once for each slot.
void Playing::placeWeights(Weights &known) {
  std::vector<uint8_t> written(plan.slots, 0);
  for (const Step &step : plan.steps)
    for (size_t i = 0; i < step.slots.size(); i++)
      if (step.program < 0 || step.access[i] & WRITE) written[step.slots[i]] = 1;
  std::map<Words, std::shared_ptr<Buffer>> held;
  std::vector<const Constant *> fresh;
  for (const Constant &one : plan.constants) {
    if (written[one.slot]) {
      fresh.push_back(&one);
      continue;
    }
    const auto [found, first] = held.try_emplace(words(one), known[words(one)].buffer.lock());
    if (first && found->second) weights.push_back(found->second);
    if (first && !found->second) fresh.push_back(&one);
  }
  uploadWeights(fresh, [&](const Constant &one, const std::shared_ptr<Buffer> &buffer, uint64_t at) {
    places[one.slot] = {buffer->handle, at, one.blob.bytes};
    if (!written[one.slot]) known[words(one)] = {buffer, at};
  });
  for (const Constant &one : plan.constants) {
    if (written[one.slot]) continue;
    const Weight &its = known[words(one)];
    places[one.slot] = {its.buffer.lock()->handle, its.at, one.blob.bytes};
  }
}

// Uploads constants into few buffers, and calls `placed` for each constant.
template <typename Placed>
void Playing::uploadWeights(const std::vector<const Constant *> &fresh, Placed placed) {
  std::vector<std::pair<uint64_t, const Constant *>> parts;
  uint64_t total = 0;
  const auto flush = [&] {
    if (parts.empty()) return;
    weights.push_back(std::make_shared<Buffer>(gpu, total, false));
    upload(*weights.back(), parts);
    for (const auto &[at, one] : parts) placed(*one, weights.back(), at);
    parts.clear();
    total = 0;
  };
  for (const Constant *one : fresh) {
    if (total && total + one->blob.bytes > CHUNK) flush();
    parts.push_back({total, one});
    total += aligned(one->blob.bytes, BETWEEN);
  }
  flush();
}

void Playing::upload(Buffer &to, const std::vector<std::pair<uint64_t, const Constant *>> &parts) {
  std::unique_ptr<Buffer> staging;
  if (!to.mapped) staging = std::make_unique<Buffer>(gpu, to.bytes, true);
  for (const auto &[at, one] : parts) one->copy((staging ? staging->mapped : to.mapped) + at);
  if (!staging) return;
  begin(true);
  const VkBufferCopy region{0, 0, to.bytes};
  gpu.vkCmdCopyBuffer(commands, staging->handle, to.handle, 1, &region);
  barrier();
  end();
  submit();
  submissions.clear();
}

void Playing::compile(const Program &p, Compiled &made, Code &code, VkPipelineCache cache) {
  std::vector<VkDescriptorSetLayoutBinding> bindings(p.bindings);
  for (uint32_t i = 0; i < p.bindings; i++)
    bindings[i] = {i, p.texels >> i & 1 ? VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER
                                        : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                   1, VK_SHADER_STAGE_COMPUTE_BIT, nullptr};
  VkDescriptorSetLayoutCreateInfo s{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
  s.bindingCount = p.bindings;
  s.pBindings = bindings.data();
  VKQ_CALL(gpu, vkCreateDescriptorSetLayout, gpu.device, &s, nullptr, &made.setLayout);
  const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, p.pushBytes};
  VkPipelineLayoutCreateInfo l{VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
  l.setLayoutCount = 1;
  l.pSetLayouts = &made.setLayout;
  l.pushConstantRangeCount = p.pushBytes ? 1 : 0;
  l.pPushConstantRanges = &range;
  VKQ_CALL(gpu, vkCreatePipelineLayout, gpu.device, &l, nullptr, &made.layout);

  {
    std::lock_guard<std::mutex> held(code.turn);
    if (code.words.empty()) code.words = p.spirv.shader();
  }
  std::vector<uint32_t> values;
  std::vector<VkSpecializationMapEntry> entries;
  for (const auto &[id, bits] : p.constants) {
    entries.push_back({id, static_cast<uint32_t>(4 * values.size()), 4});
    values.push_back(bits);
  }
  const VkSpecializationInfo specialization{static_cast<uint32_t>(entries.size()), entries.data(),
                                            4 * values.size(), values.data()};
  VkShaderModuleCreateInfo m{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
  m.codeSize = 4 * code.words.size();
  m.pCode = code.words.data();
  VkShaderModule module = VK_NULL_HANDLE;
  VKQ_CALL(gpu, vkCreateShaderModule, gpu.device, &m, nullptr, &module);
  VkPipelineShaderStageRequiredSubgroupSizeCreateInfo size{
      VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO};
  size.requiredSubgroupSize = p.subgroupSize;
  VkComputePipelineCreateInfo info{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
  info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
  if (p.subgroupSize) {
    info.stage.pNext = &size;
    info.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
  }
  info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  info.stage.module = module;
  info.stage.pName = "main";
  info.stage.pSpecializationInfo = &specialization;
  info.layout = made.layout;
  VkResult result;
  if (!injected(&result))
    result = gpu.vkCreateComputePipelines(gpu.device, cache, 1, &info, nullptr, &made.pipeline);
  gpu.vkDestroyShaderModule(gpu.device, module, nullptr);
  check(result, "vkCreateComputePipelines");
}

}  // namespace vkq::player
