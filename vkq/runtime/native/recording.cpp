#include "recording.hpp"

#include <algorithm>
#include <cstring>

#include "gil.hpp"

namespace vkq {

uint64_t Recording::nextSerial() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

Recording::Recording(std::shared_ptr<Core> c, uint32_t timestamps, uint32_t marks, bool again)
    : Resource(std::move(c)),
      queryCount(timestamps ? 2 * timestamps : marks),
      timesSteps(timestamps != 0),
      replays(again),
      serial(nextSerial()) {
  if (timestamps > MOST_QUERIES || marks > MOST_QUERIES)
    throw std::invalid_argument("Recording: more timestamps or marks than a recording may have");
  Use use(*core);
  try {
    beginSubmission();
    core->check();
    if (queryCount) {
      VkQueryPoolCreateInfo q{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
      q.queryType = VK_QUERY_TYPE_TIMESTAMP;
      q.queryCount = queryCount;
      vkTable.vkCreateQueryPool(core->handle(), &q, nullptr, &queries);
      core->check();
    }
    begin();
  } catch (...) {
    release();
    throw;
  }
  adopt();
}

void Recording::begin() {
  if (queryCount) record<ResetQueries>(queries, queryCount);
  record<Barrier>(core->wideBarriers);  // after all earlier submissions
}

Recording::~Recording() {
  if (core->forked()) {
    new auto(std::move(sequences));  // never destroyed, because their destructors call the driver
    return;
  }
  {
    MaybeUnlocked unlocked;
    std::shared_lock<std::shared_mutex> life(core->life);
    if (running) {  // the work still uses its memory
      core->waitIdle();
      finish();
    }
  }
  dispose();
}

void Recording::release() {
  for (VkFence fence : fences) core->fences.give(fence);  // closing the device has waited for the fences
  fences.clear();
  running = false;
  sequences.clear();
  sets.release(*core);
  if (queries) vkTable.vkDestroyQueryPool(core->handle(), queries, nullptr);
  queries = VK_NULL_HANDLE;
}

Recording::Held::Held(Recording &r) : own(r.mutex, std::defer_lock) {
  r.core->checkProcess();
  lockPolitely(own);
  use.emplace(*r.core);
}

void Recording::checkOpen() const {
  if (sealed) throw UsageError("the recording was submitted already, so no more operations can be added");
}

void Recording::checkOwn(const PiecePtr &piece) const {
  if (piece->arena->core != core) throw std::invalid_argument("the buffer belongs to another device");
}

void Recording::recordAgain(const std::shared_ptr<Operation> &operation) {
  try {
    makeRoom(operation->busyNs);
    sequences.back()->record(operation);
    busyNs += operation->busyNs;
  } catch (const vk::SystemError &) {
  }  // the failure was stored as this thread's pending failure
}

void Recording::repeat(size_t first, uint32_t times) {
  Held held(*this);
  checkOpen();
  const size_t last = operations.size();
  if (first > last) throw std::out_of_range("repeat: the first operation is beyond the last");
  if (times > MOST_OPERATIONS / std::max<size_t>(last - first, 1))
    throw std::invalid_argument("repeat: more operations than a recording may have");
  for (size_t i = first; i < last; i++)
    if (std::dynamic_pointer_cast<Timestamp>(operations[i]))
      throw std::invalid_argument("repeat: a timestamp cannot be repeated");
  for (uint32_t n = 0; n < times; n++)
    for (size_t i = first; i < last; i++) recordAgain(operations[i]);
  core->check();
}

Recording::Kept &Recording::keep(const PiecePtr &piece) {
  if (piece->keptBy != serial) {
    piece->keptBy = serial;
    piece->keptAt = kept.size();
    kept.push_back({piece, State::UNTOUCHED});
  }
  return kept[piece->keptAt];
}

template <typename Spans, typename Span>
static bool meets(const Span *some, size_t count, const Spans &others) {
  for (size_t i = 0; i < count; i++)
    for (const auto &other : others)
      if (some[i].buffer == other.buffer && some[i].begin < other.end && other.begin < some[i].end)
        return true;
  return false;
}

// Records a barrier if any of the ranges overlaps a range written since the last barrier, or if a written
// range overlaps a range read since then.
void Recording::order(const Span *reading, size_t readCount, const Span *writing, size_t writeCount) {
  if (meets(reading, readCount, writes) || meets(writing, writeCount, writes) ||
      meets(writing, writeCount, reads)) {
    record<Barrier>(core->wideBarriers);
    reads.clear();
    writes.clear();
  }
  reads.insert(reads.end(), reading, reading + readCount);
  writes.insert(writes.end(), writing, writing + writeCount);
}

// A write computes the content again, so an earlier loss does not matter.
void Recording::noteWrite(const PiecePtr &piece) {
  keep(piece).state = State::WRITTEN;
  piece->failure.reset();
}

void Recording::copy(const PiecePtr &from, uint64_t fromOffset, const PiecePtr &to, uint64_t toOffset,
                     uint64_t bytes) {
  Held held(*this);
  checkOpen();
  checkOwn(from);
  checkOwn(to);
  if (fromOffset > from->bytes || bytes > from->bytes - fromOffset || toOffset > to->bytes ||
      bytes > to->bytes - toOffset)
    throw std::out_of_range("copy: a range outside its buffer");
  if (from->failure) throw NeverComputed(*from->failure);
  const Range source{from->memory->buffer, from->offset + fromOffset, bytes};
  const Range target{to->memory->buffer, to->offset + toOffset, bytes};
  const Span reading{source.buffer, source.offset, source.offset + bytes};
  const Span writing{target.buffer, target.offset, target.offset + bytes};
  order(&reading, 1, &writing, 1);
  keep(from);
  record<Copy>(source, target);
  noteWrite(to);
  recorded++;
}

void Recording::upload(const Upload &u) {
  Held held(*this);
  checkOpen();
  const uint64_t at = u.to->offset + u.offset;
  Span reading{u.from->memory->buffer, u.from->offset, u.from->offset + u.bytes};
  Span writing{u.to->memory->buffer, at, at + u.bytes};
  order(&reading, 1, &writing, 1);
  keep(u.from);
  record<Copy>(Range{u.from->memory->buffer, u.from->offset, u.bytes},
               Range{u.to->memory->buffer, at, u.bytes});
  uploads.push_back(u);
  Kept &entry = keep(u.to);
  if (u.whole) {
    entry.state = State::UPLOADED;
    u.to->failure.reset();
  }
  recorded++;
}

void Recording::fill(const PiecePtr &to, uint32_t value) {
  Held held(*this);
  checkOpen();
  checkOwn(to);
  Span writing{to->memory->buffer, to->offset, to->offset + to->bytes};
  order(nullptr, 0, &writing, 1);
  record<Fill>(to->range(), value);
  noteWrite(to);
  recorded++;
}

void Recording::barrier() {
  Held held(*this);
  checkOpen();
  record<Barrier>(core->wideBarriers);
  reads.clear();
  writes.clear();
}

void Recording::timestamp() {
  Held held(*this);
  checkOpen();
  if (queriesUsed >= queryCount) throw std::out_of_range("no timestamp left in this recording");
  writeTimestamp();
}

void Recording::writeTimestamp() {
  record<Timestamp>(queries, queriesUsed);
  queriesUsed++;
}

void Recording::add(const std::shared_ptr<Plan> &plan, const Slot *slots) {
  Held held(*this);
  checkOpen();
  plan->check(slots, *core);
  plans.push_back(plan);
  recorded += static_cast<uint32_t>(plan->steps.size());
  try {
    for (const PlanStep &step : plan->steps) addStep(step, slots);
  } catch (const VulkanError &error) {  // only some steps are recorded
    for (const PlanStep &step : plan->steps)
      for (size_t i = 0; i < step.slots.size(); i++) {
        Piece &piece = **slots[step.slots[i]].piece;
        if (step.access[i] & WRITE && !piece.scratch) piece.failure = {error.result, error.call};
      }
    throw;
  }
}

void Recording::addStep(const PlanStep &step, const Slot *slots) {
  orderSlots(step, slots);
  const Slot &first = slots[step.slots[0]];
  if (step.program)
    dispatch(step, slots);
  else
    record<Fill>(Range{first.buffer(), first.offset, first.bytes}, step.value);
}

void Recording::orderSlots(const PlanStep &step, const Slot *slots) {
  Span reading[Program::MOST_BINDINGS], writing[Program::MOST_BINDINGS];
  size_t readCount = 0, writeCount = 0;
  for (size_t i = 0; i < step.slots.size(); i++) {
    const Slot &slot = slots[step.slots[i]];
    const Span span{slot.buffer(), slot.offset, slot.offset + slot.bytes};
    if (step.access[i] & READ) reading[readCount++] = span;
    if (step.access[i] & (WRITE | KEPT)) writing[writeCount++] = span;
    keep(*slot.piece);
  }
  order(reading, readCount, writing, writeCount);
  for (size_t i = 0; i < step.slots.size(); i++)
    if (step.access[i] & WRITE) noteWrite(*slots[step.slots[i]].piece);
}

void Recording::dispatch(const PlanStep &step, const Slot *slots) {
  const Program &program = *step.program;
  const auto count = static_cast<uint32_t>(step.slots.size());
  VkDescriptorSet set = sets.allocate(*core, program);
  VkDescriptorBufferInfo infos[Program::MOST_BINDINGS];
  VkBufferView views[Program::MOST_BINDINGS];
  VkWriteDescriptorSet updates[Program::MOST_BINDINGS];
  for (uint32_t i = 0; i < count; i++) {
    const Slot &slot = slots[step.slots[i]];
    infos[i] = {slot.buffer(), slot.offset, slot.bytes};
    if (program.readsTexels(i)) views[i] = sets.view(*core, {slot.buffer(), slot.offset, slot.bytes});
    updates[i] = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, nullptr, set,       i,        0, 1,
                  program.kind(i),                        nullptr, &infos[i], &views[i]};
  }
  vkTable.vkUpdateDescriptorSets(core->handle(), count, updates, 0, nullptr);
  const bool timed = timesSteps && queriesUsed + 2 <= queryCount;
  // If the dispatch needs a new submission, begin it before the timestamp.
  if (timed && !step.grids.empty()) makeRoom(step.busyNsOf(step.grids[0]));
  if (timed) writeTimestamp();
  for (const auto &grid : step.grids) {
    std::string push = step.push;
    if (step.firstGroupAt >= 0) std::memcpy(push.data() + step.firstGroupAt, &grid[0], 4);
    record<Dispatch>(program, set, std::move(push), grid[1], grid[2], step.busyNsOf(grid));
  }
  if (timed) writeTimestamp();
}

}  // namespace vkq
