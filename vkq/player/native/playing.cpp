// How a plan gets its memory and pipelines; record.cpp has its commands.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "model.hpp"

namespace vkq::player {

static constexpr uint64_t CHUNK = uint64_t(1) << 28;  // of weights in one buffer, where they are smaller
static constexpr uint64_t BETWEEN = 256;              // arrays begin at multiples of it
static constexpr size_t MOST_THREADS = 8;             // that make pipelines

static uint64_t aligned(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

Playing::Playing(Gpu &g, const File &f, const Plan &p, VkPipelineCache cache) : gpu(g), file(f), plan(p) {
  try {
    checkNeeds();
    places.resize(plan.slots);
    placeArrays();
    if (plan.scratchBytes) scratch = std::make_unique<Buffer>(gpu, aligned(plan.scratchBytes, 4), false);
    for (const Part &one : plan.scratch) places[one.slot] = {scratch->handle, one.offset, one.bytes};
    VkCommandPoolCreateInfo info{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
    info.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
    info.queueFamilyIndex = gpu.family;
    VKQ_CALL(gpu, vkCreateCommandPool, gpu.device, &info, nullptr, &pool);
    VkCommandBufferAllocateInfo a{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
    a.commandPool = pool;
    a.commandBufferCount = 1;
    VKQ_CALL(gpu, vkAllocateCommandBuffers, gpu.device, &a, &commands);
    VkFenceCreateInfo fenceInfo{VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    VKQ_CALL(gpu, vkCreateFence, gpu.device, &fenceInfo, nullptr, &fence);
    placeWeights();
    compile(cache);
    makeSets();
    record();
  } catch (...) {
    release();
    throw;
  }
}

Playing::~Playing() { release(); }

void Playing::release() {
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
    throw Error(VKQ_DEVICE, "its arrays begin at multiples of " + std::to_string(plan.alignment) +
                                " bytes, the device's must at " + std::to_string(alignment));
}

void Playing::placeArrays() {
  uint64_t at = 0;
  for (const auto *some : {&file.inputs, &file.outputs})
    for (const Array &one : *some) {
      arrayAt.push_back(at);
      at += aligned(one.stored, BETWEEN);
    }
  arrays = std::make_unique<Buffer>(gpu, at, false);
  if (!arrays->mapped) host = std::make_unique<Buffer>(gpu, at, true);
  for (size_t i = 0; i < file.inputs.size(); i++)
    places[i] = {arrays->handle, arrayAt[i], file.inputs[i].stored};
  for (size_t i = 0; i < plan.results.size(); i++)
    if (plan.results[i].slot >= int64_t(file.inputs.size()))
      places[plan.results[i].slot] = {arrays->handle, arrayAt[file.inputs.size() + i],
                                      file.outputs[i].stored};
}

// Weights in few buffers, each blob once however many slots read it.
void Playing::placeWeights() {
  std::vector<std::pair<uint64_t, const Constant *>> parts;
  uint64_t total = 0;
  const auto flush = [&] {
    if (parts.empty()) return;
    weights.push_back(std::make_unique<Buffer>(gpu, total, false));
    upload(*weights.back(), parts);
    for (const auto &[at, one] : parts)
      places[one->slot] = {weights.back()->handle, at, one->blob.bytes};
    parts.clear();
    total = 0;
  };
  for (const Constant &one : plan.constants) {
    if (total && total + one.blob.bytes > CHUNK) flush();
    parts.push_back({total, &one});
    total += aligned(one.blob.bytes, BETWEEN);
  }
  flush();
}

void Playing::upload(Buffer &to, const std::vector<std::pair<uint64_t, const Constant *>> &parts) {
  std::unique_ptr<Buffer> staging;
  if (!to.mapped) staging = std::make_unique<Buffer>(gpu, to.bytes, true);
  for (const auto &[at, one] : parts) one->copy((staging ? staging->mapped : to.mapped) + at);
  if (!staging) return;
  begin();
  const VkBufferCopy region{0, 0, to.bytes};
  gpu.vkCmdCopyBuffer(commands, staging->handle, to.handle, 1, &region);
  barrier();
  VKQ_CALL(gpu, vkEndCommandBuffer, commands);
  submit();
}

void Playing::compile(VkPipelineCache cache) {
  programs.resize(plan.programs.size());
  std::atomic<size_t> next{0};
  std::mutex turn;
  std::exception_ptr failed;
  const auto work = [&] {
    for (size_t i; (i = next++) < programs.size();) {
      try {
        compile(plan.programs[i], programs[i], cache);
      } catch (...) {
        std::lock_guard<std::mutex> held(turn);
        if (!failed) failed = std::current_exception();
        next = programs.size();
      }
    }
  };
  const size_t count = std::min({MOST_THREADS, programs.size(), size_t(std::thread::hardware_concurrency())});
  std::vector<std::thread> others;
  try {
    while (others.size() + 1 < count) others.emplace_back(work);
  } catch (const std::system_error &) {  // no more threads: those that there are suffice
  }
  work();
  for (std::thread &one : others) one.join();
  if (failed) std::rethrow_exception(failed);
}

void Playing::compile(const Program &p, Compiled &made, VkPipelineCache cache) {
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

  const std::vector<uint32_t> code = p.spirv.shader();
  std::vector<uint32_t> values;
  std::vector<VkSpecializationMapEntry> entries;
  for (const auto &[id, bits] : p.constants) {
    entries.push_back({id, static_cast<uint32_t>(4 * values.size()), 4});
    values.push_back(bits);
  }
  const VkSpecializationInfo specialization{static_cast<uint32_t>(entries.size()), entries.data(),
                                            4 * values.size(), values.data()};
  VkShaderModuleCreateInfo m{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
  m.codeSize = 4 * code.size();
  m.pCode = code.data();
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
