// Work on host memory, divided among several threads if there is enough of it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace vkq {

// Calls `body(begin, end)` for parts of [0, total) that together cover it. Each part has at least `least`
// elements.
void inParallel(uint64_t total, uint64_t least, const std::function<void(uint64_t, uint64_t)> &body);

void copyBytes(uint8_t *to, const uint8_t *from, size_t bytes);

struct Part {
  const uint8_t *data;
  uint64_t bytes;
};
// Copies the parts to consecutive addresses.
void copyParts(uint8_t *to, const std::vector<Part> &parts);

}  // namespace vkq
