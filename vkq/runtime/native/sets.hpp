// The descriptor sets of a recording and the views of their buffers. Their pools are kept and reused.
#pragma once
#include "memory.hpp"
#include "program.hpp"

namespace vkq {

struct DescriptorSets {
  static constexpr uint32_t PER_POOL = 64, TEXELS_PER_SET = 2;  // both operands of a product

  VkDescriptorSet allocate(Core &core, const Program &program);
  // Returns a view of a range as texels of four int32; the device limits its size.
  VkBufferView view(Core &core, const Range &range);
  void reset(Core &core);    // makes all sets available again, and destroys the views
  void release(Core &core);  // also destroys the pools

 private:
  std::vector<VkDescriptorPool> pools;
  std::vector<VkBufferView> views;
  size_t used = 0;    // number of pools in use
  uint32_t left = 0;  // remaining sets of the last pool
  void dropViews(Core &core);
};

}  // namespace vkq
