#include "seam.hpp"

VULKAN_HPP_DEFAULT_DISPATCH_LOADER_DYNAMIC_STORAGE

namespace vkq {

thread_local Pending pending;

void notePending(VkResult result, const char *call) {
  if (pending.result == VK_SUCCESS) pending = {result, call};  // the first failure is the cause
}

void throwPending() {
  if (pending.result == VK_SUCCESS) return;
  VulkanError error(pending.result, pending.call);
  pending = {};
  throw error;
}

// ------------------------------------------------------------------------------------------------- injection

static struct Injection {
  std::mutex mutex;
  std::string call;
  uint64_t first = 0, last = 0;  // the range of failing calls, counted from 1; 0: none
  VkResult result = VK_SUCCESS;
  uint64_t seen = 0;
} injection;

VkResult injected(const char *call) {
  std::lock_guard<std::mutex> lock(injection.mutex);
  if (injection.call.empty() || (injection.call != "*" && injection.call != call)) return VK_SUCCESS;
  injection.seen++;
  bool fails = injection.seen >= injection.first && injection.seen <= injection.last;
  return fails ? injection.result : VK_SUCCESS;
}

void inject(const std::string &call, uint64_t nth, VkResult result, uint64_t times) {
  std::lock_guard<std::mutex> lock(injection.mutex);
  injection.call = call;
  injection.first = nth ? nth : 1;
  injection.last = nth ? nth - 1 + std::min(times, UINT64_MAX - nth) : 0;
  injection.result = result;
  injection.seen = 0;
}

uint64_t injectedCalls() {
  std::lock_guard<std::mutex> lock(injection.mutex);
  return injection.seen;
}

// ----------------------------------------------------------------------------------------- the dispatch
// table

#define CHECKED_CALLS(X)                                                                                   \
  X(vkAllocateMemory)                                                                                      \
  X(vkCreateBuffer)                                                                                        \
  X(vkBindBufferMemory)                                                                                    \
  X(vkMapMemory) X(vkCreateCommandPool) X(vkAllocateCommandBuffers) X(vkBeginCommandBuffer)                \
      X(vkEndCommandBuffer) X(vkQueueSubmit) X(vkWaitForFences) X(vkCreateDescriptorPool)                  \
          X(vkAllocateDescriptorSets) X(vkCreateShaderModule) X(vkCreateDescriptorSetLayout)               \
              X(vkCreatePipelineLayout) X(vkCreatePipelineCache) X(vkCreateComputePipelines)               \
                  X(vkCreateQueryPool) X(vkResetFences) X(vkGetQueryPoolResults) X(vkGetPipelineCacheData) \
                      X(vkDeviceWaitIdle) X(vkCreateBufferView)

#define REAL(f) static PFN_##f real_##f = nullptr;
CHECKED_CALLS(REAL)
REAL(vkCreateFence)
REAL(vkDestroyFence)
REAL(vkFreeCommandBuffers)
static PFN_vkCreateCommandPool checkedCreateCommandPool = nullptr;

static thread_local FencePool *activePool = nullptr;
static thread_local VkFence activeFence = VK_NULL_HANDLE;

Evaluation::Evaluation(FencePool &pool) {
  activePool = &pool;
  activeFence = VK_NULL_HANDLE;
}
Evaluation::~Evaluation() { activePool = nullptr; }
VkFence Evaluation::fence() const { return activeFence; }

void FencePool::give(VkFence fence) {
  std::lock_guard<std::mutex> lock(mutex);
  idle.push_back(fence);
}

VkFence FencePool::take() {
  std::lock_guard<std::mutex> lock(mutex);
  if (idle.empty()) return VK_NULL_HANDLE;
  VkFence fence = idle.back();
  idle.pop_back();
  return fence;
}

static void VKAPI_CALL pooledDestroyFence(VkDevice, VkFence fence, const VkAllocationCallbacks *) {
  if (fence) activePool->give(fence);
}

// Stores a failure, but does not return it to Kompute, which would throw and keep the previous evaluation's
// fence. After any stored failure, Kompute's next submission does nothing.
static VkResult VKAPI_CALL pooledCreateFence(VkDevice d, const VkFenceCreateInfo *i,
                                             const VkAllocationCallbacks *a, VkFence *f) {
  VkFence fence = activePool->take();
  VkResult result = fence ? vkTable.vkResetFences(d, 1, &fence)
                          : checked("vkCreateFence", real_vkCreateFence, d, i, a, &fence);
  if (result < 0) {
    pooledDestroyFence(d, fence, a);
    fence = VK_NULL_HANDLE;
  }
  *f = activeFence = fence;
  return VK_SUCCESS;
}

// Recording::reuse records a command buffer again, which needs the flag that Kompute does not set.
static VkResult VKAPI_CALL createCommandPool(VkDevice d, const VkCommandPoolCreateInfo *given,
                                             const VkAllocationCallbacks *a, VkCommandPool *pool) {
  VkCommandPoolCreateInfo info = *given;
  info.flags |= VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
  return checkedCreateCommandPool(d, &info, a, pool);
}

// Kompute also frees command buffers of a pool whose creation failed.
static void VKAPI_CALL freeCommandBuffers(VkDevice d, VkCommandPool pool, uint32_t n,
                                          const VkCommandBuffer *buffers) {
  if (pool) real_vkFreeCommandBuffers(d, pool, n, buffers);
}

// The process has one table. Its entries come from the instance (the loader's trampolines), so it serves all
// devices of the instance.
void fillTable(PFN_vkGetInstanceProcAddr entry, VkInstance instance) {
  static std::mutex mutex;
  static VkInstance filled = VK_NULL_HANDLE;
  std::lock_guard<std::mutex> lock(mutex);
  if (filled == instance) return;
  filled = instance;
  vkTable.init(entry);
  vkTable.init(vk::Instance(instance));
#define HOOK(f)         \
  real_##f = vkTable.f; \
  vkTable.f = [](auto... a) -> VkResult { return checked(#f, real_##f, a...); };
  CHECKED_CALLS(HOOK)
  real_vkCreateFence = vkTable.vkCreateFence;
  real_vkDestroyFence = vkTable.vkDestroyFence;
  real_vkFreeCommandBuffers = vkTable.vkFreeCommandBuffers;
  vkTable.vkFreeCommandBuffers = freeCommandBuffers;
  checkedCreateCommandPool = vkTable.vkCreateCommandPool;
  vkTable.vkCreateCommandPool = createCommandPool;
  vkTable.vkCreateFence = pooledCreateFence;
  vkTable.vkDestroyFence = pooledDestroyFence;
}

VkResult waitIdleUnchecked(VkDevice device) { return real_vkDeviceWaitIdle(device); }
void destroyFence(VkDevice device, VkFence fence) { real_vkDestroyFence(device, fence, nullptr); }

}  // namespace vkq
