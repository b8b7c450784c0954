// Bytes of an array, row-major, into the words of a packed layout and back, on the host.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

namespace vkq {

// A layout for an array of up to four axes (fewer: leading ones of size 1). Each part of a word's number
// depends on one axis alone, so the number of the word that holds an element is a sum of one entry of each
// axis's table; the table of the axis whose neighbours share a word, `lane`, is by groups of four.
struct Packing {
  std::array<uint32_t, 4> extent;
  std::array<std::vector<uint32_t>, 4> table;
  int lane;
  uint64_t words;

  Packing(std::array<uint32_t, 4> sizes, std::array<std::vector<uint32_t>, 4> tables, int laneAxis,
          uint64_t wordCount);
  uint64_t elements() const;
  // `flip` is exclusive-or'ed into every element: 0x80 moves uint8 to int8 and back. Lanes and words that
  // hold no element get `fill`.
  void pack(uint32_t *words, const uint8_t *array, uint8_t flip, uint8_t fill) const;
  void unpack(uint8_t *array, const uint32_t *words, uint8_t flip) const;

 private:
  template <typename Visit>
  void lines(Visit visit) const;
};

}  // namespace vkq
