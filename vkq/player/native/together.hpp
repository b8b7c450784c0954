// Work in parts, on several threads.
#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace vkq::player {

// Parts 0 to count - 1 in this order, begun on other threads at once. Both waits throw what the first part
// threw that failed.
class Together {
 public:
  Together(size_t count, std::function<void(size_t)> part);
  Together(const Together &) = delete;
  ~Together();  // ends once the parts do that were begun
  void wait(size_t i);  // until this part is done
  void finish();        // until all are; does on its own what the threads have not begun

 private:
  const size_t count;
  const std::function<void(size_t)> part;
  std::atomic<size_t> next{0};
  std::mutex turn;  // of what follows
  std::condition_variable changed;
  std::vector<bool> done;
  std::exception_ptr failed;
  std::vector<std::thread> others;

  void work();
  void join();
};

}  // namespace vkq::player
