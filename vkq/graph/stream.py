"""A plan for one batch after another: what goes up and what comes down is part of what the device does by
itself, so that the host fills the next batch meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..layout.extent import NUMBERS, Spec
from ..runtime.buffer import Buffer
from ..runtime.device import Device
from ..runtime.plan import Plan
from ..runtime.tensor import Tensor
from ..runtime.transfer import packing_plan, too_large
from .graph import Array


def results_of(device: Device, plan: Plan, inputs: Sequence[Tensor]) -> list[Tensor]:
    """New tensors for a plan's results; one that is an input lies there, and two may be one value."""
    slots = dict(enumerate(tensor.buffer for tensor in inputs))
    results = []
    for slot, spec in zip(plan.outputs, plan.results, strict=True):
        results.append(Tensor.of(device, spec, slots.get(slot)))
        slots[slot] = results[-1].buffer
    return results


class Lane:
    """Memory of its own for a batch, and one recording: the inputs from host memory to the device, packed;
    the plan; one result, as a row-major array, into host memory.

    On a device whose memory the host sees, the host fills and reads that.
    """

    def __init__(self, device: Device, plan: Plan, result: int, idle: list[Lane]):
        self.device = device
        self._idle = idle
        self._given: list[Buffer] = []
        with device.record() as self.recording:
            inputs = [self._upward(spec) for spec in plan.inputs]
            results = results_of(device, plan, inputs)
            self.recording.add(plan, [x.buffer for x in inputs], [y.buffer for y in results])
            self.spec = results[result].spec
            self._made = self._downward(results[result])

    @staticmethod
    def can(device: Device, plan: Plan) -> bool:
        """Whether there is something to do, and all of it can be done on the device."""
        specs = (*plan.inputs, *plan.results)
        return bool(plan.steps) and all(
            spec.size and not (spec.packed and too_large(device, spec)) for spec in specs
        )

    def _upward(self, spec: Spec) -> Tensor:
        tensor = Tensor.of(self.device, spec)
        raw = self.device.allocate(_bytes(spec)) if spec.packed else tensor.buffer
        self._given.append(raw if raw.mapped else self.device.queue.pin(_bytes(spec)))
        if not raw.mapped:
            self.recording.copy(self._given[-1], raw, _bytes(spec))
        if spec.packed:
            self.recording.add(packing_plan(self.device, spec, "pack"), [raw], [tensor.buffer])
        return tensor

    def _downward(self, result: Tensor) -> Buffer:
        spec, raw = result.spec, result.buffer
        if spec.packed:
            raw = self.device.allocate(_bytes(spec))
            self.recording.add(packing_plan(self.device, spec, "unpack"), [result.buffer], [raw])
        if raw.mapped:
            return raw
        host: Buffer = self.device.queue.pin(_bytes(spec))
        self.recording.copy(raw, host, _bytes(spec))
        return host

    def start(self, batch: Sequence[Sequence[Array]]) -> None:
        """Takes the arrays of each input, contiguous, one behind the other (they may be changed when this
        returns), and submits the work."""
        for target, arrays in zip(self._given, batch, strict=True):
            self.device.queue.gather(target, [x.reshape(-1).view(np.uint8) for x in arrays])
        self.recording.submit()

    def finish(self) -> Array:
        """Waits for what was started: the result as a new array. The next batch may come."""
        out = np.empty(self.spec.shape, NUMBERS.get(self.spec.dtype, self.spec.dtype))
        self.device.download_into(self._made, out.reshape(-1).view(np.uint8))
        self._idle.append(self)
        return out


def _bytes(spec: Spec) -> int:
    """Of a row-major array."""
    return spec.size * np.dtype(NUMBERS.get(spec.dtype, spec.dtype)).itemsize
