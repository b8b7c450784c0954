"""Reads an ONNX model, once, into nodes and constants; nothing in it is executed, nothing outside its folder
read."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph.graph import Array, Graph, Node, Spec, in_order
from ..graph.operators.operator import Inputs
from ..graph.passes.constants import fold_constants
from .operators import NEWEST, OLDEST, Reading, read_node

LARGEST_FILE = (1 << 31) - 1  # of a protobuf message
DTYPES = (
    "float32",
    "float16",
    "float64",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bool",
)
DOMAINS = {"": "", "ai.onnx": "", "com.microsoft": "com.microsoft"}
BROKEN = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)
Shape = tuple[int | str, ...]


@dataclasses.dataclass(frozen=True)
class Argument:
    """An input or output of a model; a name in its shape stands for a size that the input decides."""

    name: str
    dtype: str
    shape: Shape


@dataclasses.dataclass(frozen=True)
class Model:
    """What was read. ``unknown`` are nodes of operators that vkq does not know, with their protobuf text."""

    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    opset: int
    name: str = ""

    def at(self, shapes: Mapping[str, Sequence[int]]) -> Graph:
        """The graph for these shapes of the inputs; every refusal names the node."""
        specs = {name: Spec.of(array) for name, array in self.constants.items()}
        constants = dict(self.constants)
        for argument in self.inputs:
            specs[argument.name] = Spec(argument.dtype, tuple(int(d) for d in shapes[argument.name]))
        graph = Graph(
            [a.name for a in self.inputs], [a.name for a in self.outputs], list(self.nodes), constants, specs
        )
        return fold_constants(graph)  # which infers every value as it goes


def fixed(model: Model, given: Mapping[str, Array]) -> Model:
    """The model with some of its inputs as constants."""
    chosen = {a.name: np.asarray(given[a.name]) for a in model.inputs if a.name in given}
    inputs = tuple(a for a in model.inputs if a.name not in chosen)
    return dataclasses.replace(model, inputs=inputs, constants={**model.constants, **chosen})


def read(model: Any) -> Model:
    """A path, bytes, or an onnx.ModelProto.

    Raises ModelError for a file that is no ONNX model or breaks its rules, OSError where it cannot be read.
    """
    proto, folder = _parsed(model)
    try:
        return _model(proto, folder)
    except ModelError:
        raise
    except BROKEN as error:
        raise ModelError(f"the model is malformed: {type(error).__name__}: {error}") from error


def _onnx() -> Any:
    try:
        import onnx
        import onnx.inliner
    except ImportError as error:
        raise ModelError("reading ONNX models needs the package onnx: pip install 'vkq[onnx]'") from error
    return onnx


def _parsed(model: Any) -> tuple[Any, Path | None]:
    onnx = _onnx()
    if isinstance(model, onnx.ModelProto):
        return model, None
    folder = None
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such file (a model is a regular file)")
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise ModelError(
                f"{path} has {size} bytes; a protobuf file holds at most 2 GiB: keep weights as external data"
            )
        model, folder = path.read_bytes(), path.parent
    if not isinstance(model, (bytes, bytearray, memoryview)):
        raise ModelError(f"the model is a {type(model).__name__}; give a path, bytes or an onnx.ModelProto")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(bytes(model))
    except Exception as error:  # protobuf's DecodeError has another place in each version
        raise ModelError(f"not an ONNX model: {str(error)[:200]}") from error
    return proto, folder


def _model(proto: Any, folder: Path | None) -> Model:
    opsets = {DOMAINS.get(o.domain, o.domain): o.version for o in proto.opset_import}
    opset = opsets.get("", 0)
    if not OLDEST <= opset <= NEWEST:
        raise ModelError(f"the model has opset {opset} of ai.onnx; {OLDEST} to {NEWEST} can be read")
    if proto.functions:
        proto = _onnx().inliner.inline_local_functions(proto)
    graph = proto.graph
    constants = {t.name: _array(t, folder) for t in graph.initializer}
    if graph.sparse_initializer:
        raise ModelError(f"{len(graph.sparse_initializer)} sparse initializers; store them as dense tensors")
    inputs = tuple(_argument(v) for v in graph.input if v.name not in constants)
    outputs = tuple(_argument(v) if v.HasField("type") else Argument(v.name, "", ()) for v in graph.output)
    names = {name for node in graph.node for name in (*node.input, *node.output)}
    reading = Reading(opset, constants, names | {a.name for a in inputs} | set(constants))
    nodes = [_node(reading, node, i, folder) for i, node in enumerate(graph.node)]
    plain = [(node, domain) for node, domain in nodes if node is not None]
    ordered = in_order([node for node, _ in plain], {*(a.name for a in inputs), *reading.constants})
    domains = {id(node): domain for node, domain in plain}
    for node in ordered:
        if not read_node(reading, node, domains[id(node)]):
            reading.nodes.append(_unknown(node, domains[id(node)]))
    _check_names(inputs, outputs, reading)
    return Model(inputs, outputs, tuple(reading.nodes), reading.constants, opset, graph.name)


def _check_names(inputs: Sequence[Argument], outputs: Sequence[Argument], reading: Reading) -> None:
    made = [name for node in reading.nodes for name in node.outputs if name]
    every = [*(a.name for a in inputs), *reading.constants, *made]
    if len(set(every)) < len(every):
        twice = next(name for name in every if every.count(name) > 1)
        raise ModelError(f"the value {twice!r} is made twice; each is made once")
    missing = [a.name for a in outputs if a.name not in set(every)]
    if missing:
        raise ModelError(f"no node makes the model's results {missing}")
    if not outputs:
        raise ModelError("the model has no results")


def _argument(value: Any) -> Argument:
    if not value.type.HasField("tensor_type"):
        raise ModelError(f"{value.name!r} is no tensor; sequences, maps and optionals are not supported")
    tensor = value.type.tensor_type
    dtype = _dtype(tensor.elem_type, value.name)
    shape: list[int | str] = []
    for i, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value"):
            if dim.dim_value < 0:
                raise ModelError(f"{value.name!r}: dim {i} is {dim.dim_value}; it must be 0 or more")
            shape.append(dim.dim_value)
        else:
            shape.append(dim.dim_param or f"{value.name}.{i}")
    return Argument(value.name, dtype, tuple(shape))


def _dtype(number: int, what: str) -> str:
    onnx = _onnx()
    try:
        name = str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number)).name)
    except (KeyError, ValueError, TypeError):
        name = f"type {number}"
    if name not in DTYPES:
        raise ModelError(f"{what!r} is of {name}; only {', '.join(DTYPES)} can be read")
    return name


def _array(tensor: Any, folder: Path | None) -> Array:
    onnx = _onnx()
    what = f"the constant {tensor.name!r}"
    dtype = np.dtype(_dtype(tensor.data_type, tensor.name))
    if min(tensor.dims, default=0) < 0:
        raise ModelError(f"{what} has the dims {list(tensor.dims)}; each must be 0 or more")
    Spec(dtype.name, tuple(tensor.dims)).check(what)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _external(tensor, dtype, folder)
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except BROKEN as error:
        raise ModelError(f"{what} has the dims {list(tensor.dims)} and other data: {error}") from error


def _external(tensor: Any, dtype: np.dtype[Any], folder: Path | None) -> Array:
    """External data from inside the model's folder alone: no absolute path, no "..", no link that leads
    out."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    what, location = f"the constant {tensor.name!r}", entries.get("location", "")
    if folder is None:
        raise ModelError(f"{what} has external data; give the model as a path, so that its folder is known")
    base = folder.resolve()
    path = (base / location).resolve()
    if not location or os.path.isabs(location) or base not in path.parents:
        raise ModelError(
            f"{what} has external data at {location!r}, outside the model's folder; that is refused"
        )
    if not path.is_file():
        raise ModelError(f"{what} has external data at {location!r}, where no regular file is")
    size = int(np.prod(tensor.dims, dtype=np.int64)) * dtype.itemsize
    offset, length = int(entries.get("offset", 0)), int(entries.get("length", size))
    if length != size or offset < 0 or offset + size > path.stat().st_size:
        raise ModelError(
            f"{what} needs {size} bytes; {location!r} offers {length} from {offset} of {path.stat().st_size}"
        )
    with path.open("rb") as file:
        file.seek(offset)
        data = np.frombuffer(file.read(size), dtype.newbyteorder("<"))
    return np.asarray(data.astype(dtype.newbyteorder("=")).reshape(tuple(tensor.dims)))


