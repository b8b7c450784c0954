// The order of a device's work: the chain being recorded, the submissions in flight, and copies between host
// and device.
#pragma once
#include <functional>
#include <map>

#include "copying.hpp"
#include "recording.hpp"

namespace vkq {

using Lock = std::unique_lock<std::recursive_mutex>;

struct Queue : std::enable_shared_from_this<Queue> {
  const std::shared_ptr<Core> core;
  // Held while a thread records, submits, or writes host-visible device memory. Lock order: the queue's mutex
  // before the mutex of any recording.
  std::recursive_mutex mutex;
  // After operationsPerChain operations, a new chain begins. If more than chainsInFlight chains are in
  // flight, the queue waits for the oldest, because chains in flight hold memory.
  uint32_t operationsPerChain = 256, chainsInFlight = 4;

  explicit Queue(std::shared_ptr<Core> c) : core(std::move(c)) {}
  // Sets the arena for staging memory, which is allocated in chunks and up to `limit` bytes in all.
  void setStaging(std::shared_ptr<Arena> arena, uint64_t limit, uint64_t chunk);
  void setScratch(std::shared_ptr<Arena> arena, uint64_t keep);

  // Takes the lock. Throws in a forked child, in which the holder of the lock may not exist.
  Lock hold();
  // Like hold(), for calls that submit or read. Throws inside this thread's own operation (for example in a
  // signal handler), because some of the operation's steps are not recorded yet.
  Lock holdBetween();
  void checkOwn(const Core *other, const char *what) const;  // throws for an object of another device

  // Returns the chain of the next submission. With the lock held.
  std::shared_ptr<Recording> chain();
  // Keep the dispatches of an operation together: nothing is submitted between `enter` and `leave`.
  void enter();
  void leave();

  // Returns scratch memory for a plan. Plans share one range, ordered by barriers; a plan that needs more
  // than `scratchKeep` bytes gets its own range.
  PiecePtr scratchOf(uint64_t bytes);
  // Records a plan into `into`, or into the chain if `into` is null. `given`: the ranges of the first slots;
  // ranges of constants and scratch memory may be null.
  void add(Recording *into, const std::shared_ptr<Plan> &plan, const PiecePtr *given, size_t count,
           const PiecePtr *outputs, size_t outputCount, const PiecePtr &scratch);
  void flush();
  void submit(const std::shared_ptr<Recording> &recording);
  std::vector<std::shared_ptr<Recording>> inFlight();
  void synchronize();
  // Waits in slices, so that Ctrl-C is noticed; no lock is held while Python's signal handlers run. An
  // interrupt is raised after the work has ended, because the work still uses memory. Called with the GIL.
  void wait(const std::shared_ptr<Recording> &recording);
  void trim();   // waits for all work, and frees memory that is no longer used
  void close();  // drops all references

  // `upload` returns when the data have been copied from host memory, `download` when the copy is complete.
  // Called with the GIL.
  void upload(const PiecePtr &target, const uint8_t *data, uint64_t bytes);
  void download(const PiecePtr &source, uint8_t *data, uint64_t bytes);
  // Waits until the device does not use this host-visible memory, and copies the arrays into it, one after
  // the other.
  void gather(const PiecePtr &target, const std::vector<Part> &parts);
  // Waits until the device does not use this host-visible memory. Then calls `access`, which reads or writes
  // the memory, without the GIL.
  void write(const PiecePtr &target, const std::function<void(uint8_t *)> &access);
  void read(const PiecePtr &source, const std::function<void(const uint8_t *)> &access);
  // Allocates host memory that the device itself reads and writes.
  PiecePtr pin(uint64_t bytes);

 private:
  struct Chunk {
    PiecePtr staging;
    std::shared_ptr<Recording> chain;
    uint64_t offset, bytes;
  };
  std::shared_ptr<Recording> pendingChain;
  std::deque<std::shared_ptr<Recording>> flying;
  std::vector<std::shared_ptr<Recording>> idle;  // finished chains, which are recorded again
  std::vector<Upload> lost;                      // uploads of a chain that could not be recorded completely
  int entered = 0;
  std::shared_ptr<Arena> staging, scratchArena;
  uint64_t stagingLimit = 0, chunkBytes = 1, scratchKeep = 0;
  PiecePtr sharedScratch;
  std::map<const uint8_t *, std::weak_ptr<Piece>> pinned;  // by address

  std::shared_ptr<Recording> newChain();
  void landed(const std::shared_ptr<Recording> &recording);
  void waitUnlocked(const std::shared_ptr<Recording> &recording);
  PiecePtr tryStaging(uint64_t bytes);
  PiecePtr takeStaging(uint64_t bytes);
  std::vector<std::shared_ptr<Recording>> users(const PiecePtr &piece);
  void uploadStaged(const PiecePtr &target, const uint8_t *data, uint64_t bytes);
  void downloadStaged(const PiecePtr &source, uint8_t *data, uint64_t bytes);
  PiecePtr pinnedAt(const uint8_t *data, uint64_t bytes);
  void drain(const Chunk &chunk, uint8_t *data);
};

}  // namespace vkq
