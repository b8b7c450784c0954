"""Runs a model node by node through ONNX Runtime. A value is freed after its last reader, to save
memory."""

from __future__ import annotations

import contextlib
import ctypes
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ModelError
from ..graph.graph import Array
from ..onnx.cpu import cpu_session
from ..onnx.protobuf import package

HEAVY = ("Conv", "ConvTranspose", "MatMul", "Gemm")  # operators that run faster with several threads
# Maximum number of elements of a constant inside a node's model. Larger constants are inputs of the model.
EMBEDDED = 1024

# after a value of at least this many bytes is dropped, freed memory is returned to the system
LARGE = 1 << 20


class Walk:
    """A model with a session of ONNX Runtime for each node. Nodes that differ only in the names of values
    share a session.

    The constructor computes all values that depend only on constants.
    """

    def __init__(self, proto: Any):
        self.proto = proto
        self.maker = {name: node for node in proto.graph.node for name in node.output if name}
        self.nodes = in_order(proto.graph.node)
        self.readers = defaultdict(list)
        for node in self.nodes:
            for name in dict.fromkeys(read_by(node)):
                self.readers[name].append(node)
        self.outputs = [value.name for value in proto.graph.output]
        self.tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.inputs = [v.name for v in proto.graph.input if v.name not in self.tensors]
        self.constants: dict[str, Array] = {
            name: package().numpy_helper.to_array(tensor) for name, tensor in self.tensors.items()
        }
        self._sessions: dict[Any, Any] = {}  # keys: operator, attributes, types, small constants
        self._prepared: dict[int, tuple[Any, dict[str, str], list[str]]] = {}  # keys: id(node)
        for node in self.nodes:
            if node.op_type == "Constant" or all(name in self.constants for name in read_by(node)):
                self.constants.update(self.apply(node, self.constants))
        self._codes: dict[str, str] = {
            node.output[0]: node.input[0]
            for node in self.nodes
            if node.op_type == "DequantizeLinear" and node.output[0] not in self.constants
        }

    def held(self, name: str) -> str:
        """Return the name of the array that is stored for the value *name*. For the result of a
        DequantizeLinear, this is the node's integer input, which takes a quarter of the bytes. The node runs
        again for each reader."""
        return self._codes.get(name, name)

    def reads(self, node: Any) -> list[str]:
        """Return the names of the stored values that a node reads, each once."""
        return list(dict.fromkeys(self.held(n) for n in read_by(node) if n not in self.constants))

    def apply(self, node: Any, values: Mapping[str, Array]) -> dict[str, Array]:
        """Run one node. Return its results by name. *values* has the node's inputs that are not constants."""
        if id(node) not in self._prepared:
            self._prepared[id(node)] = self._prepare(node, values)
        session, reads, results = self._prepared[id(node)]
        found = session.run(
            None, {slot: values[n] if n in values else self.constants[n] for slot, n in reads.items()}
        )
        return dict(zip(results, found, strict=True))

    def _prepare(self, node: Any, values: Mapping[str, Array]) -> tuple[Any, dict[str, str], list[str]]:
        """Return (session, inputs, results) for a node. *inputs* maps the session's input names to names in
        the model. *results* are the names of the node's results in the model."""
        names = list(dict.fromkeys(read_by(node)))
        arrays = {name: values[name] if name in values else self.constants[name] for name in names}
        results = [name for name in node.output if name]
        slot = {name: f"v{i}" for i, name in enumerate([*names, *results])}
        # A subgraph may read any value of the model by its name, so all names must stay.
        if any(a.HasField("g") or a.graphs for a in node.attribute):
            slot = {name: name for name in slot}
        copy = package().NodeProto.FromString(node.SerializeToString())
        copy.input[:] = [slot.get(name, "") for name in node.input]
        copy.output[:] = [slot.get(name, "") for name in node.output]
        copy.name = ""
        integer = _is_integer(node)
        held = {slot[n]: a for n, a in arrays.items() if n in self.constants and (integer or _is_embedded(a))}
        given = {slot[n]: a for n, a in arrays.items() if slot[n] not in held}
        key = (
            copy.SerializeToString(),
            *((name, array.dtype.str) for name, array in given.items()),
            *((name, array.dtype.str, array.shape, array.tobytes()) for name, array in held.items()),
        )
        if key not in self._sessions:
            self._sessions[key] = self._session(copy, given, held, f"{node.op_type} {node.name!r}")
        return self._sessions[key], {slot[n]: n for n in names if slot[n] in given}, results

    def _session(self, node: Any, given: Mapping[str, Array], held: Mapping[str, Array], what: str) -> Any:
        onnx = package()
        kind = onnx.helper.np_dtype_to_tensor_dtype
        graph = onnx.helper.make_graph(
            [node], "node",
            [onnx.helper.make_tensor_value_info(n, kind(a.dtype), None) for n, a in given.items()],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
            [onnx.numpy_helper.from_array(array, name) for name, array in held.items()],
        )  # fmt: skip
        model = onnx.helper.make_model(
            graph, opset_imports=self.proto.opset_import, ir_version=self.proto.ir_version
        )
        model.functions.extend(self.proto.functions)
        # for a small node, starting threads takes longer than running
        threads = 0 if node.op_type in HEAVY else 1
        plain = not _is_integer(node)
        try:
            return cpu_session(model.SerializeToString(), "comparing layers", plain, threads, arena=False)
        except ModelError as error:
            raise ModelError(f"{what}: {error}") from error

    def run(self, feed: Mapping[str, Array], wanted: Iterable[str] | None = None) -> Run:
        """Return a `Run` of the model on the inputs *feed*. *wanted* has the name of a value for each later
        call of `Run.take`; by default these are the model's outputs."""
        return Run(self, feed, self.outputs if wanted is None else wanted)


