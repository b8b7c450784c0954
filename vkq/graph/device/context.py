"""The state of planning a graph for a device. All functions in the table of device operators share it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from ...layout.extent import BLOCKED, Spec
from ...numerics.qparams import QParams
from ...runtime.builder import Builder, Value
from ...runtime.plan import Resident
from ...runtime.transfer import stored
from ...schemes.base import COMPUTE
from ..graph import Array, Graph, Node

BUFFERS = "maxPerStageDescriptorStorageBuffers"  # a property of a device
BYTES, WORDS = ("int8", "uint8"), ("float32", "int32", "float16")
PRODUCTS = "compute"  # `Context.layers` holds the value of `Context.compute` under this key
# Allowed types of the inputs and the results of convolutions and linear layers.
OF_LAYERS = (*BYTES, "float32", "float16")


@dataclasses.dataclass
class Context:
    """A graph that is being planned for a device. ``layers`` caches the objects made from weights; all graphs
    of a model (one for each set of input shapes) share this cache."""

    graph: Graph
    builder: Builder
    layers: dict[Hashable, Any]
    values: dict[str, Value]
    # Results of nodes that an earlier node's dispatch has already computed.
    ahead: dict[str, Value] = dataclasses.field(default_factory=dict)
    # The nodes in order, each with the range of its dispatches: (node, first, last + 1).
    steps: list[tuple[Node, int, int]] = dataclasses.field(default_factory=list)
    # Maps a node's first output to the reason for its kernels, a text for reports.
    reasons: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._place = {id(node): i for i, node in enumerate(self.graph.nodes)}
        self._places: dict[str, list[int]] = {}  # maps a value to the indices of the nodes that read it
        for i, node in enumerate(self.graph.nodes):
            for name in dict.fromkeys(filter(None, node.inputs)):
                self._places.setdefault(name, []).append(i)
        self._names: dict[int, list[str]] = {}  # maps a memory slot to the names of the values in it
        for name, value in self.values.items():
            self._take(name, value)

    @functools.cached_property
    def uses(self) -> dict[str, int]:
        """The number of uses of each value: reads by nodes, and one more for a result of the graph."""
        return self.graph.uses()

    @functools.cached_property
    def results(self) -> set[str]:
        """The names of the graph's results."""
        return set(self.graph.outputs)

    @property
    def compute(self) -> str:
        """The arithmetic of products of float activations and weights: see the argument ``compute`` of
        `vkq.Linear`."""
        return str(self.layers.get(PRODUCTS, COMPUTE[0]))

    def places(self, name: str) -> list[int]:
        """Return the indices of the nodes that read the value *name*, in ascending order."""
        return list(self._places.get(name, ()))

    def readers(self, name: str) -> list[Node]:
        """Return the nodes that read the value *name*, in the order of the graph."""
        return [self.graph.nodes[i] for i in self.places(name)]

    def names(self, value: Value) -> list[str]:
        """Return the names of all values that share the memory slot of *value*."""
        return self._names.get(value.slot, [])

    def made(self, node: Node, results: Value | tuple[Value, ...]) -> None:
        """Store *results* as the values of a node's outputs."""
        values = results if isinstance(results, tuple) else (results,)
        for name, value in zip(node.outputs, values, strict=False):
            if name:
                self._take(name, value)

    def _take(self, name: str, value: Value) -> Value:
        self.values[name] = value
        self._names.setdefault(value.slot, []).append(name)
        return value

    def value(self, name: str) -> Value:
        """Return the value of a node's result, an input or a constant, without quantization parameters. The
        nodes that read the value have the parameters as attributes."""
        found = self.values.get(name)
        if found is None:
            found = self._take(name, self._constant(name))
        return found

    def in_one_layout(self, names: Sequence[str]) -> list[Value]:
        """Return the values of these names, without quantization parameters.

        If one of the values is stored as rows (..., C) in kPackedInt8_16C, pack the 8-bit constants with the
        same rank and the same C into this layout, too."""
        constants = self.graph.constants
        found = {name: self.value(name) for name in names if name not in constants}
        specs = [x.spec for x in found.values() if x.spec.layout == BLOCKED and x.spec.folded]
        forms = {(len(spec.shape), spec.shape[-1:]) for spec in specs}
        for name in names:
            if name in constants:
                array = constants[name]
                rows = (array.ndim, array.shape[-1:]) in forms and array.dtype.name in BYTES
                found[name] = self._constant(name, BLOCKED) if rows else self.value(name)
        return [found[name] for name in names]

    def _constant(self, name: str, layout: str | None = None) -> Value:
        array, b = self.graph.constants[name], self.builder
        spec = Spec(array.shape, array.dtype.name, layout)

        def words() -> Array:
            """Return the data as 32-bit words. If a float16 array has an odd number of elements, a zero is
            appended."""
            data = np.ascontiguousarray(stored(array, spec)).reshape(-1).view(np.uint8)
            return np.pad(data, (0, spec.nbytes - data.nbytes))

        make = functools.partial(Resident, b.device, spec.nbytes, words)
        resident = self.keep(("constant", name, spec.layout), make, array)
        return b.view(b.constant(resident), spec)

    def read_later(self, node: Node, value: Value) -> bool:
        """Return True if the memory slot of *value* is needed after *node*. This holds if a later node reads
        a value in the slot, or if a value in the slot is a result of the graph."""
        here, names = self._place[id(node)], self.names(value)
        return any(x in self.results or self._places.get(x, (here,))[-1] > here for x in names)

    def keep(self, key: Hashable, make: Callable[[], Any], *of: Any) -> Any:
        """Return the object cached under *key*. Make the object if the cache lacks it, or if the arguments
        *of* differ from those of the last call with this key. *of*: everything that the object depends on,
        such as the padding that ``auto_pad`` computes from the input shape."""
        if key not in self.layers or not alike(self.layers["of", key], of):
            self.layers["of", key], self.layers[key] = of, make()
        return self.layers[key]


