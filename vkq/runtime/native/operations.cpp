#include "operations.hpp"

namespace vkq {

static constexpr VkPipelineStageFlags WORK =
    VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;

static void memoryBarrier(const vk::CommandBuffer &commands, VkAccessFlags before, VkAccessFlags after,
                          VkPipelineStageFlags stages) {
  VkMemoryBarrier barrier{VK_STRUCTURE_TYPE_MEMORY_BARRIER};
  barrier.srcAccessMask = before;
  barrier.dstAccessMask = after;
  vkTable.vkCmdPipelineBarrier(commands, WORK, stages, 0, 1, &barrier, 0, nullptr, 0, nullptr);
}

void Barrier::record(const vk::CommandBuffer &commands) {
  const VkAccessFlags all = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT;
  const VkAccessFlags writes = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
  const VkAccessFlags reads = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT;
  memoryBarrier(commands, wide ? all : writes, wide ? all : writes | reads, WORK);
}

void HostBarrier::record(const vk::CommandBuffer &commands) {
  memoryBarrier(commands, VK_ACCESS_MEMORY_WRITE_BIT, VK_ACCESS_HOST_READ_BIT | VK_ACCESS_HOST_WRITE_BIT,
                VK_PIPELINE_STAGE_HOST_BIT);
}

void Copy::record(const vk::CommandBuffer &commands) {
  VkBufferCopy region{from.offset, to.offset, from.bytes};
  vkTable.vkCmdCopyBuffer(commands, from.buffer, to.buffer, 1, &region);
}

void Fill::record(const vk::CommandBuffer &commands) {
  vkTable.vkCmdFillBuffer(commands, to.buffer, to.offset, to.bytes, value);
}

void ResetQueries::record(const vk::CommandBuffer &commands) {
  vkTable.vkCmdResetQueryPool(commands, pool, 0, count);
}

void Timestamp::record(const vk::CommandBuffer &commands) {
  vkTable.vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, pool, index);
}

void Dispatch::record(const vk::CommandBuffer &commands) {
  vkTable.vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
  vkTable.vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &set, 0, nullptr);
  if (!push.empty())
    vkTable.vkCmdPushConstants(commands, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                               static_cast<uint32_t>(push.size()), push.data());
  vkTable.vkCmdDispatch(commands, x, y, 1);
}

}  // namespace vkq