class Run:
    """One sample's run through a model. A value is computed when it is first needed, and dropped after its
    last read."""

    def __init__(self, walk: Walk, feed: Mapping[str, Array], wanted: Iterable[str]):
        self.walk = walk
        self.values = dict(feed)
        self.left = Counter(map(walk.held, wanted))
        needed, ahead = set(), list(self.left)
        while ahead:
            node = walk.maker.get(ahead.pop())
            if node is not None and node.output[0] not in needed:
                needed.add(node.output[0])
                names = walk.reads(node)
                self.left.update(names)
                ahead += names

    def take(self, name: str) -> Array:
        """Return a value, computing it if necessary. The call counts as one read of the value."""
        if name in self.walk.constants:
            return self.walk.constants[name]
        ahead = [self.walk.held(name)]
        while ahead:
            node = self.walk.maker.get(ahead[-1])
            if ahead[-1] in self.values or node is None:
                ahead.pop()
                continue
            missing = [n for n in self.walk.reads(node) if n not in self.values]
            if missing:
                ahead += missing
                continue
            given = {n: self._value(n) for n in read_by(node) if n not in self.walk.constants}
            found = self.walk.apply(node, given)
            self.values.update({n: array for n, array in found.items() if self.left[n]})
            del given, found
            for read in self.walk.reads(node):
                self._had(read)
        value = self._value(name)
        self._had(self.walk.held(name))
        return value

    def _value(self, name: str) -> Array:
        held = self.walk.held(name)
        if held == name:
            return self.values[name]
        return self.walk.apply(self.walk.maker[name], self.values)[name]

    def _had(self, name: str) -> None:
        self.left[name] -= 1
        if self.left[name] <= 0:
            self.values.pop(name, None)


def give_back() -> None:
    """Return freed memory to the system if the C library is glibc. glibc keeps freed arrays of up to 32 MB,
    and the gaps between arrays of several sizes can take many times the memory in use."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def in_order(nodes: Iterable[Any]) -> list[Any]:
    """Return the nodes in topological order: each node after the nodes that compute its inputs."""
    nodes = list(nodes)
    maker = {name: node for node in nodes for name in node.output if name}
    found: dict[int, Any] = {}
    for last in nodes:
        ahead = [last]
        while ahead:
            makers = (maker.get(name) for name in read_by(ahead[-1]))
            missing = [node for node in makers if node is not None and id(node) not in found]
            if missing and len(ahead) <= len(nodes):
                ahead += missing
            else:
                node = ahead.pop()
                found[id(node)] = node
    return list(found.values())


def _is_integer(node: Any) -> bool:
    """Return True if ONNX Runtime computes the node with 8-bit weights. The sums of such a node are exact on
    every processor only if ONNX Runtime's optimizer sees the weights as constants."""
    return (node.op_type.startswith("Q") and node.op_type != "QuantizeLinear") or "Integer" in node.op_type


def _is_embedded(array: Array) -> bool:
    """Return True if a constant must be embedded in a node's model: it is small, or ONNX Runtime accepts no
    input of its type."""
    return array.size <= EMBEDDED or array.dtype.kind not in "fiub"


def read_by(node: Any) -> list[str]:
    """Return the names of all values that a node reads, including outer values that the node's subgraphs
    read."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            made = {name for inner in graph.node for name in inner.output}
            made |= {t.name for t in graph.initializer} | {v.name for v in graph.input}
            names += [n for inner in graph.node for n in read_by(inner) if n not in made]
            names += [v.name for v in graph.output if v.name not in made]
    return names
