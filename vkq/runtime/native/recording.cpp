// vkq._kompute: Kompute's Sequence on a device that vkq opened, with vkq's own dispatch operation, memory and error checks.
//
// Kompute records and submits (kp::Sequence, kp::OpBase). What it leaves out is added at two documented places: its operation
// interface (Dispatch and Copy below: shared pipelines, full memory barriers, reset timestamps) and Vulkan-Hpp's dispatch table
// (the seam: results that Kompute ignores are noted, fences are reused, tests can make the n-th call fail).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <kompute/Kompute.hpp>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <thread>
#ifdef _WIN32
#include <process.h>
#define getpid _getpid
#else
#include <unistd.h>
#endif

VULKAN_HPP_DEFAULT_DISPATCH_LOADER_DYNAMIC_STORAGE

namespace nb = nanobind;
using Clock = std::chrono::steady_clock;

struct VulkanError : std::exception {
  VkResult result;
  const char *call;
  VulkanError(VkResult r, const char *c) : result(r), call(c) {}
};

// What the caller may not do now; becomes vkq.errors.DeviceError.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Takes a lock without keeping the GIL from whoever holds it: the validation layer calls into Python from inside Vulkan.
template <typename Lock> static void lockPolitely(Lock &lock) {
  if (lock.try_lock()) return;
  if (!PyGILState_Check()) return lock.lock();
  nb::gil_scoped_release release;
  lock.lock();
}

// ---------------------------------------------------------------------------------------------------------------- the seam
// Every call below that can fail goes through checked(): it can be made to fail by a test, and a failure that Kompute drops
// is kept for the thread until throwPending() turns it into an exception. Until then no further call is made: Kompute would make
// them with handles that do not exist.

static thread_local VkResult pendingResult = VK_SUCCESS;
static thread_local const char *pendingCall = nullptr;

static void notePending(VkResult result, const char *call) {
  if (pendingResult != VK_SUCCESS) return;  // the first one is the cause
  pendingResult = result;
  pendingCall = call;
}

struct Injection {
  std::mutex mutex;
  std::string call;
  uint64_t first = 0, last = 0;  // these calls fail, counted from 1; 0: none
  VkResult result = VK_SUCCESS;
  uint64_t seen = 0;
};
static Injection injection;

static VkResult injected(const char *call) {
  std::lock_guard<std::mutex> lock(injection.mutex);
  if (injection.call.empty() || (injection.call != "*" && injection.call != call)) return VK_SUCCESS;
  injection.seen++;
  return injection.seen >= injection.first && injection.seen <= injection.last ? injection.result : VK_SUCCESS;
}

template <typename F, typename... A> static VkResult checked(const char *call, F real, A... arguments) {
  if (pendingResult != VK_SUCCESS) return pendingResult;
  VkResult result = injected(call);
  if (result == VK_SUCCESS) result = real(arguments...);
  if (result < 0) notePending(result, call);
  return result;
}

static void throwPending() {
  if (pendingResult == VK_SUCCESS) return;
  VulkanError error(pendingResult, pendingCall);
  pendingResult = VK_SUCCESS;
  throw error;
}

#define CHECKED_CALLS(X)                                                                                                   \
  X(vkAllocateMemory) X(vkCreateBuffer) X(vkBindBufferMemory) X(vkMapMemory) X(vkCreateCommandPool)                        \
  X(vkAllocateCommandBuffers) X(vkBeginCommandBuffer) X(vkEndCommandBuffer) X(vkQueueSubmit) X(vkWaitForFences)            \
  X(vkCreateDescriptorPool) X(vkAllocateDescriptorSets) X(vkCreateShaderModule) X(vkCreateDescriptorSetLayout)             \
  X(vkCreatePipelineLayout) X(vkCreatePipelineCache) X(vkCreateComputePipelines) X(vkCreateQueryPool) X(vkResetFences)     \
  X(vkGetQueryPoolResults) X(vkGetPipelineCacheData) X(vkDeviceWaitIdle)

#define REAL(f) static PFN_##f real_##f = nullptr;
CHECKED_CALLS(REAL)
static PFN_vkCreateFence real_vkCreateFence = nullptr;
static PFN_vkDestroyFence real_vkDestroyFence = nullptr;
static PFN_vkFreeCommandBuffers real_vkFreeCommandBuffers = nullptr;

#define vkTable VULKAN_HPP_DEFAULT_DISPATCHER

// ----------------------------------------------------------------------------------------------------------------- device

struct Core;

