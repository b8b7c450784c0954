// A model's file, parsed from memory. Every number is checked before it is used.
#pragma once
#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "vkq.h"

namespace vkq::player {

struct Error : std::runtime_error {
  vkq_status status;
  Error(vkq_status s, const std::string &text) : std::runtime_error(text), status(s) {}
};

// How the bytes of a blob are stored. IN_COLUMNS: a shader, whose words are sorted into columns and deflated.
enum Packing : uint32_t { AS_IT_IS = 0, DEFLATED = 1, IN_COLUMNS = 2 };

// A part of the file. Each blob begins at a multiple of 64 bytes.
struct Blob {
  const uint8_t *data = nullptr;
  uint64_t stored = 0, bytes = 0;  // stored size, unpacked size
  Packing packing = AS_IT_IS;

  using Key = std::tuple<const uint8_t *, uint64_t, uint64_t, Packing>;
  Key key() const { return {data, stored, bytes, packing}; }
  // Return the unpacked bytes. Throw Error (VKQ_FILE) for a damaged blob; `shader` also if it is not SPIR-V.
  std::vector<uint8_t> whole() const;
  std::vector<uint32_t> shader() const;
};

struct Array {
  std::string name;
  vkq_type type;
  std::vector<uint64_t> shape;
  int64_t low, high;
  uint64_t bytes;   // bytes of the array
  uint64_t stored;  // bytes of the array's buffer: whole words, at least one
  Blob answer;      // content of an input in the known answer
};

// What a device must have: a feature (`value` is 1), a limit (at least `value`), or a property that must
// equal `value` (the name begins with "=": "=vendorID").
struct Need {
  std::string name;
  uint64_t value;
};

struct Program {
  std::string name;
  Blob spirv;
  uint32_t bindings, texels, pushBytes, subgroupSize;
  std::vector<std::pair<uint32_t, uint32_t>> constants;  // id, bits
};

static constexpr uint32_t MOST_AXES = 5;  // most axes of the order in which a constant is read

enum Access : uint8_t { READ = 1, WRITE = 2 };
using Grid = std::array<uint32_t, 3>;  // first workgroup, x, y

struct Step {
  int64_t program;  // -1: fill the only slot with `value`
  std::vector<uint32_t> slots;
  std::vector<uint8_t> access;  // one for each slot
  std::string push;
  int32_t firstGroupAt;  // offset of the first workgroup's index in `push`; -1: the program does not read it
  std::vector<Grid> grids;
  uint32_t value;
  uint64_t busyNs;  // estimated time on a device that also drives a screen
};

struct Part {
  uint32_t slot;
  uint64_t offset, bytes;
};

struct Result {
  int64_t slot;  // -1: the result is the same for all inputs
  Blob constant;
};

// Words of a blob, read with these `sizes` and `strides` (in words); without sizes, in their stored order.
// `copy` throws as Blob::whole does.
struct Constant {
  uint32_t slot;
  Blob blob;
  std::vector<uint32_t> sizes, strides;

  void copy(uint8_t *to) const;
};

struct Plan {
  std::string kind, about;
  std::vector<Need> needs;
  std::vector<Program> programs;
  uint32_t slots;  // the inputs come first
  uint64_t alignment;
  std::vector<Result> results;
  std::vector<Blob> answers;  // one for each output
  uint64_t scratchBytes;
  std::vector<Part> scratch;
  std::vector<Constant> constants;
  std::vector<Step> steps;
};

// The model for one set of shapes. Names, types and ranks are the same in all sets of a file.
struct Shapes {
  std::vector<Array> inputs, outputs;
  std::vector<Plan> plans;
};

struct File {
  std::string producer;
  std::vector<Shapes> sets;  // at least one
};

// The checksum of whole 64-bit words (vkq/player/file.py has the formula).
uint64_t checksum(const uint8_t *data, uint64_t bytes);

// Parses a file. Throws Error (VKQ_FILE) if it is damaged. The result points into the bytes.
File read(const uint8_t *data, uint64_t bytes);

}  // namespace vkq::player
