#include "arena.hpp"

#include <algorithm>

namespace vkq {

Piece::Piece(std::shared_ptr<Arena> a, Block *b, uint64_t at, uint64_t size)
    : arena(std::move(a)), block(b), memory(b->memory), offset(at), bytes(size) {}

Piece::~Piece() {
  if (!arena->core->forked()) arena->give(block, offset, bytes);
}

View::View(PiecePtr shown) : piece(std::move(shown)) {
  const auto lock = locked(piece->memory->core->mutex);
  piece->memory->views++;
}

View::~View() {
  Memory &memory = *piece->memory;
  if (memory.core->forked()) return;
  {
    const auto lock = locked(memory.core->mutex);
    if (--memory.views || !memory.core->ended) return;
  }
  memory.dispose();
}

Arena::Arena(std::shared_ptr<Core> c, uint32_t memoryType, bool map, uint64_t align, uint64_t block,
             uint64_t most, uint64_t keep)
    : core(std::move(c)),
      type(memoryType),
      mapped(map),
      alignment(std::max<uint64_t>(align, 16)),  // vkq's widest element is a vector of four words
      blockBytes(block),
      largest(most),
      keepBytes(keep) {
  if (alignment > MOST_ALIGNMENT || (alignment & (alignment - 1)))
    throw std::invalid_argument("Arena: the alignment is not a power of two, or is too large");
}

PiecePtr Arena::allocate(uint64_t bytes, uint64_t limit) {
  if (core->closed || core->lost || core->forked()) Use use(*core);  // throws the error
  if (bytes > MOST_BYTES) throw VulkanError(VK_ERROR_OUT_OF_DEVICE_MEMORY, "vkAllocateMemory");
  bytes = (std::max<uint64_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  std::unique_lock<std::mutex> lock(mutex);
  auto found = takeRecent(bytes);
  if (!found) found = take(bytes);
  if (!found) {
    join();
    found = take(bytes);
  }
  if (!found) {
    const uint64_t size = std::min({std::max(bytes, blockBytes), std::max(largest, bytes), MOST_BYTES});
    if (held > limit || size > limit - held) return nullptr;
    held += size;
    lock.unlock();  // because the driver may be slow, and the validation layer calls Python
    std::shared_ptr<Memory> memory;
    try {
      memory = std::make_shared<Memory>(core, size, type, mapped);
    } catch (...) {
      lock.lock();
      held -= size;
      throw;
    }
    lock.lock();
    blocks.push_back(std::make_unique<Block>(Block{memory, {{0, size}}, 0, size > blockBytes}));
    Block *block = blocks.back().get();
    auto rest = block->free.begin();
    block->free.erase(rest);
    if (size > bytes) block->free[bytes] = size - bytes;
    found = {block, 0};
  } else if (found->first->large && !found->first->used) {
    unusedLarge -= found->first->memory->bytes;
  }
  found->first->used += bytes;
  used += bytes;
  peak = std::max(peak, used);
  return std::make_shared<Piece>(shared_from_this(), found->first, found->second, bytes);
}

std::optional<std::pair<Block *, uint64_t>> Arena::takeRecent(uint64_t bytes) {
  auto list = recent.find(bytes);
  if (list == recent.end() || list->second.empty()) return std::nullopt;
  auto found = list->second.back();
  list->second.pop_back();
  return found;
}

// Takes the smallest free range that is large enough, in the first block that has one.
std::optional<std::pair<Block *, uint64_t>> Arena::take(uint64_t bytes) {
  for (auto &block : blocks) {
    auto best = block->free.end();
    for (auto it = block->free.begin(); it != block->free.end(); ++it)
      if (it->second >= bytes && (best == block->free.end() || it->second < best->second)) best = it;
    if (best == block->free.end()) continue;
    const auto [offset, length] = *best;
    block->free.erase(best);
    if (length > bytes) block->free[offset + bytes] = length - bytes;
    return std::make_pair(block.get(), offset);
  }
  return std::nullopt;
}

void Arena::give(Block *block, uint64_t offset, uint64_t bytes) {
  std::vector<std::shared_ptr<Memory>> dropped;  // freed after the lock is released
  std::unique_lock<std::mutex> lock(mutex);
  used -= bytes;
  block->used -= bytes;
  recent[bytes].emplace_back(block, offset);
  if (!block->large || block->used) return;
  unusedLarge += block->memory->bytes;
  if (unusedLarge <= keepBytes) return;
  join();
  for (size_t i = 0; i < blocks.size() && unusedLarge > keepBytes;)  // oldest first
    if (blocks[i]->large && !blocks[i]->used)
      drop(blocks[i].get(), dropped);
    else
      i++;
  lock.unlock();
}

// Moves all ranges of `recent` to the free ranges of their blocks, and joins adjacent free ranges.
void Arena::join() {
  for (auto &[bytes, list] : recent)
    for (auto &[block, offset] : list) {
      auto &free = block->free;
      auto next = free.lower_bound(offset);
      uint64_t begin = offset, end = offset + bytes;
      if (next != free.end() && next->first == end) {
        end += next->second;
        next = free.erase(next);
      }
      if (next != free.begin()) {
        auto before = std::prev(next);
        if (before->first + before->second == begin) {
          begin = before->first;
          free.erase(before);
        }
      }
      free[begin] = end - begin;
    }
  recent.clear();
}

void Arena::drop(Block *block, std::vector<std::shared_ptr<Memory>> &dropped) {
  if (block->large) unusedLarge -= block->memory->bytes;
  held -= block->memory->bytes;
  dropped.push_back(std::move(block->memory));
  blocks.erase(std::find_if(blocks.begin(), blocks.end(), [&](auto &b) { return b.get() == block; }));
}

void Arena::trim() {
  std::vector<std::shared_ptr<Memory>> dropped;
  core->checkProcess();
  std::lock_guard<std::mutex> lock(mutex);
  join();
  for (size_t i = 0; i < blocks.size();)
    if (!blocks[i]->used)
      drop(blocks[i].get(), dropped);
    else
      i++;
}

uint64_t Arena::allocatedBytes() {
  core->checkProcess();
  std::lock_guard<std::mutex> lock(mutex);
  return held;
}

uint64_t Arena::usedBytes() {
  core->checkProcess();
  std::lock_guard<std::mutex> lock(mutex);
  return used;
}

uint64_t Arena::peakBytes() {
  core->checkProcess();
  std::lock_guard<std::mutex> lock(mutex);
  return peak;
}

void Arena::resetPeak() {
  core->checkProcess();
  std::lock_guard<std::mutex> lock(mutex);
  peak = used;
}

}  // namespace vkq
