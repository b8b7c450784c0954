"""Models with a single node, for operators that vkq does not know. ONNX Runtime or onnx's reference
implementation infers the shapes of the node's results, and computes the results if all inputs are
constants."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph.graph import Array, Node, Spec
from ..graph.operators.operator import OpenShape
from .protobuf import package

SECONDS = 20.0  # time limit for computing one node of constants
# Shape inference gets the values of constants with at most this many elements, because a shape may depend on
# these values. It gets only the shapes of larger constants.
SMALL = 4096
TYPES = {"float": "float32", "double": "float64"}  # type names: ONNX Runtime's (keys), NumPy's (values)
# Texts in ONNX Runtime's messages about unknown operators.
UNKNOWN = "No Op registered", "is not a registered function/op"
OPSET = 21  # the opset of ai.onnx for a node whose attributes do not state an opset


def in_onnx(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node's attributes in the form that ``onnx.helper.make_node`` expects."""
    return {key: _attribute(key, value) for key, value in attributes.items()}


def _attribute(key: str, value: Any) -> Any:
    onnx = package()
    if key in ("to", "output_dtype") and isinstance(value, str):
        return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value))
    if isinstance(value, np.ndarray):
        return onnx.numpy_helper.from_array(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else value


def node_proto(node: Node) -> list[Any]:
    """Convert a node whose operator vkq does not know to a list of ONNX nodes. If its subgraphs read outer
    values under other names, Identity nodes define these names first."""
    helper, a = package().helper, node.attributes
    own = node.inputs[: len(node.inputs) - len(a["captured"])]
    renamed = [
        helper.make_node("Identity", [name], [old])
        for old, name in zip(a["captured"], node.inputs[len(own) :], strict=True)
        if old != name
    ]
    attributes = in_onnx(a["attributes"])
    made = helper.make_node(a["op"], own, node.outputs, name=node.source, domain=a["domain"], **attributes)
    return [*renamed, made]


def type_of(spec: Spec) -> int:
    """Return the dtype of a spec as a value of TensorProto.DataType."""
    return int(package().helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)))


def model_of(node: Node, specs: Sequence[Spec | None], arrays: Sequence[Array | None]) -> bytes:
    """Return a model with *node* as its only node. Inputs of the node that have an array in *arrays* are
    constants."""
    onnx = package()
    helper, a = onnx.helper, node.attributes
    inputs, constants = {}, {}
    for name, spec, array in zip(node.inputs, specs, arrays, strict=True):
        if name and array is not None:
            constants[name] = onnx.numpy_helper.from_array(np.array(array, order="C"), name)
        elif name and spec is not None:
            inputs[name] = helper.make_tensor_value_info(name, type_of(spec), spec.shape)
    results = [helper.make_empty_tensor_value_info(name) for name in node.outputs if name]
    graph = helper.make_graph(
        node_proto(node), "alone", list(inputs.values()), results, list(constants.values())
    )
    opsets = {"": a["opset"] or OPSET, **dict(a["versions"])}
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    made: bytes = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    return made


