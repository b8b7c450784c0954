#include "plan.hpp"

namespace vkq {

BindingTooLarge::BindingTooLarge(const std::string &program, size_t binding, uint64_t bytes, uint64_t most)
    : message(program + ": buffer " + std::to_string(binding) + " has " + std::to_string(bytes) +
              " bytes, above this device's maxStorageBufferRange of " + std::to_string(most) +
              "; use a smaller batch or split the tensor") {}

static void require(bool good, const char *rule) {
  if (!good) throw std::invalid_argument(rule);
}

Plan::Plan(std::vector<PlanStep> s, size_t slotCount, size_t inputCount, std::vector<uint16_t> results,
           std::vector<ScratchSlot> parts, uint64_t scratchSize)
    : steps(std::move(s)),
      slots(slotCount),
      inputs(inputCount),
      outputs(std::move(results)),
      scratch(std::move(parts)),
      scratchBytes(scratchSize) {
  require(slots <= UINT16_MAX && inputs <= slots,
          "Plan: there are at most 65535 slots, the inputs among them");
  for (uint16_t slot : outputs) require(slot < slots, "Plan: an output is not in one of its slots");
  for (const PlanStep &step : steps) {
    require(step.slots.size() == step.access.size(), "Plan: each slot of a step needs its access");
    for (uint16_t slot : step.slots) require(slot < slots, "Plan: a step's slot is not one of the plan's");
    if (!step.program) {
      require(step.slots.size() == 1, "Plan: a fill has one slot");
      continue;
    }
    require(step.slots.size() == step.program->bindings && step.slots.size() <= Program::MOST_BINDINGS &&
                step.push.size() == step.program->pushBytes,
            "Plan: the number of bindings or the size of the push constants differs from the program's");
    require(step.firstGroupAt < 0 || step.firstGroupAt + 4u <= step.push.size(),
            "Plan: first_group lies outside the push constants");
    require(step.grids.size() == 1 || step.firstGroupAt >= 0,
            "Plan: several dispatches need a push constant first_group");
  }
  for (const ScratchSlot &part : scratch)
    require(part.slot < slots && part.offset <= scratchBytes && part.bytes <= scratchBytes - part.offset,
            "Plan: a part of the scratch memory lies outside it");
}

uint64_t PlanStep::busyNsOf(const std::array<uint32_t, 3> &grid) const {
  double all = 0;
  for (const auto &[first, x, y] : grids) all += double(x) * y;
  return static_cast<uint64_t>(busyNs * (double(grid[1]) * grid[2] / all));
}

void Plan::bind(size_t slot, PiecePtr piece) {
  require(slot < slots, "Plan.bind: no such slot");
  for (PlanStep &step : steps)
    for (size_t i = 0; i < step.slots.size(); i++)
      if (step.slots[i] == slot && step.access[i] & WRITE) step.access[i] = READ | KEPT;
  for (auto &[number, bound] : constants)
    if (number == slot) {
      bound = std::move(piece);
      return;
    }
  constants.emplace_back(static_cast<uint16_t>(slot), std::move(piece));
}

void Plan::check(const Slot *filled, const Core &core) const {
  const uint64_t most = core.maxBinding;
  bool lost = false;
  for (const PlanStep &step : steps) {
    require(!step.program || step.program->core.get() == &core, "a program of the plan is of another device");
    for (size_t i = 0; i < step.slots.size(); i++) {
      const Slot &slot = filled[step.slots[i]];
      require(slot.piece && *slot.piece, "a slot of the plan is empty");
      require((*slot.piece)->arena->core.get() == &core, "a buffer of the plan is of another device");
      if (step.program && slot.bytes > most) throw BindingTooLarge(step.program->name, i, slot.bytes, most);
      lost = lost || (*slot.piece)->failure;
    }
  }
  if (!lost) return;
  std::vector<bool> written(slots);
  for (const PlanStep &step : steps) {
    for (size_t i = 0; i < step.slots.size(); i++) {
      const Piece &piece = **filled[step.slots[i]].piece;
      if (step.access[i] & (READ | PART) && piece.failure && !written[step.slots[i]])
        throw NeverComputed(*piece.failure);
    }
    for (size_t i = 0; i < step.slots.size(); i++)
      if (step.access[i] & WRITE) written[step.slots[i]] = true;
  }
}

}  // namespace vkq
