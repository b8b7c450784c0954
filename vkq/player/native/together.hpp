// Work in parts, on several threads.
#pragma once
#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace vkq::player {

// Parts 0 to count - 1, begun on other threads at once; `finish` does on its own what they have not begun.
class Together {
 public:
  Together(size_t count, std::function<void(size_t)> part);
  Together(const Together &) = delete;
  ~Together();  // ends once the parts do that were begun
  void finish();  // returns when all parts are done; throws what the first of them threw that failed

 private:
  const size_t count;
  const std::function<void(size_t)> part;
  std::atomic<size_t> next{0};
  std::mutex turn;
  std::exception_ptr failed;
  std::vector<std::thread> others;

  void work();
  void join();
};

}  // namespace vkq::player
