"""Normalizes nodes: replaces equivalent forms by one form.

| from | to |
| --- | --- |
| Identity, Dropout, Cast to the same type | nothing |
| Flatten, Squeeze, Unsqueeze | Reshape |
| Split | Slices |
| Gather of consecutive indices | Slice |
| Gather of all indices in order | Reshape |
| Expand, Where, And, Or that copy an input | the input, or Expand |
| GlobalMaxPool, means, maxima | pools |
| pools of float16 | pools of float32 |
| Sum | Add |
| QuantizeLinear, DequantizeLinear with one constant scale | quantize, dequantize |
"""

from __future__ import annotations

import functools

import numpy as np

from ...numerics.qparams import QDType, QParams, are_scales
from ..graph import Graph, Node
from ..operators.movement import parts
from ..operators.operator import Inputs, axis_of
from .identities import COPIES, copied, reshape
from .reductions import POOLS, as_pool
from .sweep import Sweep, scalar, swept

WINDOWS = ("MaxPool", "AveragePool")
RESHAPES = ("Flatten", "Squeeze", "Unsqueeze")
REWRITTEN = (
    "Identity", "Dropout", "Cast", *RESHAPES, "Reshape", "QuantizeLinear", "DequantizeLinear", "Split",
    "Gather", "Sum", "GlobalMaxPool", *POOLS, *WINDOWS, *COPIES,
)  # fmt: skip


def simplify(graph: Graph) -> Graph:
    """Replace equivalent forms of nodes by one form, as in the module's table."""
    return swept(graph, _visit, *REWRITTEN)


def _visit(sweep: Sweep, node: Node) -> bool:
    if node.op in ("Identity", "Dropout") or _keeps_its_type(sweep, node):
        if len(node.outputs) > 1 and node.outputs[1] and node.outputs[1] in sweep.uses:
            return False
        sweep.alias(node.outputs[0], node.inputs[0])
        return True
    if node.op in RESHAPES or (node.op == "Reshape" and sweep.array(node.inputs[1]) is not None):
        return _reshape(sweep, node)
    if node.op in ("QuantizeLinear", "DequantizeLinear"):
        return _quantization(sweep, node)
    if node.op == "Split":
        return _split(sweep, node)
    if node.op == "Gather":
        return _gather(sweep, node)
    if node.op in COPIES:
        return copied(sweep, node)
    if node.op == "Sum" and len(node.inputs) == 2:
        sweep.emit("Add", node.inputs, node.outputs[0], node.source)
        return True
    if node.op == "GlobalMaxPool" and len(sweep.specs[node.inputs[0]].shape) == 4:
        pixels = sweep.specs[node.inputs[0]].shape[2:]
        sweep.emit("MaxPool", node.inputs, node.outputs[0], node.source, kernel_shape=pixels)
        return True
    if node.op in WINDOWS:
        return _window(sweep, node)
    return node.op in POOLS and as_pool(sweep, node)


def _window(sweep: Sweep, node: Node) -> bool:
    """Compute a pool of float16 images in float32, and round the result to float16, as ONNX Runtime does."""
    if sweep.specs[node.inputs[0]].dtype != "float16" or len(node.outputs) > 1:
        return False
    wide = sweep.emit("Cast", node.inputs, source=node.source, to="float32")
    pooled = sweep.emit(node.op, [wide], source=node.source, **node.attributes)
    sweep.emit("Cast", [pooled], node.outputs[0], node.source, to="float16")
    return True


def _keeps_its_type(sweep: Sweep, node: Node) -> bool:
    return node.op == "Cast" and node.attributes["to"] == sweep.specs[node.inputs[0]].dtype


def _reshape(sweep: Sweep, node: Node) -> bool:
    """Replace a Flatten, Squeeze, Unsqueeze or Reshape by a Reshape to a constant shape; drop the node if
    its input has this shape already."""
    sweep.keep(node)
    shape = sweep.specs[node.outputs[0]].shape
    sweep.nodes.pop()
    del sweep.made[node.outputs[0]]
    reshape(sweep, node.inputs[0], shape, node.outputs[0], node.source)
    return True


def _quantization(sweep: Sweep, node: Node) -> bool:
    scale = scalar(sweep.array(node.inputs[1]))
    zero_name = node.input(2)
    zero = scalar(sweep.array(zero_name)) if zero_name else np.uint8(0)
    if scale is None or zero is None or zero.dtype.name not in ("int8", "uint8") or scale.dtype != np.float32:
        return False
    if not are_scales(scale):  # ONNX allows scales that vkq does not: negative, not finite, subnormal
        return False
    q = _parameters(float(scale), int(zero), zero.dtype.name)
    if node.op == "QuantizeLinear" and sweep.specs[node.inputs[0]].dtype == "float32":
        sweep.emit("quantize", node.inputs[:1], node.outputs[0], node.source, y=q)
        return True
    if node.op == "DequantizeLinear" and sweep.specs[node.inputs[0]].dtype == q.dtype:
        if node.inputs[0] in sweep.constants:
            return False
        sweep.emit("dequantize", node.inputs[:1], node.outputs[0], node.source, x=q)
        return True
    return False


@functools.lru_cache(4096)
def _parameters(scale: float, zero: int, dtype: QDType) -> QParams:
    """Return cached quantization parameters. All graphs of a model share one object for equal parameters."""
    return QParams(scale, zero, dtype)


def _split(sweep: Sweep, node: Node) -> bool:
    specs = [sweep.specs[name] if name else None for name in node.inputs]
    sizes = parts(Inputs(node, specs, [sweep.array(name) for name in node.inputs]))
    axis, first = axis_of(node, len(sweep.specs[node.inputs[0]].shape), 0), 0
    for name, size in zip(node.outputs, sizes, strict=True):
        if name:
            slice_of(sweep, node, node.inputs[0], name, axis, first, first + size)
        first += size
    return True


def slice_of(sweep: Sweep, node: Node, x: str, y: str, axis: int, first: int, end: int, step: int = 1) -> str:
    """Emit a Slice of x along one axis, from *first* to *end*. Return the result's name."""
    lists = [sweep.constant(np.array([v], np.int64), "slice") for v in (first, end, axis, step)]
    return sweep.emit("Slice", [x, *lists], y, node.source)


def _gather(sweep: Sweep, node: Node) -> bool:
    """Replace a Gather of consecutive indices by a Slice, or by a Reshape if the indices are all indices of
    the axis."""
    index, shape = sweep.array(node.inputs[1]), sweep.specs[node.inputs[0]].shape
    if index is None or not index.size:
        return False
    axis = axis_of(node, len(shape), 0)
    given = index.reshape(-1).astype(np.int64)
    wanted = np.where(given < 0, given + shape[axis], given)
    first, end = int(wanted[0]), int(wanted[0]) + len(wanted)
    if (np.diff(wanted) != 1).any() or first < 0 or end > shape[axis]:
        return False
    part, whole = node.inputs[0], end - first == shape[axis]
    if index.ndim > 1 and not whole:
        return False
    if index.ndim == 1 and not whole:
        slice_of(sweep, node, part, node.outputs[0], axis, first, end)
        return True
    part = part if whole else slice_of(sweep, node, part, "", axis, first, end)
    reshape(sweep, part, (*shape[:axis], *index.shape, *shape[axis + 1 :]), node.outputs[0], node.source)
    return True
