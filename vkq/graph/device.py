"""How each operator of a graph runs on a device: as steps of one plan, added by vkq's own operators.

A row says which nodes it takes (or why not, for the list of refusals), and adds one. A node without a row,
or that its row refuses, cannot run on a device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from ..kernels.quantize import quantized
from ..kernels.repack import reshaped
from ..layout.extent import Spec
from ..numerics.qparams import QParams
from ..ops import elementwise, pool, quantize, resize, shape, softmax, table, tables, take
from ..ops.conv2d import Conv2d
from ..ops.conv_transpose2d import ConvTranspose2d
from ..ops.linear import Linear
from ..ops.matmul import multiplied
from ..runtime.builder import Builder, Value
from ..runtime.plan import Resident
from ..runtime.transfer import stored
from .graph import Array, Graph, Node
from .operators.movement import margins, permutation, resize_of, slices, window
from .operators.quantized import CONV, TRANSPOSED, options
from .operators.table import compute

BYTES, WORDS = ("int8", "uint8"), ("float32", "int32")


@dataclasses.dataclass
class Context:
    """A graph that is being planned for a device. ``layers`` keeps what is made of weights, also for other
    shapes."""

    graph: Graph
    builder: Builder
    layers: dict[Hashable, Any]
    values: dict[str, Value]

    def value(self, name: str) -> Value:
        """A value, without parameters of its own: what its numbers mean is said by the nodes that read it."""
        found = self.values.get(name)
        if found is None:
            found = self.values[name] = self._constant(name)
        return found

    def _constant(self, name: str) -> Value:
        array, b = self.graph.constants[name], self.builder
        spec = Spec(array.shape, array.dtype.name)
        resident = self.keep(
            ("constant", name), lambda: Resident(b.device, spec.nbytes, lambda: stored(array))
        )
        return b.view(b.constant(resident), spec)

    def keep(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Something that is made once for all shapes of the inputs."""
        if key not in self.layers:
            self.layers[key] = make()
        return self.layers[key]


Record = Callable[[Context, Node], Value]
Check = Callable[[Graph, Node], "str | None"]


@dataclasses.dataclass(frozen=True)
class Row:
    check: Check
    record: Record


def refusal(graph: Graph, node: Node) -> str | None:
    """Why a node cannot run on a device; None where it can."""
    row = ROWS.get(node.op)
    if row is None:
        return _why_float(graph, node)
    types = [graph.specs[name].dtype for name in (*node.inputs[:1], *node.outputs[:1]) if name]
    for dtype in types:
        if dtype not in (*BYTES, *WORDS):
            return f"{dtype} has no form on the device"
    return row.check(graph, node)


def _why_float(graph: Graph, node: Node) -> str:
    if node.op == "foreign":
        return (
            f"vkq does not know the operator {node.attributes['domain'] or 'ai.onnx'}.{node.attributes['op']}"
        )
    dtypes = ", ".join(str(graph.specs[name]) for name in node.inputs if name and name not in graph.constants)
    return (
        f"works on {dtypes or 'constants'}: it does not stand between DequantizeLinear and"
        " QuantizeLinear in a form that vkq has"
    )


def unnamed(context: Context, x: Value) -> Value:
    """The same numbers without parameters."""
    s = x.spec
    return x if s.qparams is None else context.builder.view(x, Spec(s.shape, s.dtype, s.layout))


# ------------------------------------------------------------------------------------------------- layers


def _same_type(graph: Graph, node: Node) -> str | None:
    x: QParams = node.attributes["x"]
    y: QParams | None = node.attributes["y"]
    if y is not None and y.dtype != x.dtype:
        return f"takes {x.dtype} and gives {y.dtype}; both must be of one type"
    return None


def _layer(kind: Any, names: tuple[str, ...]) -> Record:
    def record(context: Context, node: Node) -> Value:
        a, constants = node.attributes, context.graph.constants

        def make() -> Any:
            bias = constants[node.inputs[2]] if node.input(2) else None
            return kind(
                constants[node.inputs[1]], a["w_scale"], x_qparams=a["x"], y_qparams=a["y"], bias=bias,
                w_zero_point=a["w_zero_point"], activation=a["activation"], device=context.builder.device,
                **options(node, names),
            )  # fmt: skip

        layer = context.keep((node.op, node.outputs[0], a["x"], a["y"]), make)
        return unnamed(context, layer.build(context.builder, context.value(node.inputs[0])))

    return record


