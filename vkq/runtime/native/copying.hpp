// Divides large amounts of work on host memory among several threads.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace vkq {

// Calls `body(begin, end)` for parts that together cover [0, total). If there are several parts, each has at
// least `least` elements.
void inParallel(uint64_t total, uint64_t least, const std::function<void(uint64_t, uint64_t)> &body);

void copyBytes(uint8_t *to, const uint8_t *from, size_t bytes);

struct Part {
  const uint8_t *data;
  uint64_t bytes;
};
// Copies the parts to consecutive addresses.
void copyParts(uint8_t *to, const std::vector<Part> &parts);

}  // namespace vkq
