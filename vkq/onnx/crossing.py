"""Runs whose inputs are already on the device, or whose results stay there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, DTypeError
from ..graph.executable import Executable
from ..graph.graph import Array
from ..graph.resident import Repeated, check_target
from ..layout.extent import BYTES, NUMBERS, Spec
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from .inputs import HELD, held
from .prepared import Prepared
from .tensors import Argument

Value = Array | Tensor


def staying(outputs: str) -> Collection[str] | None:
    """Return which outputs stay on the device: None stands for all outputs, () for none. *outputs*, an
    argument of `run`, is "device" (all outputs stay), "host" or "torch" (no output stays)."""
    if outputs not in ("host", "device", "torch"):
        raise ArgumentError(f"run: outputs is {outputs!r}; it must be 'host', 'device' or 'torch'")
    return None if outputs == "device" else ()


def asked_alone(options: Any, names: Collection[str], outputs: Sequence[Argument]) -> frozenset[str] | None:
    """Return the outputs that a run must compute: *names* if the run option ``only_execute_path_to_fetches``
    is set and *names* are fewer than *outputs*. Otherwise return None: all outputs."""
    few = getattr(options, "only_execute_path_to_fetches", False) and len({*names}) < len(outputs)
    return frozenset(names) if few else None


def check_can_stay(outputs: Sequence[Argument], names: Collection[str]) -> None:
    """Raise DTypeError if an output that must stay on the device has a dtype that a tensor cannot have."""
    for one in outputs:
        dtype = HELD.get(one.dtype, one.dtype)
        if one.name in names and dtype and dtype not in (*BYTES, *NUMBERS):
            raise DTypeError(
                f"output {one.name!r} is {dtype}, which tensors on a device cannot hold; leave it on the host"
            )


def run(
    made: Prepared,
    device: Device,
    values: Mapping[str, Value],
    names: Sequence[str],
    stay: Collection[str],
    targets: Mapping[str, Tensor],
    repeated: Repeated | None = None,
) -> Mapping[str, Value]:
    """Return the results *names*. A result that is named in *stay* is a tensor on the device: the tensor of
    this name in *targets*, or a new one. All other results are arrays. If the fallback runs parts of the
    model on the CPU, inputs are downloaded and results uploaded. *repeated*: keeps the recording of repeated
    runs."""
    if not stay and not any(isinstance(x, Tensor) for x in values.values()):
        return made.run(values)  # type: ignore[arg-type]
    if isinstance(made, Executable):
        tensors = made.on_device(values, targets, repeated)
        device.flush()
        return {name: tensors[name] if name in stay else tensors[name].numpy() for name in names}
    arrays = made.run({name: np.asarray(x) for name, x in values.items()})
    return {
        name: _uploaded(name, device, arrays[name], targets.get(name)) if name in stay else arrays[name]
        for name in names
    }


def _uploaded(name: str, device: Device, array: Array, target: Tensor | None) -> Tensor:
    array = held(name, array, "output")
    spec = Spec(array.shape, array.dtype.name)
    if target is None:
        target = Tensor.of(device, spec)
    check_target(name, device, spec, target)
    target.write(array)
    return target
