// An open Vulkan device: the loader's functions, the device's features and limits, buffers.
#pragma once
#define VK_NO_PROTOTYPES 1
#include <vulkan/vulkan_core.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "file.hpp"

namespace vkq::player {

#define VKQ_INSTANCE_FUNCTIONS(X)                                                                        \
  X(vkDestroyInstance) X(vkEnumeratePhysicalDevices) X(vkGetPhysicalDeviceProperties)                    \
  X(vkGetPhysicalDeviceFeatures2) X(vkGetPhysicalDeviceProperties2) X(vkGetPhysicalDeviceMemoryProperties) \
  X(vkGetPhysicalDeviceQueueFamilyProperties) X(vkEnumerateDeviceExtensionProperties) X(vkCreateDevice)  \
  X(vkGetDeviceProcAddr)
#define VKQ_DEVICE_FUNCTIONS(X)                                                                          \
  X(vkDestroyDevice) X(vkGetDeviceQueue) X(vkCreateBuffer) X(vkDestroyBuffer)                            \
  X(vkGetBufferMemoryRequirements) X(vkAllocateMemory) X(vkFreeMemory) X(vkBindBufferMemory)             \
  X(vkMapMemory) X(vkCreateShaderModule) X(vkDestroyShaderModule) X(vkCreateDescriptorSetLayout)         \
  X(vkDestroyDescriptorSetLayout) X(vkCreatePipelineLayout) X(vkDestroyPipelineLayout)                   \
  X(vkCreateComputePipelines) X(vkDestroyPipeline) X(vkCreatePipelineCache) X(vkDestroyPipelineCache)    \
  X(vkGetPipelineCacheData) X(vkCreateDescriptorPool) X(vkDestroyDescriptorPool)                         \
  X(vkAllocateDescriptorSets) X(vkUpdateDescriptorSets) X(vkCreateBufferView) X(vkDestroyBufferView)     \
  X(vkCreateCommandPool) X(vkDestroyCommandPool) X(vkAllocateCommandBuffers) X(vkBeginCommandBuffer)     \
  X(vkEndCommandBuffer) X(vkCmdBindPipeline) X(vkCmdBindDescriptorSets) X(vkCmdPushConstants)            \
  X(vkCmdDispatch) X(vkCmdPipelineBarrier) X(vkCmdCopyBuffer) X(vkCmdFillBuffer) X(vkCreateFence)        \
  X(vkDestroyFence) X(vkResetFences) X(vkQueueSubmit) X(vkWaitForFences) X(vkDeviceWaitIdle)

struct Gpu {
#define VKQ_MEMBER(name) PFN_##name name = nullptr;
  VKQ_INSTANCE_FUNCTIONS(VKQ_MEMBER)
  VKQ_DEVICE_FUNCTIONS(VKQ_MEMBER)
#undef VKQ_MEMBER
  VkInstance instance = VK_NULL_HANDLE;
  VkPhysicalDevice physical = VK_NULL_HANDLE;
  VkPhysicalDeviceProperties properties{};
  VkPhysicalDeviceMemoryProperties memory{};
  VkDevice device = VK_NULL_HANDLE;
  VkQueue queue = VK_NULL_HANDLE;
  uint32_t family = 0;
  std::map<std::string, uint64_t> facts;  // enabled features and limits, under Vulkan's names
  std::mutex turn;                        // only one thread may use a queue at a time
  bool lost = false;

  explicit Gpu(const char *which);  // see vkq_open
  Gpu(const Gpu &) = delete;
  ~Gpu();
  // Calls `work`; the caller holds `turn`. Throws if the device is lost already. If `work` loses the device,
  // sets `lost`.
  template <typename Work>
  void guard(Work work) {
    if (lost) throw Error(VKQ_LOST, "the device is lost; unload its models, close it and open it again");
    try {
      work();
    } catch (const Error &error) {
      lost = error.status == VKQ_LOST;
      throw;
    }
  }

 private:
  void openInstance();
  void choose(const char *which);
  void openDevice();
  void noteLimits(bool floatControls);
  void close();
};

// Throws Error if the result of a Vulkan call is negative, VK_NOT_READY or VK_TIMEOUT.
void check(VkResult result, const char *call);
// Returns true if a test wants this call to fail with *result* (vkq_inject).
bool injected(VkResult *result);
uint32_t inject(uint32_t nth, int32_t result);  // see vkq_inject

// Makes one Vulkan call that can fail.
#define VKQ_CALL(gpu, name, ...)                                                                         \
  do {                                                                                                   \
    VkResult result_;                                                                                    \
    if (!::vkq::player::injected(&result_)) result_ = (gpu).name(__VA_ARGS__);                           \
    ::vkq::player::check(result_, #name);                                                                \
  } while (0)

// A buffer with its own memory. The memory is mapped if it is host-visible and coherent, except device memory
// of a discrete GPU.
struct Buffer {
  Gpu &gpu;
  VkBuffer handle = VK_NULL_HANDLE;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  uint8_t *mapped = nullptr;
  uint64_t bytes;

  // host: memory for copies, which the host reads and writes; else device memory.
  Buffer(Gpu &gpu, uint64_t bytes, bool host);
  Buffer(const Buffer &) = delete;
  ~Buffer();

 private:
  void release();
  uint32_t type(uint32_t allowed, bool host) const;
};

}  // namespace vkq::player
