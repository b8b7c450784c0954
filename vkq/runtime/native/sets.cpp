#include "sets.hpp"

namespace vkq {

VkDescriptorSet DescriptorSets::allocate(Core &core, const Program &program) {
  VkDevice d = core.handle();
  if (left == 0) {
    if (used == pools.size()) {
      VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, PER_POOL * Program::MOST_BINDINGS};
      VkDescriptorPoolCreateInfo info{VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
      info.maxSets = PER_POOL;
      info.poolSizeCount = 1;
      info.pPoolSizes = &size;
      VkDescriptorPool pool = VK_NULL_HANDLE;
      vkTable.vkCreateDescriptorPool(d, &info, nullptr, &pool);
      core.check();
      pools.push_back(pool);
    }
    used++;
    left = PER_POOL;
  }
  VkDescriptorSetAllocateInfo info{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
  info.descriptorPool = pools[used - 1];
  info.descriptorSetCount = 1;
  info.pSetLayouts = &program.setLayout;
  VkDescriptorSet set = VK_NULL_HANDLE;
  vkTable.vkAllocateDescriptorSets(d, &info, &set);
  core.check();
  left--;
  return set;
}

void DescriptorSets::reset(Core &core) {
  for (size_t i = 0; i < used; i++) vkTable.vkResetDescriptorPool(core.handle(), pools[i], 0);
  used = left = 0;
}

void DescriptorSets::release(Core &core) {
  for (VkDescriptorPool p : pools) vkTable.vkDestroyDescriptorPool(core.handle(), p, nullptr);
  pools.clear();
}

}  // namespace vkq