def _matmul(context: Context, node: Node) -> Value:
    a, b = (context.value(name) for name in node.inputs)
    at = node.attributes
    return unnamed(context, multiplied(context.builder, a, b, at["y"], at["a"], at["b"]))


# ------------------------------------------------------------------------------------------- element-wise


def _binary(context: Context, node: Node) -> Value:
    a = node.attributes
    x, z = (context.value(name) for name in node.inputs)
    op: Any = node.op
    y = elementwise.combined(context.builder, x, z, op, a["a"], a["b"], a["y"], a.get("activation"))
    return unnamed(context, y)


def _lookup(context: Context, node: Node) -> Value:
    a, x = node.attributes, context.value(node.inputs[0])
    if a["table"].ndim == 1 and a["table"].dtype.name in BYTES:
        return table.looked_up(context.builder, x, a["table"], None)
    return tables.looked_up_along(context.builder, x, a["table"], a.get("axis", 0))


def _lookup2(context: Context, node: Node) -> Value:
    a, b = (context.value(name) for name in node.inputs)
    return unnamed(context, elementwise.paired(context.builder, a, b, node.attributes["table"]))


# ------------------------------------------------------------------------------------- images, probabilities


def _avg_pool(context: Context, node: Node) -> Value:
    a = node.attributes
    y = pool.averaged(
        context.builder, context.value(node.inputs[0]), a["kernel"], a["stride"], a["padding"],
        a["ceil_mode"], a["count_include_pad"], a["y"], a["x"],
    )  # fmt: skip
    return unnamed(context, y)


def _global_avg_pool(context: Context, node: Node) -> Value:
    a = node.attributes
    x = context.value(node.inputs[0])
    return unnamed(context, pool.globally_averaged(context.builder, x, a["y"], a["x"]))


def _max_pool(context: Context, node: Node) -> Value:
    x = context.value(node.inputs[0])
    how = window(node, x.spec.shape)
    y = pool.max_pooled(context.builder, x, how.kernel, how.stride, how.padding, how.dilation, how.ceil_mode)
    return unnamed(context, y)


def _softmax(context: Context, node: Node) -> Value:
    a = node.attributes
    x = context.value(node.inputs[0])
    y = softmax.softmaxed(context.builder, x, a["axis"], a["y"], a["x"], a["onnxruntime"])
    return unnamed(context, y)


def _softmax_check(graph: Graph, node: Node) -> str | None:
    rank = len(graph.specs[node.inputs[0]].shape)
    if node.attributes["y"] is None and node.attributes["axis"] not in (1 if rank == 4 else -1, rank - 1):
        return f"softmax to float32 along axis {node.attributes['axis']} of {rank}; transpose first"
    return _same_type(graph, node)


# ----------------------------------------------------------------------------------------------- movement


def _bytes_or_words(direct: Record) -> Record:
    """8-bit numbers by the operator's own way; wider ones, and more than four axes, element by element."""

    def record(context: Context, node: Node) -> Value:
        spec = context.graph.specs[node.inputs[0]]
        if spec.dtype in BYTES and len(spec.shape) <= 4:
            return direct(context, node)
        return _taken(context, node)

    return record


def _reshape(context: Context, node: Node) -> Value:
    x = context.value(node.inputs[0])
    return reshaped(context.builder, x, context.graph.specs[node.outputs[0]].shape)


def _transpose(context: Context, node: Node) -> Value:
    x = context.value(node.inputs[0])
    return unnamed(context, shape.transposed(context.builder, x, permutation(node, len(x.spec.shape))))


def _slice(context: Context, node: Node) -> Value:
    x, constants = context.value(node.inputs[0]), context.graph.constants
    lists = [[int(v) for v in constants[name].reshape(-1)] if name else None for name in node.inputs[1:]]
    dims = x.spec.shape
    parts = [range(*s.indices(d)) for s, d in zip(slices(node, dims, lists), dims, strict=True)]
    return take.sliced(context.builder, x, parts)


def _concat(context: Context, node: Node) -> Value:
    xs = [context.value(name) for name in node.inputs]
    if len(xs) == 1:
        return xs[0]
    if xs[0].spec.dtype in BYTES:
        return unnamed(context, shape.concatenated(context.builder, xs, node.attributes["axis"]))
    return take.concatenated_words(context.builder, xs, node.attributes["axis"])


