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
#include <map>
#include <mutex>
#include <set>
#include <thread>

VULKAN_HPP_DEFAULT_DISPATCH_LOADER_DYNAMIC_STORAGE

namespace nb = nanobind;
using Clock = std::chrono::steady_clock;

struct VulkanError : std::exception {
  VkResult result;
  const char *call;
  VulkanError(VkResult r, const char *c) : result(r), call(c) {}
};

// ---------------------------------------------------------------------------------------------------------------- the seam
// Every call below that can fail goes through checked(): it can be made to fail by a test, and a failure that Kompute drops
// is kept for the thread until throwPending() turns it into an exception.

static thread_local VkResult pendingResult = VK_SUCCESS;
static thread_local const char *pendingCall = nullptr;

struct Injection {
  std::mutex mutex;
  std::string call;
  uint64_t countdown = 0;  // the call that makes it zero fails
  VkResult result = VK_SUCCESS;
  uint64_t seen = 0;
};
static Injection injection;

static VkResult injected(const char *call) {
  std::lock_guard<std::mutex> lock(injection.mutex);
  if (injection.call.empty() || (injection.call != "*" && injection.call != call)) return VK_SUCCESS;
  injection.seen++;
  if (injection.countdown == 0 || --injection.countdown != 0) return VK_SUCCESS;
  return injection.result;
}

