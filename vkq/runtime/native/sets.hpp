// The descriptor sets of a recording, from pools that grow in number and are kept.
#pragma once
#include "program.hpp"

namespace vkq {

struct DescriptorSets {
  static constexpr uint32_t PER_POOL = 64;

  VkDescriptorSet allocate(Core &core, const Program &program);
  void reset(Core &core);    // all sets are free again
  void release(Core &core);  // the pools are no more

 private:
  std::vector<VkDescriptorPool> pools;
  size_t used = 0;    // pools
  uint32_t left = 0;  // sets of the last one
};

}  // namespace vkq
