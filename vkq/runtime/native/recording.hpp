// A chain of operations recorded once through kp::Sequence and submitted as often as wished.
#pragma once
#include <optional>

#include "operations.hpp"
#include "plan.hpp"
#include "sets.hpp"

namespace vkq {

// A copy from the host's memory that must not get lost: were its chain lost, it is recorded again.
struct Upload {
  PiecePtr from, to;
  uint64_t offset, bytes;  // in `to`
  bool whole;              // the first of the copies that together replace all that matters of `to`
};

// The members that record are called under the lock of the device's queue (queue.hpp); `wait` and what
// follows it are not.
struct Recording : Resource, std::enable_shared_from_this<Recording> {
  static constexpr uint32_t MOST_QUERIES = 1 << 20;
  static constexpr size_t MOST_OPERATIONS = 1 << 24;  // of one `repeat`
  // `timestamps`: of how many steps the time is taken, or (`marks`) how often `timestamp` may be called.
  Recording(std::shared_ptr<Core> c, uint32_t timestamps, uint32_t marks, bool replays);
  ~Recording() override;
  void release() override;

  // Each waits, on the device, for what it depends on.
  void add(const std::shared_ptr<Plan> &plan, const Slot *slots);
  void copy(const PiecePtr &from, uint64_t fromOffset, const PiecePtr &to, uint64_t toOffset, uint64_t bytes);
  void upload(const Upload &upload);
  void fill(const PiecePtr &to, uint32_t value);
  void barrier();
  void timestamp();
  // Records the operations from number `first` on again, `times` more times; a query is written once, so none
  // may be among them.
  void repeat(size_t first, uint32_t times);
  size_t position() const { return operations.size(); }
  size_t submissions() const { return sequences.size(); }

  void submit();  // with the queue's lock held
  bool uses(const PiecePtr &piece) const;
  // Waits for a while; true when there is nothing more to wait for.
  bool waitBriefly(bool poll);
  void waitUninterrupted();
  // Makes a finished chain ready to be recorded anew; false where that cannot be.
  bool reuse();
  std::vector<uint64_t> timestamps();

  const uint32_t queryCount;
  const bool timesSteps;
  const bool replays;                // is submitted again and again, and keeps what it uses
  uint32_t recorded = 0;             // operations of the caller's
  bool sealed = false;               // recorded to the end
  bool broken = false;               // the end could not be recorded; it can never run
  std::atomic<bool> running{false};  // submitted, and not found to be finished yet
  std::vector<Upload> uploads;

 private:
  enum class State : uint8_t { UNTOUCHED, WRITTEN, UPLOADED };
  struct Kept {
    PiecePtr piece;
    State state;
  };
  struct Span {
    VkBuffer buffer;
    uint64_t begin, end;
  };
  // Held by each call: one thread at a time, and the device stays open.
  struct Held {
    std::unique_lock<std::mutex> own;
    std::optional<Use> use;
    explicit Held(Recording &r);
  };

  std::vector<std::shared_ptr<kp::Sequence>> sequences;  // a submission each; the last is recorded into
  uint64_t busyNs = 0;                                   // of the last one
  size_t submitted = 0;                                  // of a chain: how many need no submission any more
  DescriptorSets sets;
  uint64_t serial;
  std::vector<Kept> kept;  // what the recorded commands use
  std::vector<std::shared_ptr<Plan>> plans;
  std::vector<std::shared_ptr<Operation>> operations;
  std::vector<Span> reads, writes;  // since the last barrier
  VkQueryPool queries = VK_NULL_HANDLE;
  uint32_t queriesUsed = 0;
  std::vector<VkFence> fences;  // of the submissions in flight
  bool finished = false;  // ran once, so that there are timestamps
  mutable std::mutex mutex;

  template <typename Op, typename... A>
  void record(A &&...arguments) {
    operations.push_back(std::make_shared<Op>(std::forward<A>(arguments)...));
    recordAgain(operations.back());
    core->check();
  }
  static uint64_t nextSerial();  // of what was recorded
  void recordAgain(const std::shared_ptr<Operation> &operation);
  void begin();
  void beginSubmission();
  void makeRoom(uint64_t ns);
  void checkOpen() const;
  void checkOwn(const PiecePtr &piece) const;
  Kept &keep(const PiecePtr &piece);
  void order(const Span *reading, size_t readCount, const Span *writing, size_t writeCount);
  void addStep(const PlanStep &step, const Slot *slots);
  void orderSlots(const PlanStep &step, const Slot *slots);
  void noteWrite(const PiecePtr &piece);
  void writeTimestamp();
  void dispatch(const PlanStep &step, const Slot *slots);
  void seal();
  void submitAll();
  void endAll();
  void finish();
  void letGo();
  void tell(const Failure &failure);
};

}  // namespace vkq
