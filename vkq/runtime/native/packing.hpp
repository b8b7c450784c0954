// Packs a row-major array into the words of a packed layout, and unpacks it, on the host.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

namespace vkq {

// A layout for an array of up to four axes; missing leading axes have size 1. The index of an element's word
// is the sum of one table entry for each axis, because each part of the index depends on only one axis. Four
// neighbours along the axis `lane` share a word; the table of this axis has one entry for every four.
struct Packing {
  std::array<uint32_t, 4> extent;
  std::array<std::vector<uint32_t>, 4> table;
  int lane;
  uint64_t words;

  Packing(std::array<uint32_t, 4> sizes, std::array<std::vector<uint32_t>, 4> tables, int laneAxis,
          uint64_t wordCount);
  uint64_t elements() const;
  // Every element is xor-ed with `flip`: 0x80 converts uint8 to int8 and back. Lanes and words without an
  // element are set to `fill`.
  void pack(uint32_t *words, const uint8_t *array, uint8_t flip, uint8_t fill) const;
  void unpack(uint8_t *array, const uint32_t *words, uint8_t flip) const;

 private:
  template <typename Visit>
  void lines(Visit visit) const;
};

}  // namespace vkq
