// A chain of operations recorded once through kp::Sequence and submitted as often as wished.
#pragma once
#include <optional>
#include <tuple>

#include "operations.hpp"

namespace vkq {

using Binding = std::tuple<std::shared_ptr<Memory>, uint64_t, uint64_t>;  // memory, offset, bytes

struct Recording : Resource {
  std::shared_ptr<kp::Sequence> sequence;
  std::vector<VkDescriptorPool> pools;
  std::vector<std::shared_ptr<void>> keep;  // what the recorded commands use
  std::vector<std::shared_ptr<Operation>> operations;
  VkQueryPool queries = VK_NULL_HANDLE;
  uint32_t queryCount, queriesUsed = 0, setsLeft = 0;
  VkFence fence = VK_NULL_HANDLE;
  bool sealed = false;    // recorded to the end
  bool broken = false;    // the end could not be recorded; it can never run
  bool running = false;   // submitted, and not found to be finished yet
  bool finished = false;  // ran once, so that there are timestamps
  std::mutex mutex;

  Recording(std::shared_ptr<Core> c, uint32_t timestamps);
  ~Recording() override;
  void release() override;

  void copy(const Binding &from, const Binding &to);
  void fill(const Binding &to, uint32_t value);
  void barrier();
  void timestamp();
  void dispatch(std::shared_ptr<Program> program, const std::vector<Binding> &bindings, nb::bytes push,
                uint32_t x, uint32_t y, uint32_t z);
  // Records the operations from number `first` on again, `times` more times; a query is written once, so none
  // may be among them.
  void repeat(size_t first, uint32_t times);

  void submit();
  void wait();
  std::vector<uint64_t> timestamps();

 private:
  // Held by each call: one thread at a time, and the device stays open.
  struct Held {
    std::unique_lock<std::mutex> own;
    std::optional<Use> use;
    explicit Held(Recording &r);
  };
  template <typename Op, typename... A>
  void record(A &&...arguments);
  void recordAgain(const std::shared_ptr<Operation> &operation);
  void checkOpen() const;
  Range range(const Binding &binding);
  VkDescriptorSet descriptorSet(const Program &program);
  void finish();
  bool waitBriefly(bool poll);
};

}  // namespace vkq
