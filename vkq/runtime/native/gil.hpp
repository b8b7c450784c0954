// Releases and reacquires the GIL so that the process can end at any time.
#pragma once
#include <nanobind/nanobind.h>

#include <chrono>
#include <mutex>
#include <thread>

namespace vkq {

namespace nb = nanobind;

// Stops a thread that must not continue while the interpreter ends. The thread ends with the process.
[[noreturn]] inline void park() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

// Calls PyEval_RestoreThread. If CPython ends the thread in that call, this function never returns
// (restore.cpp).
void restoreThread(PyThreadState *state);

// Releases the GIL during its lifetime.
class Unlocked {
  PyThreadState *state;

 public:
  Unlocked() : state(PyEval_SaveThread()) {}
  ~Unlocked() { restoreThread(state); }
  Unlocked(const Unlocked &) = delete;
};

// Returns nonzero if the calling thread has the GIL. It calls functions that every CPython library exports,
// but that the headers of the stable ABI do not declare.
extern int (*const gilHeld)();

// Releases the GIL during its lifetime if the calling thread has it.
class MaybeUnlocked {
  alignas(Unlocked) unsigned char place[sizeof(Unlocked)];
  bool held = gilHeld();

 public:
  MaybeUnlocked() {
    if (held) new (place) Unlocked;
  }
  ~MaybeUnlocked() {
    if (held) reinterpret_cast<Unlocked *>(place)->~Unlocked();
  }
};

// Returns in the main thread, in which the process ends. Stops every other thread, without the GIL.
void parkUnlessMain();
void noteMain();  // called by the thread in which the process ends

// Takes a lock, and releases the GIL while it waits: the validation layer calls Python from inside Vulkan, so
// the holder of the lock may need the GIL.
template <typename Lock>
void lockPolitely(Lock &lock) {
  if (lock.try_lock()) return;
  MaybeUnlocked unlocked;
  lock.lock();
}

template <typename Mutex>
std::unique_lock<Mutex> locked(Mutex &mutex) {
  std::unique_lock<Mutex> lock(mutex, std::defer_lock);
  lockPolitely(lock);
  return lock;
}

}  // namespace vkq
