// What becomes of a recording: it is submitted, waited for, and recorded anew.
#include <chrono>
#include <thread>

#include "gil.hpp"
#include "recording.hpp"

namespace vkq {

using Clock = std::chrono::steady_clock;

bool Recording::uses(const PiecePtr &piece) const {
  core->checkProcess();
  std::lock_guard<std::mutex> lock(mutex);
  for (const Kept &one : kept)
    if (one.piece == piece) return true;
  return false;
}

// Marks what was not computed. What the host had uploaded last is uploaded again instead (Queue).
void Recording::tell(const Failure &failure) {
  for (const Kept &one : kept) {
    if (one.piece->scratch || one.state == State::UNTOUCHED) continue;
    if (one.state == State::WRITTEN) one.piece->failure = failure;
    if (one.state == State::UPLOADED) one.piece->failure.reset();
  }
}

void Recording::submit() {
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
    tell({pending.result, pending.call});
  }
  if (pending.result !=
      VK_SUCCESS) {  // nothing is in flight: Kompute leaves its running state without waiting
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
  if (!replays) letGo();
}

void Recording::letGo() {
  kept.clear();
  uploads.clear();
  plans.clear();
}

// A short work is polled: a blocking wait costs tens of us.
bool Recording::waitBriefly(bool poll) {
  Held held(*this);
  if (!running) return true;
  VkResult result = VK_NOT_READY;
  const auto start = Clock::now();
  while (poll && result == VK_NOT_READY && Clock::now() - start < std::chrono::milliseconds(1)) {
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

void Recording::waitUninterrupted() {
  for (bool first = true; !waitBriefly(first); first = false) {
  }
}

bool Recording::reuse() {
  Held held(*this);
  if (replays || running || broken || queryCount) return false;
  sequence->clear();
  operations.clear();
  letGo();
  reads.clear();
  writes.clear();
  sets.reset(*core);
  recorded = 0;
  serial = nextSerial();
  sealed = finished = false;
  begin();
  return true;
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
