// What an operator records, ready for any buffers: steps on numbered slots.
#pragma once
#include <array>

#include "arena.hpp"
#include "program.hpp"

namespace vkq {

// PART: a write that leaves some of the range as it was. KEPT: one that leaves all as it was in the end.
enum Access : uint8_t { READ = 1, WRITE = 2, PART = 4, KEPT = 8 };

// One dispatch on slots (a program), or a fill of the only slot with `value` (none).
struct PlanStep {
  std::shared_ptr<Program> program;
  std::vector<uint16_t> slots;
  std::vector<uint8_t> access;  // of each slot: bits of Access
  std::string push;
  int firstGroupAt = -1;  // where in `push` a dispatch's first workgroup stands; -1: nowhere
  std::vector<std::array<uint32_t, 3>> grids;  // (first workgroup, x, y)
  uint32_t value = 0;
  uint64_t busyNs = 0;  // how long all grids together are estimated to take; 0 where nobody minds

  // The same for one of the grids.
  uint64_t busyNsOf(const std::array<uint32_t, 3> &grid) const;
};

// What lies in a slot: a piece, or a part of one.
struct Slot {
  const PiecePtr *piece = nullptr;
  uint64_t offset = 0, bytes = 0;  // in the piece's memory

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

// Slots are the inputs, then everything else; an output may be an input's own.
// A binding larger than the device's maxStorageBufferRange.
struct BindingTooLarge : std::exception {
  std::string message;
  BindingTooLarge(const std::string &program, size_t binding, uint64_t bytes, uint64_t most);
  const char *what() const noexcept override { return message.c_str(); }
};

struct Plan : std::enable_shared_from_this<Plan> {
  std::vector<PlanStep> steps;
  size_t slots, inputs;
  std::vector<uint16_t> outputs;
  std::vector<ScratchSlot> scratch;
  uint64_t scratchBytes;
  std::vector<std::pair<uint16_t, PiecePtr>> constants;

  Plan(std::vector<PlanStep> s, size_t slotCount, size_t inputCount, std::vector<uint16_t> results,
       std::vector<ScratchSlot> parts, uint64_t scratchSize);
  // What lies in a constant's slot; steps that write it keep it (counters that are zero before and after).
  void bind(size_t slot, PiecePtr piece);
  // Throws where a step would read what was lost, and where a slot is empty, of another device than `core`,
  // or larger than a binding may be.
  void check(const Slot *filled, const Core &core) const;
};

}  // namespace vkq
