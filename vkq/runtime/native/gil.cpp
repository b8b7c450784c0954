#include "gil.hpp"

#include <dlfcn.h>

#include <atomic>

namespace vkq {

int (*const gilHeld)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));

static std::atomic<std::thread::id> mainThread{};

void noteMain() { mainThread = std::this_thread::get_id(); }

void parkUnlessMain() {
  if (std::this_thread::get_id() == mainThread.load()) return;
  MaybeUnlocked unlocked;
  park();
}

}  // namespace vkq
