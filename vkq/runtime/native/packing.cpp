#include "packing.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "copying.hpp"

namespace vkq {

constexpr uint64_t MOST_ELEMENTS = uint64_t{1} << 60;

static uint32_t groups(uint32_t size) { return size / 4 + (size % 4 != 0); }

static uint32_t broadcast(uint8_t byte) { return byte * 0x01010101u; }

Packing::Packing(std::array<uint32_t, 4> sizes, std::array<std::vector<uint32_t>, 4> tables, int laneAxis,
                 uint64_t wordCount)
    : extent(sizes), table(std::move(tables)), lane(laneAxis), words(wordCount) {
  if (lane < 0 || lane > 3) throw std::invalid_argument("Packing: the lane is not one of four axes");
  uint64_t last = 0;
  for (int axis = 0; axis < 4; axis++) {
    if (table[axis].size() != (axis == lane ? groups(extent[axis]) : extent[axis]))
      throw std::invalid_argument("Packing: the length of a table differs from that of its axis");
    last += table[axis].empty() ? 0 : *std::max_element(table[axis].begin(), table[axis].end());
  }
  // Sums of table entries must fit in 32 bits, and sizes in bytes in 64 bits.
  uint64_t count = 1;
  for (uint32_t size : extent) {
    if (size && count > MOST_ELEMENTS / size) throw std::invalid_argument("Packing: too many elements");
    count *= size;
  }
  if (words > MOST_ELEMENTS || last > UINT32_MAX) throw std::invalid_argument("Packing: too many words");
  if (elements() && last >= words) throw std::invalid_argument("Packing: a word is beyond the last");
}

uint64_t Packing::elements() const { return uint64_t{extent[0]} * extent[1] * extent[2] * extent[3]; }

// Transposes the 4x4 bytes of four words: word i gets byte i of each word. The function is its own inverse.
static inline void transpose(uint32_t x[4]) {
  constexpr uint32_t EVEN = 0x00ff00ff, ODD = 0xff00ff00;
  const uint32_t t[4] = {(x[0] & EVEN) | (x[1] & EVEN) << 8, (x[0] >> 8 & EVEN) | (x[1] & ODD),
                         (x[2] & EVEN) | (x[3] & EVEN) << 8, (x[2] >> 8 & EVEN) | (x[3] & ODD)};
  for (int i = 0; i < 2; i++) {
    x[i] = (t[i] & 0xffff) | t[2 + i] << 16;
    x[2 + i] = t[i] >> 16 | (t[2 + i] & 0xffff0000);
  }
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
// The vectors need GCC 12 or Clang. With other compilers, the loops over four elements do all the work, at a
// quarter of the speed.
#define VKQ_VECTORS
#endif
#endif

#ifdef VKQ_VECTORS
using Vector = uint8_t __attribute__((vector_size(16)));
#define EVEN_BYTES 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD_BYTES 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define LOW_BYTES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_BYTES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define LOW_PAIRS 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23
#define HIGH_PAIRS 8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31
#define MIXED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)

static inline Vector loaded(const void *from, uint8_t flip) {
  Vector found;
  std::memcpy(&found, from, 16);
  return found ^ flip;
}

// Transposes 16 bytes of each of four rows: word j of the result has byte j of each row. separate16 does the
// reverse.
static inline void transpose16(Vector x[4]) {
  const Vector ab[2] = {MIXED(x[0], x[1], LOW_BYTES), MIXED(x[0], x[1], HIGH_BYTES)},
               cd[2] = {MIXED(x[2], x[3], LOW_BYTES), MIXED(x[2], x[3], HIGH_BYTES)};
  for (int i = 0; i < 2; i++) {
    x[2 * i] = MIXED(ab[i], cd[i], LOW_PAIRS);
    x[2 * i + 1] = MIXED(ab[i], cd[i], HIGH_PAIRS);
  }
}

static inline void separate16(Vector x[4]) {
  const Vector ac[2] = {MIXED(x[0], x[1], EVEN_BYTES), MIXED(x[2], x[3], EVEN_BYTES)},
               bd[2] = {MIXED(x[0], x[1], ODD_BYTES), MIXED(x[2], x[3], ODD_BYTES)};
  x[0] = MIXED(ac[0], ac[1], EVEN_BYTES);
  x[1] = MIXED(bd[0], bd[1], EVEN_BYTES);
  x[2] = MIXED(ac[0], ac[1], ODD_BYTES);
  x[3] = MIXED(bd[0], bd[1], ODD_BYTES);
}
#endif

// Returns true if words 4 i to 4 i + 3 of a line are contiguous for every i.
static bool inFours(const std::vector<uint32_t> &last) {
  for (size_t i = 0; i < last.size() / 4 * 4; i++)
    if (last[i] != last[i / 4 * 4] + i % 4) return false;
  return true;
}

// One line along the last axis. `row`: the offset of each lane's elements in the array (a single offset if
// the lanes are along the last axis). `valid`: the number of lanes that have elements. `word`: the sum of the
// table entries of the other axes.
struct Line {
  uint64_t row[4];
  uint32_t valid;
  uint32_t word;
};

template <typename Visit>
void Packing::lines(Visit visit) const {
  uint32_t counts[3];
  for (int axis = 0; axis < 3; axis++) counts[axis] = axis == lane ? groups(extent[axis]) : extent[axis];
  const uint64_t total = uint64_t{counts[0]} * counts[1] * counts[2];
  const uint64_t strides[3] = {uint64_t{extent[1]} * extent[2] * extent[3], uint64_t{extent[2]} * extent[3],
                               extent[3]};
  inParallel(total, std::max<uint64_t>(1, (1 << 18) / (4 * uint64_t{extent[3]} + 1)),
             [&](uint64_t begin, uint64_t end) {
               for (uint64_t i = begin; i < end; i++) {
                 // If channels are the lanes, iterate over their groups in the innermost loop, because the
                 // words of neighbouring groups are adjacent.
                 const uint64_t image = uint64_t{counts[1]} * counts[2], inner = counts[lane == 1 ? 1 : 2];
                 uint64_t at[3] = {i / image, i % image / inner, i % inner};
                 if (lane == 1) std::swap(at[1], at[2]);
                 Line line{{}, 1, 0};
                 uint64_t row = 0;
                 for (int axis = 0; axis < 3; axis++) {
                   line.word += table[axis][at[axis]];
                   row += at[axis] * strides[axis] * (axis == lane ? 4 : 1);
                 }
                 line.row[0] = row;
                 if (lane < 3) {
                   line.valid = std::min<uint32_t>(4, extent[lane] - 4 * static_cast<uint32_t>(at[lane]));
                   for (uint32_t k = 1; k < 4; k++)
                     line.row[k] = row + std::min(k, line.valid - 1) * strides[lane];
                 }
                 visit(line);
               }
             });
}

void Packing::pack(uint32_t *out, const uint8_t *array, uint8_t flip, uint8_t fill) const {
  if (words != elements() / 4 || elements() % 4) {  // some words or lanes have no element
    inParallel(words, 1 << 16,
               [&](uint64_t begin, uint64_t end) { std::fill(out + begin, out + end, broadcast(fill)); });
  }
  const uint32_t width = extent[3], flips = broadcast(flip), fills = broadcast(fill);
  const uint32_t *last = table[3].data();
  const bool fours = lane < 3 && inFours(table[3]);
  lines([&](const Line &line) {
    uint32_t *to = out + line.word;
    if (lane == 3) {
      const uint8_t *from = array + line.row[0];
      for (uint32_t g = 0; g < width / 4; g++) {
        uint32_t word;
        std::memcpy(&word, from + 4 * g, 4);
        to[last[g]] = word ^ flips;
      }
      if (const uint32_t rest = width % 4) {
        uint32_t word = 0;
        std::memcpy(&word, from + width - rest, rest);
        const uint32_t mask = (1u << 8 * rest) - 1;
        to[last[width / 4]] = ((word ^ flips) & mask) | (fills & ~mask);
      }
      return;
    }
    const uint8_t *a = array + line.row[0], *b = array + line.row[1], *c = array + line.row[2],
                  *d = array + line.row[3];
    const uint32_t mask = line.valid == 4 ? ~0u : (1u << 8 * line.valid) - 1;
    uint32_t w = 0;
#ifdef VKQ_VECTORS
    for (; fours && line.valid == 4 && w + 16 <= width; w += 16) {
      Vector x[4] = {loaded(a + w, flip), loaded(b + w, flip), loaded(c + w, flip), loaded(d + w, flip)};
      transpose16(x);
      for (int i = 0; i < 4; i++) std::memcpy(to + last[w + 4 * i], x + i, 16);
    }
#endif
    for (; fours && line.valid == 4 && w + 4 <= width; w += 4) {
      uint32_t x[4];
      std::memcpy(x, a + w, 4);
      std::memcpy(x + 1, b + w, 4);
      std::memcpy(x + 2, c + w, 4);
      std::memcpy(x + 3, d + w, 4);
      transpose(x);
      for (uint32_t &one : x) one ^= flips;
      std::memcpy(to + last[w], x, 16);
    }
    for (; w < width; w++) {
      const uint32_t word = a[w] | b[w] << 8 | c[w] << 16 | static_cast<uint32_t>(d[w]) << 24;
      to[last[w]] = ((word ^ flips) & mask) | (fills & ~mask);
    }
  });
}

void Packing::unpack(uint8_t *array, const uint32_t *in, uint8_t flip) const {
  const uint32_t width = extent[3], flips = broadcast(flip);
  const uint32_t *last = table[3].data();
  const bool fours = lane < 3 && inFours(table[3]);
  lines([&](const Line &line) {
    const uint32_t *from = in + line.word;
    if (lane == 3) {
      uint8_t *to = array + line.row[0];
      for (uint32_t g = 0; g < width / 4; g++) {
        const uint32_t word = from[last[g]] ^ flips;
        std::memcpy(to + 4 * g, &word, 4);
      }
      if (const uint32_t rest = width % 4) {
        const uint32_t word = from[last[width / 4]] ^ flips;
        std::memcpy(to + width - rest, &word, rest);
      }
      return;
    }
    uint8_t *a = array + line.row[0], *b = array + line.row[1], *c = array + line.row[2],
            *d = array + line.row[3];
    if (line.valid == 4) {
      uint32_t w = 0;
#ifdef VKQ_VECTORS
      for (; fours && w + 16 <= width; w += 16) {
        Vector x[4];
        for (int i = 0; i < 4; i++) x[i] = loaded(from + last[w + 4 * i], flip);
        separate16(x);
        std::memcpy(a + w, x, 16);
        std::memcpy(b + w, x + 1, 16);
        std::memcpy(c + w, x + 2, 16);
        std::memcpy(d + w, x + 3, 16);
      }
#endif
      for (; fours && w + 4 <= width; w += 4) {
        uint32_t x[4];
        std::memcpy(x, from + last[w], 16);
        for (uint32_t &one : x) one ^= flips;
        transpose(x);
        std::memcpy(a + w, x, 4);
        std::memcpy(b + w, x + 1, 4);
        std::memcpy(c + w, x + 2, 4);
        std::memcpy(d + w, x + 3, 4);
      }
      for (; w < width; w++) {
        const uint32_t word = from[last[w]] ^ flips;
        a[w] = static_cast<uint8_t>(word);
        b[w] = static_cast<uint8_t>(word >> 8);
        c[w] = static_cast<uint8_t>(word >> 16);
        d[w] = static_cast<uint8_t>(word >> 24);
      }
      return;
    }
    for (uint32_t k = 0; k < line.valid; k++)
      for (uint32_t w = 0; w < width; w++)
        array[line.row[k] + w] = static_cast<uint8_t>((from[last[w]] ^ flips) >> 8 * k);
  });
}

}  // namespace vkq
