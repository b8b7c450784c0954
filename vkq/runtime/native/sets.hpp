// The descriptor sets of a recording and the views of their buffers. Their pools are kept and reused.
#pragma once
#include "memory.hpp"
#include "program.hpp"

namespace vkq {

struct DescriptorSets {
  // TEXELS_PER_SET: average number of texel buffers of a set (a product has x, the weights and their
  // parameters). A pool may run out of texel buffers before it has PER_POOL sets.
  static constexpr uint32_t PER_POOL = 64, TEXELS_PER_SET = 3;

  VkDescriptorSet allocate(Core &core, const Program &program);
  // Returns a view of a range as texels of four int32; the device limits its size.
  VkBufferView view(Core &core, const Range &range);
  void reset(Core &core);    // makes all sets available again, and destroys the views
  void release(Core &core);  // also destroys the pools

 private:
  std::vector<VkDescriptorPool> pools;
  std::vector<VkBufferView> views;
  size_t used = 0;    // number of pools in use
  uint32_t left = 0, texelsLeft = 0;  // remaining sets of the last pool, and their texel buffers
  void dropViews(Core &core);
};

}  // namespace vkq
