#include "gil.hpp"

#include <dlfcn.h>

#include <atomic>

namespace vkq {

template <typename F>
static F *symbol(const char *name) {
  return reinterpret_cast<F *>(dlsym(RTLD_DEFAULT, name));
}

// Returns the state of the thread that has the GIL; from CPython 3.12 on, that of the calling thread if it
// has the GIL. 3.13 renamed the function.
using State = PyThreadState *();
static State *const public_ = symbol<State>("PyThreadState_GetUnchecked");
static State *const current = public_ ? public_ : symbol<State>("_PyThreadState_UncheckedGet");

static int holds() {
  PyThreadState *state = current();
  return state && state == PyGILState_GetThisThreadState();
}

// PyGILState_Check is only the fallback: it returns 1 in every thread once a sub-interpreter has existed.
int (*const gilHeld)() = current ? holds : symbol<int()>("PyGILState_Check");

static std::atomic<std::thread::id> mainThread{};

void noteMain() { mainThread = std::this_thread::get_id(); }

void parkUnlessMain() {
  if (std::this_thread::get_id() == mainThread.load()) return;
  MaybeUnlocked unlocked;
  park();
}

}  // namespace vkq
