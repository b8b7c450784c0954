// The descriptor sets of a recording, from pools that grow in number and are kept, and the views of buffers
// in them.
#pragma once
#include "memory.hpp"
#include "program.hpp"

namespace vkq {

struct DescriptorSets {
  static constexpr uint32_t PER_POOL = 64, TEXELS_PER_SET = 2;  // both operands of a product

  VkDescriptorSet allocate(Core &core, const Program &program);
  // A range as texels of four int32, as far as the device can view it at once.
  VkBufferView view(Core &core, const Range &range);
  void reset(Core &core);    // all sets are free again, and the views are no more
  void release(Core &core);  // nor are the pools

 private:
  std::vector<VkDescriptorPool> pools;
  std::vector<VkBufferView> views;
  size_t used = 0;    // pools
  uint32_t left = 0;  // sets of the last one
  void dropViews(Core &core);
};

}  // namespace vkq
