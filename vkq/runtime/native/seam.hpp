// The seam. Every Vulkan call that can fail goes through checked(), and a test can make it fail. checked()
// also stores failures that Kompute ignores, until throwPending() throws them. Until then, no other Vulkan
// call is made, because Kompute would pass handles that do not exist.
#pragma once
#include <kompute/Sequence.hpp>

#include <mutex>
#include <string>
#include <vector>

#include "errors.hpp"

#define vkTable VULKAN_HPP_DEFAULT_DISPATCHER

namespace vkq {

// The first failure of this thread that has not been thrown yet.
struct Pending {
  VkResult result = VK_SUCCESS;
  const char *call = nullptr;
};
extern thread_local Pending pending;

void notePending(VkResult result, const char *call);
void throwPending();

// Makes calls number `nth` to `nth + times - 1` of this function fail. `nth` counts from 1; 0 injects
// nothing. The name "*" matches every function; "" ends the injection.
void inject(const std::string &call, uint64_t nth, VkResult result, uint64_t times);
uint64_t injectedCalls();  // the number of matching calls since `inject`
VkResult injected(const char *call);

template <typename F, typename... A>
VkResult checked(const char *call, F real, A... arguments) {
  if (pending.result != VK_SUCCESS) return pending.result;
  VkResult result = injected(call);
  if (result == VK_SUCCESS) result = real(arguments...);
  if (result < 0) notePending(result, call);
  return result;
}

// kp::Sequence creates and destroys a fence for each evaluation. This pool reuses the device's idle fences.
struct FencePool {
  std::mutex mutex;
  std::vector<VkFence> idle;
  void give(VkFence fence);
  VkFence take();
};

// During the lifetime of an Evaluation, this thread's fences come from the pool.
struct Evaluation {
  explicit Evaluation(FencePool &pool);
  ~Evaluation();
  VkFence fence() const;  // the fence of the last evaluation
};

// Fills Vulkan-Hpp's dispatch table. Calls that can fail get entries that use checked(), and fences come from
// a FencePool.
void fillTable(PFN_vkGetInstanceProcAddr entry, VkInstance instance);
VkResult waitIdleUnchecked(VkDevice device);  // waits even if an earlier call has failed
void destroyFence(VkDevice device, VkFence fence);

}  // namespace vkq
