#include "copying.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

namespace vkq {

// One thread copies 3 to 12 GB/s. On the 16 cores beside an H200, up to 16 threads with chunks of 16 MiB copy
// 40 GB/s; 8 threads with chunks of 4 MiB copy 13 GB/s (benchmarks/README.md).
static constexpr uint64_t MOST_THREADS = 16;
static constexpr uint64_t BYTES_PER_THREAD = 1 << 20;

// Helpers run until the process ends. They are detached, and the pool is never destroyed, so that the order
// of destruction at the end does not matter.
class Pool {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> work;

 public:
  const uint64_t helpers =
      std::min<uint64_t>(MOST_THREADS, std::max(1u, std::thread::hardware_concurrency())) - 1;

  Pool() {
    for (uint64_t i = 0; i < helpers; i++) std::thread([this] { serve(); }).detach();
  }
  void push(std::function<void()> one) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      work.push_back(std::move(one));
    }
    wake.notify_one();
  }
  [[noreturn]] void serve() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex);
      wake.wait(lock, [this] { return !work.empty(); });
      auto one = std::move(work.front());
      work.pop_front();
      lock.unlock();
      one();
    }
  }
};

// State shared by the helpers of one call. The last helper to finish notifies the caller.
struct Ended {
  std::mutex mutex;
  std::condition_variable all;
  uint64_t left;
};

void inParallel(uint64_t total, uint64_t least, const std::function<void(uint64_t, uint64_t)> &body) {
  if (total < 2 * least) {
    if (total) body(0, total);
    return;
  }
  static Pool &pool = *new Pool;
  const uint64_t parts = std::min(pool.helpers + 1, total / least);
  Ended ended{{}, {}, parts - 1};
  for (uint64_t i = 1; i < parts; i++)
    pool.push([&ended, &body, begin = total * i / parts, end = total * (i + 1) / parts] {
      body(begin, end);
      std::lock_guard<std::mutex> lock(ended.mutex);
      if (--ended.left == 0) ended.all.notify_one();
    });
  body(0, total / parts);
  std::unique_lock<std::mutex> lock(ended.mutex);
  ended.all.wait(lock, [&] { return ended.left == 0; });
}

void copyBytes(uint8_t *to, const uint8_t *from, size_t bytes) {
  inParallel(bytes, BYTES_PER_THREAD,
             [&](uint64_t begin, uint64_t end) { std::memcpy(to + begin, from + begin, end - begin); });
}

void copyParts(uint8_t *to, const std::vector<Part> &parts) {
  uint64_t bytes = 0;
  for (const Part &one : parts) bytes += one.bytes;
  inParallel(bytes, BYTES_PER_THREAD, [&](uint64_t begin, uint64_t end) {
    uint64_t at = 0;
    for (const Part &one : parts) {  // copy what lies in [begin, end)
      const uint64_t from = std::max(begin, at), until = std::min(end, at + one.bytes);
      if (from < until) std::memcpy(to + from, one.data + (from - at), until - from);
      at += one.bytes;
    }
  });
}

}  // namespace vkq