def _pad(context: Context, node: Node) -> Value:
    x, constants = context.value(node.inputs[0]), context.graph.constants
    axes = [int(v) for v in constants[node.inputs[3]]] if node.input(3) else None
    around = margins(node, len(x.spec.shape), [int(v) for v in constants[node.inputs[1]]], axes)
    if node.attributes.get("mode", "constant") != "constant" or min(min(pair) for pair in around) < 0:
        return _taken(context, node)
    fill = int(constants[node.inputs[2]].reshape(())) if node.input(2) else 0
    return unnamed(context, shape.padded(context.builder, x, around, fill, None))


def _resize(context: Context, node: Node) -> Value:
    x, constants = context.value(node.inputs[0]), context.graph.constants
    how = resize_of(
        node, x.spec.shape, [None, *(constants[name] if name else None for name in node.inputs[1:])]
    )
    return unnamed(context, resize.resized_as(context.builder, x, how))


def _places(graph: Graph, node: Node) -> tuple[Array, float]:
    """Where each element of a movement's result comes from, and the fill."""
    spec = graph.specs[node.inputs[0]]
    numbers = np.arange(math.prod(spec.shape), dtype=np.int64).reshape(spec.shape)
    arrays: list[Array | None] = [
        numbers,
        *(graph.constants[name] if name else None for name in node.inputs[1:]),
    ]
    fill = 0.0
    if node.op == "Pad" and len(arrays) > 2:
        fill = float(there.reshape(())) if (there := arrays[2]) is not None else 0.0
        arrays[2] = np.array(-1, np.int64)
    elif node.op == "Pad":
        arrays += [np.array(-1, np.int64)]
    return compute(node, arrays)[0], fill


def _taken(context: Context, node: Node) -> Value:
    """Any movement, by the place that each element comes from."""
    places, fill = _places(context.graph, node)
    return take.taken(context.builder, context.value(node.inputs[0]), places, fill)


# -------------------------------------------------------------------------------------------------- the table


def _quantize(context: Context, node: Node) -> Value:
    y = quantized(context.builder, context.value(node.inputs[0]), node.attributes["y"])
    return unnamed(context, y)


def _any(graph: Graph, node: Node) -> str | None:
    return None


def _bytes_in(graph: Graph, node: Node) -> str | None:
    """All inputs 8-bit, of one type."""
    dtypes = {graph.specs[name].dtype for name in node.inputs if name}
    return (
        None
        if len(dtypes) == 1 and dtypes <= set(BYTES)
        else f"takes {', '.join(sorted(dtypes))}; both must be 8-bit numbers of one type"
    )


def _first_bytes(graph: Graph, node: Node) -> str | None:
    dtype = graph.specs[node.inputs[0]].dtype
    return None if dtype in BYTES else f"takes {dtype}; it must be int8 or uint8"


def _moves(graph: Graph, node: Node) -> str | None:
    """Where things go must be known now."""
    unknown = [name for name in node.inputs[1:] if name and name not in graph.constants]
    return (
        f"where its elements go depends on {unknown[0]!r}, which is computed at run time" if unknown else None
    )


ROWS: dict[str, Row] = {
    "Identity": Row(_any, lambda context, node: context.value(node.inputs[0])),
    "quantize": Row(_any, _quantize),
    "dequantize": Row(
        _any,
        lambda context, node: quantize.dequantized(
            context.builder, context.value(node.inputs[0]), node.attributes["x"]
        ),
    ),
    "conv2d": Row(_same_type, _layer(Conv2d, CONV)),
    "conv_transpose2d": Row(_same_type, _layer(ConvTranspose2d, TRANSPOSED)),
    "linear": Row(_same_type, _layer(Linear, ())),
    "matmul": Row(_any, _matmul),
    "add": Row(_bytes_in, _binary),
    "sub": Row(_bytes_in, _binary),
    "mul": Row(_bytes_in, _binary),
    "lookup": Row(_any, _lookup),
    "lookup2": Row(_bytes_in, _lookup2),
    "avg_pool2d": Row(_same_type, _avg_pool),
    "global_avg_pool2d": Row(_same_type, _global_avg_pool),
    "softmax": Row(_softmax_check, _softmax),
    "MaxPool": Row(_first_bytes, _max_pool),
    "Resize": Row(_first_bytes, _resize),
    "Reshape": Row(_any, _reshape),
    "Transpose": Row(_moves, _bytes_or_words(_transpose)),
    "Slice": Row(_moves, _slice),
    "Concat": Row(_any, _concat),
    "Pad": Row(_moves, _bytes_or_words(_pad)),
    **{name: Row(_moves, _taken) for name in ("Gather", "Expand", "Tile", "DepthToSpace", "SpaceToDepth")},
}