def _node(reading: Reading, proto: Any, index: int, folder: Path | None) -> tuple[Node | None, str]:
    """A node as it stands in the file; Constant becomes a constant."""
    onnx = _onnx()
    source = proto.name or f"#{index} ({proto.op_type})"
    domain = DOMAINS.get(proto.domain, proto.domain)
    attributes: dict[str, Any] = {}
    for attribute in proto.attribute:
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            attributes[attribute.name] = "a graph"
            continue
        value = onnx.helper.get_attribute_value(attribute)
        attributes[attribute.name] = _value(value, folder)
    for key in ("to", "output_dtype"):
        if isinstance(attributes.get(key), int) and domain == "":
            number = attributes.pop(key)
            if number:
                attributes[key] = _dtype(number, source)
    outputs = tuple(proto.output)
    while len(outputs) > 1 and not outputs[-1]:
        outputs = outputs[:-1]
    if not any(outputs):
        raise ModelError(f"node {source}: it has no results")
    node = Node(proto.op_type, tuple(proto.input), outputs, attributes, source)
    if domain == "" and node.op == "Constant":
        reading.constants[outputs[0]] = _constant(node)
        return None, domain
    return node, domain


def _value(value: Any, folder: Path | None) -> Any:
    onnx = _onnx()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, onnx.TensorProto):
        return _array(value, folder)
    if isinstance(value, (list, tuple)) or (hasattr(value, "__iter__") and not isinstance(value, str)):
        return tuple(_value(v, folder) for v in value)
    return value


