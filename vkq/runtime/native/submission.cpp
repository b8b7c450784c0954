// The rest of a recording's life: submission, waiting, and reuse.
#include <algorithm>
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

// Marks ranges that were not computed. Ranges whose last write was an upload are uploaded again instead
// (Queue).
void Recording::tell(const Failure &failure) {
  for (const Kept &one : kept) {
    if (one.piece->scratch || one.state == State::UNTOUCHED) continue;
    if (one.state == State::WRITTEN) one.piece->failure = failure;
    if (one.state == State::UPLOADED) one.piece->failure.reset();
  }
}

// A kp::Sequence has its own command buffer and submission. If its creation fails, the failure is stored, and
// the previous sequence stays the last one.
void Recording::beginSubmission() {
  auto made = std::make_shared<kp::Sequence>(core->physical, core->device, core->queue, core->family, 0);
  if (pending.result != VK_SUCCESS) return;
  sequences.push_back(std::move(made));
  busyNs = 0;
}

// Barriers order all work of a queue, so a new submission needs no barrier.
void Recording::makeRoom(uint64_t ns) {
  if (busyNs && ns > core->longestNs - std::min<uint64_t>(busyNs, core->longestNs)) beginSubmission();
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
  seal();
  submitAll();
  core->check();
  running = true;
}

// Ends all command buffers before the first is submitted, so that a chain runs completely or not at all.
void Recording::seal() {
  try {
    for (const auto &one : sequences)
      if (one->isRecording()) one->end();
  } catch (const vk::SystemError &) {
    broken = true;
    tell({pending.result, pending.call});
  }
}

// If a submission fails, wait for the earlier submissions. A chain that is submitted again continues after
// the submissions that succeeded. A recording that can be replayed starts from the beginning, because its
// inputs may have changed.
void Recording::submitAll() {
  Evaluation evaluation(core->fences);
  if (replays) submitted = 0;
  core->submitted = true;
  size_t next = submitted;
  for (; next < sequences.size() && pending.result == VK_SUCCESS; next++) {
    sequences[next]->evalAsync();
    fences.push_back(evaluation.fence());
  }
  if (pending.result == VK_SUCCESS) return;
  if (next > submitted + 1) waitIdleUnchecked(core->handle());
  endAll();
  if (next > submitted) submitted = next - 1;
}

// Ends Kompute's evaluations and returns their fences. The device has finished the work, or never started it.
void Recording::endAll() {
  for (const auto &one : sequences)
    if (one->isRunning()) one->evalAwait(0);
  fences.clear();
}

void Recording::finish() {
  Evaluation evaluation(core->fences);
  endAll();
  running = false;
  finished = true;
  if (!replays) letGo();
}

void Recording::letGo() {
  kept.clear();
  uploads.clear();
  plans.clear();
}

// Polls at first, because a blocking wait costs tens of microseconds. The last fence signals after all
// earlier submissions.
bool Recording::waitBriefly(bool poll) {
  Held held(*this);
  if (!running) return true;
  VkResult result = VK_NOT_READY;
  const auto start = Clock::now();
  while (poll && result == VK_NOT_READY && Clock::now() - start < std::chrono::milliseconds(1)) {
    result = vkTable.vkGetFenceStatus(core->handle(), fences.back());
    if (result == VK_NOT_READY) std::this_thread::yield();
  }
  if (result == VK_NOT_READY)
    result = vkTable.vkWaitForFences(core->handle(), 1, &fences.back(), VK_TRUE, 50'000'000);
  if (result == VK_NOT_READY || result == VK_TIMEOUT) return false;
  if (result < 0) {
    notePending(result, "vkGetFenceStatus");
    core->waitIdle();  // after a failed wait, the work may still use buffers that will be freed
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
  sequences.resize(1);
  sequences[0]->clear();
  busyNs = submitted = 0;
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
