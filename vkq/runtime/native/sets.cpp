#include "sets.hpp"

#include <algorithm>
#include <bitset>

namespace vkq {

VkDescriptorSet DescriptorSets::allocate(Core &core, const Program &program) {
  VkDevice d = core.handle();
  const auto texels = static_cast<uint32_t>(std::bitset<32>(program.texels).count());
  if (left == 0 || texels > texelsLeft) {
    if (used == pools.size()) {
      const VkDescriptorPoolSize sizes[]{
          {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, PER_POOL * Program::MOST_BINDINGS},
          {VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER, PER_POOL * TEXELS_PER_SET}};
      VkDescriptorPoolCreateInfo info{VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
      info.maxSets = PER_POOL;
      info.poolSizeCount = 2;
      info.pPoolSizes = sizes;
      VkDescriptorPool pool = VK_NULL_HANDLE;
      vkTable.vkCreateDescriptorPool(d, &info, nullptr, &pool);
      core.check();
      pools.push_back(pool);
    }
    used++;
    left = PER_POOL;
    texelsLeft = PER_POOL * TEXELS_PER_SET;
  }
  VkDescriptorSetAllocateInfo info{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
  info.descriptorPool = pools[used - 1];
  info.descriptorSetCount = 1;
  info.pSetLayouts = &program.setLayout;
  VkDescriptorSet set = VK_NULL_HANDLE;
  vkTable.vkAllocateDescriptorSets(d, &info, &set);
  core.check();
  left--;
  texelsLeft -= texels;
  return set;
}

VkBufferView DescriptorSets::view(Core &core, const Range &range) {
  VkBufferViewCreateInfo info{VK_STRUCTURE_TYPE_BUFFER_VIEW_CREATE_INFO};
  info.buffer = range.buffer;
  info.format = VK_FORMAT_R32G32B32A32_SINT;  // every device supports this format for texel buffers
  info.offset = range.offset;
  info.range = 16 * std::min(range.bytes / 16, core.maxTexels);
  VkBufferView made = VK_NULL_HANDLE;
  vkTable.vkCreateBufferView(core.handle(), &info, nullptr, &made);
  core.check();
  views.push_back(made);
  return made;
}

void DescriptorSets::dropViews(Core &core) {
  for (VkBufferView v : views) vkTable.vkDestroyBufferView(core.handle(), v, nullptr);
  views.clear();
}

void DescriptorSets::reset(Core &core) {
  dropViews(core);
  for (size_t i = 0; i < used; i++) vkTable.vkResetDescriptorPool(core.handle(), pools[i], 0);
  used = left = texelsLeft = 0;
}

void DescriptorSets::release(Core &core) {
  dropViews(core);
  for (VkDescriptorPool p : pools) vkTable.vkDestroyDescriptorPool(core.handle(), p, nullptr);
  pools.clear();
}

}  // namespace vkq
