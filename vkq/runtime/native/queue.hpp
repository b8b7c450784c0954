// The order of a device's work: the chain that is being recorded, what is in flight, and the copies between
// host and device.
#pragma once
#include <functional>
#include <map>

#include "copying.hpp"
#include "recording.hpp"

namespace vkq {

using Lock = std::unique_lock<std::recursive_mutex>;

struct Queue : std::enable_shared_from_this<Queue> {
  const std::shared_ptr<Core> core;
  // Who records, submits, or writes device memory that the host sees. Taken before any recording's own lock,
  // never while one is held.
  std::recursive_mutex mutex;
  // More operations begin a new chain; more chains in flight are waited for: what is in flight keeps its
  // memory.
  uint32_t operationsPerChain = 256, chainsInFlight = 4;

  explicit Queue(std::shared_ptr<Core> c) : core(std::move(c)) {}
  // Where host memory for copies comes from, in chunks, of at most `limit` bytes in all.
  void setStaging(std::shared_ptr<Arena> arena, uint64_t limit, uint64_t chunk);
  void setScratch(std::shared_ptr<Arena> arena, uint64_t keep);

  // The lock, unless this process was forked: whoever held it then is not there to release it.
  Lock hold();
  // The same for what submits or reads: not inside of this thread's own operation (in a signal handler), of
  // which some steps are not recorded yet.
  Lock holdBetween();
  void checkOwn(const Core *other, const char *what) const;  // throws for what is on another device

  // The chain that the next submission takes. With the lock held.
  std::shared_ptr<Recording> chain();
  // An operation's dispatches stay together: nothing is submitted while a thread holds the queue.
  void enter();
  void leave();

  // Memory for what lies between the steps of plans: one for all, ordered by barriers; large ones have their
  // own.
  PiecePtr scratchOf(uint64_t bytes);
  // Records a plan, into the chain where no recording is given. `slots`: what lies where, by number; those of
  // constants and scratch memory may be empty.
  void add(Recording *into, const std::shared_ptr<Plan> &plan, const PiecePtr *given, size_t count,
           const PiecePtr *outputs, size_t outputCount, const PiecePtr &scratch);
  void flush();
  void submit(const std::shared_ptr<Recording> &recording);
  std::vector<std::shared_ptr<Recording>> inFlight();
  void synchronize();
  // In slices, so that Ctrl-C is seen, and with no lock held while Python's signal handlers run. The work
  // still ends before anything is freed: the interrupt is raised at the end. Called with the GIL.
  void wait(const std::shared_ptr<Recording> &recording);
  void trim();   // makes room: waits for what runs, and frees what it and earlier work no longer use
  void close();  // lets go of everything

  // The host's bytes are copied when `upload` returns, and all there when `download` does. With the GIL.
  void upload(const PiecePtr &target, const uint8_t *data, uint64_t bytes);
  void download(const PiecePtr &source, uint8_t *data, uint64_t bytes);
  // Arrays one behind the other into memory that the host sees, while nothing on the device uses it.
  void gather(const PiecePtr &target, const std::vector<Part> &parts);
  // For memory that the host sees: `access` reads or writes it while nothing on the device uses it, without
  // the GIL.
  void write(const PiecePtr &target, const std::function<void(uint8_t *)> &access);
  void read(const PiecePtr &source, const std::function<void(const uint8_t *)> &access);
  // Host memory that the device copies from and to by itself.
  PiecePtr pin(uint64_t bytes);

 private:
  struct Chunk {
    PiecePtr staging;
    std::shared_ptr<Recording> chain;
    uint64_t offset, bytes;
  };
  std::shared_ptr<Recording> pendingChain;
  std::deque<std::shared_ptr<Recording>> flying;
  std::vector<std::shared_ptr<Recording>> idle;  // finished chains, recorded anew
  std::vector<Upload> lost;                      // of a chain that could not be recorded to its end
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
