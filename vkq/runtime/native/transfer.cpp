// The queue's copies between host and device.
#include <algorithm>

#include "queue.hpp"

namespace vkq {

std::vector<std::shared_ptr<Recording>> Queue::users(const PiecePtr &piece) {
  std::vector<std::shared_ptr<Recording>> found;
  for (const auto &one : flying)
    if (one->uses(piece)) found.push_back(one);
  return found;
}

PiecePtr Queue::tryStaging(uint64_t bytes) {
  if (!staging) throw UsageError("the queue has no arenas");
  return staging->allocate(bytes, stagingLimit);
}

// Throws unless the piece is host-visible memory of this device.
static void checkSeen(const Queue &queue, const PiecePtr &piece, const char *what) {
  queue.checkOwn(piece->arena->core.get(), what);
  if (!piece->mapped()) throw std::out_of_range(std::string(what) + " is not host-visible");
}

PiecePtr Queue::takeStaging(uint64_t bytes) {
  for (;;) {
    if (PiecePtr found = tryStaging(bytes)) return found;
    if (!flying.empty())
      waitUnlocked(flying.front());
    else if (pendingChain && !entered)
      flush();
    else
      return staging->allocate(bytes);  // an operation in progress uses all staging memory
  }
}

void Queue::write(const PiecePtr &target, const std::function<void(uint8_t *)> &access) {
  {
    Use use(*core);  // throws if the device is closed: its memory is no longer mapped
  }
  checkSeen(*this, target, "the buffer that is written");
  for (;;) {
    Lock lock = hold();
    if (pendingChain && pendingChain->uses(target)) {
      holdBetween();
      flush();
    }
    const auto busy = users(target);
    if (busy.empty()) {
      Use use(*core);
      MaybeUnlocked unlocked;
      access(target->host());
      target->failure.reset();
      return;
    }
    lock.unlock();
    for (const auto &one : busy) wait(one);
  }
}

void Queue::gather(const PiecePtr &target, const std::vector<Part> &parts) {
  uint64_t bytes = 0;
  for (const Part &one : parts) bytes += one.bytes;
  if (bytes > target->bytes) throw std::out_of_range("gather: more bytes than the buffer has");
  write(target, [&](uint8_t *to) { copyParts(to, parts); });
}

void Queue::read(const PiecePtr &source, const std::function<void(const uint8_t *)> &access) {
  {
    Use use(*core);
  }
  checkSeen(*this, source, "the buffer that is read");
  std::vector<std::shared_ptr<Recording>> busy;
  {
    Lock lock = holdBetween();
    flush();
    busy = users(source);
  }
  for (const auto &one : busy) wait(one);
  Use use(*core);
  if (source->failure) throw NeverComputed(*source->failure);
  MaybeUnlocked unlocked;
  access(source->host());
}

PiecePtr Queue::pin(uint64_t bytes) {
  if (!staging) throw UsageError("the queue has no arenas");
  PiecePtr piece = staging->allocate(bytes);
  Lock lock = hold();
  for (auto it = pinned.begin(); it != pinned.end();)
    it = it->second.expired() ? pinned.erase(it) : std::next(it);
  pinned[piece->host()] = piece;
  return piece;
}

// Returns the pinned memory that contains these bytes, or null.
PiecePtr Queue::pinnedAt(const uint8_t *data, uint64_t bytes) {
  auto next = pinned.upper_bound(data);
  if (next == pinned.begin()) return nullptr;
  PiecePtr piece = std::prev(next)->second.lock();
  return piece && data + bytes <= piece->host() + piece->bytes ? piece : nullptr;
}

void Queue::upload(const PiecePtr &target, const uint8_t *data, uint64_t bytes) {
  checkOwn(target->arena->core.get(), "the buffer that is written");
  if (bytes > target->bytes) throw std::out_of_range("upload: more bytes than the buffer has");
  if (target->mapped()) return write(target, [&](uint8_t *to) { copyBytes(to, data, bytes); });
  std::shared_ptr<Recording> copying;
  {
    Lock lock = hold();
    {
      Use use(*core);
    }
    const PiecePtr piece = entered ? nullptr : pinnedAt(data, bytes);
    if (!piece) return uploadStaged(target, data, bytes);
    copying = chain();
    copying->copy(piece, data - piece->host(), target, 0, bytes);
    flush();
  }
  wait(copying);  // afterwards the caller may change the array
}

// Called with the lock held, so that no other thread's work is recorded between the chunks.
void Queue::uploadStaged(const PiecePtr &target, const uint8_t *data, uint64_t bytes) {
  if (bytes <= chunkBytes) {
    PiecePtr piece = takeStaging(bytes);
    {
      Use use(*core);
      copyBytes(piece->host(), data, bytes);
    }
    chain()->upload({piece, target, 0, bytes, true});
    return;
  }
  try {
    for (uint64_t at = 0; at < bytes; at += chunkBytes) {
      const uint64_t size = std::min(chunkBytes, bytes - at);
      PiecePtr piece = takeStaging(size);
      {
        Use use(*core);
        MaybeUnlocked unlocked;
        copyBytes(piece->host(), data + at, size);
      }
      chain()->upload({piece, target, at, size, at == 0});
      flush();  // the device copies this chunk while the host copies the next one
    }
  } catch (const VulkanError &error) {  // only some chunks have been copied
    target->failure = {error.result, error.call};
    lost.erase(std::remove_if(lost.begin(), lost.end(), [&](const Upload &u) { return u.to == target; }),
               lost.end());
    throw;
  }
}

void Queue::download(const PiecePtr &source, uint8_t *data, uint64_t bytes) {
  checkOwn(source->arena->core.get(), "the buffer that is read");
  if (bytes > source->bytes) throw std::out_of_range("download: more bytes than the buffer has");
  if (source->mapped()) return read(source, [&](const uint8_t *from) { copyBytes(data, from, bytes); });
  std::shared_ptr<Recording> copying;
  {
    Lock lock = holdBetween();
    if (const PiecePtr piece = pinnedAt(data, bytes)) {
      copying = chain();
      copying->copy(source, 0, piece, data - piece->host(), bytes);
      flush();
    }
  }
  if (copying) return wait(copying);
  downloadStaged(source, data, bytes);
}

// Records all copies without another thread's work between them. If the staging memory is too small, the
// first chunks are copied to the host while the next ones are recorded.
void Queue::downloadStaged(const PiecePtr &source, uint8_t *data, uint64_t bytes) {
  std::deque<Chunk> chunks;
  {
    Lock lock = hold();
    for (uint64_t at = 0; at < bytes; at += chunkBytes) {
      {
        Use use(*core);
      }
      const uint64_t size = std::min(chunkBytes, bytes - at);
      PiecePtr piece = tryStaging(size);
      while (!piece && !chunks.empty()) {
        drain(chunks.front(), data);
        chunks.pop_front();
        piece = tryStaging(size);
      }
      if (!piece) piece = takeStaging(size);
      const auto into = chain();
      into->copy(source, at, piece, 0, size);
      chunks.push_back({piece, into, at, size});
      flush();
    }
  }
  for (const Chunk &one : chunks) drain(one, data);
}

void Queue::drain(const Chunk &chunk, uint8_t *data) {
  wait(chunk.chain);
  Use use(*core);
  MaybeUnlocked unlocked;
  copyBytes(data + chunk.offset, chunk.staging->host(), chunk.bytes);
}

}  // namespace vkq
