#include "memory.hpp"

namespace vkq {

VkMemoryRequirements makeBuffer(Core &core, uint64_t bytes, VkBuffer *buffer) {
  VkBufferCreateInfo info{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
  info.size = bytes;
  info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT |
               VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  vkTable.vkCreateBuffer(core.handle(), &info, nullptr, buffer);
  core.check();
  VkMemoryRequirements need;
  vkTable.vkGetBufferMemoryRequirements(core.handle(), *buffer, &need);
  return need;
}

Memory::Memory(std::shared_ptr<Core> c, uint64_t n, uint32_t type, bool map)
    : Resource(std::move(c)), bytes(n) {
  Use use(*core);
  try {
    VkDevice d = core->handle();
    VkMemoryRequirements need = makeBuffer(*core, n, &buffer);
    if (type >= 32 || !(need.memoryTypeBits >> type & 1))
      throw UsageError("this memory type cannot hold storage buffers");
    VkMemoryAllocateInfo a{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    a.allocationSize = need.size;
    a.memoryTypeIndex = type;
    vkTable.vkAllocateMemory(d, &a, nullptr, &memory);
    core->check();
    vkTable.vkBindBufferMemory(d, buffer, memory, 0);
    core->check();
    if (map) vkTable.vkMapMemory(d, memory, 0, VK_WHOLE_SIZE, 0, &mapped);
    core->check();
  } catch (...) {
    release();
    throw;
  }
  adopt();
}

void Memory::release() {
  VkDevice d = core->handle();
  if (buffer) vkTable.vkDestroyBuffer(d, buffer, nullptr);
  if (memory) vkTable.vkFreeMemory(d, memory, nullptr);
  buffer = VK_NULL_HANDLE;
  memory = VK_NULL_HANDLE;
  mapped = nullptr;
}

}  // namespace vkq
