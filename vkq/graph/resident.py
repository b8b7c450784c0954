"""Runs a plan on tensors that are on the device. Results stay on the device."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence

from ..errors import ArgumentError, DTypeError
from ..layout.extent import Spec
from ..ops.repack import to_layout
from ..runtime.buffer import Buffer
from ..runtime.device import Device
from ..runtime.plan import Plan
from ..runtime.recording import Recording
from ..runtime.tensor import Tensor
from ..turns import Turns
from .graph import Array


class Repeated:
    """Keeps the recording of a run, for a caller that runs a plan again and again on the same tensors.

    The second of two successive runs on the same tensors is recorded. Further runs on these tensors submit
    the recording, which saves the time to record every dispatch again. The recording keeps the tensors'
    memory until a run uses other tensors, the plan is deleted, or this object is deleted."""

    def __init__(self) -> None:
        self._turns = Turns("a run on bound tensors")
        self._plan: weakref.ref[Plan] | None = None
        self._buffers: list[Buffer] = []
        self._recording: Recording | None = None
        self._arrays: dict[str, Tensor] = {}  # tensors for inputs that are given as arrays

    def forget(self) -> None:
        """Delete the recording and all references to tensors."""
        self._plan, self._buffers, self._recording, self._arrays = None, [], None, {}

    def placed(self, name: str, device: Device, spec: Spec, value: Array) -> Tensor:
        """Upload the array *value* of the input *name*, and return the tensor that holds it. This is the
        tensor of the last run, or a new tensor if the last one does not have the spec *spec*."""
        kept = self._arrays.get(name)
        if kept is None or kept.spec != spec:
            kept = self._arrays[name] = Tensor.of(device, spec)
        kept.write(value)
        return kept

    def replay(self, device: Device, plan: Plan, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> bool:
        """Submit the recording of *plan* on these buffers and return True. If the last run was on other
        buffers or of another plan, submit nothing and return False."""
        with self._turns:
            buffers = [*inputs, *outputs]
            if self._plan is None or self._plan() is not plan or self._buffers != buffers:
                forget = weakref.WeakMethod(self.forget)  # not self.forget, which would be a reference cycle
                self._plan = weakref.ref(plan, lambda _: (method := forget()) and method())
                self._buffers, self._recording = buffers, None
                return False
            if self._recording is None:
                with device.record() as self._recording:
                    self._recording.add(plan, inputs, outputs)
            self._recording.wait()
            self._recording.submit()
            return True


def placed(
    name: str, device: Device, spec: Spec, value: Array | Tensor, repeated: Repeated | None = None
) -> Tensor:
    """Return the input *name* as a tensor in the layout of *spec*. An array is uploaded; a tensor in another
    layout is repacked."""
    if isinstance(value, Tensor):
        return to_layout(value, spec.layout)
    if repeated is not None:
        return repeated.placed(name, device, spec, value)
    tensor = Tensor.of(device, spec)
    tensor.write(value)
    return tensor


def check_target(name: str, device: Device, spec: Spec, target: Tensor) -> None:
    """Raise an error if a tensor cannot hold the result *name*, which has the spec *spec*."""
    if target.device is not device:
        raise ArgumentError(
            f"output {name!r} is bound to a tensor on {target.device!r}, and the session is on {device!r};"
            " they must be on one device, opened once"
        )
    if target.dtype != spec.dtype:
        raise DTypeError(f"output {name!r} is bound to a {target.dtype} tensor; it must be {spec.dtype}")
    if target.shape != spec.shape:
        raise ArgumentError(f"output {name!r} is bound to a tensor {target.shape}; it must be {spec.shape}")


def run(
    device: Device,
    plan: Plan,
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor | None],
    repeated: Repeated | None = None,
) -> list[Tensor]:
    """Submit the plan, and return its result tensors without waiting. *targets*: for each result, the tensor
    to write it to, which may also be an input; None: new memory. *repeated*: keeps the recording, if the
    caller binds the same tensors to several runs."""
    taken = Counter(x.buffer for x in inputs)
    slots: dict[int, Buffer] = {slot: x.buffer for slot, x in enumerate(inputs)}
    shared: list[bool] = []  # for each result: does it share memory with an input or an earlier result?
    bound = True  # True if each result is computed in its target's memory, so that a replay is possible
    for slot, spec, target in zip(plan.outputs, plan.results, targets, strict=True):
        shared.append(slot in slots)
        if slot not in slots:
            over = plan.over.get(slot)  # index of the input whose memory this result may overwrite
            most = 1 if over is not None and target and inputs[over].buffer is target.buffer else 0
            fits = target is not None and target.layout == spec.layout and taken[target.buffer] <= most
            bound &= fits
            slots[slot] = target.buffer if target is not None and fits else device.allocate(spec.nbytes)
    if plan.steps:
        given, made = [x.buffer for x in inputs], [slots[slot] for slot in plan.outputs]
        if repeated is not None and not bound:  # each run uses other memory, so no replay is possible
            repeated.forget()
        if repeated is None or not bound or not repeated.replay(device, plan, given, made):
            device.add(plan, given, made)
    found = [Tensor.of(device, s, slots[slot]) for slot, s in zip(plan.outputs, plan.results, strict=True)]
    # Copy shared results before any target is written: an input's tensor may be a result and also the target
    # of another result.
    found = [_copied(y, Tensor.of(device, y.spec)) if s else y for y, s in zip(found, shared, strict=True)]
    return [y if target is None else _copied(y, target) for y, target in zip(found, targets, strict=True)]


def _copied(x: Tensor, target: Tensor) -> Tensor:
    """Copy a tensor into the target on the device, unless both use the same buffer. Return the target."""
    x = to_layout(x, target.layout)
    if x.nbytes and x.buffer is not target.buffer:
        with x.device.operation() as recording:
            recording.copy(x.buffer, target.buffer, x.nbytes)
    return target
