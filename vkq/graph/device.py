"""How each operator of a graph runs on a device: through vkq's public operators.

A row says which nodes it takes (or why not, for the list of refusals), and records one. A node without a row,
or that its row refuses, cannot run on a device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from ..numerics.qparams import QParams
from ..ops import elementwise, pool, quantize, repack, resize, shape, softmax, table, tables, take
from ..ops.conv2d import Conv2d
from ..ops.conv_transpose2d import ConvTranspose2d
from ..ops.linear import Linear
from ..ops.matmul import matmul
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from .graph import Array, Graph, Node
from .operators.movement import margins, permutation, resize_of, slices, window
from .operators.quantized import CONV, TRANSPOSED, options
from .operators.table import compute

BYTES, WORDS = ("int8", "uint8"), ("float32", "int32")


@dataclasses.dataclass
class Context:
    """A graph being recorded on a device. ``layers`` keeps what is made of weights, also for other shapes."""

    graph: Graph
    device: Device
    layers: dict[Hashable, Any]
    values: dict[str, Tensor]

    def tensor(self, name: str) -> Tensor:
        """A value, without parameters of its own: what its numbers mean is said by the nodes that read it."""
        found = self.values.get(name)
        if found is None:
            array = self.graph.constants[name]
            found = self.keep(("constant", name), lambda: Tensor.from_numpy(array, self.device))
            self.values[name] = found
        return found

    def keep(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Something that is made once for all shapes of the inputs."""
        if key not in self.layers:
            self.layers[key] = make()
        return self.layers[key]


Record = Callable[[Context, Node], Tensor]
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


def unnamed(x: Tensor, q: QParams | None = None) -> Tensor:
    """The same numbers with other parameters, or none."""
    return x if x.qparams == q else Tensor(x.device, x.shape, x.dtype, x.layout, q, x.buffer)


# ------------------------------------------------------------------------------------------------- layers


def _same_type(graph: Graph, node: Node) -> str | None:
    x: QParams = node.attributes["x"]
    y: QParams | None = node.attributes["y"]
    if y is not None and y.dtype != x.dtype:
        return f"takes {x.dtype} and gives {y.dtype}; both must be of one type"
    return None


def _layer(kind: Any, names: tuple[str, ...]) -> Record:
    def record(context: Context, node: Node) -> Tensor:
        a, constants = node.attributes, context.graph.constants

        def make() -> Any:
            bias = constants[node.inputs[2]] if node.input(2) else None
            return kind(
                constants[node.inputs[1]], a["w_scale"], x_qparams=a["x"], y_qparams=a["y"], bias=bias,
                w_zero_point=a["w_zero_point"], activation=a["activation"], device=context.device,
                **options(node, names),
            )  # fmt: skip

        layer = context.keep((node.op, node.outputs[0], a["x"], a["y"]), make)
        return unnamed(layer(context.tensor(node.inputs[0])))

    return record


def _matmul(context: Context, node: Node) -> Tensor:
    a, b = (context.tensor(name) for name in node.inputs)
    at = node.attributes
    return unnamed(matmul(a, b, at["y"], a_qparams=at["a"], b_qparams=at["b"]))


# ------------------------------------------------------------------------------------------- element-wise


def _binary(context: Context, node: Node) -> Tensor:
    a = node.attributes
    operator = {"add": elementwise.add, "sub": elementwise.sub, "mul": elementwise.mul}[node.op]
    x, y = (context.tensor(name) for name in node.inputs)
    return unnamed(operator(x, y, a["y"], a_qparams=a["a"], b_qparams=a["b"], activation=a.get("activation")))


def _lookup(context: Context, node: Node) -> Tensor:
    a, x = node.attributes, context.tensor(node.inputs[0])
    if a["table"].ndim == 1 and a["table"].dtype.name in BYTES:
        return table.lookup_tensor(x, a["table"], None)
    return tables.lookup_axis_tensor(x, a["table"], a.get("axis", 0))


def _lookup2(context: Context, node: Node) -> Tensor:
    a, b = (context.tensor(name) for name in node.inputs)
    return unnamed(elementwise.pairs_tensor(a, b, node.attributes["table"]))


# ------------------------------------------------------------------------------------- images, probabilities


def _avg_pool(context: Context, node: Node) -> Tensor:
    a = node.attributes
    return unnamed(
        pool.avg_pool2d(
            context.tensor(node.inputs[0]), a["kernel"], a["stride"], a["padding"], ceil_mode=a["ceil_mode"],
            count_include_pad=a["count_include_pad"], x_qparams=a["x"], y_qparams=a["y"],
        )
    )  # fmt: skip


