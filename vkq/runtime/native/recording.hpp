// A chain of operations, recorded once through kp::Sequence and submitted any number of times.
#pragma once
#include <optional>

#include "operations.hpp"
#include "plan.hpp"
#include "sets.hpp"

namespace vkq {

// A copy from host memory; if its chain is lost, the copy is recorded again.
struct Upload {
  PiecePtr from, to;
  uint64_t offset, bytes;  // in `to`
  // True for the first copy of an upload. The whole upload replaces all content of `to` that is read later.
  bool whole;
};

// The members that record are called with the lock of the device's queue held (queue.hpp). The wait functions
// and the members after them are called without it.
struct Recording : Resource, std::enable_shared_from_this<Recording> {
  static constexpr uint32_t MOST_QUERIES = 1 << 20;
  static constexpr size_t MOST_OPERATIONS = 1 << 24;  // for one `repeat`
  // `timestamps`: the number of steps to time. `marks`: the number of `timestamp` calls. At least one is 0.
  Recording(std::shared_ptr<Core> c, uint32_t timestamps, uint32_t marks, bool replays);
  ~Recording() override;
  void release() override;

  // On the device, each operation waits for the operations that it depends on.
  void add(const std::shared_ptr<Plan> &plan, const Slot *slots);
  void copy(const PiecePtr &from, uint64_t fromOffset, const PiecePtr &to, uint64_t toOffset, uint64_t bytes);
  void upload(const Upload &upload);
  void fill(const PiecePtr &to, uint32_t value);
  void barrier();
  void timestamp();
  // Records the operations from number `first` on again, `times` more times. None of them may be a timestamp,
  // because a query can be written only once.
  void repeat(size_t first, uint32_t times);
  size_t position() const { return operations.size(); }
  size_t submissions() const { return sequences.size(); }

  void submit();  // with the queue's lock held
  bool uses(const PiecePtr &piece) const;
  // Waits for a short time; returns true if the work has ended.
  bool waitBriefly(bool poll);
  void waitUninterrupted();
  // Prepares a finished chain for recording again; returns false if that is impossible.
  bool reuse();
  std::vector<uint64_t> timestamps();

  const uint32_t queryCount;
  const bool timesSteps;
  const bool replays;                // can be submitted repeatedly, and keeps the memory that it uses
  uint32_t recorded = 0;             // number of the caller's operations
  bool sealed = false;               // recording has ended
  bool broken = false;               // recording failed to end, so it can never run
  std::atomic<bool> running{false};  // submitted, and not yet known to have ended
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
  // Held by each call: one thread at a time uses the recording, and the device stays open.
  struct Held {
    std::unique_lock<std::mutex> own;
    std::optional<Use> use;
    explicit Held(Recording &r);
  };

  // One for each submission; the last one is being recorded.
  std::vector<std::shared_ptr<kp::Sequence>> sequences;
  uint64_t busyNs = 0;                                   // estimated time of the last submission
  size_t submitted = 0;  // number of a chain's submissions that succeeded and will not be repeated
  DescriptorSets sets;
  uint64_t serial;
  std::vector<Kept> kept;  // ranges that the recorded commands use
  std::vector<std::shared_ptr<Plan>> plans;
  std::vector<std::shared_ptr<Operation>> operations;
  std::vector<Span> reads, writes;  // ranges since the last barrier
  VkQueryPool queries = VK_NULL_HANDLE;
  uint32_t queriesUsed = 0;
  std::vector<VkFence> fences;  // fences of the submissions in flight
  bool finished = false;  // has run, so timestamps exist
  mutable std::mutex mutex;

  template <typename Op, typename... A>
  void record(A &&...arguments) {
    operations.push_back(std::make_shared<Op>(std::forward<A>(arguments)...));
    recordAgain(operations.back());
    core->check();
  }
  // Returns a new number for the content of a recording. A chain that is reused gets a new number.
  static uint64_t nextSerial();
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
