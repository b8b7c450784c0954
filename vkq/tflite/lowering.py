"""The state that all rules share while they lower a file's operators to the graph's operators.

Images are (N, H, W, C) in a file, and (N, C, H, W) in the graph. A value is stored in the order in which it
was computed, and is transposed only for a reader that needs the other order. So consecutive convolutions
need no Transpose, and element-wise operators keep the order of their inputs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph.graph import Array, Node, Spec, unused
from ..graph.operators.operator import Inputs
from ..graph.operators.table import TABLE, compute, infer
from ..numerics.qparams import QParams, are_scales
from .file import File, FileOperator, FileTensor
from .part import LitertPart

LARGEST_FOLDED = 1 << 24  # maximum bytes of a value that the lowering computes from constants
# All computed constants together may take MOST_COPIES times the bytes of the file's constants, or LEAST_ROOM
# bytes if that is more.
MOST_COPIES, LEAST_ROOM = 8, 1 << 30
# permutations that move the channels to the front, and back to the end
FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def names_of(file: File) -> tuple[str, ...]:
    """Return a unique name for each tensor. This is the tensor's name in the file, with the tensor's number
    appended if an earlier tensor has the same name."""
    taken, names = set[str](), list[str]()
    for i, tensor in enumerate(file.tensors):
        name = tensor.name
        while name in taken:
            name = f"{name}#{i}"
        taken.add(name)
        names.append(name)
    return tuple(names)


class Unsupported(Exception):
    """Raised for an operator that cannot be lowered to the graph's operators; the message is the reason."""


def unable(low: Lowering, operator: FileOperator) -> None:
    """Raise Unsupported."""
    raise Unsupported(f"vkq does not know the operator {operator.op}")