template <typename F, typename... A> static VkResult checked(const char *call, F real, A... arguments) {
  VkResult result = injected(call);
  if (result == VK_SUCCESS) result = real(arguments...);
  if (result < 0 && pendingResult == VK_SUCCESS) {
    pendingResult = result;
    pendingCall = call;
  }
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

#define vkTable VULKAN_HPP_DEFAULT_DISPATCHER

// ----------------------------------------------------------------------------------------------------------------- device

struct Core;

// Something that holds Vulkan handles: released when Python drops it, or when its device is closed, whichever comes first.
struct Resource {
  std::shared_ptr<Core> core;
  explicit Resource(std::shared_ptr<Core> c);
  virtual ~Resource() = default;
  virtual void release() = 0;
  void dispose();  // called by each destructor
};

struct Core {
  std::shared_ptr<vk::PhysicalDevice> physical;
  std::shared_ptr<vk::Device> device;
  std::shared_ptr<vk::Queue> queue;
  uint32_t family = 0;
  VkPipelineCache cache = VK_NULL_HANDLE;
  std::vector<VkFence> fences;  // idle ones
  std::set<Resource *> resources;
  std::mutex mutex;       // resources, fences
  std::mutex queueMutex;  // a VkQueue takes one thread at a time
  std::atomic<bool> closed{false}, lost{false};

  VkDevice handle() const { return static_cast<VkDevice>(*device); }

  void usable() const {
    if (lost) throw VulkanError(VK_ERROR_DEVICE_LOST, "an earlier call");
    if (closed) throw std::runtime_error("the device is closed");
  }
  void check() {
    if (pendingResult == VK_ERROR_DEVICE_LOST) lost = true;
    throwPending();
  }
  void close() {
    if (closed.exchange(true)) return;
    vkTable.vkDeviceWaitIdle(handle());
    pendingResult = VK_SUCCESS;  // closing a lost device is fine
    for (;;) {  // one at a time: releasing a recording may end the last use of a program, which then leaves the set by itself
      Resource *next;
      {
        std::lock_guard<std::mutex> lock(mutex);
        if (resources.empty()) break;
        next = *resources.begin();
        resources.erase(resources.begin());
      }
      next->release();
    }
    for (VkFence f : fences) real_vkDestroyFence(handle(), f, nullptr);
    fences.clear();
    if (cache) vkTable.vkDestroyPipelineCache(handle(), cache, nullptr);
    vkTable.vkDestroyDevice(handle(), nullptr);
  }
  ~Core() { close(); }
};

Resource::Resource(std::shared_ptr<Core> c) : core(std::move(c)) {
  core->usable();
  std::lock_guard<std::mutex> lock(core->mutex);
  core->resources.insert(this);
}

void Resource::dispose() {
  {
    std::lock_guard<std::mutex> lock(core->mutex);
    if (core->resources.erase(this) == 0) return;
  }
  release();
}

// The fence seam: kp::Sequence makes and destroys one fence for each evaluation; here they come from the device's idle ones.
static thread_local Core *activeCore = nullptr;
static thread_local VkFence activeFence = VK_NULL_HANDLE;

static VkResult VKAPI_CALL pooledCreateFence(VkDevice d, const VkFenceCreateInfo *i, const VkAllocationCallbacks *a, VkFence *f) {
  *f = VK_NULL_HANDLE;
  if (activeCore) {
    std::lock_guard<std::mutex> lock(activeCore->mutex);
    if (!activeCore->fences.empty()) {
      *f = activeCore->fences.back();
      activeCore->fences.pop_back();
    }
  }
  VkResult result = *f ? vkTable.vkResetFences(d, 1, f) : checked("vkCreateFence", real_vkCreateFence, d, i, a, f);
  activeFence = *f;
  return result;
}

static void VKAPI_CALL pooledDestroyFence(VkDevice d, VkFence f, const VkAllocationCallbacks *a) {
  if (!f) return;
  if (!activeCore) return real_vkDestroyFence(d, f, a);
  std::lock_guard<std::mutex> lock(activeCore->mutex);
  activeCore->fences.push_back(f);
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
  vkTable.vkCreateFence = pooledCreateFence;
  vkTable.vkDestroyFence = pooledDestroyFence;
}

// ----------------------------------------------------------------------------------------------------------------- memory

// One VkDeviceMemory with one VkBuffer over all of it; the arena (buffer.py) hands out ranges.
struct Memory : Resource {
  VkBuffer buffer = VK_NULL_HANDLE;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  void *mapped = nullptr;
  uint64_t bytes;

  Memory(std::shared_ptr<Core> c, uint64_t n, uint32_t type, bool map) : Resource(std::move(c)), bytes(n) {
    try {
      VkDevice d = core->handle();
      VkBufferCreateInfo b{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
      b.size = n;
      b.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
      vkTable.vkCreateBuffer(d, &b, nullptr, &buffer);
      core->check();
      VkMemoryRequirements need;
      vkTable.vkGetBufferMemoryRequirements(d, buffer, &need);
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
      dispose();
      throw;
    }
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
    nb::gil_scoped_release release;
    try {
      create(code, constants, subgroupSize, flags);
    } catch (...) {
      dispose();
      throw;
    }
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

// Full memory barriers only: narrow compute-to-compute barriers are dropped by some drivers.
static void fullBarrier(const vk::CommandBuffer &commands, VkPipelineStageFlags after) {
  VkMemoryBarrier barrier{VK_STRUCTURE_TYPE_MEMORY_BARRIER};
  barrier.srcAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT;
  barrier.dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT;
  const VkPipelineStageFlags work = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
  vkTable.vkCmdPipelineBarrier(commands, work, after, 0, 1, &barrier, 0, nullptr, 0, nullptr);
}

struct Operation : kp::OpBase {
  void preEval(const vk::CommandBuffer &) override {}
  void postEval(const vk::CommandBuffer &) override {}
};

struct Barrier : Operation {
  void record(const vk::CommandBuffer &commands) override {
    fullBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT);
  }
};

struct HostBarrier : Operation {
  void record(const vk::CommandBuffer &commands) override { fullBarrier(commands, VK_PIPELINE_STAGE_HOST_BIT); }
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
  VkQueryPool queries = VK_NULL_HANDLE;
  uint32_t queryCount, queriesUsed = 0, setsLeft = 0;
  VkFence fence = VK_NULL_HANDLE;
  bool sealed = false, running = false;
  std::mutex mutex;

  Recording(std::shared_ptr<Core> c, uint32_t timestamps) : Resource(std::move(c)), queryCount(timestamps) {
    try {
      sequence = std::make_shared<kp::Sequence>(core->physical, core->device, core->queue, core->family, 0);
      core->check();
      if (queryCount) {
        VkQueryPoolCreateInfo q{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
        q.queryType = VK_QUERY_TYPE_TIMESTAMP;
        q.queryCount = queryCount;
        vkTable.vkCreateQueryPool(core->handle(), &q, nullptr, &queries);
        core->check();
        append<ResetQueries>(queries, queryCount);
      }
    } catch (...) {
      dispose();
      throw;
    }
  }
  ~Recording() override {
    if (running) try { wait(false); } catch (...) {}
    dispose();
  }
  void release() override {
    running = false;  // closing the device has waited for it
    sequence.reset();
    for (VkDescriptorPool p : pools) vkTable.vkDestroyDescriptorPool(core->handle(), p, nullptr);
    pools.clear();
    if (queries) vkTable.vkDestroyQueryPool(core->handle(), queries, nullptr);
    queries = VK_NULL_HANDLE;
    keep.clear();
  }

  template <typename Op, typename... A> void append(A &&...arguments) {
    core->usable();
    if (sealed) throw std::runtime_error("the recording was submitted already and takes no more operations");
    sequence->record(std::make_shared<Op>(std::forward<A>(arguments)...));
    core->check();
  }
  Range range(const Binding &b) {
    auto &[memory, offset, bytes] = b;
    if (offset > memory->bytes || bytes > memory->bytes - offset) throw std::out_of_range("a range outside its memory");
    keep.push_back(memory);
    return {memory->buffer, offset, bytes};
  }
  void copy(const Binding &from, const Binding &to) { append<Copy>(range(from), range(to)); }
  void fill(const Binding &to, uint32_t value) { append<Fill>(range(to), value); }
  void barrier() { append<Barrier>(); }
  uint32_t timestamp() {
    if (queriesUsed >= queryCount) throw std::out_of_range("no timestamp left in this recording");
    append<Timestamp>(queries, queriesUsed);
    return queriesUsed++;
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
    core->usable();
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
    append<Dispatch>(*program, set, std::string(push.c_str(), push.size()), x, y, z);
    keep.push_back(program);
  }

  void submit() {
    core->usable();
    nb::gil_scoped_release release;
    std::lock_guard<std::mutex> own(mutex);
    if (running) throw std::runtime_error("the recording is running already");
    if (!sealed) append<HostBarrier>();
    sealed = true;
    {
      std::lock_guard<std::mutex> lock(core->queueMutex);
      activeCore = core.get();
      sequence->evalAsync();
      fence = activeFence;
      if (pendingResult != VK_SUCCESS) {  // nothing is in flight: take Kompute out of its running state without waiting
        VkResult result = pendingResult;
        if (fence) sequence->evalAwait(0);
        activeCore = nullptr;
        pendingResult = result;
        core->check();
      }
      activeCore = nullptr;
    }
    running = true;
  }

  // Short work is polled (a blocking wait costs tens of microseconds), then waited for in slices so that Ctrl-C is seen.
  // After Ctrl-C the work still ends before anything is freed: the interrupt is raised at the end.
  void wait(bool signals) {
    bool interrupted = false;
    {
      nb::gil_scoped_release release;
      std::lock_guard<std::mutex> own(mutex);
      if (!running) return;
      VkDevice d = core->handle();
      VkResult result = VK_NOT_READY;
      for (auto start = Clock::now(); Clock::now() - start < std::chrono::microseconds(200);) {
        result = vkTable.vkGetFenceStatus(d, fence);
        if (result != VK_NOT_READY) break;
        std::this_thread::yield();
      }
      while (result == VK_NOT_READY || result == VK_TIMEOUT) {
        result = vkTable.vkWaitForFences(d, 1, &fence, VK_TRUE, 50'000'000);
        if (result == VK_TIMEOUT && signals && !interrupted) {
          nb::gil_scoped_acquire acquire;
          interrupted = PyErr_CheckSignals() != 0;
        }
      }
      if (result < 0 && pendingResult == VK_SUCCESS) {
        pendingResult = result;
        pendingCall = "vkWaitForFences";
      }
      VkResult first = pendingResult;
      activeCore = core.get();
      sequence->evalAwait(0);  // ends Kompute's evaluation and gives the fence back
      activeCore = nullptr;
      running = false;
      pendingResult = first;
    }
    if (interrupted) {
      pendingResult = VK_SUCCESS;
      throw nb::python_error();
    }
    core->check();
  }

  std::vector<uint64_t> timestamps() {
    core->usable();
    std::vector<uint64_t> values(queriesUsed);
    if (values.empty()) return values;
    vkTable.vkGetQueryPoolResults(core->handle(), queries, 0, queriesUsed, values.size() * 8, values.data(), 8,
                                  VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT);
    core->check();
    return values;
  }
};

struct Context {
  std::shared_ptr<Core> core = std::make_shared<Core>();

  Context(uint64_t getInstanceProcAddr, uint64_t instance, uint64_t physical, uint64_t device, uint64_t queue, uint32_t family) {
    fillTable(getInstanceProcAddr, instance);
    core->physical = std::make_shared<vk::PhysicalDevice>(reinterpret_cast<VkPhysicalDevice>(physical));
    core->device = std::make_shared<vk::Device>(reinterpret_cast<VkDevice>(device));
    core->queue = std::make_shared<vk::Queue>(reinterpret_cast<VkQueue>(queue));
    core->family = family;
    makeCache(nullptr, 0);
  }
  void makeCache(const void *data, size_t bytes) {
    VkPipelineCacheCreateInfo info{VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
    info.initialDataSize = bytes;
    info.pInitialData = data;
    VkPipelineCache made = VK_NULL_HANDLE;
    vkTable.vkCreatePipelineCache(core->handle(), &info, nullptr, &made);
    core->check();
    if (core->cache) vkTable.vkDestroyPipelineCache(core->handle(), core->cache, nullptr);
    core->cache = made;
  }
  nb::bytes cacheData() {
    core->usable();
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
  nb::set_leak_warnings(false);  // objects alive at interpreter exit are closed by the device's exit handler
  nb::register_exception_translator(
      [](const std::exception_ptr &pointer, void *) {
        try {
          std::rethrow_exception(pointer);
        } catch (const VulkanError &e) {
          nb::object error = nb::module_::import_("vkq.device.vulkan").attr("error_for")(static_cast<int>(e.result), e.call);
          PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
        }
      },
      nullptr);

  nb::class_<Memory>(m, "Memory")
      .def_ro("bytes", &Memory::bytes)
      .def_prop_ro("mapped", [](Memory &s) { return s.mapped != nullptr; })
      .def("view",
           [](std::shared_ptr<Memory> s, uint64_t offset, uint64_t bytes) {
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
      .def("submit", &Recording::submit)
      .def("wait", [](Recording &r) { r.wait(true); })
      .def("timestamps", &Recording::timestamps);
  nb::class_<Context>(m, "Context")
      .def(nb::init<uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint32_t>())
      .def("allocate", [](Context &c, uint64_t bytes, uint32_t type, bool map) { return std::make_shared<Memory>(c.core, bytes, type, map); })
      .def("program",
           [](Context &c, nb::bytes spirv, uint32_t bindings, uint32_t push, const std::vector<std::pair<uint32_t, uint32_t>> &constants,
              uint32_t subgroupSize, uint32_t flags) { return std::make_shared<Program>(c.core, spirv, bindings, push, constants, subgroupSize, flags); })
      .def("recording", [](Context &c, uint32_t timestamps) { return std::make_shared<Recording>(c.core, timestamps); })
      .def("load_cache", [](Context &c, nb::bytes data) { c.makeCache(data.c_str(), data.size()); })
      .def("cache_data", &Context::cacheData)
      .def_prop_ro("closed", [](Context &c) { return c.core->closed.load(); })
      .def_prop_ro("lost", [](Context &c) { return c.core->lost.load(); })
      .def("close", [](Context &c) {
        nb::gil_scoped_release release;
        c.core->close();
      });
  m.def("inject", [](const std::string &call, uint64_t nth, int result) {
    std::lock_guard<std::mutex> lock(injection.mutex);
    injection.call = call;
    injection.countdown = nth;
    injection.result = static_cast<VkResult>(result);
    injection.seen = 0;
  }, "Make the nth call (1-based; 0: none) of this Vulkan function ('*': any) fail with this VkResult; '' ends it. For tests.");
  m.def("injected_calls", [] {
    std::lock_guard<std::mutex> lock(injection.mutex);
    return injection.seen;
  }, "How many calls matched since inject().");
}