// Something that holds Vulkan handles: released when Python drops it, or when its device is closed, whichever comes first.
struct Resource {
  std::shared_ptr<Core> core;
  explicit Resource(std::shared_ptr<Core> c) : core(std::move(c)) {}
  virtual ~Resource() = default;
  virtual void release() = 0;  // with core->mutex held: Vulkan handles only, nothing of Python's
  void adopt();                // at the end of each constructor: from here on closing the device releases it
  void dispose();              // in each destructor
};

struct Core {
  std::shared_ptr<vk::PhysicalDevice> physical;
  std::shared_ptr<vk::Device> device;
  std::shared_ptr<vk::Queue> queue;
  uint32_t family = 0;
  bool wideBarriers = false;
  VkPipelineCache cache = VK_NULL_HANDLE;
  std::vector<VkFence> fences;  // idle ones
  std::set<Resource *> resources;
  std::shared_mutex life;  // shared by every call that uses the device; close() takes it alone
  std::mutex mutex;        // resources, fences
  std::mutex queueMutex;   // a VkQueue takes one thread at a time
  std::atomic<bool> closed{false}, lost{false};
  std::atomic<bool> submitted{false};  // a device that only compiles may be one without hardware, whose driver cannot wait
  const int pid = static_cast<int>(getpid());

  VkDevice handle() const { return static_cast<VkDevice>(*device); }
  // A forked child has the handles but not the driver's threads: it touches nothing, not even a mutex.
  bool forked() const { return pid != static_cast<int>(getpid()); }

  void check() {
    if (pendingResult == VK_ERROR_DEVICE_LOST) lost = true;
    throwPending();
  }
  void waitIdle() {
    std::lock_guard<std::mutex> lock(queueMutex);
    real_vkDeviceWaitIdle(handle());  // not the checked one: it must wait whatever failed before
  }
  void close() {
    if (forked() || closed.exchange(true)) return;
    std::unique_lock<std::shared_mutex> alone(life, std::defer_lock);
    lockPolitely(alone);
    if (submitted) waitIdle();
    std::lock_guard<std::mutex> lock(mutex);
    for (Resource *r : resources) r->release();
    resources.clear();
    for (VkFence f : fences) real_vkDestroyFence(handle(), f, nullptr);
    if (cache) vkTable.vkDestroyPipelineCache(handle(), cache, nullptr);
    vkTable.vkDestroyDevice(handle(), nullptr);
  }
  ~Core() { close(); }
};

// Held by every call that uses the device: it is open, and stays so until the call ends.
struct Use {
  std::shared_lock<std::shared_mutex> lock;
  explicit Use(Core &core) : lock(core.life, std::defer_lock) {
    if (core.forked()) throw UsageError("the device was opened before the process was forked; start processes with 'spawn'");
    lockPolitely(lock);
    if (core.lost) throw VulkanError(VK_ERROR_DEVICE_LOST, "an earlier call");
    if (core.closed) throw UsageError("the device is closed");
    pendingResult = VK_SUCCESS;
  }
};

void Resource::adopt() {
  std::lock_guard<std::mutex> lock(core->mutex);
  core->resources.insert(this);
}

void Resource::dispose() {
  if (core->forked()) return;
  std::unique_lock<std::mutex> lock(core->mutex, std::defer_lock);
  lockPolitely(lock);
  if (core->resources.erase(this)) release();
}

// The fence seam: kp::Sequence makes and destroys one fence for each evaluation; here they come from the device's idle ones.
static thread_local Core *activeCore = nullptr;
static thread_local VkFence activeFence = VK_NULL_HANDLE;

struct Evaluation {
  explicit Evaluation(Core &core) {
    activeCore = &core;
    activeFence = VK_NULL_HANDLE;
  }
  ~Evaluation() { activeCore = nullptr; }
};

static void VKAPI_CALL pooledDestroyFence(VkDevice, VkFence f, const VkAllocationCallbacks *) {
  if (!f) return;
  std::lock_guard<std::mutex> lock(activeCore->mutex);
  activeCore->fences.push_back(f);
}

// A failure is noted and not told to Kompute: it would throw and keep the fence of the evaluation before. What it submits next
// is not submitted, as for any noted failure.
static VkResult VKAPI_CALL pooledCreateFence(VkDevice d, const VkFenceCreateInfo *i, const VkAllocationCallbacks *a, VkFence *f) {
  VkFence fence = VK_NULL_HANDLE;
  {
    std::lock_guard<std::mutex> lock(activeCore->mutex);
    if (!activeCore->fences.empty()) {
      fence = activeCore->fences.back();
      activeCore->fences.pop_back();
    }
  }
  VkResult result = fence ? vkTable.vkResetFences(d, 1, &fence) : checked("vkCreateFence", real_vkCreateFence, d, i, a, &fence);
  if (result < 0) {
    pooledDestroyFence(d, fence, a);
    fence = VK_NULL_HANDLE;
  }
  *f = activeFence = fence;
  return VK_SUCCESS;
}

