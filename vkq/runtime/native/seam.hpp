// The seam: every Vulkan call that can fail goes through checked(), which a test can make fail, and which
// keeps a failure that Kompute drops for the thread until throwPending() turns it into an exception. Until
// then no further call is made: Kompute would make them with handles that do not exist.
#pragma once
#include <kompute/Sequence.hpp>

#include <mutex>
#include <string>
#include <vector>

#include "errors.hpp"

#define vkTable VULKAN_HPP_DEFAULT_DISPATCHER

namespace vkq {

// The first failure of this thread since it was cleared.
struct Pending {
  VkResult result = VK_SUCCESS;
  const char *call = nullptr;
};
extern thread_local Pending pending;

void notePending(VkResult result, const char *call);
void throwPending();

// Makes calls number `nth` to `nth + times - 1` (from 1; 0: none) of this name ('*': any; '': ends it) fail.
void inject(const std::string &call, uint64_t nth, VkResult result, uint64_t times);
uint64_t injectedCalls();  // how many matched since
VkResult injected(const char *call);

template <typename F, typename... A>
VkResult checked(const char *call, F real, A... arguments) {
  if (pending.result != VK_SUCCESS) return pending.result;
  VkResult result = injected(call);
  if (result == VK_SUCCESS) result = real(arguments...);
  if (result < 0) notePending(result, call);
  return result;
}

// kp::Sequence makes and destroys one fence for each evaluation; here they come from the device's idle ones.
struct FencePool {
  std::mutex mutex;
  std::vector<VkFence> idle;
  void give(VkFence fence);
  VkFence take();
};

// While it lives, the fences of this thread's calls come from the pool.
struct Evaluation {
  explicit Evaluation(FencePool &pool);
  ~Evaluation();
  VkFence fence() const;  // of the evaluation begun last
};

// Fills Vulkan-Hpp's dispatch table and hooks the calls above into it.
void fillTable(PFN_vkGetInstanceProcAddr entry, VkInstance instance);
VkResult waitIdleUnchecked(VkDevice device);  // it must wait whatever failed before
void destroyFence(VkDevice device, VkFence fence);

}  // namespace vkq
