#include "recording.hpp"

#include <chrono>
#include <thread>

namespace vkq {

using Clock = std::chrono::steady_clock;

Recording::Recording(std::shared_ptr<Core> c, uint32_t timestamps)
    : Resource(std::move(c)), queryCount(timestamps) {
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

Recording::~Recording() {
  if (core->forked()) {
    new std::shared_ptr<kp::Sequence>(
        std::move(sequence));  // never destroyed: its destructor calls the driver
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

void Recording::release() {
  if (running) core->fences.give(fence);  // closing the device has waited for it
  running = false;
  sequence.reset();
  for (VkDescriptorPool p : pools) vkTable.vkDestroyDescriptorPool(core->handle(), p, nullptr);
  pools.clear();
  if (queries) vkTable.vkDestroyQueryPool(core->handle(), queries, nullptr);
  queries = VK_NULL_HANDLE;
}

Recording::Held::Held(Recording &r) : own(r.mutex, std::defer_lock) {
  lockPolitely(own);
  use.emplace(*r.core);
}

// ------------------------------------------------------------------------------------------------ recording

void Recording::checkOpen() const {
  if (sealed) throw UsageError("the recording was submitted already and takes no more operations");
}

void Recording::recordAgain(const std::shared_ptr<Operation> &operation) {
  try {
    sequence->record(operation);
  } catch (const vk::SystemError &) {
  }  // noted, too
}

template <typename Op, typename... A>
void Recording::record(A &&...arguments) {
  checkOpen();
  operations.push_back(std::make_shared<Op>(std::forward<A>(arguments)...));
  recordAgain(operations.back());
  core->check();
}

void Recording::repeat(size_t first, uint32_t times) {
  Held held(*this);
  checkOpen();
  const size_t last = operations.size();
  for (size_t i = first; i < last; i++)
    if (std::dynamic_pointer_cast<Timestamp>(operations[i]))
      throw std::invalid_argument("repeat: a timestamp cannot be repeated");
  for (uint32_t n = 0; n < times; n++)
    for (size_t i = first; i < last; i++) recordAgain(operations[i]);
  core->check();
}

Range Recording::range(const Binding &b) {
  auto &[memory, offset, bytes] = b;
  if (offset > memory->bytes || bytes > memory->bytes - offset)
    throw std::out_of_range("a range outside its memory");
  keep.push_back(memory);
  return {memory->buffer, offset, bytes};
}

void Recording::copy(const Binding &from, const Binding &to) {
  Held held(*this);
  record<Copy>(range(from), range(to));
}

void Recording::fill(const Binding &to, uint32_t value) {
  Held held(*this);
  record<Fill>(range(to), value);
}

void Recording::barrier() {
  Held held(*this);
  record<Barrier>(core->wideBarriers);
}

void Recording::timestamp() {
  Held held(*this);
  if (queriesUsed >= queryCount) throw std::out_of_range("no timestamp left in this recording");
  record<Timestamp>(queries, queriesUsed);
  queriesUsed++;
}

VkDescriptorSet Recording::descriptorSet(const Program &program) {
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

void Recording::dispatch(std::shared_ptr<Program> program, const std::vector<Binding> &bindings,
                         nb::bytes push, uint32_t x, uint32_t y, uint32_t z) {
  Held held(*this);
  if (bindings.size() != program->bindings || bindings.size() > 8 || push.size() != program->pushBytes)
    throw std::invalid_argument(
        "dispatch: the number of bindings or the size of the push constants differs from the program's");
  VkDescriptorSet set = descriptorSet(*program);
  VkDescriptorBufferInfo infos[8];
  VkWriteDescriptorSet writes[8];
  for (uint32_t i = 0; i < bindings.size(); i++) {
    Range r = range(bindings[i]);
    infos[i] = {r.buffer, r.offset, r.bytes};
    writes[i] = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, nullptr, set,       i,      0, 1,
                 VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,      nullptr, &infos[i], nullptr};
  }
  vkTable.vkUpdateDescriptorSets(core->handle(), static_cast<uint32_t>(bindings.size()), writes, 0, nullptr);
  record<Dispatch>(*program, set, std::string(push.c_str(), push.size()), x, y, z);
  keep.push_back(program);
}

// ----------------------------------------------------------------------------------------------- submission

void Recording::submit() {
  nb::gil_scoped_release unlocked;
  Held held(*this);
  if (broken)
    throw UsageError(
        "an earlier submission of this recording failed before it was recorded to its end; record it again");
  if (running) throw UsageError("the recording is running already; wait for it before it is submitted again");
  if (!sealed) record<HostBarrier>();
  sealed = true;
  std::lock_guard<std::mutex> lock(core->queueMutex);
  Evaluation evaluation(core->fences);
  try {
    core->submitted = true;
    sequence->evalAsync();
  } catch (
      const vk::SystemError &) {  // from vkEndCommandBuffer, the only call there whose result Kompute heeds
    broken = true;
  }
  if (pending.result !=
      VK_SUCCESS) {  // nothing is in flight: this takes Kompute out of its running state without waiting
    sequence->evalAwait(0);
    core->check();
  }
  fence = evaluation.fence();
  running = true;
}

// Ends Kompute's evaluation and gives the fence back. The device has finished with it.
void Recording::finish() {
  Evaluation evaluation(core->fences);
  sequence->evalAwait(0);
  running = false;
  finished = true;
}

// Waits for a while; true when there is nothing more to wait for. A short work is polled: a blocking wait
// costs tens of us.
bool Recording::waitBriefly(bool poll) {
  Held held(*this);
  if (!running) return true;
  VkResult result = VK_NOT_READY;
  for (auto start = Clock::now();
       poll && result == VK_NOT_READY && Clock::now() - start < std::chrono::milliseconds(1);) {
    result = vkTable.vkGetFenceStatus(core->handle(), fence);
    if (result == VK_NOT_READY) std::this_thread::yield();
  }
  if (result == VK_NOT_READY)
    result = vkTable.vkWaitForFences(core->handle(), 1, &fence, VK_TRUE, 50'000'000);
  if (result == VK_NOT_READY || result == VK_TIMEOUT) return false;
  if (result < 0) {
    notePending(result, "vkGetFenceStatus");
    core->waitIdle();  // a failed wait does not say that the work has ended, and its buffers will go
  }
  finish();
  core->check();
  return true;
}

// In slices, so that Ctrl-C is seen, and with no lock held while Python's signal handlers run. The work still
// ends before anything is freed: the interrupt is raised at the end.
void Recording::wait() {
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

std::vector<uint64_t> Recording::timestamps() {
  Held held(*this);
  std::vector<uint64_t> values(queriesUsed);
  if (running || !finished)
    throw UsageError("the recording has not run yet, so there are no timestamps; run it first");
  if (values.empty()) return values;
  vkTable.vkGetQueryPoolResults(core->handle(), queries, 0, queriesUsed, values.size() * 8, values.data(), 8,
                                VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT);
  core->check();
  return values;
}

}  // namespace vkq
