"""``vkq.tflite.Interpreter``: a model on a Vulkan device, with the interface of LiteRT's Interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..errors import ArgumentError, DTypeError, ModelError
from ..graph.graph import Array
from ..runtime.device import Device
from .file import File
from .lowering import names_of
from .reader import parsed, read
from .session import InferenceSession


class Interpreter:
    """A .tflite model on a Vulkan device, with the methods of ``ai_edge_litert.interpreter.Interpreter``.

    Give either *model_path*, the path of the file, or *model_content*, its bytes.
    `vkq.tflite.InferenceSession` describes *device* and *fallback*. Tensors have the same indices as in
    LiteRT. Only inputs can be set, and only inputs and outputs can be read.

    Raises ModelError for a broken file, UnsupportedModelError with the list of operators that cannot run.
    """

    @checked
    def __init__(
        self,
        model_path: str | Path | None = None,
        model_content: bytes | None = None,
        device: Device | int | str | None = None,
        fallback: str | None = None,
        num_threads: int | None = None,
    ):
        if (model_path is None) == (model_content is None):
            raise ArgumentError("give model_path or model_content, not both")
        source = Path(model_path).read_bytes() if model_path is not None else bytes(model_content or b"")
        self._open(source, parsed(source), device, fallback)

    def _open(
        self, source: bytes, file: File, device: Device | int | str | None, fallback: str | None
    ) -> None:
        self._source, self._file, self._parts = source, file, dict[str, Interpreter]()
        self._names = names_of(self._file)
        self._device, self._fallback = device, fallback
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._session: InferenceSession | None = None
        self._given: dict[int, Array] = {}
        self._results: dict[int, Array] = {}

    def allocate_tensors(self) -> None:
        """Open the device, and read the model for the present shapes of its inputs."""
        self._ready()

    def _ready(self) -> InferenceSession:
        if self._session is None:
            model = read(self._file, self._shapes) if self._shapes else self._file
            self._session = InferenceSession(model, self._device, self._fallback)
            self._device = self._session.device
        return self._session

    @checked
    def resize_tensor_input(self, input_index: int, tensor_size: Sequence[int], strict: bool = False) -> None:
        """Change the shape of an input. With *strict*, raise ArgumentError if the file fixes the size of a
        changed axis."""
        self._known(input_index, self._file.inputs, "inputs")
        tensor, shape = self._file.tensors[input_index], tuple(int(d) for d in tensor_size)
        if len(shape) != len(tensor.shape) or min(shape, default=1) < 1:
            raise ArgumentError(f"input {tensor.name!r} has shape {tensor.shape}; it cannot become {shape}")
        if strict and any(a not in (-1, b) for a, b in zip(tensor.signature, shape, strict=True)):
            raise ArgumentError(
                f"input {tensor.name!r} has shape {tensor.signature} in the file, where -1 is free; it cannot"
                f" become {shape}"
            )
        self._shapes[self._names[input_index]] = shape
        self._session, self._given, self._results = None, {}, {}

    @checked
    def set_tensor(self, tensor_index: int, value: npt.ArrayLike) -> None:
        """Set an input to a copy of *value*. Raises DTypeError or ArgumentError for a wrong type or shape."""
        self._known(tensor_index, self._file.inputs, "inputs")
        detail, array = self._detail(tensor_index), np.array(value)
        if array.dtype != detail["dtype"]:
            wanted = np.dtype(detail["dtype"]).name
            raise DTypeError(f"input {detail['name']!r} is {array.dtype}; it must be {wanted}")
        if array.shape != tuple(detail["shape"]):
            raise ArgumentError(
                f"input {detail['name']!r} has shape {array.shape}; it must be {detail['shape']}"
            )
        self._given[tensor_index] = array

    def invoke(self) -> None:
        """Run the model on the inputs that `set_tensor` has set. All other inputs are zeros."""
        session, names = self._ready(), self._names
        feed = {
            names[n]: self._given.get(n, np.zeros(self._detail(n)["shape"], self._detail(n)["dtype"]))
            for n in self._file.inputs
        }
        outputs = [names[n] for n in self._file.outputs]
        self._results = dict(zip(self._file.outputs, session.run(outputs, feed), strict=True))

    @checked
    def get_tensor(self, tensor_index: int) -> Array:
        """Return a copy of an output of the last `invoke`, or of an input that was set."""
        found: Array | None = self._results.get(tensor_index, self._given.get(tensor_index))
        if found is None:
            self._known(tensor_index, (*self._file.outputs, *self._given), "tensors that can be read")
            raise ArgumentError("there are no results yet; call invoke() first")
        return np.array(found)

    def get_input_details(self) -> list[dict[str, Any]]:
        """Return a dict for each input with name, index, shape, shape_signature, dtype and quantization."""
        return [self._detail(n) for n in self._file.inputs]

    def get_output_details(self) -> list[dict[str, Any]]:
        """Return a dict for each output with name, index, shape, shape_signature, dtype and quantization."""
        return [self._detail(n) for n in self._file.outputs]

    def get_signature_list(self) -> dict[str, dict[str, list[str]]]:
        """Return a dict for each signature with the names of its "inputs" and "outputs", by signature key."""
        files = [self._file, *(self._of(key)._file for key in self._file.others)]
        return {
            key: {"inputs": sorted(inputs), "outputs": sorted(outputs)}
            for file in files
            for key, (inputs, outputs) in file.signatures.items()
        }

    @checked
    def get_signature_runner(self, signature_key: str | None = None) -> Callable[..., dict[str, Array]]:
        """Return a function that runs a signature. The function takes the inputs as keyword arguments, and
        returns the outputs by name."""
        known = self._file.signatures
        key = signature_key or (next(iter(known)) if len(known) == 1 else "")
        if key in self._file.others:
            return self._of(key).get_signature_runner(key)
        if key not in known:
            every = sorted([*known, *self._file.others])
            raise ArgumentError(f"there is no signature {signature_key!r}; there are {every}")
        inputs, outputs = known[key]
        self._check_ends(key, "input", inputs, self._file.inputs)
        self._check_ends(key, "output", outputs, self._file.outputs)

        def runner(**arrays: npt.ArrayLike) -> dict[str, Array]:
            if set(arrays) != set(inputs):
                raise ArgumentError(f"signature {key!r} takes {sorted(inputs)}; given are {sorted(arrays)}")
            self._resize_to({inputs[name]: np.asarray(x).shape for name, x in arrays.items()})
            for name, array in arrays.items():
                self.set_tensor(inputs[name], array)
            self.invoke()
            return {name: self.get_tensor(number) for name, number in outputs.items()}

        return runner

    def _check_ends(self, key: str, what: str, ends: Mapping[str, int], own: Sequence[int]) -> None:
        """Raise ModelError if a signature has a tensor that is no input (or output) of the model."""
        for name, number in ends.items():
            if number not in own:
                raise ModelError(
                    f"the {what} {name!r} of signature {key!r} is tensor {number}, but the model's {what}s"
                    f" are {own}: use set_tensor, invoke and get_tensor"
                )

    def _of(self, key: str) -> Interpreter:
        """Return the interpreter of the subgraph with the signature *key*."""
        if key not in self._parts:
            self._parts[key] = other = Interpreter.__new__(Interpreter)
            other._open(self._source, parsed(self._source, key), self._device, self._fallback)
        return self._parts[key]

    def _resize_to(self, shapes: Mapping[int, tuple[int, ...]]) -> None:
        for number, shape in shapes.items():
            if shape != tuple(self._detail(number)["shape"]):
                self.resize_tensor_input(number, shape)

    def _known(self, number: int, numbers: Sequence[int], what: str) -> None:
        if number not in numbers:
            raise ArgumentError(f"tensor {number} is not one of the {what}, which are {sorted(set(numbers))}")

    def _shape(self, number: int) -> tuple[int, ...]:
        if number in self._results:
            return self._results[number].shape
        if number in self._file.outputs and self._session is not None:
            name = self._names[number]
            return tuple(d for a in self._session.model.outputs if a.name == name for d in a.shape)  # type: ignore[misc]
        return self._shapes.get(self._names[number], self._file.tensors[number].shape)

    def _detail(self, number: int) -> dict[str, Any]:
        tensor = self._file.tensors[number]
        one = tensor.scales.size == 1
        return {
            "name": tensor.name,
            "index": number,
            "shape": np.array(self._shape(number), np.int32),
            "shape_signature": np.array(tensor.signature, np.int32),
            "dtype": np.dtype(tensor.dtype).type,
            "quantization": (float(tensor.scales[0]), int(tensor.zero_points[0])) if one else (0.0, 0),
            "quantization_parameters": {
                "scales": tensor.scales.copy(),
                "zero_points": tensor.zero_points.astype(np.int32),
                "quantized_dimension": tensor.axis,
            },
            "sparsity_parameters": {},
        }
