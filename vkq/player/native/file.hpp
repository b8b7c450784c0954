// A model's file: read from memory, every number in it checked before it is used.
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

// How a blob's bytes are stored; those of a shader in columns are deflated, too.
enum Packing : uint32_t { AS_IT_IS = 0, DEFLATED = 1, IN_COLUMNS = 2 };

// A part of the file. Blobs begin at multiples of 64 bytes.
struct Blob {
  const uint8_t *data = nullptr;
  uint64_t stored = 0, bytes = 0;  // in the file, and unpacked
  Packing packing = AS_IT_IS;

  using Key = std::tuple<const uint8_t *, uint64_t, uint64_t, Packing>;
  Key key() const { return {data, stored, bytes, packing}; }
  // Unpacked. Throw Error (VKQ_FILE) where it is damaged; `shader` also where it is no SPIR-V.
  std::vector<uint8_t> whole() const;
  std::vector<uint32_t> shader() const;
};

struct Array {
  std::string name;
  vkq_type type;
  std::vector<uint64_t> shape;
  int64_t low, high;
  uint64_t bytes;   // of the array
  uint64_t stored;  // of its buffer: whole words, at least one
  Blob answer;      // an input's content in the known answer
};

// "integrated", a feature (1), a limit (at least so much), or a number that must be equal ("=vendorID").
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

static constexpr uint32_t MOST_AXES = 5;  // of the order of a constant

enum Access : uint8_t { READ = 1, WRITE = 2 };
using Grid = std::array<uint32_t, 3>;  // first workgroup, x, y

struct Step {
  int64_t program;  // -1: fill the only slot with `value`
  std::vector<uint32_t> slots;
  std::vector<uint8_t> access;  // of each slot
  std::string push;
  int32_t firstGroupAt;  // where in `push` a dispatch's first workgroup stands; -1: nowhere
  std::vector<Grid> grids;
  uint32_t value;
  uint64_t busyNs;  // how long it is estimated to take on a device that shares a screen
};

struct Part {
  uint32_t slot;
  uint64_t offset, bytes;
};

struct Result {
  int64_t slot;  // -1: it is the same for all inputs
  Blob constant;
};

// Words of a blob: all of them, in the order of `sizes` with `strides` in words; no sizes: as they are.
// Throws as Blob::whole.
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
  uint32_t slots;  // the inputs, then everything else
  uint64_t alignment;
  std::vector<Result> results;
  std::vector<Blob> answers;  // of each output
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

// Throws Error (VKQ_FILE) where the bytes are no such file. The result points into them.
File read(const uint8_t *data, uint64_t bytes);

}  // namespace vkq::player
