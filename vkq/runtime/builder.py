"""Build plans (`vkq.runtime.plan`). The steps of a plan read and write numbered slots. The builder checks
each step against the device's limits."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import ArgumentError
from ..layout.extent import Spec
from .device import Device
from .offsets import Lifetime, place
from .plan import Plan, Resident, Step, step_of
from .program import Program

EVERYWHERE = 4096  # loop iterations of an invocation that every driver allows


def lets_loop(device: Device, rounds: int) -> bool:
    """Return True if the driver lets an invocation's loops run *rounds* iterations (`Variant.iterations`)."""
    if rounds <= EVERYWHERE:
        return True
    limit = device.loop_limit
    return limit is None or rounds <= limit


@dataclass(frozen=True)
class Value:
    """A slot of a plan under construction, and the spec of its content."""

    slot: int
    spec: Spec
    bytes: int


class Builder:
    """The builder of one plan: add the inputs, then the steps in order, then call `plan`. *alone*: whether
    the plan is for a single layer. The choice of its kernels then counts the time to repack its input; in a
    network, other layers write the input in the layout that the layer needs."""

    def __init__(self, device: Device, alone: bool = False):
        self.device, self.alone = device, alone
        self._inputs: list[Value] = []
        self._given: set[int] = set()  # the slots of inputs
        self._bytes: list[int] = []
        self._residents: dict[int, Resident] = {}
        self._kept: dict[Resident, Value] = {}  # {constant data: its value in the plan}
        self._steps: list[Step] = []
        self.dispatches = 0  # number of dispatches among the steps
        self._writes: Counter[int] = Counter()  # number of writes to each slot
        self._copies: dict[Hashable, tuple[Value, int]] = {}
        self._parts: dict[
            int, tuple[int, int]
        ] = {}  # {slot of a part: (slot of its joined array, offset in it)}
        self._wholes: set[int] = set()  # the slots of joined arrays
        self.reasons: dict[str, str] = {}
        self._over: dict[int, int] = {}
        # {index of a step: (the step to run instead if every result y shares the memory of its input x,
        # {slot of y: slot of x})}; see `may_overwrite`.
        self._shorter: dict[int, tuple[Step, dict[int, int]]] = {}

    def input(self, spec: Spec) -> Value:
        """Add the next input of the plan and return its value."""
        value = self.new(spec)
        self._inputs.append(value)
        self._given.add(value.slot)
        return value

    def new(self, spec: Spec) -> Value:
        """Return a new value that a step will write: a result or an intermediate array."""
        return self._slot(spec, max(spec.nbytes, 1))

    def words(self, count: int) -> Value:
        """Return a new value of *count* 32-bit words for internal data."""
        return self.new(Spec((count,), "int32"))

    def constant(self, resident: Resident) -> Value:
        """Return constant data, such as weights or a table, as a value. Each `Resident` has one slot in the
        plan."""
        if resident not in self._kept:
            value = self._slot(Spec((resident.bytes // 4,), "int32"), resident.bytes)
            self._residents[value.slot], self._kept[resident] = resident, value
        return self._kept[resident]

    def made(self, value: Value) -> bool:
        """Return True if steps of this plan write the value: it is neither an input nor a constant."""
        return value.slot not in self._residents and value.slot not in self._given

    def joined(self, parts: Sequence[Value], spec: Spec) -> Value | None:
        """Return an array in the memory of *parts*, one part after the other. Return None in these cases: a
        part is an input, a constant or in another joined array; a part would begin at an offset that the
        device does not allow; the parts' sizes do not add up to that of *spec*.

        The caller ensures that steps write every part (or the whole array), that no step writes a part with
        another spec, and that neither a part nor the array is a result."""
        unit = self.device.capabilities.buffer_alignment
        *offsets, size = itertools.accumulate((part.bytes for part in parts), initial=0)
        able = all(self.made(part) and not self.shares(part) for part in parts)
        apart = len({part.slot for part in parts}) == len(parts)
        if not able or not apart or size != spec.nbytes or any(offset % unit for offset in offsets):
            return None
        whole = self.new(spec)
        for part, offset in zip(parts, offsets, strict=True):
            self._parts[part.slot] = whole.slot, offset
        self._wholes.add(whole.slot)
        return whole

    def shares(self, value: Value) -> bool:
        """Return True if the value is a joined array or a part of one."""
        return value.slot in self._parts or value.slot in self._wholes

    def view(self, value: Value, spec: Spec) -> Value:
        """Return a value with the memory of *value* and the spec *spec*."""
        return Value(value.slot, spec, value.bytes)

    def why(self, topic: str, reason: str) -> None:
        """Record the reason for a choice. *topic*: what was chosen, such as "path" (`Plan.reasons`)."""
        self.reasons[topic] = reason

    def dispatch(
        self,
        program: Program,
        slots: Sequence[Value],
        push: Mapping[str, int | float],
        macs: int = 0,
        in_place: bool = False,
    ) -> None:
        """Add a dispatch. *slots* are in the order of the shader's bindings. *macs*: the number of
        multiply-adds; required only if the dispatch may be long enough to trigger a watchdog. *in_place*:
        see `step_of`.

        Raises ArgumentError if an invocation's loops would run longer than the driver allows.
        """
        rounds = program.rounds(push)
        if not lets_loop(self.device, rounds):
            raise ArgumentError(
                f"{program.variant.name}: an invocation's loops would run {rounds} iterations, and this"
                f" device's driver ends them after {self.device.loop_limit}; split the tensor or use another"
                " device"
            )
        sizes, numbers = [value.bytes for value in slots], [value.slot for value in slots]
        self._add(step_of(self.device, program, sizes, push, macs, numbers, in_place))

    def may_overwrite(
        self, pairs: Sequence[tuple[Value, Value]], push: Mapping[str, int | float] | None = None
    ) -> None:
        """Allow results to overwrite inputs. For each pair (y, x) in *pairs*, the last step reads x and
        writes y, and is correct even if y and x share memory. *push*: the step's push constants if every y
        shares the memory of its x: the step then does not copy data that are in place."""
        slots = {y.slot: x.slot for y, x in pairs}
        self._over |= slots
        step = self._steps[-1]
        if push is not None and step.program is not None:
            sizes = [self._bytes[slot] for slot in step.slots]
            self._shorter[len(self._steps) - 1] = (
                step_of(self.device, step.program, sizes, push, step.macs, step.slots),
                slots,
            )

    def fill(self, value: Value, word: int) -> None:
        """Add a step that sets every word of a value."""
        self._add(Step((value.slot,), (), (value.slot,), value=word))

    def _add(self, step: Step) -> None:
        self._steps.append(step)
        self.dispatches += step.program is not None
        self._writes.update(step.writes)

    def once(self, value: Value, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the result of *make* for a value and a key, cached if possible. *make* adds steps. It is
        called again only if later steps overwrote the value or the result."""
        key = value.slot, self._writes[value.slot], value.spec, key
        found, writes = self._copies.get(key, (None, 0))
        if found is None or self._writes[found.slot] != writes:
            found = make()
            self._copies[key] = found, self._writes[found.slot]
        return found

    def plan(self, *results: Value) -> Plan:
        """Return the plan with these results."""
        taken = {v.slot for v in (*self._inputs, *results)} | self._residents.keys()
        # Values that no step uses, such as arrays without elements, get no memory.
        used = {self._parts.get(slot, (slot, 0))[0] for step in self._steps for slot in step.slots}
        between = sorted(used - taken)
        offsets, total = place(self.lifetimes(between))
        places = dict(zip(between, offsets, strict=True))
        places |= {part: places[whole] + at for part, (whole, at) in self._parts.items() if whole in used}
        sizes = {s: (at, self._bytes[s]) for s, at in places.items()}
        reads = Counter(slot for step in self._steps for slot in step.slots)
        given = self._given - {v.slot for v in results}
        over = {y: x for y, x in self._over.items() if y in taken and x in given and reads[x] == 1}
        shorter = {i: step for i, (step, pairs) in self._shorter.items() if pairs.items() <= over.items()}
        in_place = tuple(shorter.get(i, step) for i, step in enumerate(self._steps)) if shorter else ()
        return Plan(
            tuple(v.spec for v in self._inputs), tuple(v.spec for v in results),
            tuple(v.slot for v in results), tuple(self._steps), self._residents, sizes, total,
            len(self._bytes), self.reasons, over, in_place,
        )  # fmt: skip

    def lifetimes(self, slots: Sequence[int]) -> list[Lifetime]:
        """Return the lifetime of each slot in step numbers. That of a joined array includes those of its
        parts."""
        used: dict[int, list[int]] = {}
        for i, step in enumerate(self._steps):
            for slot in step.slots:
                used.setdefault(self._parts.get(slot, (slot, 0))[0], []).append(i)
        return [
            Lifetime(self._bytes[s], used[s][0], used[s][-1]) if s in used else Lifetime(0, 0, 0)
            for s in slots
        ]

    def _slot(self, spec: Spec, size: int) -> Value:
        self._bytes.append(size)
        return Value(len(self._bytes) - 1, spec, size)
