// A VkDeviceMemory with one VkBuffer that covers it. The arena (arena.hpp) manages its ranges.
#pragma once
#include "core.hpp"

namespace vkq {

// Makes a buffer without memory in `buffer`, and returns the buffer's memory requirements.
VkMemoryRequirements makeBuffer(Core &core, uint64_t bytes, VkBuffer *buffer);

struct Memory : Resource, std::enable_shared_from_this<Memory> {
  VkBuffer buffer = VK_NULL_HANDLE;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  void *mapped = nullptr;
  uint64_t bytes;
  size_t views = 0;  // number of NumPy arrays that view this memory; protected by core->mutex

  Memory(std::shared_ptr<Core> c, uint64_t n, uint32_t type, bool map);
  ~Memory() override { dispose(); }
  void release() override;
  bool shown() const override { return views; }
};

// A range of a buffer.
struct Range {
  VkBuffer buffer;
  uint64_t offset, bytes;
};

}  // namespace vkq
