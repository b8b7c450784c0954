#include "together.hpp"

#include <algorithm>
#include <system_error>

namespace vkq::player {

static constexpr size_t MOST_THREADS = 8;

// Starts as many threads as there are processors (at most MOST_THREADS), because the calling thread mostly
// waits.
Together::Together(size_t n, std::function<void(size_t)> p) : count(n), part(std::move(p)), done(n) {
  const size_t most = std::min({MOST_THREADS, count, size_t(std::thread::hardware_concurrency())});
  try {
    while (most > 1 && others.size() < most) others.emplace_back([this] { work(); });
  } catch (const std::system_error &) {  // the system has no more threads: continue with fewer
  }
}

Together::~Together() {
  next = count;
  join();
}

void Together::wait(size_t i) {
  if (others.empty()) work();
  std::unique_lock<std::mutex> held(turn);
  changed.wait(held, [&] { return done[i] || failed; });
  if (failed) std::rethrow_exception(failed);
}

void Together::finish() {
  work();
  join();
  if (failed) std::rethrow_exception(failed);
}

void Together::work() {
  for (size_t i; (i = next++) < count;) {
    try {
      part(i);
      std::lock_guard<std::mutex> held(turn);
      done[i] = true;
    } catch (...) {
      std::lock_guard<std::mutex> held(turn);
      if (!failed) failed = std::current_exception();
      next = count;
    }
    changed.notify_all();
  }
}

void Together::join() {
  for (std::thread &one : others) one.join();
  others.clear();
}

}  // namespace vkq::player
