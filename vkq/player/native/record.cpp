// Records the commands of a plan and submits them.
#include <algorithm>
#include <cstring>

#include "model.hpp"

namespace vkq::player {

static constexpr uint64_t LONGEST_NS = 100'000'000;  // most estimated time of a submission

// Returns the estimated time of each command of a step.
static std::vector<uint64_t> estimates(const Step &step) {
  if (step.program < 0) return {step.busyNs};
  double groups = 0;
  for (const auto &[first, x, y] : step.grids) groups += double(x) * y;
  const double each = groups ? double(std::min(step.busyNs, LONGEST_NS << 32)) / groups : 0;
  std::vector<uint64_t> found;
  for (const auto &[first, x, y] : step.grids) found.push_back(uint64_t(each * x * y));
  return found;
}

// Returns true if a command must begin a new submission, so that no driver's watchdog stops a long
// submission. Adds the command's time `ns` to `busyNs`, the time of the current submission.
static bool begins(uint64_t ns, uint64_t &busyNs) {
  const bool another = busyNs && ns > LONGEST_NS - std::min(busyNs, LONGEST_NS);
  busyNs = (another ? 0 : busyNs) + std::min(ns, LONGEST_NS);
  return another;
}

void Playing::makeCommands() {
  VkCommandPoolCreateInfo info{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
  info.queueFamilyIndex = gpu.family;
  VKQ_CALL(gpu, vkCreateCommandPool, gpu.device, &info, nullptr, &pool);
  VkFenceCreateInfo fenceInfo{VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
  VKQ_CALL(gpu, vkCreateFence, gpu.device, &fenceInfo, nullptr, &fence);
}

void Playing::makeSets() {
  uint32_t count = 0, buffers = 1, texels = 1;
  for (const Step &step : plan.steps)
    if (step.program >= 0) {
      const Program &p = plan.programs[step.program];
      count++;
      for (uint32_t i = 0; i < p.bindings; i++) (p.texels >> i & 1 ? texels : buffers)++;
    }
  const VkDescriptorPoolSize sizes[]{{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, buffers},
                                     {VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER, texels}};
  VkDescriptorPoolCreateInfo info{VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
  info.maxSets = count ? count : 1;
  info.poolSizeCount = 2;
  info.pPoolSizes = sizes;
  VKQ_CALL(gpu, vkCreateDescriptorPool, gpu.device, &info, nullptr, &sets);
}

// Begins a command buffer in a new submission, or in the last one.
void Playing::begin(bool submission) {
  VkCommandBufferAllocateInfo a{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
  a.commandPool = pool;
  a.commandBufferCount = 1;
  VKQ_CALL(gpu, vkAllocateCommandBuffers, gpu.device, &a, &commands);
  if (submission) submissions.emplace_back();
  submissions.back().push_back(commands);
  VkCommandBufferBeginInfo info{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  VKQ_CALL(gpu, vkBeginCommandBuffer, commands, &info);
}

void Playing::end() { VKQ_CALL(gpu, vkEndCommandBuffer, commands); }

void Playing::barrier() {
  VkMemoryBarrier all{VK_STRUCTURE_TYPE_MEMORY_BARRIER};
  all.srcAccessMask = all.dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT;
  const VkPipelineStageFlags work = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
  gpu.vkCmdPipelineBarrier(commands, work | VK_PIPELINE_STAGE_HOST_BIT, work | VK_PIPELINE_STAGE_HOST_BIT, 0,
                           1, &all, 0, nullptr, 0, nullptr);
  reads.clear();
  writes.clear();
}

// Records a barrier if the step reads or writes a range that was written since the last barrier, or writes a
// range that was read since then.
void Playing::order(const Step &step) {
  const auto meets = [](const Place &a, const std::vector<Place> &others) {
    for (const Place &b : others)
      if (a.buffer == b.buffer && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes) return true;
    return false;
  };
  for (size_t i = 0; i < step.slots.size(); i++) {
    const Place &place = places[step.slots[i]];
    if (meets(place, writes) || (step.access[i] & WRITE && meets(place, reads))) {
      barrier();
      break;
    }
  }
  for (size_t i = 0; i < step.slots.size(); i++)
    (step.access[i] & WRITE ? writes : reads).push_back(places[step.slots[i]]);
}

void Playing::next(bool submission) {
  end();
  if (plays) send({commands}, false);
  begin(submission);
}

// Records the plan. If `plays`, also runs it: each command buffer is submitted as soon as it is recorded.
// Barriers order all work of a queue, so a new submission needs no barrier. On a CPU device, a run takes
// about as long as the compilation of the pipelines. Therefore the first step that uses a pipeline begins a
// command buffer there, and the steps before it run while the pipeline is compiled.
void Playing::record(Together &pipelines) {
  const bool cpu = plays && gpu.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
  uint64_t busyNs = 0;
  std::vector<bool> used(programs.size());
  if (plays) VKQ_CALL(gpu, vkResetFences, gpu.device, 1, &fence);
  begin(true);
  barrier();  // for the host's writes
  if (host) copyArrays(true);
  barrier();
  for (const Step &step : plan.steps) {
    if (step.program >= 0 && !used[step.program]) {
      used[step.program] = true;
      if (cpu && &step != plan.steps.data()) next(false);
      pipelines.wait(step.program);
    }
    order(step);
    const std::vector<uint64_t> ns = estimates(step);
    const VkDescriptorSet set = step.program < 0 ? VK_NULL_HANDLE : makeSet(step);
    for (size_t i = 0; i < ns.size(); i++) {
      if (begins(ns[i], busyNs)) next(true);
      step.program < 0 ? fill(step) : dispatch(step, set, step.grids[i]);
    }
  }
  barrier();
  if (host) copyArrays(false);
  barrier();
  end();
  pipelines.finish();
  if (!plays) return;
  send({commands}, true);
  wait();
}

// Copies the inputs to the device, or the results to the host.
void Playing::copyArrays(bool up) {
  const size_t n = shapes.inputs.size();
  for (size_t i = 0; i < (up ? n : plan.results.size()); i++) {
    const int64_t slot = up ? int64_t(i) : plan.results[i].slot;
    if (slot < 0) continue;
    const Place &place = places[slot];
    const VkBufferCopy region{place.offset, place.offset, place.bytes};
    gpu.vkCmdCopyBuffer(commands, up ? host->handle : arrays->handle, up ? arrays->handle : host->handle, 1,
                        &region);
  }
}

void Playing::fill(const Step &step) {
  const Place &place = places[step.slots[0]];
  gpu.vkCmdFillBuffer(commands, place.buffer, place.offset, place.bytes, step.value);
}

// Writes the buffers of a step's program into a descriptor set.
VkDescriptorSet Playing::makeSet(const Step &step) {
  const Program &p = plan.programs[step.program];
  VkDescriptorSetAllocateInfo info{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
  info.descriptorPool = sets;
  info.descriptorSetCount = 1;
  info.pSetLayouts = &programs[step.program].setLayout;
  VkDescriptorSet set = VK_NULL_HANDLE;
  VKQ_CALL(gpu, vkAllocateDescriptorSets, gpu.device, &info, &set);
  std::vector<VkDescriptorBufferInfo> infos(p.bindings);
  std::vector<VkBufferView> seen(p.bindings);
  std::vector<VkWriteDescriptorSet> updates(p.bindings);
  for (uint32_t i = 0; i < p.bindings; i++) {
    const Place &place = places[step.slots[i]];
    // A shader may access the last, partial vector as a whole, and a driver may drop an access that is partly
    // outside the range.
    infos[i] = {place.buffer, place.offset, aligned(place.bytes, VECTOR)};
    const bool texels = p.texels >> i & 1;
    if (texels) {
      VkBufferViewCreateInfo view{VK_STRUCTURE_TYPE_BUFFER_VIEW_CREATE_INFO};
      view.buffer = place.buffer;
      view.format = VK_FORMAT_R32G32B32A32_SINT;  // every device supports this for texel buffers
      view.offset = place.offset;
      view.range = infos[i].range;
      VKQ_CALL(gpu, vkCreateBufferView, gpu.device, &view, nullptr, &seen[i]);
      views.push_back(seen[i]);
    }
    updates[i] = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, nullptr, set, i, 0, 1,
                  texels ? VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                  nullptr, &infos[i], &seen[i]};
  }
  gpu.vkUpdateDescriptorSets(gpu.device, p.bindings, updates.data(), 0, nullptr);
  return set;
}

void Playing::dispatch(const Step &step, VkDescriptorSet set, const Grid &grid) {
  const Compiled &made = programs[step.program];
  const auto &[first, x, y] = grid;
  std::string push = step.push;
  if (step.firstGroupAt >= 0) std::memcpy(&push[step.firstGroupAt], &first, 4);
  gpu.vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, made.pipeline);
  gpu.vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, made.layout, 0, 1, &set, 0, nullptr);
  if (!push.empty())
    gpu.vkCmdPushConstants(commands, made.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                           static_cast<uint32_t>(push.size()), push.data());
  gpu.vkCmdDispatch(commands, x, y, 1);
}

// Waits for all submitted work before its memory is freed, also after a failed submission.
void Playing::settle() {
  if (busy) gpu.vkDeviceWaitIdle(gpu.device);
  busy = false;
}

void Playing::submit() {
  VKQ_CALL(gpu, vkResetFences, gpu.device, 1, &fence);
  try {
    for (const Submission &one : submissions) send(one, &one == &submissions.back());
  } catch (...) {
    settle();
    throw;
  }
  wait();
}

// If `last`, the fence signals when these commands and all earlier ones have ended.
void Playing::send(const Submission &one, bool last) {
  VkSubmitInfo info{VK_STRUCTURE_TYPE_SUBMIT_INFO};
  info.commandBufferCount = static_cast<uint32_t>(one.size());
  info.pCommandBuffers = one.data();
  VKQ_CALL(gpu, vkQueueSubmit, gpu.queue, 1, &info, last ? fence : VK_NULL_HANDLE);
  busy = true;
}

void Playing::wait() {
  const VkResult waited = gpu.vkWaitForFences(gpu.device, 1, &fence, VK_TRUE, UINT64_MAX);
  busy = false;
  VkResult result;
  check(injected(&result) ? result : waited, "vkWaitForFences");  // an injected failure comes after the wait
}

// Copies the inputs to host-visible memory.
void Playing::write(const void *const *inputs) {
  uint8_t *seen = host ? host->mapped : arrays->mapped;
  for (size_t i = 0; i < shapes.inputs.size(); i++)
    std::memcpy(seen + arrayAt[i], inputs[i], shapes.inputs[i].bytes);
}

void Playing::read(void *const *outputs) const {
  const uint8_t *seen = host ? host->mapped : arrays->mapped;
  for (size_t i = 0; i < plan.results.size(); i++) {
    const Result &r = plan.results[i];
    std::memcpy(outputs[i], r.slot < 0 ? r.constant.data : seen + places[r.slot].offset,
                shapes.outputs[i].bytes);
  }
}

void Playing::run(const void *const *inputs, void *const *outputs) {
  write(inputs);
  submit();
  read(outputs);
}

}  // namespace vkq::player