// Kompute frees a command buffer of the pool that could not be made.
static void VKAPI_CALL freeCommandBuffers(VkDevice d, VkCommandPool pool, uint32_t n, const VkCommandBuffer *buffers) {
  if (pool) real_vkFreeCommandBuffers(d, pool, n, buffers);
}

// The table is one for the process. Entries come from the instance (the loader's trampolines), so it serves every device of it.
static void fillTable(uint64_t getInstanceProcAddr, uint64_t instance) {
  static std::mutex mutex;
  static uint64_t filled = 0;
  std::lock_guard<std::mutex> lock(mutex);
  if (filled == instance) return;
  filled = instance;
  vkTable.init(reinterpret_cast<PFN_vkGetInstanceProcAddr>(getInstanceProcAddr));
  vkTable.init(vk::Instance(reinterpret_cast<VkInstance>(instance)));
#define HOOK(f)                                                                                                            \
  real_##f = vkTable.f;                                                                                                    \
  vkTable.f = [](auto... a) -> VkResult { return checked(#f, real_##f, a...); };
  CHECKED_CALLS(HOOK)
  real_vkCreateFence = vkTable.vkCreateFence;
  real_vkDestroyFence = vkTable.vkDestroyFence;
  real_vkFreeCommandBuffers = vkTable.vkFreeCommandBuffers;
  vkTable.vkFreeCommandBuffers = freeCommandBuffers;
  vkTable.vkCreateFence = pooledCreateFence;
  vkTable.vkDestroyFence = pooledDestroyFence;
}

// ----------------------------------------------------------------------------------------------------------------- memory

// A storage buffer without memory, and what memory it needs.
static VkMemoryRequirements makeBuffer(Core &core, uint64_t bytes, VkBuffer *buffer) {
  VkBufferCreateInfo info{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
  info.size = bytes;
  info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  vkTable.vkCreateBuffer(core.handle(), &info, nullptr, buffer);
  core.check();
  VkMemoryRequirements need;
  vkTable.vkGetBufferMemoryRequirements(core.handle(), *buffer, &need);
  return need;
}

// One VkDeviceMemory with one VkBuffer over all of it; the arena (buffer.py) hands out ranges.
struct Memory : Resource {
  VkBuffer buffer = VK_NULL_HANDLE;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  void *mapped = nullptr;
  uint64_t bytes;

  Memory(std::shared_ptr<Core> c, uint64_t n, uint32_t type, bool map) : Resource(std::move(c)), bytes(n) {
    Use use(*core);
    try {
      VkDevice d = core->handle();
      VkMemoryRequirements need = makeBuffer(*core, n, &buffer);
      if (type >= 32 || !(need.memoryTypeBits >> type & 1)) throw UsageError("this memory type cannot hold storage buffers");
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
  ~Memory() override { dispose(); }
  void release() override {
    VkDevice d = core->handle();
    if (buffer) vkTable.vkDestroyBuffer(d, buffer, nullptr);
    if (memory) vkTable.vkFreeMemory(d, memory, nullptr);
    buffer = VK_NULL_HANDLE;
    memory = VK_NULL_HANDLE;
    mapped = nullptr;
  }
};

// ---------------------------------------------------------------------------------------------------------------- program

// A compute pipeline with its layouts; shared by every dispatch of the same variant and constants.
struct Program : Resource {
  VkShaderModule module = VK_NULL_HANDLE;
  VkDescriptorSetLayout setLayout = VK_NULL_HANDLE;
  VkPipelineLayout layout = VK_NULL_HANDLE;
  VkPipeline pipeline = VK_NULL_HANDLE;
  uint32_t bindings, pushBytes;

  Program(std::shared_ptr<Core> c, nb::bytes spirv, uint32_t bindingCount, uint32_t push,
          const std::vector<std::pair<uint32_t, uint32_t>> &constants, uint32_t subgroupSize, uint32_t flags)
      : Resource(std::move(c)), bindings(bindingCount), pushBytes(push) {
    std::vector<uint32_t> code(spirv.size() / 4);
    std::memcpy(code.data(), spirv.c_str(), code.size() * 4);
    nb::gil_scoped_release unlocked;
    Use use(*core);
    try {
      create(code, constants, subgroupSize, flags);
    } catch (...) {
      release();
      throw;
    }
    adopt();
  }
  ~Program() override { dispose(); }

  void create(const std::vector<uint32_t> &code, const std::vector<std::pair<uint32_t, uint32_t>> &constants,
              uint32_t subgroupSize, uint32_t flags) {
    VkDevice d = core->handle();
    VkShaderModuleCreateInfo m{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
    m.codeSize = code.size() * 4;
    m.pCode = code.data();
    vkTable.vkCreateShaderModule(d, &m, nullptr, &module);
    core->check();
    std::vector<VkDescriptorSetLayoutBinding> slots(bindings);
    for (uint32_t i = 0; i < bindings; i++) slots[i] = {i, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, nullptr};
    VkDescriptorSetLayoutCreateInfo s{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
    s.bindingCount = bindings;
    s.pBindings = slots.data();
    vkTable.vkCreateDescriptorSetLayout(d, &s, nullptr, &setLayout);
    core->check();
    VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, pushBytes};
    VkPipelineLayoutCreateInfo l{VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
    l.setLayoutCount = 1;
    l.pSetLayouts = &setLayout;
    l.pushConstantRangeCount = pushBytes ? 1 : 0;
    l.pPushConstantRanges = &range;
    vkTable.vkCreatePipelineLayout(d, &l, nullptr, &layout);
    core->check();
    std::vector<VkSpecializationMapEntry> entries;
    std::vector<uint32_t> values;
    for (auto &[id, value] : constants) {
      entries.push_back({id, static_cast<uint32_t>(values.size() * 4), 4});
      values.push_back(value);
    }
    VkSpecializationInfo specialization{static_cast<uint32_t>(entries.size()), entries.data(), values.size() * 4, values.data()};
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo required{VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO};
    required.requiredSubgroupSize = subgroupSize;
    VkComputePipelineCreateInfo p{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
    p.flags = flags;
    p.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    if (subgroupSize) {
      p.stage.pNext = &required;
      p.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
    }
    p.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    p.stage.module = module;
    p.stage.pName = "main";
    p.stage.pSpecializationInfo = &specialization;
    p.layout = layout;
    vkTable.vkCreateComputePipelines(d, core->cache, 1, &p, nullptr, &pipeline);
    core->check();
  }
  void release() override {
    VkDevice d = core->handle();
    if (pipeline) vkTable.vkDestroyPipeline(d, pipeline, nullptr);
    if (layout) vkTable.vkDestroyPipelineLayout(d, layout, nullptr);
    if (setLayout) vkTable.vkDestroyDescriptorSetLayout(d, setLayout, nullptr);
    if (module) vkTable.vkDestroyShaderModule(d, module, nullptr);
    pipeline = VK_NULL_HANDLE;
    layout = VK_NULL_HANDLE;
    setLayout = VK_NULL_HANDLE;
    module = VK_NULL_HANDLE;
  }
};

// -------------------------------------------------------------------------------------------------------------- operations

struct Range {
  VkBuffer buffer;
  uint64_t offset, bytes;
};

// Everything that was written before, against everything that comes after. Named exactly, that is what shaders and copies read and
// write; `wide` names all kinds of access, for drivers that drop exact compute-to-compute barriers, and makes others invalidate
// caches that vkq does not use (2.6 us a barrier on an H200).
static void fullBarrier(const vk::CommandBuffer &commands, bool wide) {
  const VkPipelineStageFlags work = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
  VkMemoryBarrier barrier{VK_STRUCTURE_TYPE_MEMORY_BARRIER};
  barrier.srcAccessMask = wide ? VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT : VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
  barrier.dstAccessMask = wide ? barrier.srcAccessMask : barrier.srcAccessMask | VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT;
  vkTable.vkCmdPipelineBarrier(commands, work, work, 0, 1, &barrier, 0, nullptr, 0, nullptr);
}

struct Operation : kp::OpBase {
  void preEval(const vk::CommandBuffer &) override {}
  void postEval(const vk::CommandBuffer &) override {}
};

struct Barrier : Operation {
  bool wide;
  explicit Barrier(bool w) : wide(w) {}
  void record(const vk::CommandBuffer &commands) override { fullBarrier(commands, wide); }
};

struct HostBarrier : Operation {
  void record(const vk::CommandBuffer &commands) override {
    VkMemoryBarrier barrier{VK_STRUCTURE_TYPE_MEMORY_BARRIER};
    barrier.srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT;
    barrier.dstAccessMask = VK_ACCESS_HOST_READ_BIT | VK_ACCESS_HOST_WRITE_BIT;
    const VkPipelineStageFlags work = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
    vkTable.vkCmdPipelineBarrier(commands, work, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &barrier, 0, nullptr, 0, nullptr);
  }
};

struct Copy : Operation {
  Range from, to;
  Copy(Range f, Range t) : from(f), to(t) {}
  void record(const vk::CommandBuffer &commands) override {
    VkBufferCopy region{from.offset, to.offset, from.bytes};
    vkTable.vkCmdCopyBuffer(commands, from.buffer, to.buffer, 1, &region);
  }
};

struct Fill : Operation {
  Range to;
  uint32_t value;
  Fill(Range t, uint32_t v) : to(t), value(v) {}
  void record(const vk::CommandBuffer &commands) override { vkTable.vkCmdFillBuffer(commands, to.buffer, to.offset, to.bytes, value); }
};

struct ResetQueries : Operation {
  VkQueryPool pool;
  uint32_t count;
  ResetQueries(VkQueryPool p, uint32_t n) : pool(p), count(n) {}
  void record(const vk::CommandBuffer &commands) override { vkTable.vkCmdResetQueryPool(commands, pool, 0, count); }
};

struct Timestamp : Operation {
  VkQueryPool pool;
  uint32_t index;
  Timestamp(VkQueryPool p, uint32_t i) : pool(p), index(i) {}
  void record(const vk::CommandBuffer &commands) override {
    vkTable.vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, pool, index);
  }
};

struct Dispatch : Operation {
  VkPipeline pipeline;
  VkPipelineLayout layout;
  VkDescriptorSet set;
  std::string push;
  uint32_t x, y, z;
  Dispatch(const Program &p, VkDescriptorSet s, std::string bytes, uint32_t gx, uint32_t gy, uint32_t gz)
      : pipeline(p.pipeline), layout(p.layout), set(s), push(std::move(bytes)), x(gx), y(gy), z(gz) {}
  void record(const vk::CommandBuffer &commands) override {
    vkTable.vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vkTable.vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &set, 0, nullptr);
    if (!push.empty())
      vkTable.vkCmdPushConstants(commands, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, static_cast<uint32_t>(push.size()), push.data());
    vkTable.vkCmdDispatch(commands, x, y, z);
  }
};

// --------------------------------------------------------------------------------------------------------------- recording

using Binding = std::tuple<std::shared_ptr<Memory>, uint64_t, uint64_t>;  // memory, offset, bytes

// A chain of operations recorded once through kp::Sequence and submitted as often as wished.
struct Recording : Resource {
  std::shared_ptr<kp::Sequence> sequence;
  std::vector<VkDescriptorPool> pools;
  std::vector<std::shared_ptr<void>> keep;  // what the recorded commands use
  std::vector<std::shared_ptr<Operation>> operations;
  VkQueryPool queries = VK_NULL_HANDLE;
  uint32_t queryCount, queriesUsed = 0, setsLeft = 0;
  VkFence fence = VK_NULL_HANDLE;
  bool sealed = false;    // recorded to the end
  bool broken = false;    // the end could not be recorded; it can never run
  bool running = false;   // submitted, and not found to be finished yet
  bool finished = false;  // ran once, so that there are timestamps
  std::mutex mutex;

  Recording(std::shared_ptr<Core> c, uint32_t timestamps) : Resource(std::move(c)), queryCount(timestamps) {
    Use use(*core);
    try {
      sequence = std::make_shared<kp::Sequence>(core->physical, core->device, core->queue, core->family, 0);
      core->check();
      if (queryCount) {
        VkQueryPoolCreateInfo q{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
        q.queryType = VK_QUERY_TYPE_TIMESTAMP;
        q.queryCount = queryCount;
        vkTable.vkCreateQueryPool(core->handle(), &q, nullptr, &queries);
        core->check();
        record<ResetQueries>(queries, queryCount);
      }
    } catch (...) {
      release();
      throw;
    }
    adopt();
  }
  ~Recording() override {
    if (core->forked()) {
      new std::shared_ptr<kp::Sequence>(std::move(sequence));  // never destroyed: its destructor calls the driver
      return;
    }
    {
      nb::gil_scoped_release unlocked;
      std::shared_lock<std::shared_mutex> life(core->life);
      if (running) {  // nothing may be freed under it
        core->waitIdle();
        finish();
      }
    }
    dispose();
  }
  void release() override {
    if (running) core->fences.push_back(fence);  // closing the device has waited for it
    running = false;
    sequence.reset();
    for (VkDescriptorPool p : pools) vkTable.vkDestroyDescriptorPool(core->handle(), p, nullptr);
    pools.clear();
    if (queries) vkTable.vkDestroyQueryPool(core->handle(), queries, nullptr);
    queries = VK_NULL_HANDLE;
  }

  // Held by each call: one thread at a time, and the device stays open.
  struct Held {
    std::unique_lock<std::mutex> own;
    std::optional<Use> use;
    explicit Held(Recording &r) : own(r.mutex, std::defer_lock) {
      lockPolitely(own);
      use.emplace(*r.core);
    }
  };

  void recordAgain(const std::shared_ptr<Operation> &operation) {
    try {
      sequence->record(operation);
    } catch (const vk::SystemError &) {
    }  // noted, too
  }
  template <typename Op, typename... A> void record(A &&...arguments) {
    if (sealed) throw UsageError("the recording was submitted already and takes no more operations");
    operations.push_back(std::make_shared<Op>(std::forward<A>(arguments)...));
    recordAgain(operations.back());
    core->check();
  }
  // Records the operations from number `first` on again, `times` more times; a query is written once, so none may be among them.
  void repeat(size_t first, uint32_t times) {
    Held held(*this);
    if (sealed) throw UsageError("the recording was submitted already and takes no more operations");
    const size_t last = operations.size();
    for (size_t i = first; i < last; i++)
      if (std::dynamic_pointer_cast<Timestamp>(operations[i])) throw std::invalid_argument("repeat: a timestamp cannot be repeated");
    for (uint32_t n = 0; n < times; n++)
      for (size_t i = first; i < last; i++) recordAgain(operations[i]);
    core->check();
  }
  Range range(const Binding &b) {
    auto &[memory, offset, bytes] = b;
    if (offset > memory->bytes || bytes > memory->bytes - offset) throw std::out_of_range("a range outside its memory");
    keep.push_back(memory);
    return {memory->buffer, offset, bytes};
  }
  void copy(const Binding &from, const Binding &to) {
    Held held(*this);
    record<Copy>(range(from), range(to));
  }
  void fill(const Binding &to, uint32_t value) {
    Held held(*this);
    record<Fill>(range(to), value);
  }
  void barrier() {
    Held held(*this);
    record<Barrier>(core->wideBarriers);
  }
  void timestamp() {
    Held held(*this);
    if (queriesUsed >= queryCount) throw std::out_of_range("no timestamp left in this recording");
    record<Timestamp>(queries, queriesUsed);
    queriesUsed++;
  }

  VkDescriptorSet descriptorSet(const Program &program) {
    constexpr uint32_t setsPerPool = 64;
    VkDevice d = core->handle();
    if (setsLeft == 0) {
      VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, setsPerPool * 8};
      VkDescriptorPoolCreateInfo info{VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
      info.maxSets = setsPerPool;
      info.poolSizeCount = 1;
      info.pPoolSizes = &size;
      VkDescriptorPool pool = VK_NULL_HANDLE;
      vkTable.vkCreateDescriptorPool(d, &info, nullptr, &pool);
      core->check();
      pools.push_back(pool);
      setsLeft = setsPerPool;
    }
    VkDescriptorSetAllocateInfo info{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
    info.descriptorPool = pools.back();
    info.descriptorSetCount = 1;
    info.pSetLayouts = &program.setLayout;
    VkDescriptorSet set = VK_NULL_HANDLE;
    vkTable.vkAllocateDescriptorSets(d, &info, &set);
    core->check();
    setsLeft--;
    return set;
  }

  void dispatch(std::shared_ptr<Program> program, const std::vector<Binding> &bindings, nb::bytes push, uint32_t x, uint32_t y, uint32_t z) {
    Held held(*this);
    if (bindings.size() != program->bindings || bindings.size() > 8 || push.size() != program->pushBytes)
      throw std::invalid_argument("dispatch: the number of bindings or the size of the push constants differs from the program's");
    VkDescriptorSet set = descriptorSet(*program);
    VkDescriptorBufferInfo infos[8];
    VkWriteDescriptorSet writes[8];
    for (uint32_t i = 0; i < bindings.size(); i++) {
      Range r = range(bindings[i]);
      infos[i] = {r.buffer, r.offset, r.bytes};
      writes[i] = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, nullptr, set, i, 0, 1, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, nullptr, &infos[i], nullptr};
    }
    vkTable.vkUpdateDescriptorSets(core->handle(), static_cast<uint32_t>(bindings.size()), writes, 0, nullptr);
    record<Dispatch>(*program, set, std::string(push.c_str(), push.size()), x, y, z);
    keep.push_back(program);
  }

  void submit() {
    nb::gil_scoped_release unlocked;
    Held held(*this);
    if (broken) throw UsageError("an earlier submission of this recording failed before it was recorded to its end; record it again");
    if (running) throw UsageError("the recording is running already; wait for it before it is submitted again");
    if (!sealed) record<HostBarrier>();
    sealed = true;
    std::lock_guard<std::mutex> lock(core->queueMutex);
    Evaluation evaluation(*core);
    try {
      core->submitted = true;
      sequence->evalAsync();
    } catch (const vk::SystemError &) {  // from vkEndCommandBuffer, the only call there whose result Kompute heeds
      broken = true;
    }
    if (pendingResult != VK_SUCCESS) {  // nothing is in flight: this takes Kompute out of its running state without waiting
      sequence->evalAwait(0);
      core->check();
    }
    fence = activeFence;
    running = true;
  }

  // Ends Kompute's evaluation and gives the fence back. The device has finished with it.
  void finish() {
    Evaluation evaluation(*core);
    sequence->evalAwait(0);
    running = false;
    finished = true;
  }

  // Waits for a while; true when there is nothing more to wait for. A short work is polled: a blocking wait costs tens of us.
  bool waitBriefly(bool poll) {
    Held held(*this);
    if (!running) return true;
    VkResult result = VK_NOT_READY;
    for (auto start = Clock::now(); poll && result == VK_NOT_READY && Clock::now() - start < std::chrono::milliseconds(1);) {
      result = vkTable.vkGetFenceStatus(core->handle(), fence);
      if (result == VK_NOT_READY) std::this_thread::yield();
    }
    if (result == VK_NOT_READY) result = vkTable.vkWaitForFences(core->handle(), 1, &fence, VK_TRUE, 50'000'000);
    if (result == VK_NOT_READY || result == VK_TIMEOUT) return false;
    if (result < 0) {
      notePending(result, "vkGetFenceStatus");
      core->waitIdle();  // a failed wait does not say that the work has ended, and its buffers will go
    }
    finish();
    core->check();
    return true;
  }

  // In slices, so that Ctrl-C is seen, and with no lock held while Python's signal handlers run. The work still ends before
  // anything is freed: the interrupt is raised at the end.
  void wait() {
    std::optional<nb::python_error> interrupt;
    for (bool first = true, done = false; !done; first = false) {
      {
        nb::gil_scoped_release unlocked;
        done = waitBriefly(first);
      }
      if (!interrupt && PyErr_CheckSignals() != 0) interrupt.emplace();
    }
    if (interrupt) throw nb::python_error(*interrupt);
  }

  std::vector<uint64_t> timestamps() {
    Held held(*this);
    std::vector<uint64_t> values(queriesUsed);
    if (running || !finished) throw UsageError("the recording has not run yet, so there are no timestamps; run it first");
    if (values.empty()) return values;
    vkTable.vkGetQueryPoolResults(core->handle(), queries, 0, queriesUsed, values.size() * 8, values.data(), 8,
                                  VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT);
    core->check();
    return values;
  }
};

struct Context {
  std::shared_ptr<Core> core = std::make_shared<Core>();

  Context(uint64_t getInstanceProcAddr, uint64_t instance, uint64_t physical, uint64_t device, uint64_t queue, uint32_t family, bool wideBarriers) {
    fillTable(getInstanceProcAddr, instance);
    core->physical = std::make_shared<vk::PhysicalDevice>(reinterpret_cast<VkPhysicalDevice>(physical));
    core->device = std::make_shared<vk::Device>(reinterpret_cast<VkDevice>(device));
    core->queue = std::make_shared<vk::Queue>(reinterpret_cast<VkQueue>(queue));
    core->family = family;
    core->wideBarriers = wideBarriers;
    makeCache(nullptr, 0);
  }
  void makeCache(const void *data, size_t bytes) {
    Use use(*core);
    VkPipelineCacheCreateInfo info{VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
    info.initialDataSize = bytes;
    info.pInitialData = data;
    VkPipelineCache made = VK_NULL_HANDLE;
    vkTable.vkCreatePipelineCache(core->handle(), &info, nullptr, &made);
    core->check();
    if (core->cache) vkTable.vkDestroyPipelineCache(core->handle(), core->cache, nullptr);
    core->cache = made;
  }
  // A bit for each memory type that a storage buffer can be in.
  uint32_t bufferMemoryTypes() {
    Use use(*core);
    VkBuffer buffer = VK_NULL_HANDLE;
    uint32_t types = makeBuffer(*core, 16, &buffer).memoryTypeBits;
    vkTable.vkDestroyBuffer(core->handle(), buffer, nullptr);
    return types;
  }
  nb::bytes cacheData() {
    Use use(*core);
    size_t bytes = 0;
    vkTable.vkGetPipelineCacheData(core->handle(), core->cache, &bytes, nullptr);
    core->check();
    std::vector<char> data(bytes);
    vkTable.vkGetPipelineCacheData(core->handle(), core->cache, &bytes, data.data());
    core->check();
    return nb::bytes(data.data(), bytes);
  }
};

NB_MODULE(_kompute, m) {
  m.attr("kompute_version") = VKQ_KOMPUTE_VERSION;
  nb::set_leak_warnings(false);  // objects alive at interpreter exit are closed by the device's exit handler
  nb::register_exception_translator(
      [](const std::exception_ptr &pointer, void *) {
        try {
          std::rethrow_exception(pointer);
        } catch (const VulkanError &e) {
          nb::object error = nb::module_::import_("vkq.device.vulkan").attr("error_for")(static_cast<int>(e.result), e.call);
          PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
        } catch (const UsageError &e) {
          PyErr_SetString(nb::module_::import_("vkq.errors").attr("DeviceError").ptr(), e.what());
        }
      },
      nullptr);

  nb::class_<Memory>(m, "Memory")
      .def_ro("bytes", &Memory::bytes)
      .def_prop_ro("mapped", [](Memory &s) { return s.mapped != nullptr; })
      .def("view",
           [](std::shared_ptr<Memory> s, uint64_t offset, uint64_t bytes) {
             Use use(*s->core);
             if (!s->mapped || offset > s->bytes || bytes > s->bytes - offset) throw std::out_of_range("not host memory, or a range outside it");
             auto *owner = new std::shared_ptr<Memory>(s);
             return nb::ndarray<nb::numpy, uint8_t>(static_cast<uint8_t *>(s->mapped) + offset, {bytes},
                                                    nb::capsule(owner, [](void *p) noexcept { delete static_cast<std::shared_ptr<Memory> *>(p); }));
           });
  nb::class_<Program>(m, "Program")
      .def_prop_ro("pipeline", [](Program &p) { return reinterpret_cast<uint64_t>(p.pipeline); }, "The VkPipeline as an integer; 0 once the device is closed.");
  nb::class_<Recording>(m, "Recording")
      .def("copy", &Recording::copy)
      .def("fill", &Recording::fill)
      .def("barrier", &Recording::barrier)
      .def("dispatch", &Recording::dispatch)
      .def("timestamp", &Recording::timestamp)
      .def("repeat", &Recording::repeat)
      .def_prop_ro("position", [](Recording &r) { return r.operations.size(); })
      .def("submit", &Recording::submit)
      .def("wait", &Recording::wait)
      .def_prop_ro("broken", [](Recording &r) { return r.broken; })
      .def("timestamps", &Recording::timestamps);
  nb::class_<Context>(m, "Context")
      .def(nb::init<uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint32_t, bool>())
      .def("allocate", [](Context &c, uint64_t bytes, uint32_t type, bool map) { return std::make_shared<Memory>(c.core, bytes, type, map); })
      .def("program",
           [](Context &c, nb::bytes spirv, uint32_t bindings, uint32_t push, const std::vector<std::pair<uint32_t, uint32_t>> &constants,
              uint32_t subgroupSize, uint32_t flags) { return std::make_shared<Program>(c.core, spirv, bindings, push, constants, subgroupSize, flags); })
      .def("recording", [](Context &c, uint32_t timestamps) { return std::make_shared<Recording>(c.core, timestamps); })
      .def("load_cache", [](Context &c, nb::bytes data) { c.makeCache(data.c_str(), data.size()); })
      .def("cache_data", &Context::cacheData)
      .def("buffer_memory_types", &Context::bufferMemoryTypes)
      .def_prop_ro("closed", [](Context &c) { return c.core->closed.load(); })
      .def_prop_ro("lost", [](Context &c) { return c.core->lost.load(); })
      .def("close", [](Context &c) {
        nb::gil_scoped_release release;
        c.core->close();
      });
  m.def("inject", [](const std::string &call, uint64_t nth, int result, uint64_t times) {
    std::lock_guard<std::mutex> lock(injection.mutex);
    injection.call = call;
    injection.first = nth ? nth : 1;
    injection.last = nth ? nth - 1 + std::min(times, UINT64_MAX - nth) : 0;
    injection.result = static_cast<VkResult>(result);
    injection.seen = 0;
  }, nb::arg("call"), nb::arg("nth") = 0, nb::arg("result") = 0, nb::arg("times") = 1,
        "Make the nth call (1-based; 0: none) of this Vulkan function ('*': any) and the times - 1 calls after it fail with this "
        "VkResult; '' ends it. For tests.");
  m.def("injected_calls", [] {
    std::lock_guard<std::mutex> lock(injection.mutex);
    return injection.seen;
  }, "How many calls matched since inject().");
}
