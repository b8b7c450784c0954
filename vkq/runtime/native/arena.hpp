// Device memory in large blocks, of which ranges are handed out and taken back.
#pragma once
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>

#include "memory.hpp"

namespace vkq {

// Why a range does not hold what it should: the submission that computes it was lost.
struct Failure {
  VkResult result;
  const char *call;
};

// What reading such a range raises: vkq.errors of the failure's kind.
struct NeverComputed : std::exception {
  Failure failure;
  explicit NeverComputed(Failure f) : failure(f) {}
};

struct Arena;

struct Block {
  std::shared_ptr<Memory> memory;
  std::map<uint64_t, uint64_t> free;  // offset -> bytes, never adjacent
  uint64_t used = 0;
  bool large;  // made for one request
};

// A range that is handed out; it returns to its arena when nothing refers to it any more.
struct Piece {
  const std::shared_ptr<Arena> arena;
  Block *const block;
  const std::shared_ptr<Memory> memory;
  const uint64_t offset, bytes;
  bool scratch = false;  // written before it is read by whoever uses it: nothing can be lost in it
  std::optional<Failure> failure;
  // Its entry in the recording of this serial number, so that it is kept once.
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

// Hands out aligned ranges of blocks of `blockBytes`; a larger request gets a block of its own. Thread-safe.
struct Arena : std::enable_shared_from_this<Arena> {
  // Above what any device has, and far from where sums of sizes overflow.
  static constexpr uint64_t MOST_BYTES = uint64_t{1} << 60, MOST_ALIGNMENT = uint64_t{1} << 24;
  const std::shared_ptr<Core> core;
  const uint32_t type;
  const bool mapped;
  const uint64_t alignment, blockBytes, largest;
  const uint64_t keepBytes;  // of large blocks that nothing uses: the next request may want one

  Arena(std::shared_ptr<Core> c, uint32_t memoryType, bool map, uint64_t align, uint64_t block, uint64_t most,
        uint64_t keep);
  // At least so many bytes (never 0: Vulkan has no empty buffers), or null where that takes more than `limit`
  // bytes of blocks in all.
  PiecePtr allocate(uint64_t bytes, uint64_t limit = UINT64_MAX);
  void give(Block *block, uint64_t offset, uint64_t bytes);
  void trim();  // gives every block back of which nothing is handed out
  uint64_t allocatedBytes();
  uint64_t usedBytes();
  uint64_t peakBytes();
  void resetPeak();

 private:
  std::mutex mutex;
  std::deque<std::unique_ptr<Block>> blocks;
  // Ranges that came back, by size, and not yet joined with their neighbours: the next request of that size
  // takes one.
  std::unordered_map<uint64_t, std::vector<std::pair<Block *, uint64_t>>> recent;
  uint64_t held = 0, used = 0, peak = 0, unusedLarge = 0;

  std::optional<std::pair<Block *, uint64_t>> take(uint64_t bytes);
  std::optional<std::pair<Block *, uint64_t>> takeRecent(uint64_t bytes);
  void join();
  void drop(Block *block, std::vector<std::shared_ptr<Memory>> &dropped);
};

// An array of Python's that lies in a mapped piece: its bytes stay there as long as it does, also when the
// device is closed before.
struct View {
  const PiecePtr piece;
  explicit View(PiecePtr shown);
  ~View();
  View(const View &) = delete;
};

// Python's hold of a piece.
struct Buffer {
  PiecePtr piece;
};

}  // namespace vkq