def _constant(node: Node) -> Array:
    for key, value in node.attributes.items():
        if key == "value" and isinstance(value, np.ndarray):
            return value
        if key in ("value_float", "value_floats"):
            return np.asarray(value, np.float32)
        if key in ("value_int", "value_ints"):
            return np.asarray(value, np.int64)
    raise ModelError(f"{node}: has {sorted(node.attributes)}; only dense numbers are supported")


def _unknown(node: Node, domain: str) -> Node:
    """A node that the graph keeps without knowing what it computes; onnx may know its results' shapes."""
    attributes = {"op": node.op, "domain": domain, "attributes": node.attributes, "infer": _foreign_specs}
    return Node("foreign", node.inputs, node.outputs, attributes, node.source)


def _foreign_specs(x: Inputs) -> list[Spec]:
    onnx, a = _onnx(), x.node.attributes
    refusal = f"{x.node}: vkq does not know the operator {a['domain'] or 'ai.onnx'}.{a['op']}"
    try:
        schema = onnx.defs.get_schema(a["op"], NEWEST, a["domain"])
        types = {
            name: onnx.helper.make_tensor_type_proto(
                onnx.helper.np_dtype_to_tensor_dtype(np.dtype(s.dtype)), s.shape
            )
            for name, s in zip(x.node.inputs, x.specs, strict=True)
            if s is not None
        }
        data = {
            name: onnx.numpy_helper.from_array(array, name)
            for name, array in zip(x.node.inputs, x.arrays, strict=True)
            if array is not None
        }
        proto = onnx.helper.make_node(
            a["op"], x.node.inputs, x.node.outputs, domain=a["domain"], **a["attributes"]
        )
        found = onnx.shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=[onnx.helper.make_opsetid(a["domain"], NEWEST)]
        )
        arguments = [
            _argument(onnx.helper.make_value_info(name, found[name])) if name else Argument("", "float32", ())
            for name in x.node.outputs
        ]
        if any(isinstance(d, str) for argument in arguments for d in argument.shape):
            raise ModelError(f"{refusal}, and its results have no fixed shape")
        return [Spec(argument.dtype, tuple(int(d) for d in argument.shape)) for argument in arguments]
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{refusal}, nor does onnx know its results' shapes: {error}") from error
