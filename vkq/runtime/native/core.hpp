// An open device: its Vulkan objects, the objects that use it, and the order in which they are released.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>

#include "gil.hpp"
#include "seam.hpp"
#ifdef _WIN32
#include <process.h>
#define getpid _getpid
#else
#include <unistd.h>
#endif

namespace vkq {

struct Core;

// An object with Vulkan handles. It is released when Python drops it or when its device is closed, whichever
// is first. Memory that NumPy arrays still view is released with the last array.
struct Resource {
  std::shared_ptr<Core> core;
  explicit Resource(std::shared_ptr<Core> c) : core(std::move(c)) {}
  virtual ~Resource() = default;
  virtual void release() = 0;  // with core->mutex held; releases Vulkan handles, and no Python objects
  // Returns true if NumPy arrays view the object's memory, which then outlives the device. Called with
  // core->mutex held.
  virtual bool shown() const { return false; }
  void adopt();  // called at the end of each constructor: closing the device then releases the object
  void dispose();              // called in each destructor
};

struct Core {
  std::shared_ptr<vk::PhysicalDevice> physical;
  std::shared_ptr<vk::Device> device;
  std::shared_ptr<vk::Queue> queue;
  uint32_t family = 0;
  bool wideBarriers = false;
  uint64_t maxBinding = 0;  // maxStorageBufferRange, in bytes
  uint64_t maxTexels = 0;   // maxTexelBufferElements
  // Work with a longer estimated time is split into several submissions, so that no watchdog of a driver ends
  // it.
  std::atomic<uint64_t> longestNs{UINT64_MAX};
  std::string name;  // for errors
  VkPipelineCache cache = VK_NULL_HANDLE;
  FencePool fences;
  std::set<Resource *> resources;
  std::shared_mutex life;  // each call that uses the device holds it shared; close() holds it alone
  std::mutex mutex;        // protects `resources` and `ended`
  std::mutex queueMutex;   // only one thread may use a VkQueue at a time
  std::atomic<bool> closed{false}, lost{false};
  // True after everything is released except viewed memory; the VkDevice is destroyed after the last view.
  bool ended = false;

  // False until the first submission. A device that only compiles may have no hardware for which its driver
  // could wait.
  std::atomic<bool> submitted{false};
  const int pid = static_cast<int>(getpid());

  ~Core() { close(); }
  VkDevice handle() const { return static_cast<VkDevice>(*device); }
  // A forked child has the handles but not the driver's threads. It must use neither the handles nor a mutex.
  bool forked() const { return pid != static_cast<int>(getpid()); }
  // Throws in a forked child; called before any lock, whose holder may not exist in the child.
  void checkProcess() const;
  void check();  // throws this thread's pending failure
  void waitIdle();
  void close();
  void destroyUnused();  // with `mutex` held
};

// Held by each call that uses the device: the device stays open until the call ends.
struct Use {
  std::shared_lock<std::shared_mutex> lock;
  explicit Use(Core &core);
};

}  // namespace vkq