def _session(model: bytes) -> Any:
    """Return a session of ONNX Runtime without optimizations. Raises ImportError if ONNX Runtime is not
    installed."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # do not log: a refusal is raised as an error
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def runtime_specs(node: Node, specs: Sequence[Spec | None], arrays: Sequence[Array | None]) -> list[Spec]:
    """Return the specs of a node's results as ONNX Runtime infers them.

    Raises ModelError if ONNX Runtime refuses the node. Raises OpenShape if the shapes are known only at run
    time, or if ONNX Runtime does not know the operator or is not installed."""
    small = [None if array is None or array.size > SMALL else array for array in arrays]
    try:
        model = model_of(node, specs, small)
        session = _session(model)
    except ImportError as error:
        raise OpenShape("onnx cannot infer its shapes, and onnxruntime is not installed") from error
    except Exception as error:  # ONNX Runtime's errors have no common base class
        if any(text in str(error) for text in UNKNOWN):
            raise OpenShape("ONNX Runtime does not know it either") from error
        raise ModelError(f"ONNX Runtime refuses it: {str(error)[:300]}") from error
    results = session.get_outputs()
    open_ranks = _open_ranks(
        model, [x.name for x in results if x.shape == [] and x.type.startswith("tensor")]
    )
    if open_ranks:
        raise OpenShape(f"the rank of its result {open_ranks[0]!r} is known only at run time")
    found = iter(results)
    return [_spec_of(next(found)) if name else Spec("float32", ()) for name in node.outputs]


def _open_ranks(model: bytes, names: Sequence[str]) -> list[str]:
    """Return those of the results *names* that are no scalars. ONNX Runtime shows the shape [] for a scalar
    and for a result of unknown rank; only the Shape of a scalar is known to have no elements."""
    if not names:
        return []
    onnx = package()
    proto = onnx.load_from_string(model)
    shapes = [onnx.helper.make_node("Shape", [name], [f"{name}/shape"]) for name in names]
    proto.graph.node.extend(shapes)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(node.output[0]) for node in shapes)
    results = _session(proto.SerializeToString()).get_outputs()
    return [name for name, result in zip(names, results, strict=True) if result.shape != [0]]


def _spec_of(argument: Any) -> Spec:
    kind, _, element = str(argument.type).rstrip(")").partition("(")
    known = argument.shape is not None and all(isinstance(dim, int) for dim in argument.shape)
    if kind != "tensor" or element == "string" or not known:
        raise OpenShape(f"its result is {argument.type} of shape {argument.shape}, known only at run time")
    return Spec(TYPES.get(element, element), tuple(argument.shape))


def computed(node: Node, arrays: Sequence[Array | None]) -> list[Array] | None:
    """Compute the results of a node whose operator vkq does not know and whose inputs are constants. ONNX
    Runtime computes them, or onnx's reference implementation if ONNX Runtime is not installed. Return None
    if the node cannot be computed, or if ONNX Runtime needs more than `SECONDS`."""
    model = model_of(node, [None] * len(arrays), arrays)
    results: list[Any] | None
    try:
        results = _run(model)
    except ImportError:
        results = _referenced(node, model)
    except Exception:  # a node that cannot be computed stays in the graph, where it is refused
        return None
    if results is None or not all(isinstance(r, np.ndarray) and r.dtype.kind in "biuf" for r in results):
        return None
    given = iter(results)
    return [next(given) if name else np.zeros(0, np.float32) for name in node.outputs]


def _run(model: bytes) -> list[Any]:
    import onnxruntime

    session, options = _session(model), onnxruntime.RunOptions()
    options.log_severity_level = 4
    with _stopped_after(options):
        results: list[Any] = session.run(None, {}, options)
    return results


@contextlib.contextmanager
def _stopped_after(options: Any) -> Iterator[None]:
    """Context manager: terminate a run of ONNX Runtime that takes longer than `SECONDS`. *options*: the
    RunOptions of the run."""

    def stop() -> None:
        options.terminate = True

    timer = threading.Timer(SECONDS, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _referenced(node: Node, model: bytes) -> list[Any] | None:
    """Compute a node with onnx's reference implementation. Return None for a node that fails, and for a
    node with subgraphs, because nothing could stop an endless loop."""
    if node.attributes["captured"] or any(map(is_graph, node.attributes["attributes"].values())):
        return None
    from onnx.reference import ReferenceEvaluator

    try:
        results: Any = ReferenceEvaluator(model).run(None, {})
        return [np.asarray(result) for result in results]
    except Exception:
        return None


def is_graph(value: Any) -> bool:
    """Return True if the value of an attribute is a graph, or a tuple of graphs."""
    return hasattr(value, "node") or (isinstance(value, tuple) and any(hasattr(v, "node") for v in value))
