"""Runs a plan for one batch after another. The device copies inputs and results while the host fills the
next batch."""

from __future__ import annotations

import weakref
from collections import deque
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
    """Return tensors for a plan's results. Each result gets new memory, with two exceptions: results in the
    same slot share memory, and a result that is an input uses the input's memory."""
    slots = dict(enumerate(tensor.buffer for tensor in inputs))
    results = []
    for slot, spec in zip(plan.outputs, plan.results, strict=True):
        results.append(Tensor.of(device, spec, slots.get(slot)))
        slots[slot] = results[-1].buffer
    return results


class Lane:
    """The memory and the recording for one batch.

    The recording does these steps: copy the inputs from host memory to the device, pack them, run the plan,
    unpack the *results*, and copy them to host memory as row-major arrays. If the host can map device memory,
    there are no copies between host and device memory."""

    def __init__(self, device: Device, plan: Plan, results: Sequence[int], idle: deque[Lane]):
        self.device = device
        # a weak reference: a reference cycle would delay the release of memory
        self._idle = weakref.ref(idle)
        self._given: list[Buffer] = []
        with device.record() as self.recording:
            inputs = [self._upward(spec) for spec in plan.inputs]
            made = results_of(device, plan, inputs)
            self.recording.add(plan, [x.buffer for x in inputs], [y.buffer for y in made])
            self._made = {i: (made[i].spec, self._downward(made[i])) for i in dict.fromkeys(results)}
        self._results = tuple(results)

    @staticmethod
    def can(device: Device, plan: Plan) -> bool:
        """Return True if the plan has steps and the device can pack all inputs and unpack all results."""
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
        """Copy a batch into host memory and submit the work. *batch*: for each input, the arrays whose
        concatenation is the input. Arrays must be contiguous; later writes to them have no effect."""
        for target, arrays in zip(self._given, batch, strict=True):
            self.device.queue.gather(target, [x.reshape(-1).view(np.uint8) for x in arrays])
        self.recording.submit()

    def finish(self) -> list[Array]:
        """Wait for the submitted work, and return the results as new arrays. The lane is then free for
        another batch."""
        found = []
        for spec, buffer in map(self._made.__getitem__, self._results):
            found.append(np.empty(spec.shape, NUMBERS.get(spec.dtype, spec.dtype)))
            self.device.download_into(buffer, found[-1].reshape(-1).view(np.uint8))
        if (idle := self._idle()) is not None:
            idle.append(self)
        return found


def _bytes(spec: Spec) -> int:
    """Return the size of a row-major array in bytes."""
    return spec.size * np.dtype(NUMBERS.get(spec.dtype, spec.dtype)).itemsize
