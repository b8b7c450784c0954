// The GIL, let go of and taken again so that a process can end.
#pragma once
#include <nanobind/nanobind.h>

#include <chrono>
#include <mutex>
#include <thread>

namespace vkq {

namespace nb = nanobind;

// A thread that may not go on while the interpreter ends. It dies with the process.
[[noreturn]] inline void park() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

// PyEval_RestoreThread, which a thread that CPython ends there does not leave (restore.cpp).
void restoreThread(PyThreadState *state);

// Lets go of the GIL while it lives.
class Unlocked {
  PyThreadState *state;

 public:
  Unlocked() : state(PyEval_SaveThread()) {}
  ~Unlocked() { restoreThread(state); }
  Unlocked(const Unlocked &) = delete;
};

// Whether the calling thread has the GIL. Every CPython exports what tells it, and the headers of the stable
// ABI leave it out.
extern int (*const gilHeld)();

// Lets go of the GIL where the calling thread has it.
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

// The thread that the process ends in goes on; every other is parked, without the GIL.
void parkUnlessMain();
void noteMain();  // called by the thread that ends the process

// Takes a lock without keeping the GIL from whoever holds it: the validation layer calls into Python from
// inside Vulkan.
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
