// Unpacks parts of a file: deflate (RFC 1951), and shaders whose words are sorted into columns
// (vkq/player/packed.py writes both).
#include <array>
#include <cstring>

#include "file.hpp"

namespace vkq::player {

static constexpr unsigned MOST_LENGTH = 15;  // most bits of a code
static constexpr size_t COLUMNS = 4;         // the last column has all further words of an instruction
static constexpr size_t SHADER_HEAD = 5;     // words before the first instruction

static Error damaged(const char *what) {
  return Error(VKQ_FILE, std::string("the file is damaged: a packed part ") + what);
}

// Reads bits, the lowest bit of each byte first.
struct Bits {
  const uint8_t *at, *end;
  uint64_t held = 0;
  unsigned count = 0;

  uint32_t peek(unsigned n) {  // returns zeros beyond the end
    while (count < n && at < end) {
      held |= uint64_t(*at++) << count;
      count += 8;
    }
    return held & ((uint32_t(1) << n) - 1);
  }
  void skip(unsigned n) {
    if (n > count) throw damaged("ends early");
    held >>= n;
    count -= n;
  }
  uint32_t take(unsigned n) {
    const uint32_t found = peek(n);
    skip(n);
    return found;
  }
};

// A canonical Huffman code, made from the code lengths of its symbols.
class Code {
 public:
  Code(const uint8_t *lengths, size_t symbols) {
    std::array<uint32_t, MOST_LENGTH + 2> count{}, first{};
    for (size_t i = 0; i < symbols; i++)
      if (lengths[i]) count[lengths[i]]++;
    for (unsigned n = 1; n <= MOST_LENGTH; n++) {
      if (first[n] + count[n] > uint32_t(1) << n) throw damaged("has an invalid code");
      if (count[n]) longest = n;
      first[n + 1] = (first[n] + count[n]) << 1;
    }
    found.assign(size_t(1) << longest, 0);
    for (size_t i = 0; i < symbols; i++) {
      const unsigned n = lengths[i];
      if (!n) continue;
      uint32_t reversed = 0;
      for (uint32_t code = first[n]++, k = 0; k < n; k++) reversed |= (code >> k & 1) << (n - 1 - k);
      for (size_t k = reversed; k < found.size(); k += size_t(1) << n) found[k] = uint16_t(i << 4 | n);
    }
  }
  uint32_t symbol(Bits &bits) const {
    const uint16_t entry = found[bits.peek(longest)];
    if (!entry) throw damaged("has an unknown code");
    bits.skip(entry & 15);
    return entry >> 4;
  }

