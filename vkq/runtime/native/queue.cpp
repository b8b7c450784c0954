#include "queue.hpp"

#include <algorithm>

namespace vkq {

void Queue::setStaging(std::shared_ptr<Arena> arena, uint64_t limit, uint64_t chunk) {
  staging = std::move(arena);
  stagingLimit = limit;
  chunkBytes = std::max<uint64_t>(chunk, 1);
}

void Queue::setScratch(std::shared_ptr<Arena> arena, uint64_t keep) {
  scratchArena = std::move(arena);
  scratchKeep = keep;
}

Lock Queue::hold() {
  core->checkProcess();
  return locked(mutex);
}

Lock Queue::holdBetween() {
  Lock lock = hold();
  if (entered)
    throw UsageError(
        "this thread is inside of an operation, and came back through a signal handler or a callback: "
        "nothing can be submitted or read before the operation ends");
  return lock;
}

void Queue::checkOwn(const Core *other, const char *what) const {
  if (other != core.get()) throw std::invalid_argument(std::string(what) + " belongs to another device");
}

// ------------------------------------------------------------------------------------------------- recording

std::shared_ptr<Recording> Queue::newChain() {
  std::shared_ptr<Recording> found;
  while (!idle.empty() && !found) {
    auto one = std::move(idle.back());
    idle.pop_back();
    // A chain for which a thread still waits must not be reused for other work.
    if (one.use_count() == 1 && one->reuse()) found = std::move(one);
  }
  if (!found) found = std::make_shared<Recording>(core, 0, 0, false);
  for (const Upload &one : lost) found->upload(one);
  lost.clear();
  return found;
}

std::shared_ptr<Recording> Queue::chain() {
  if (pendingChain && (pendingChain->sealed || pendingChain->recorded >= operationsPerChain)) flush();
  if (!pendingChain) pendingChain = newChain();
  return pendingChain;
}

void Queue::enter() {
  Lock lock = hold();
  Use use(*core);
  chain();
  entered++;
  lock.release();  // until leave()
}

void Queue::leave() {
  entered--;
  mutex.unlock();
}

PiecePtr Queue::scratchOf(uint64_t bytes) {
  if (!scratchArena) throw UsageError("the queue has no arenas");
  if (bytes <= scratchKeep && sharedScratch && sharedScratch->bytes >= bytes) return sharedScratch;
  PiecePtr found;
  if (bytes <= scratchKeep) sharedScratch.reset();
  try {
    found = scratchArena->allocate(bytes);
  } catch (const VulkanError &) {
    trim();
    found = scratchArena->allocate(bytes);
  }
  found->scratch = true;
  if (bytes <= scratchKeep) sharedScratch = found;
  return found;
}

void Queue::add(Recording *into, const std::shared_ptr<Plan> &plan, const PiecePtr *given, size_t count,
                const PiecePtr *outputs, size_t outputCount, const PiecePtr &scratch) {
  constexpr size_t FEW = 32;
  Slot few[FEW];
  std::vector<Slot> many(plan->slots > FEW ? plan->slots : 0);
  Slot *slots = many.empty() ? few : many.data();
  if (count > plan->slots) throw std::invalid_argument("add: more buffers than the plan has slots");
  if (outputCount && outputCount != plan->outputs.size())
    throw std::invalid_argument("add: the number of outputs differs from the plan's");
  if (into) checkOwn(into->core.get(), "add: the recording");
  Lock lock = hold();
  for (const auto &[slot, piece] : plan->constants) slots[slot] = Slot(piece);
  PiecePtr own = scratch;
  if (plan->scratchBytes) {
    if (!own) own = scratchOf(plan->scratchBytes);
    if (own->bytes < plan->scratchBytes) throw std::invalid_argument("add: the scratch memory is too small");
    for (const ScratchSlot &part : plan->scratch) slots[part.slot] = Slot(own, part.offset, part.bytes);
  }
  for (size_t i = 0; i < count; i++)
    if (given[i]) slots[i] = Slot(given[i]);
  for (size_t i = 0; i < outputCount; i++) {
    if (!outputs[i]) throw std::invalid_argument("add: an output is None");
    slots[plan->outputs[i]] = Slot(outputs[i]);
  }
  (into ? *into : *chain()).add(plan, slots);
}

// ------------------------------------------------------------------------------------------------ submission

void Queue::flush() {
  Lock lock = hold();
  if (!pendingChain || entered) return;
  try {
    MaybeUnlocked unlocked;
    pendingChain->submit();
  } catch (...) {
    if (pendingChain->broken) {  // if it is not broken, the next call submits it again
      lost.insert(lost.end(), pendingChain->uploads.begin(), pendingChain->uploads.end());
      pendingChain.reset();
    }
    throw;
  }
  flying.push_back(std::move(pendingChain));
  pendingChain.reset();
  if (flying.size() > chainsInFlight) waitUnlocked(flying.front());
}

void Queue::submit(const std::shared_ptr<Recording> &recording) {
  checkOwn(recording->core.get(), "submit: the recording");
  Lock lock = holdBetween();
  flush();
  {
    MaybeUnlocked unlocked;
    recording->submit();
  }
  flying.push_back(recording);
}

std::vector<std::shared_ptr<Recording>> Queue::inFlight() {
  Lock lock = hold();
  return {flying.begin(), flying.end()};
}

// Called after a wait for `recording`. If it has ended, removes it and the earlier submissions that have
// ended from `flying`. A removed chain is kept in `idle` for reuse, or released.
void Queue::landed(const std::shared_ptr<Recording> &recording) {
  Lock lock = hold();
  auto found = std::find(flying.begin(), flying.end(), recording);
  if (found == flying.end() || recording->running) return;
  std::deque<std::shared_ptr<Recording>> left;
  for (auto it = flying.begin(); it <= found; ++it) {
    try {
      MaybeUnlocked unlocked;
      (*it)->waitBriefly(false);
    } catch (...) {  // the thread that waits for it gets the error
    }
    if ((*it)->running)
      left.push_back(*it);
    else if (!(*it)->replays && idle.size() < chainsInFlight + 2)
      idle.push_back(*it);
  }
  left.insert(left.end(), std::next(found), flying.end());
  flying.swap(left);
}

void Queue::waitUnlocked(const std::shared_ptr<Recording> &recording) {
  const auto kept = recording;  // the argument may refer to an element of `flying`
  try {
    MaybeUnlocked unlocked;
    kept->waitUninterrupted();
  } catch (...) {
    landed(kept);
    throw;
  }
  landed(kept);
}

void Queue::wait(const std::shared_ptr<Recording> &recording) {
  checkOwn(recording->core.get(), "wait: the recording");
  std::optional<nb::python_error> interrupt;
  try {
    for (bool first = true, done = false; !done; first = false) {
      {
        Unlocked unlocked;
        done = recording->waitBriefly(first);
      }
      if (!interrupt && PyErr_CheckSignals() != 0) interrupt.emplace();
    }
  } catch (...) {
    landed(recording);
    throw;
  }
  landed(recording);
  if (interrupt) throw nb::python_error(*interrupt);
}

void Queue::synchronize() {
  {
    Lock lock = holdBetween();
    flush();
  }
  for (const auto &one : inFlight()) wait(one);
}

void Queue::trim() {
  Lock lock = hold();
  flush();
  while (!flying.empty()) waitUnlocked(flying.front());
  idle.clear();
  if (!entered) sharedScratch.reset();
  if (scratchArena) scratchArena->trim();
  if (staging) staging->trim();
}

void Queue::close() {
  if (core->forked()) return;
  Lock lock = locked(mutex);
  pendingChain.reset();
  flying.clear();
  idle.clear();
  lost.clear();
  sharedScratch.reset();
}

}  // namespace vkq