@dataclasses.dataclass
class Lowering:
    """The nodes and constants that have been emitted. ``plain`` and ``first`` map tensor numbers to names of
    values: ``plain`` to values with the file's order of axes, ``first`` to values with channels first. A
    tensor has an entry only for an order in which its value has been emitted. ``arrays`` has the elements of
    constant tensors, with the file's order of axes."""

    file: File
    nodes: list[Node] = dataclasses.field(default_factory=list)
    constants: dict[str, Array] = dataclasses.field(default_factory=dict)
    specs: dict[str, Spec] = dataclasses.field(default_factory=dict)
    plain: dict[int, str] = dataclasses.field(default_factory=dict)
    first: dict[int, str] = dataclasses.field(default_factory=dict)
    arrays: dict[int, Array] = dataclasses.field(default_factory=dict)
    names: tuple[str, ...] = ()
    lower: Callable[[Lowering, FileOperator], None] = unable  # lowers an operator or raises Unsupported
    above: tuple[Lowering, ...] = ()  # the lowerings of the subgraphs that run this one
    below: dict[int, Lowering] = dataclasses.field(default_factory=dict)  # the subgraphs that this one runs

    def __post_init__(self) -> None:
        self.arrays = {i: t.data for i, t in enumerate(self.file.tensors) if t.data is not None}
        own = sum(array.nbytes for array in self.arrays.values())
        self.most = self.room = max(MOST_COPIES * own, LEAST_ROOM)
        self.names = names_of(self.file)
        self.taken, self.source, self.ran = set(self.names), "", 0
        self.kept = {id(array): "" for array in self.arrays.values()}  # names of the file's arrays, by id()
        self.folded: dict[Hashable, str] = {}  # names of values that were computed from constants

    # -------------------------------------------------------------------------------------------------- facts

    def tensor(self, number: int) -> FileTensor:
        """Return the tensor with this number. Raises ModelError for -1 (omitted), and Unsupported if vkq
        cannot read the tensor."""
        if number < 0:
            raise ModelError(f"{self.source}: a required input is omitted")
        tensor = self.file.tensors[number]
        if tensor.why:
            raise Unsupported(f"{tensor.name!r}: {tensor.why}")
        return tensor

    def shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of a tensor, in the file's order of axes."""
        if number in self.arrays:
            return self.arrays[number].shape
        if number in self.plain:
            return self.specs[self.plain[number]].shape
        if number in self.first:
            shape = self.specs[self.first[number]].shape
            return tuple(shape[a] for a in LAST)
        raise ModelError(
            f"{self.source}: it reads {self.tensor(number).name!r}, which no earlier operator makes"
        )

    def dtype(self, number: int) -> str:
        """Return the type of a tensor."""
        return self.tensor(number).dtype

    def array(self, number: int, what: str) -> Array:
        """Return the array of a constant or of a tensor computed from constants. Raises Unsupported for other
        tensors. *what*: the name of the tensor in the error text."""
        self.tensor(number)
        if number not in self.arrays:
            raise Unsupported(f"its {what} is computed from the model's inputs; it must be a constant")
        return self.arrays[number]

    def numbers(self, number: int, what: str) -> list[int]:
        """Return the integers in a constant as a list."""
        found = self.array(number, what)
        if found.dtype.kind not in "iu":
            raise ModelError(f"{self.source}: its {what} is {found.dtype}; it must be integers")
        return [int(v) for v in found.reshape(-1)]

    def q(self, number: int) -> QParams:
        """Return the quantization parameters of a tensor. Raises Unsupported unless the tensor is 8-bit and
        has one scale."""
        tensor = self.tensor(number)
        if tensor.dtype not in ("int8", "uint8") or tensor.scales.size != 1:
            raise Unsupported(
                f"{tensor.name!r} is {tensor.dtype} with {tensor.scales.size} scales; it must be 8-bit"
                " with one scale"
            )
        scale, point = np.float32(tensor.scales[0]), int(tensor.zero_points[0])
        info = np.iinfo(tensor.dtype)
        if not are_scales(scale) or not info.min <= point <= info.max:
            raise ModelError(
                f"{self.source}: {tensor.name!r} has scale {scale} and zero point {point}; the scale must be"
                f" positive and normal, the zero point within {info.min} and {info.max}"
            )
        return QParams.of(scale, tensor.zero_points.astype(tensor.dtype)[0])

    # ------------------------------------------------------------------------------------------------- values

    def fresh(self, hint: str) -> str:
        """Return an unused name that begins with *hint*."""
        return unused(hint, self.taken)

    def constant(self, value: Any, hint: str = "constant") -> str:
        """Add a constant and return its name. An array of the file is added once."""
        if self.kept.get(id(value)):
            return self.kept[id(value)]
        name = self.fresh(hint)
        if id(value) in self.kept:
            self.kept[id(value)] = name
        self.spend(np.asarray(value).nbytes)
        self.constants[name] = array = np.ascontiguousarray(value).reshape(np.shape(value))
        self.specs[name] = Spec.of(array)
        return name

    def emit(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Emit a node with one result and return the name of this result. If all inputs are constants, fold
        the node if possible; a transposed constant is computed once."""
        key = op, *inputs, attributes.get("perm")
        if op == "Transpose" and not output and key in self.folded:
            return self.folded[key]
        name = output or self.fresh(f"{self.source}/{op}")
        node = Node(op, tuple(inputs), (name,), attributes, self.source)
        specs = [self.specs[x] if x else None for x in inputs]
        arrays = [self.constants.get(x) if x else None for x in inputs]
        (self.specs[name],) = infer(node, specs, arrays)
        if all(x in self.constants or not x for x in inputs) and self._fold(node, arrays):
            self.folded[key] = name
            return name
        self.nodes.append(node)
        return name

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        """Emit a Reshape to a constant shape and return the result's name. If *name* has this shape
        already, return *name*."""
        if self.specs[name].shape == tuple(shape):
            return name
        return self.emit("Reshape", [name, self.constant(np.array(shape, np.int64), "shape")], allowzero=1)

    def _fold(self, node: Node, arrays: Sequence[Array | None]) -> bool:
        row, name = TABLE[node.op], node.outputs[0]
        if row.compute is None or row.kind == "quantized" or self.specs[name].nbytes > LARGEST_FOLDED:
            return False
        self.spend(self.specs[name].nbytes)
        (self.constants[name],) = compute(node, arrays)
        return True

    def spend(self, count: int) -> None:
        """Count *count* bytes of a computed constant. Raises ModelError if all computed constants together
        exceed a limit that no network reaches. Without a limit, a small file with many operators could fill
        the memory."""
        self.room -= count
        if self.room < 0:
            raise ModelError(f"{self.source}: the model's constants would take more than {self.most} bytes")

    def last_of(self, number: int) -> str:
        """Return the name of a tensor's value in the file's order of axes, where channels are last."""
        if number not in self.plain:
            if number in self.arrays:
                self.plain[number] = self.constant(self.arrays[number], self.names[number])
            else:
                self.shape(number)
                self.plain[number] = self.emit("Transpose", [self.first[number]], perm=LAST)
        return self.plain[number]

    def first_of(self, number: int) -> str:
        """Return the name of a tensor's value with channels first. The tensor must have 4 axes."""
        if number not in self.first:
            if len(self.shape(number)) != 4:
                raise Unsupported(
                    f"{self.names[number]!r} has shape {self.shape(number)}; it must have 4 axes"
                )
            if number in self.arrays:
                self.first[number] = self.constant(self.arrays[number].transpose(FIRST), self.names[number])
            else:
                self.first[number] = self.emit("Transpose", [self.plain[number]], perm=FIRST)
        return self.first[number]

    def channels_first(self, numbers: Sequence[int]) -> bool:
        """Return True if an operator should compute with channels first, because one of its inputs *numbers*
        exists only in this order."""
        return any(n in self.first and n not in self.plain for n in numbers)

    def of(self, number: int, first: bool, rank: int = 4) -> str:
        """Return the name of a tensor's value, with channels first if *first*, else in the file's order of
        axes. With channels first, leading axes of length 1 are added until there are *rank* axes."""
        if not first:
            return self.last_of(number)
        shape = self.shape(number)
        if len(shape) == 4:
            return self.first_of(number)
        whole = (1,) * (rank - len(shape)) + shape
        if number in self.arrays:
            return self.constant(self.arrays[number].reshape(whole).transpose(FIRST), self.names[number])
        return self.emit("Transpose", [self.reshape(self.last_of(number), whole)], perm=FIRST)

    def give(self, number: int, name: str, first: bool = False) -> None:
        """Make the value *name* the value of a tensor. Raises ModelError if the value's type differs from the
        tensor's type in the file."""
        (self.first if first else self.plain)[number] = name
        if name in self.constants and not first:
            self.arrays[number] = self.constants[name]
        tensor, dtype = self.tensor(number), self.specs[name].dtype
        if dtype != tensor.dtype:
            raise ModelError(
                f"{self.source}: {tensor.name!r} is {tensor.dtype} in the file; the operator makes {dtype}"
            )

    def foreign(self, operator: FileOperator, why: str) -> None:
        """Emit an operator that cannot run on a device as a ``foreign`` node, so that the list of refused
        operators is complete and a fallback can run the operator."""
        made = {*self.plain, *self.first}
        read = [n for n in operator.inputs if n in made or (n >= 0 and not self.file.tensors[n].why)]
        inputs = [self.last_of(n) for n in read]
        outputs = tuple(self.fresh(f"{self.names[n]}/foreign") for n in operator.outputs)
        tensors = (*read, *operator.outputs)
        shapes = self._shapes_of(operator, dict(zip((*inputs, *outputs), tensors, strict=True)))
        gives = [
            Spec(self.file.tensors[n].dtype or "int8", shape)
            for n, shape in zip(operator.outputs, shapes, strict=True)
        ]
        attributes: dict[str, Any] = {
            "op": operator.op, "domain": "tflite", "opset": None, "attributes": {}, "why": why,
            "captured": (), "versions": (), "infer": _given, "compute": _nothing, "gives": tuple(gives),
            "takes": tuple(self.specs[x].dtype for x in inputs), "part": LitertPart.of, "file": self.file,
            "tensors": tensors, "place": int(operator.place[1:]),
        }  # fmt: skip
        self.nodes.append(Node("foreign", tuple(inputs), outputs, attributes, operator.place))
        for number, name, spec in zip(operator.outputs, outputs, gives, strict=True):
            self.specs[name], self.plain[number] = spec, name

    def _shapes_of(self, operator: FileOperator, tensors: Mapping[str, int]) -> list[tuple[int, ...]]:
        """Return the shapes of the results of an operator that vkq does not lower. LiteRT computes these
        shapes if an input's shape differs from the file's and LiteRT is installed. Otherwise they are the
        file's. *tensors* maps names of values to numbers of the operator's tensors."""
        own = [self.file.tensors[n].shape for n in operator.outputs]
        given = {x: n for x, n in tensors.items() if n not in (*operator.outputs, *self.arrays)}
        shapes = {x: self.specs[x].shape for x in given}
        if self.file.subgraph or all(s == self.file.tensors[given[x]].shape for x, s in shapes.items()):
            return own
        with contextlib.suppress(ModelError):
            made = {x: n for x, n in tensors.items() if n in operator.outputs}
            return LitertPart(self.file, [int(operator.place[1:])], given, made).sized(shapes)
        return own


def _given(x: Inputs) -> list[Spec]:
    return list(x.node.attributes["gives"])


def _nothing(node: Node, arrays: Sequence[Array | None]) -> None:
    """Return None, so that a node with this function as its attribute ``compute`` is never folded."""
