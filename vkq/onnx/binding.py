"""ONNX Runtime's IOBinding: the inputs and outputs of a run, which may be on the host or on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ..arguments import checked, shown
from ..errors import ArgumentError, DTypeError
from ..graph.graph import Array
from ..graph.resident import Repeated
from ..runtime.tensor import Tensor
from .inputs import NodeArg, array_of, type_name
from .protobuf import DATA_TYPES
from .values import OrtValue, at_address


class Session(Protocol):
    """The methods of a session that a binding calls."""

    def get_inputs(self) -> list[NodeArg]: ...
    def get_outputs(self) -> list[NodeArg]: ...
    @property
    def _call(self) -> Callable[..., Callable[[], list[Any]]]: ...


class IOBinding:
    """The inputs and outputs of a run (`InferenceSession.io_binding`), as in ONNX Runtime.

    An input on the device stays there; an input on the CPU is read at each run. Bind an output to "cpu" or
    to the device ("vulkan", or "cuda" with the same meaning), and each run makes a new value. Bind it to your
    own OrtValue or tensor, and each run overwrites that value. You may bind the same value as an input and
    as an output: the run reads it before it overwrites it.

    Runs are fastest if all outputs are bound to your own values on the device, and all bindings stay the
    same: the device then replays one recording.
    """

    def __init__(self, session: Session):
        self.session = session
        self._given = {one.name: one.type for one in session.get_inputs()}
        self._types = {one.name: one.type for one in session.get_outputs()}
        self._inputs: dict[str, OrtValue | Tensor] = {}
        self._outputs: dict[str, OrtValue | Tensor | str] = {}
        self._results: list[OrtValue] = []
        self._repeated = Repeated()

    def _input(self, name: str, value: OrtValue | Tensor) -> None:
        if name not in self._given:
            raise ArgumentError(f"there is no input {name!r}; there are {sorted(self._given)}")
        if isinstance(value, OrtValue) and value.data_type() != self._given[name]:
            raise DTypeError(f"input {name!r} is {value.data_type()}; it must be {self._given[name]}")
        self._inputs[name] = value

    @checked
    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an array to an input. Each run of the binding reads the array's content at that time."""
        self._input(name, OrtValue(array_of(name, arr_on_cpu)))

    @checked
    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Bind an OrtValue or a `vkq.Tensor` to an input."""
        self._input(name, _checked(ortvalue))

    @checked
    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind the OrtValue whose ``data_ptr()`` is *buffer_ptr* to an input."""
        self._input(name, at_address(buffer_ptr, element_type, shape))

    @checked
    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to new memory on *device_type* ("cpu" or a device), or to the OrtValue whose
        ``data_ptr()`` is *buffer_ptr*."""
        if buffer_ptr is not None:
            return self.bind_ortvalue_output(name, at_address(buffer_ptr, element_type, shape or ()))
        self._output(name, device_type.lower())

    @checked
    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Bind an OrtValue or a `vkq.Tensor`, which must have the output's shape and type, to an output."""
        self._output(name, _checked(ortvalue))

    def _output(self, name: str, where: OrtValue | Tensor | str) -> None:
        if name not in self._types:
            raise ArgumentError(f"there is no output {name!r}; there are {sorted(self._types)}")
        self._outputs[name] = where

    def clear_binding_inputs(self) -> None:
        """Unbind all inputs."""
        self._inputs.clear()
        self._repeated.forget()

    def clear_binding_outputs(self) -> None:
        """Unbind all outputs."""
        self._outputs.clear()
        self._repeated.forget()

    def synchronize_inputs(self) -> None:
        """Do nothing: a run starts after the uploads of its inputs."""

    def synchronize_outputs(self) -> None:
        """Wait until the device has computed the results of the last run."""
        for device in {x.tensor.device for x in self._results if x.tensor is not None}:
            device.synchronize()

    def get_outputs(self) -> list[OrtValue]:
        """Return the results of the last run, in the order in which the outputs were bound."""
        return list(self._results)

    get_outputs_as_ortvaluevector = get_outputs

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Return the results of the last run as arrays, in the order of `get_outputs`."""
        return [value.numpy() for value in self._results]

    def run(self, options: Any) -> None:
        """Run the session with the bound inputs and outputs (`InferenceSession.run_with_iobinding`)."""
        self._results = []
        if not self._outputs:
            raise ArgumentError(f"no output is bound; bind at least one of {sorted(self._types)}")
        targets = self._targets()
        stay = [name for name, where in self._outputs.items() if name in targets or _on_device(where)]
        feed = {name: _read(value) for name, value in self._inputs.items()}
        results = self.session._call(list(self._outputs), feed, options, stay, targets, self._repeated)()
        for (name, where), result in zip(self._outputs.items(), results, strict=True):
            self._results.append(self._made(name, where, result))

    def _targets(self) -> Mapping[str, Tensor]:
        """Return the tensors to which outputs are bound, by output name. Raises ArgumentError if two of
        the tensors share memory."""
        found: dict[str, Tensor] = {}
        for name, where in self._outputs.items():
            tensor = where.tensor if isinstance(where, OrtValue) else where
            if isinstance(tensor, Tensor):
                if other := [x for x, y in found.items() if y.buffer is tensor.buffer]:
                    raise ArgumentError(
                        f"outputs {other[0]!r} and {name!r} are bound to the same memory; give each its own"
                    )
                found[name] = tensor
        return found

    def _made(self, name: str, where: OrtValue | Tensor | str, result: Array | Tensor) -> OrtValue:
        dtype = next(d for d in DATA_TYPES.values() if type_name(d) == self._types[name])
        if not isinstance(where, OrtValue):
            return OrtValue(result, dtype)
        if where.array is not None:
            where.update_inplace(result)
        return where


def _on_device(where: OrtValue | Tensor | str) -> bool:
    """Return True if *where* is a device on which an output gets new memory."""
    return isinstance(where, str) and where != "cpu"


def _read(value: OrtValue | Tensor) -> Array | Tensor:
    """Return a bound value in the form that `InferenceSession.run` accepts: a tensor or an array."""
    if isinstance(value, Tensor):
        return value
    return value.numpy() if value.tensor is None else value.tensor


def _checked(value: Any) -> OrtValue | Tensor:
    if not isinstance(value, (OrtValue, Tensor)):
        raise DTypeError(f"the value is {shown(value)}; it must be a vkq.onnx.OrtValue or a vkq.Tensor")
    return value
