// Allocates device memory in large blocks, and manages ranges of these blocks.
#pragma once
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>

#include "memory.hpp"

namespace vkq {

// The reason why the content of a range was not computed: its submission failed.
struct Failure {
  VkResult result;
  const char *call;
};

// Thrown when a range with a Failure is read. Python gets the exception of vkq.errors for this failure.
struct NeverComputed : std::exception {
  Failure failure;
  explicit NeverComputed(Failure f) : failure(f) {}
};

struct Arena;

struct Block {
  std::shared_ptr<Memory> memory;
  std::map<uint64_t, uint64_t> free;  // offset -> bytes; adjacent ranges are joined
  uint64_t used = 0;
  bool large;  // made for a single request
};

// An allocated range. It returns to its arena when the last reference is gone.
struct Piece {
  const std::shared_ptr<Arena> arena;
  Block *const block;
  const std::shared_ptr<Memory> memory;
  const uint64_t offset, bytes;
  bool scratch = false;  // scratch memory is written before it is read, so a lost submission does no harm
  std::optional<Failure> failure;
  // The serial number of the recording that keeps this piece, and the index of its entry there, so that the
  // recording keeps it only once.
  uint64_t keptBy = 0;
  size_t keptAt = 0;

  Piece(std::shared_ptr<Arena> a, Block *b, uint64_t at, uint64_t size);
  ~Piece();
  Piece(const Piece &) = delete;
  Range range() const { return {memory->buffer, offset, bytes}; }
  uint8_t *host() const { return static_cast<uint8_t *>(memory->mapped) + offset; }
  bool mapped() const { return memory->mapped != nullptr; }
};
using PiecePtr = std::shared_ptr<Piece>;

// Allocates aligned ranges from blocks of `blockBytes`. A larger request gets its own block. Thread-safe.
struct Arena : std::enable_shared_from_this<Arena> {
  // Larger than the sizes and alignments of any device, but so small that sums of sizes do not overflow.
  static constexpr uint64_t MOST_BYTES = uint64_t{1} << 60, MOST_ALIGNMENT = uint64_t{1} << 24;
  const std::shared_ptr<Core> core;
  const uint32_t type;
  const bool mapped;
  const uint64_t alignment, blockBytes, largest;
  const uint64_t keepBytes;  // bytes of unused large blocks to keep for later requests

  Arena(std::shared_ptr<Core> c, uint32_t memoryType, bool map, uint64_t align, uint64_t block, uint64_t most,
        uint64_t keep);
  // Returns a range of at least `bytes` bytes, never an empty one, because Vulkan has no empty buffers.
  // Returns null if all blocks together would exceed `limit` bytes.
  PiecePtr allocate(uint64_t bytes, uint64_t limit = UINT64_MAX);
  void give(Block *block, uint64_t offset, uint64_t bytes);
  void trim();  // frees all unused blocks
  uint64_t allocatedBytes();
  uint64_t usedBytes();
  uint64_t peakBytes();
  void resetPeak();

 private:
  std::mutex mutex;
  std::deque<std::unique_ptr<Block>> blocks;
  // Returned ranges by size, not yet joined with their neighbours. A request of the same size reuses one.
  std::unordered_map<uint64_t, std::vector<std::pair<Block *, uint64_t>>> recent;
  uint64_t held = 0, used = 0, peak = 0, unusedLarge = 0;

  std::optional<std::pair<Block *, uint64_t>> take(uint64_t bytes);
  std::optional<std::pair<Block *, uint64_t>> takeRecent(uint64_t bytes);
  void join();
  void drop(Block *block, std::vector<std::shared_ptr<Memory>> &dropped);
};

// A NumPy array in a mapped range. The memory stays until the array is destroyed, even if the device is
// closed before.
struct View {
  const PiecePtr piece;
  explicit View(PiecePtr shown);
  ~View();
  View(const View &) = delete;
};

// Python's reference to a range.
struct Buffer {
  PiecePtr piece;
};

}  // namespace vkq
