"""Emulated faulty drivers, after published driver bugs. A correct driver runs a recording step by step.
Between two steps, the emulation changes memory to the state that the faulty driver would leave."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from vkq.runtime.buffer import Buffer
from vkq.runtime.device import Device
from vkq.runtime.plan import Plan, Step, native_plan
from vkq.runtime.recording import Recorded, Recording
from vkq.runtime.tensor import Tensor

Bytes = npt.NDArray[np.uint8]


class Driver:
    """A driver without a fault: it submits each step of a recording separately. Subclasses override methods
    to add a fault."""

    device: Device  # the device of the current recording

    def __init__(self) -> None:
        self.plans: dict[int, Plan] = {}  # id of a native plan -> the plan
        self.kept: list[Any] = []  # keeps objects alive, so that their ids are not reused
        self.runs: dict[int, int] = {}  # id of a recording -> number of its runs
        self.changed = 0  # how often the fault changed a result

    # ------------------------------------------------------------------------------------------------- memory

    def read(self, one: Recorded, slot: int) -> Bytes:
        buffer, offset, size = self._place(one, slot)
        return self.device.download(buffer, offset + size)[offset:].copy()

    def write(self, one: Recorded, slot: int, data: Bytes) -> None:
        buffer, offset, size = self._place(one, slot)
        whole = self.device.download(buffer, offset + size).copy()
        self.changed += not np.array_equal(whole[offset:], data)
        whole[offset:] = data
        self.device.upload(buffer, whole)

    def _place(self, one: Recorded, slot: int) -> tuple[Buffer, int, int]:
        buffer = one.slots[slot]
        if buffer is not None:
            return buffer, 0, buffer.bytes
        assert one.scratch is not None
        offset, size = self.plans[id(one.native)].scratch[slot]
        return one.scratch, offset, size

    def results(self, one: Recorded) -> list[Tensor]:
        """Return the results of a recorded plan as tensors."""
        plan = self.plans[id(one.native)]
        return [
            Tensor.of(self.device, spec, one.slots[slot])
            for spec, slot in zip(plan.results, plan.outputs, strict=True)
        ]

    # ---------------------------------------------------------------------------------------------- execution

    def run(self, recording: Recording) -> None:
        self.device = recording.device  # type: ignore[assignment]
        number = self.runs[id(recording)] = self.runs.get(id(recording), -1) + 1
        self.kept.append(recording)
        steps = [(one, step) for one in recording.steps for step in one.steps]
        for one, step in self.order(steps):
            self.step(one, step, number)
        for one in dict.fromkeys(map(id, recording.steps)):
            self.finish(next(r for r in recording.steps if id(r) == one), number)

    def order(self, steps: list[tuple[Recorded, Step]]) -> list[tuple[Recorded, Step]]:
        return steps

    def step(self, one: Recorded, step: Step, number: int) -> None:
        self.execute(one, step)

    def finish(self, one: Recorded, number: int) -> None:
        """Apply the fault after the last step."""

    def execute(self, one: Recorded, step: Step) -> None:
        plan = self.plans[id(one.native)]
        native = native_plan(
            [step], plan.slots, len(plan.inputs), plan.outputs, plan.scratch, plan.scratch_bytes
        )
        for slot, resident in plan.constants.items():
            native.bind(slot, resident.buffer)
        with self.device.immediate(), self.device.operation() as recording:
            recording._record(Recorded(one.slots, (step,), native, one.scratch))
        self.device.synchronize()


class OfResults(Driver):
    """A fault that changes results after all steps have run."""

    def finish(self, one: Recorded, number: int) -> None:
        for y in self.results(one):
            true = y.numpy()
            false = self.change(true.copy(), one, number)
            self.changed += not np.array_equal(true, false, equal_nan=True)
            y.write(false)

    def change(self, y: Any, one: Recorded, number: int) -> Any:
        raise NotImplementedError


class Zeros(OfResults):
    """All results are zero, as on PowerVR before driver 25.3 (pytorch/executorch#17299)."""

    def change(self, y: Any, one: Recorded, number: int) -> Any:
        return np.zeros_like(y)


class Band(OfResults):
    """Channels 8 to 11 (or only the last channel) are wrong in every run (pytorch/executorch#21938)."""

    def change(self, y: Any, one: Recorded, number: int) -> Any:
        channels = np.moveaxis(y, 1 if y.ndim == 4 else -1, 0)
        some = channels[8:12] if len(channels) > 11 else channels[-1:]
        some[...] = some + 1
        return y


class Before(OfResults):
    """A result buffer still holds the result of the previous run (LiteRT#8065)."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[int, Any] = {}

    def change(self, y: Any, one: Recorded, number: int) -> Any:
        before, self.last[id(one)] = self.last.get(id(one), y), y.copy()
        return before


class Lanes(OfResults):
    """Lanes 0 and 1 of each word are swapped, as by a wrong lane index."""

    def change(self, y: Any, one: Recorded, number: int) -> Any:
        channels = np.moveaxis(y, 1 if y.ndim == 4 else -1, 0)
        even = len(channels) // 4 * 4
        lanes = channels[:even].reshape(-1, 4, *channels.shape[1:])
        channels[:even] = lanes[:, [1, 0, 2, 3]].reshape(channels[:even].shape)
        return y


class Shuffle(OfResults):
    """Each lane holds the value of its neighbour (Tencent/ncnn#6778)."""

    def change(self, y: Any, one: Recorded, number: int) -> Any:
        return np.roll(y, 1, 1 if y.ndim == 4 else -1)


class FirstRun(OfResults):
    """Results are wrong in the first run of each recording only."""

    def change(self, y: Any, one: Recorded, number: int) -> Any:
        return y if number else np.flip(y, -1)


class OfGroups(Driver):
    """A fault that changes the output of the last workgroup in each dispatch of two or more workgroups."""

    def step(self, one: Recorded, step: Step, number: int) -> None:
        total = sum(x * y for _, x, y in step.grids)
        apart = step.program is not None and step.program.first_group_at >= 0
        if not apart or total < 2 or set(step.reads) & set(step.writes) or not self.faulty(number):
            return self.execute(one, step)
        most = dataclasses.replace(step, grids=((0, total - 1, 1),))
        self.groups(one, step, most)

    def faulty(self, number: int) -> bool:
        return True

    def groups(self, one: Recorded, step: Step, most: Step) -> None:
        raise NotImplementedError


class Partial(OfGroups):
    """The last workgroup writes nothing."""

    def groups(self, one: Recorded, step: Step, most: Step) -> None:
        self.changed += 1
        self.execute(one, most)


class Workgroup(OfGroups):
    """The last workgroup of each dispatch writes wrong values in 1 of 20 runs, at random, in every shader
    (Adreno 840, pytorch/executorch#22327)."""

    CHANCE = 1 / 20

    def __init__(self) -> None:
        super().__init__()
        self.chance = random.Random(840)
        self.errs = False

    def run(self, recording: Recording) -> None:
        self.errs = self.chance.random() < self.CHANCE
        super().run(recording)

    def faulty(self, number: int) -> bool:
        return self.errs

    def groups(self, one: Recorded, step: Step, most: Step) -> None:
        self.execute(one, most)
        without = {slot: self.read(one, slot) for slot in step.writes}
        self.execute(one, step)
        for slot, before in without.items():
            after = self.read(one, slot)
            self.write(one, slot, np.where(before != after, after ^ 1, after))


class Texels(Driver):
    """A texel buffer returns the data that it had in the first run (google-ai-edge/LiteRT#8065)."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[tuple[int, int, int], Bytes] = {}

    def step(self, one: Recorded, step: Step, number: int) -> None:
        bindings = step.program.variant.bindings if step.program else ()
        constants = self.plans[id(one.native)].constants
        slots = [
            slot for slot, b in zip(step.slots, bindings, strict=False) if b.texels and slot not in constants
        ]
        true = {slot: self.read(one, slot) for slot in slots}
        for slot in slots:
            self.write(one, slot, self.first.setdefault((id(one), id(step), slot), true[slot]))
        self.execute(one, step)
        for slot in slots:
            self.write(one, slot, true[slot])


class Barriers(Driver):
    """A step that overwrites the previous step's input does not wait for it (pytorch/executorch PR 20915)."""

    def order(self, steps: list[tuple[Recorded, Step]]) -> list[tuple[Recorded, Step]]:
        steps = list(steps)
        for i in range(len(steps) - 1):
            reader, writer = steps[i], steps[i + 1]
            if self._meet(reader, writer, True) and not self._meet(reader, writer, False):
                steps[i], steps[i + 1] = writer, reader
                self.changed += 1
        return steps

    def _meet(self, a: tuple[Recorded, Step], b: tuple[Recorded, Step], after_read: bool) -> bool:
        """Return True if step b must wait for step a: b reads or writes memory that a writes. With
        *after_read*, return True if b writes memory that a reads."""
        mine = a[1].reads if after_read else a[1].writes
        theirs = b[1].writes if after_read else (*b[1].reads, *b[1].writes)
        return any(self._overlap(self._place(a[0], m), self._place(b[0], t)) for m in mine for t in theirs)

    @staticmethod
    def _overlap(a: tuple[Buffer, int, int], b: tuple[Buffer, int, int]) -> bool:
        begin, other = a[0].offset + a[1], b[0].offset + b[1]
        return a[0].block == b[0].block and begin < other + b[2] and other < begin + a[2]


FAULTS: dict[str, type[Driver]] = {
    "one workgroup in 1 of 20 runs": Workgroup,
    "a band of channels": Band,
    "stale texels from the second run on": Texels,
    "no write-after-read barrier": Barriers,
    "zeros": Zeros,
    "the result of the run before": Before,
    "a wrong lane index": Lanes,
    "a shuffle off by one": Shuffle,
    "partial writes": Partial,
    "wrong in the first run alone": FirstRun,
}


@contextlib.contextmanager
def driver(monkeypatch: pytest.MonkeyPatch, kind: Callable[[], Driver]) -> Iterator[Driver]:
    """Context manager: for recordings inside the block, a faulty driver of this class replaces the driver."""
    faulty = kind()
    add = Recording.add

    def noted(self: Recording, plan: Plan, inputs: Any, outputs: Any) -> None:
        faulty.plans[id(plan.native)] = plan
        faulty.kept.append(plan)
        add(self, plan, inputs, outputs)

    with monkeypatch.context() as patch:
        patch.setattr(Recording, "add", noted)
        patch.setattr(Recording, "run", lambda self: faulty.run(self))
        yield faulty
