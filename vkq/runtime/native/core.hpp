// An open device: what it is made of, who uses it, and the order in which everything of it is released.
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

// Something that holds Vulkan handles: released when Python drops it, or when its device is closed, whichever
// comes first; what is shown then, when it is no more.
struct Resource {
  std::shared_ptr<Core> core;
  explicit Resource(std::shared_ptr<Core> c) : core(std::move(c)) {}
  virtual ~Resource() = default;
  virtual void release() = 0;  // with core->mutex held: Vulkan handles only, nothing of Python's
  // Whether the host reads it without asking the device: it outlives the device's end. With core->mutex held.
  virtual bool shown() const { return false; }
  void adopt();                // at the end of each constructor: from here on closing the device releases it
  void dispose();              // in each destructor
};

struct Core {
  std::shared_ptr<vk::PhysicalDevice> physical;
  std::shared_ptr<vk::Device> device;
  std::shared_ptr<vk::Queue> queue;
  uint32_t family = 0;
  bool wideBarriers = false;
  uint64_t maxBinding = 0;  // maxStorageBufferRange, in bytes
  uint64_t maxTexels = 0;   // maxTexelBufferElements
  // Work that is estimated to take longer is several submissions, so that no watchdog of a driver ends it.
  std::atomic<uint64_t> longestNs{UINT64_MAX};
  std::string name;  // for errors
  VkPipelineCache cache = VK_NULL_HANDLE;
  FencePool fences;
  std::set<Resource *> resources;
  std::shared_mutex life;  // shared by every call that uses the device; close() takes it alone
  std::mutex mutex;        // resources, ended
  std::mutex queueMutex;   // a VkQueue takes one thread at a time
  std::atomic<bool> closed{false}, lost{false};
  bool ended = false;  // all is released but what is shown; the VkDevice goes with the last of that

  // A device that only compiles may be one without hardware, whose driver cannot wait.
  std::atomic<bool> submitted{false};
  const int pid = static_cast<int>(getpid());

  ~Core() { close(); }
  VkDevice handle() const { return static_cast<VkDevice>(*device); }
  // A forked child has the handles but not the driver's threads: it touches nothing, not even a mutex.
  bool forked() const { return pid != static_cast<int>(getpid()); }
  void checkProcess() const;  // throws in a forked child; before any lock is taken, whose holder may be gone
  void check();  // throws what is pending
  void waitIdle();
  void close();
  void destroyUnused();  // with `mutex` held
};

// Held by every call that uses the device: it is open, and stays so until the call ends.
struct Use {
  std::shared_lock<std::shared_mutex> lock;
  explicit Use(Core &core);
};

}  // namespace vkq
