// One VkDeviceMemory with one VkBuffer over all of it; the arena (buffer.py) hands out ranges.
#pragma once
#include "core.hpp"

namespace vkq {

// A buffer without memory, and what memory it needs.
VkMemoryRequirements makeBuffer(Core &core, uint64_t bytes, VkBuffer *buffer);

struct Memory : Resource, std::enable_shared_from_this<Memory> {
  VkBuffer buffer = VK_NULL_HANDLE;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  void *mapped = nullptr;
  uint64_t bytes;
  size_t views = 0;  // arrays of Python's that lie in it; with core->mutex held

  Memory(std::shared_ptr<Core> c, uint64_t n, uint32_t type, bool map);
  ~Memory() override { dispose(); }
  void release() override;
  bool shown() const override { return views; }
};

// A part of a memory, as operations use it.
struct Range {
  VkBuffer buffer;
  uint64_t offset, bytes;
};

}  // namespace vkq
