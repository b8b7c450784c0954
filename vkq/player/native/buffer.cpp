// Memory that shaders read and write.
#include "gpu.hpp"

namespace vkq::player {

Buffer::Buffer(Gpu &g, uint64_t n, bool host) : gpu(g), bytes(n) {
  try {
    VkBufferCreateInfo info{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
    info.size = n;
    info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT |
                 VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    VKQ_CALL(gpu, vkCreateBuffer, gpu.device, &info, nullptr, &handle);
    VkMemoryRequirements need;
    gpu.vkGetBufferMemoryRequirements(gpu.device, handle, &need);
    VkMemoryAllocateInfo a{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    a.allocationSize = need.size;
    a.memoryTypeIndex = type(need.memoryTypeBits, host);
    VKQ_CALL(gpu, vkAllocateMemory, gpu.device, &a, nullptr, &memory);
    VKQ_CALL(gpu, vkBindBufferMemory, gpu.device, handle, memory, 0);
    const VkMemoryPropertyFlags seen =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    const bool discrete = gpu.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
    if ((gpu.memory.memoryTypes[a.memoryTypeIndex].propertyFlags & seen) == seen && (host || !discrete))
      VKQ_CALL(gpu, vkMapMemory, gpu.device, memory, 0, VK_WHOLE_SIZE, 0, reinterpret_cast<void **>(&mapped));
  } catch (...) {
    release();
    throw;
  }
}

Buffer::~Buffer() { release(); }

void Buffer::release() {
  if (handle) gpu.vkDestroyBuffer(gpu.device, handle, nullptr);
  if (memory) gpu.vkFreeMemory(gpu.device, memory, nullptr);
}

// Returns the best allowed memory type that has the flags `must`. The flag `first` counts more than `second`.
uint32_t Buffer::type(uint32_t allowed, bool host) const {
  const VkMemoryPropertyFlags must =
      host ? VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT : 0;
  const VkMemoryPropertyFlags first =
      host ? VK_MEMORY_PROPERTY_HOST_CACHED_BIT : VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
  const VkMemoryPropertyFlags second = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  int best = -1, rank = -1;
  for (uint32_t i = 0; i < gpu.memory.memoryTypeCount; i++) {
    const VkMemoryPropertyFlags flags = gpu.memory.memoryTypes[i].propertyFlags;
    if (!(allowed >> i & 1) || (flags & must) != must) continue;
    const int r = 2 * !!(flags & first) + !!(flags & second);
    if (r > rank) {
      rank = r;
      best = static_cast<int>(i);
    }
  }
  if (best < 0) throw Error(VKQ_DEVICE, "the device has no memory for storage buffers");
  return static_cast<uint32_t>(best);
}

}  // namespace vkq::player
