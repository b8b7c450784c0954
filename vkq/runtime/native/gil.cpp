#include "gil.hpp"

#include <atomic>

namespace vkq {

static std::atomic<std::thread::id> mainThread{};

void noteMain() { mainThread = std::this_thread::get_id(); }

void parkUnlessMain() {
  if (std::this_thread::get_id() == mainThread.load()) return;
  MaybeUnlocked unlocked;
  park();
}

}  // namespace vkq
