// The recorded form of an operator: steps on numbered slots, for any buffers.
#pragma once
#include <array>

#include "arena.hpp"
#include "program.hpp"

namespace vkq {

// PART: the step writes only a part of the range. KEPT: at the end of the step, the range has its old content
// again.
enum Access : uint8_t { READ = 1, WRITE = 2, PART = 4, KEPT = 8 };

// A dispatch of a program, or, without a program, a fill of the only slot with `value`.
struct PlanStep {
  std::shared_ptr<Program> program;
  std::vector<uint16_t> slots;
  std::vector<uint8_t> access;  // for each slot a set of Access bits
  std::string push;
  // Offset of the first workgroup's number in `push`; -1: the program does not take it.
  int firstGroupAt = -1;
  std::vector<std::array<uint32_t, 3>> grids;  // (first workgroup, x, y)
  uint32_t value = 0;
  uint64_t busyNs = 0;  // estimated time of all grids together; 0: unknown, or not needed

  // The estimated time of one of the grids.
  uint64_t busyNsOf(const std::array<uint32_t, 3> &grid) const;
};

// The content of a slot: a range, or a part of a range.
struct Slot {
  const PiecePtr *piece = nullptr;
  uint64_t offset = 0, bytes = 0;  // offset: from the beginning of the memory block

  Slot() = default;
  explicit Slot(const PiecePtr &p) : piece(&p), offset(p->offset), bytes(p->bytes) {}
  Slot(const PiecePtr &p, uint64_t at, uint64_t size) : piece(&p), offset(p->offset + at), bytes(size) {}
  VkBuffer buffer() const { return (*piece)->memory->buffer; }
};

// A part of the scratch memory.
struct ScratchSlot {
  uint16_t slot;
  uint64_t offset, bytes;
};

// A binding exceeds the device's maxStorageBufferRange.
struct BindingTooLarge : std::exception {
  std::string message;
  BindingTooLarge(const std::string &program, size_t binding, uint64_t bytes, uint64_t most);
  const char *what() const noexcept override { return message.c_str(); }
};

// The first slots are the inputs; an output may have the slot of an input.
struct Plan : std::enable_shared_from_this<Plan> {
  std::vector<PlanStep> steps;
  size_t slots, inputs;
  std::vector<uint16_t> outputs;
  std::vector<ScratchSlot> scratch;
  uint64_t scratchBytes;
  std::vector<std::pair<uint16_t, PiecePtr>> constants;

  Plan(std::vector<PlanStep> s, size_t slotCount, size_t inputCount, std::vector<uint16_t> results,
       std::vector<ScratchSlot> parts, uint64_t scratchSize);
  // Sets the content of a constant's slot. A step that writes a constant restores it (for example counters,
  // which are zero before and after the step).
  void bind(size_t slot, PiecePtr piece);
  // Throws if a step would read lost data, or if a slot is empty, is on another device than `core`, or
  // exceeds the limit of a binding.
  void check(const Slot *filled, const Core &core) const;
};

}  // namespace vkq
