// Divides work among several threads.
#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace vkq::player {

// Starts parts 0 to count - 1 at once, in this order, on other threads. `wait` and `finish` throw the
// exception of the first part that failed.
class Together {
 public:
  Together(size_t count, std::function<void(size_t)> part);
  Together(const Together &) = delete;
  ~Together();  // waits for the parts that have started
  void wait(size_t i);  // returns when this part is done
  void finish();        // returns when all parts are done; runs parts that no thread has started

 private:
  const size_t count;
  const std::function<void(size_t)> part;
  std::atomic<size_t> next{0};
  std::mutex turn;  // protects the following members
  std::condition_variable changed;
  std::vector<bool> done;
  std::exception_ptr failed;
  std::vector<std::thread> others;

  void work();
  void join();
};

}  // namespace vkq::player