def _global_avg_pool(context: Context, node: Node) -> Tensor:
    a = node.attributes
    x = context.tensor(node.inputs[0])
    return unnamed(pool.global_avg_pool2d(x, x_qparams=a["x"], y_qparams=a["y"]))


def _max_pool(context: Context, node: Node) -> Tensor:
    x = context.tensor(node.inputs[0])
    how = window(node, x.shape)
    return unnamed(
        pool.max_pool2d(x, how.kernel, how.stride, how.padding, how.dilation, ceil_mode=how.ceil_mode)
    )


def _softmax(context: Context, node: Node) -> Tensor:
    a = node.attributes
    x = context.tensor(node.inputs[0])
    return unnamed(softmax.softmax(x, a["axis"], a["y"], x_qparams=a["x"], onnxruntime=a["onnxruntime"]))


def _softmax_check(graph: Graph, node: Node) -> str | None:
    rank = len(graph.specs[node.inputs[0]].shape)
    if node.attributes["y"] is None and node.attributes["axis"] not in (1 if rank == 4 else -1, rank - 1):
        return f"softmax to float32 along axis {node.attributes['axis']} of {rank}; transpose first"
    return _same_type(graph, node)


# ----------------------------------------------------------------------------------------------- movement


def _bytes_or_words(direct: Record) -> Record:
    """8-bit numbers by the operator's own way; wider ones, and more than four axes, element by element."""

    def record(context: Context, node: Node) -> Tensor:
        spec = context.graph.specs[node.inputs[0]]
        if spec.dtype in BYTES and len(spec.shape) <= 4:
            return direct(context, node)
        return _taken(context, node)

    return record


def _reshape(context: Context, node: Node) -> Tensor:
    x = context.tensor(node.inputs[0])
    return repack.reshape(x, context.graph.specs[node.outputs[0]].shape)


def _transpose(context: Context, node: Node) -> Tensor:
    x = context.tensor(node.inputs[0])
    return unnamed(shape.transpose(x, permutation(node, len(x.shape))))


def _slice(context: Context, node: Node) -> Tensor:
    x, constants = context.tensor(node.inputs[0]), context.graph.constants
    lists = [[int(v) for v in constants[name].reshape(-1)] if name else None for name in node.inputs[1:]]
    parts = [range(*s.indices(d)) for s, d in zip(slices(node, x.shape, lists), x.shape, strict=True)]
    return take.slice_tensor(x, parts)


def _concat(context: Context, node: Node) -> Tensor:
    xs = [context.tensor(name) for name in node.inputs]
    if len(xs) == 1:
        return xs[0]
    if xs[0].dtype in BYTES:
        return unnamed(shape.concat(xs, node.attributes["axis"]))
    return take.concat_words(xs, node.attributes["axis"])


def _pad(context: Context, node: Node) -> Tensor:
    x, constants = context.tensor(node.inputs[0]), context.graph.constants
    axes = [int(v) for v in constants[node.inputs[3]]] if node.input(3) else None
    around = margins(node, len(x.shape), [int(v) for v in constants[node.inputs[1]]], axes)
    if node.attributes.get("mode", "constant") != "constant" or min(min(pair) for pair in around) < 0:
        return _taken(context, node)
    fill = int(constants[node.inputs[2]].reshape(())) if node.input(2) else 0
    return unnamed(shape.pad(x, around, fill))


def _resize(context: Context, node: Node) -> Tensor:
    x, constants = context.tensor(node.inputs[0]), context.graph.constants
    how = resize_of(node, x.shape, [None, *(constants[name] if name else None for name in node.inputs[1:])])
    return unnamed(resize.resize_tensor(x, how))


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


def _taken(context: Context, node: Node) -> Tensor:
    """Any movement, by the place that each element comes from."""
    places, fill = _places(context.graph, node)
    return take.take_tensor(context.tensor(node.inputs[0]), places, fill)


# -------------------------------------------------------------------------------------------------- the table


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
    "Identity": Row(_any, lambda context, node: context.tensor(node.inputs[0])),
    "quantize": Row(
        _any,
        lambda context, node: unnamed(
            quantize.quantize(context.tensor(node.inputs[0]), node.attributes["y"])
        ),
    ),
    "dequantize": Row(
        _any, lambda context, node: quantize.dequantize(context.tensor(node.inputs[0]), node.attributes["x"])
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