def alike(a: Any, b: Any) -> bool:
    """Return True if two values are equal; arrays are compared byte for byte. The test ``a is b`` comes
    first, because most calls compare an object with itself."""
    if a is b:
        return True
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    if isinstance(a, Node) and isinstance(b, Node):
        return (a.op, a.inputs) == (b.op, b.inputs) and alike(a.attributes, b.attributes)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(alike(a[name], b[name]) for name in a)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    return bool(a == b)


Record = Callable[[Context, Node], "Value | tuple[Value, ...]"]
Refusal = Callable[[Graph, Node], "str | None"]


@dataclasses.dataclass(frozen=True)
class DeviceOperator:
    """An entry of the table of device operators (`vkq.graph.device.rows`). types: the allowed types of the
    operator's first input and first result."""

    check: Refusal
    record: Record
    types: tuple[str, ...] = (*BYTES, *WORDS)


def unnamed(context: Context, x: Value) -> Value:
    """Return the value x without quantization parameters."""
    s = x.spec
    return x if s.qparams is None else context.builder.view(x, Spec(s.shape, s.dtype, s.layout))


def anything(graph: Graph, node: Node) -> str | None:
    return None


def bytes_of_one_type(graph: Graph, node: Node) -> str | None:
    """Return None if all inputs have one 8-bit type, else the reason why the node is refused."""
    dtypes = {graph.specs[name].dtype for name in node.inputs if name}
    return (
        None
        if len(dtypes) == 1 and dtypes <= set(BYTES)
        else f"takes {', '.join(sorted(dtypes))}; both must be 8-bit numbers of one type"
    )


def first_is_bytes(graph: Graph, node: Node) -> str | None:
    dtype = graph.specs[node.inputs[0]].dtype
    return None if dtype in BYTES else f"takes {dtype}; it must be int8 or uint8"


def same_type(graph: Graph, node: Node) -> str | None:
    """Return the reason why a node is refused, or None. A node is refused if a pass has stored a reason in
    the attribute ``why``, or if x and y are quantized to different types."""
    if "why" in node.attributes:
        return str(node.attributes["why"])
    x: QParams | None = node.attributes["x"]
    y: QParams | None = node.attributes["y"]
    if x is not None and y is not None and y.dtype != x.dtype:
        return f"takes {x.dtype} and gives {y.dtype}; both must be of one type"
    return None


def parameters_are_constant(graph: Graph, node: Node) -> str | None:
    """Return None if all inputs but the first (indices, axes, sizes) are constants, else the reason why the
    node is refused."""
    unknown = [name for name in node.inputs[1:] if name and name not in graph.constants]
    return f"its input {unknown[0]!r} is computed at run time; it must be a constant" if unknown else None
