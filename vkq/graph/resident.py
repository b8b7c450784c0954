"""Runs a plan on tensors that are on the device. Its results stay on the device, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..errors import ArgumentError, DTypeError
from ..layout.extent import Spec
from ..ops.repack import to_layout
from ..runtime.buffer import Buffer
from ..runtime.device import Device
from ..runtime.plan import Plan
from ..runtime.tensor import Tensor
from .graph import Array


def placed(device: Device, spec: Spec, value: Array | Tensor) -> Tensor:
    """Return an input as a tensor in the layout of *spec*. An array is uploaded; a tensor in another layout
    is repacked."""
    if isinstance(value, Tensor):
        return to_layout(value, spec.layout)
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
        raise DTypeError(f"output {name!r} is {spec.dtype}; the tensor bound to it is {target.dtype}")
    if target.shape != spec.shape:
        raise ArgumentError(f"output {name!r} has shape {spec.shape}; the tensor bound to it {target.shape}")


def run(
    device: Device, plan: Plan, inputs: Sequence[Tensor], targets: Sequence[Tensor | None]
) -> list[Tensor]:
    """Return the plan's results, after the work is submitted but before it is complete. A result is written
    to its tensor in *targets*, which may be an input, or to new memory."""
    taken = Counter(x.buffer for x in inputs)
    slots: dict[int, Buffer] = {slot: x.buffer for slot, x in enumerate(inputs)}
    shared: list[bool] = []  # for each result, True if it shares memory with an input or an earlier result
    for slot, spec, target in zip(plan.outputs, plan.results, targets, strict=True):
        shared.append(slot in slots)
        if slot not in slots:
            over = plan.over.get(slot)  # index of the input whose memory the result may overwrite
            most = 1 if over is not None and target and inputs[over].buffer is target.buffer else 0
            fits = target is not None and target.layout == spec.layout and taken[target.buffer] <= most
            slots[slot] = target.buffer if target is not None and fits else device.allocate(spec.nbytes)
    if plan.steps:
        device.add(plan, [x.buffer for x in inputs], [slots[slot] for slot in plan.outputs])
    found = [Tensor.of(device, s, slots[slot]) for slot, s in zip(plan.outputs, plan.results, strict=True)]
    # A shared result gets its own copy before any target is written: an input may be both target and
    # result.
    found = [_copied(y, Tensor.of(device, y.spec)) if s else y for y, s in zip(found, shared, strict=True)]
    return [y if target is None else _copied(y, target) for y, target in zip(found, targets, strict=True)]


def _copied(x: Tensor, target: Tensor) -> Tensor:
    """Copy a tensor into the target on the device, unless both have one buffer. Return the target."""
    x = to_layout(x, target.layout)
    if x.nbytes and x.buffer is not target.buffer:
        with x.device.operation() as recording:
            recording.copy(x.buffer, target.buffer, x.nbytes)
    return target