 private:
  unsigned longest = 0;
  std::vector<uint16_t> found;  // symbol * 16 + length, indexed by the next bits
};

using Codes = std::pair<Code, Code>;  // (literals and lengths, distances)

static Codes fixedCodes() {
  std::array<uint8_t, 288> lengths{};
  for (size_t i = 0; i < lengths.size(); i++) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
  std::array<uint8_t, 30> distances{};
  distances.fill(5);
  return {Code(lengths.data(), lengths.size()), Code(distances.data(), distances.size())};
}

static Codes readCodes(Bits &bits) {
  static constexpr uint8_t ORDER[]{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
  const size_t symbols = bits.take(5) + 257, distances = bits.take(5) + 1, given = bits.take(4) + 4;
  uint8_t few[19] = {};
  for (size_t i = 0; i < given; i++) few[ORDER[i]] = uint8_t(bits.take(3));
  const Code lengths(few, 19);
  std::array<uint8_t, 286 + 32 + 2> all{};
  if (symbols > 286) throw damaged("has too many codes");
  for (size_t i = 0; i < symbols + distances;) {
    const uint32_t symbol = lengths.symbol(bits);
    if (symbol < 16) {
      all[i++] = uint8_t(symbol);
      continue;
    }
    if (symbol == 16 && !i) throw damaged("repeats a length before the first one");
    const uint8_t value = symbol == 16 ? all[i - 1] : 0;
    const size_t times = symbol == 16   ? 3 + bits.take(2)
                         : symbol == 17 ? 3 + bits.take(3)
                                        : 11 + bits.take(7);
    if (times > symbols + distances - i) throw damaged("has too many codes");
    for (size_t k = 0; k < times; k++) all[i++] = value;
  }
  return {Code(all.data(), symbols), Code(all.data() + symbols, distances)};
}

// Unpacks one block (literal bytes, and repetitions of earlier bytes) into `out`, from index `done` on.
static void readBlock(Bits &bits, const Codes &codes, std::vector<uint8_t> &out, size_t &done) {
  static constexpr uint16_t LENGTHS[]{3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                      31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
  for (uint32_t symbol; (symbol = codes.first.symbol(bits)) != 256;) {
    if (symbol < 256) {
      if (done == out.size()) throw damaged("is longer than recorded");
      out[done++] = uint8_t(symbol);
      continue;
    }
    const uint32_t i = symbol - 257;
    if (i >= 29) throw damaged("has an unknown length");
    const size_t length = LENGTHS[i] + (i < 8 || i == 28 ? 0 : bits.take(i / 4 - 1));
    const uint32_t far = codes.second.symbol(bits);
    if (far >= 30) throw damaged("has an unknown distance");
    const size_t distance = far < 4 ? far + 1 : ((2 + far % 2) << (far / 2 - 1)) + 1 + bits.take(far / 2 - 1);
    if (distance > done) throw damaged("repeats bytes before its beginning");
    if (length > out.size() - done) throw damaged("is longer than recorded");
    uint8_t *to = out.data() + done;
    if (distance >= length)
      std::memcpy(to, to - distance, length);
    else
      for (size_t k = 0; k < length; k++) to[k] = to[k - distance];
    done += length;
  }
}

static void readStored(Bits &bits, std::vector<uint8_t> &out, size_t &done) {
  bits.skip(bits.count % 8);
  const size_t length = bits.take(16);
  if ((bits.take(16) ^ length) != 0xFFFF || length > out.size() - done) throw damaged("has a wrong length");
  for (size_t k = 0; k < length; k++) out[done++] = uint8_t(bits.take(8));
}

static std::vector<uint8_t> inflated(const Blob &blob) {
  std::vector<uint8_t> out(blob.bytes);
  Bits bits{blob.data, blob.data + blob.stored};
  size_t done = 0;
  for (bool last = false; !last;) {
    last = bits.take(1);
    const uint32_t kind = bits.take(2);
    if (kind == 3) throw damaged("has an unknown block");
    if (kind == 0)
      readStored(bits, out, done);
    else
      readBlock(bits, kind == 1 ? fixedCodes() : readCodes(bits), out, done);
  }
  if (done != out.size()) throw damaged("is shorter than recorded");
  return out;
}

// Restores the words of a shader. The first words of all instructions are stored first, then all second
// words, all third words, and all other words. A third word is stored as its difference from the previous
// third word, and a later word as its difference from the third word of its instruction. The lowest bit is
// the sign.
static std::vector<uint32_t> inRows(const std::vector<uint8_t> &planes) {
  const size_t size = planes.size() / 4;
  std::vector<uint32_t> out(size);
  const auto in = [&](size_t i) {
    uint32_t word = 0;
    for (size_t k = 0; k < 4; k++) word |= uint32_t(planes[k * size + i]) << 8 * k;
    return word;
  };
  if (size < SHADER_HEAD || planes.size() % 4) throw damaged("is not a shader");
  size_t begin[COLUMNS]{SHADER_HEAD}, count[COLUMNS]{};
  for (size_t at = SHADER_HEAD; at < size;) {
    const size_t length = in(SHADER_HEAD + count[0]) >> 16;
    if (!length || length > size - at) throw damaged("has an instruction beyond its end");
    for (size_t k = 0; k < COLUMNS; k++) count[k] += length > k;
    at += length;
  }
  for (size_t k = 1; k < COLUMNS; k++) begin[k] = begin[k - 1] + count[k - 1];
  for (size_t i = 0; i < SHADER_HEAD; i++) out[i] = in(i);
  const auto value = [](uint32_t word) { return word >> 1 ^ (0 - (word & 1)); };
  uint32_t last = 0;
  for (size_t at = SHADER_HEAD; at < size;) {
    const size_t length = in(begin[0]) >> 16;
    for (size_t k = 0; k < length; k++) {
      const uint32_t word = in(begin[k < COLUMNS ? k : COLUMNS - 1]++);
      out[at + k] = k < 2 ? word : last + value(word);
      if (k == 2) last = out[at + k];
    }
    at += length;
  }
  return out;
}

std::vector<uint8_t> Blob::whole() const {
  if (packing == AS_IT_IS) return {data, data + bytes};
  return inflated(*this);
}

std::vector<uint32_t> Blob::shader() const {
  const std::vector<uint8_t> found = whole();
  std::vector<uint32_t> words;
  if (packing == IN_COLUMNS) {
    words = inRows(found);
  } else {
    words.resize(found.size() / 4);
    std::memcpy(words.data(), found.data(), 4 * words.size());
  }
  if (words.size() < SHADER_HEAD || found.size() % 4 || words[0] != 0x07230203)
    throw damaged("is not a shader");
  return words;
}

void Constant::copy(uint8_t *to) const {
  const std::vector<uint8_t> unpacked = blob.packing ? blob.whole() : std::vector<uint8_t>();
  const uint8_t *data = blob.packing ? unpacked.data() : blob.data;
  if (sizes.empty()) {
    std::memcpy(to, data, blob.bytes);
    return;
  }
  uint32_t at[MOST_AXES] = {};
  const size_t inner = sizes.size() - 1;
  for (uint64_t from = 0, done = 0; done < blob.bytes;) {
    for (uint32_t i = 0; i < sizes[inner]; i++, done += 4)
      std::memcpy(to + done, data + 4 * (from + uint64_t(i) * strides[inner]), 4);
    for (size_t axis = inner; axis-- > 0;) {
      from += strides[axis];
      if (++at[axis] < sizes[axis]) break;
      from -= uint64_t(sizes[axis]) * strides[axis];
      at[axis] = 0;
    }
  }
}

}  // namespace vkq::player
