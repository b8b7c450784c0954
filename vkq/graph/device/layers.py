"""Layers on a device: linear layers and convolutions, with their epilogues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...kernels.after import AS_NUMBERS, NOTHING, After, through_table
from ...kernels.binary import sum_after
from ...numerics.elementwise import swaps
from ...numerics.stored import signed
from ...ops import elementwise
from ...ops.conv2d import Conv2d
from ...ops.conv_transpose2d import ConvTranspose2d
from ...ops.linear import Linear
from ...runtime.builder import Value
from ...schemes.base import COMPUTE
from ...select.path import COOPMAT
from ..graph import Graph, Node
from ..operators.quantized import CONV, OWN, TRANSPOSED, options
from .context import OF_LAYERS, Context, DeviceOperator, same_type, unnamed

# A convolution on matrix units whose result has at least this many bytes leaves the addition of a residual to
# a second dispatch. Measured times (benchmarks/log.md):
# - result of 25.7 MB: 59 to 77 us with the addition in the epilogue, 37 us without an addition
# - result of 12.8 MB: 28.3 us with the addition in the epilogue, 33 us with a separate addition
SUM_APART_BYTES = 16 << 20


def _made(context: Context, node: Node, kind: Any, names: tuple[str, ...]) -> Any:
    a, constants = node.attributes, context.graph.constants
    bias = constants[node.inputs[2]] if node.input(2) else None
    return kind(
        constants[node.inputs[1]], a["w_scale"], x_qparams=a["x"], y_qparams=a["y"], bias=bias,
        w_zero_point=a["w_zero_point"], activation=a["activation"], overflow="wrap",
        device=context.builder.device, compute=context.compute if a["x"] is None else COMPUTE[0],
        **options(node, names),
    )  # fmt: skip


def _kept(context: Context, node: Node, kind: Any, names: tuple[str, ...], apart: bool = False) -> Any:
    """Return the cached layer of a node. *kind*: the layer's class. *names*: the node's attributes that are
    arguments of this class. If *apart*, the epilogue of the layer leaves out the residual addition."""
    a, shape = node.attributes, context.graph.specs[node.outputs[0]].shape

    def made() -> Any:
        layer = _made(context, node, kind, names)
        after = _after(node, shape, apart)
        if after is not NOTHING:
            layer.finish(after)
        return layer

    key = (node.op, node.outputs[0], a["x"], a["y"], apart)
    return context.keep(key, made, *_of(context, node), swaps(shape, shape))


def _of(context: Context, node: Node) -> tuple[Any, ...]:
    """Return the attributes, the weight and the bias of a layer's node. `Context.keep` makes the layer
    again if one of these three changes with the input shapes."""
    constants = context.graph.constants
    return node.attributes, constants[node.inputs[1]], constants[node.inputs[2]] if node.input(2) else None


def conv_of(context: Context, node: Node, apart: bool = False) -> Conv2d:
    """Return the layer of a conv2d node. If *apart*, its epilogue leaves out the residual addition."""
    layer: Conv2d = _kept(context, node, Conv2d, CONV, apart)
    return layer


def linear_of(context: Context, node: Node, apart: bool = False) -> Linear:
    """Return the layer of a linear node. If *apart*, its epilogue leaves out the residual addition."""
    layer: Linear = _kept(context, node, Linear, (), apart)
    return layer


def convolved(context: Context, node: Node, layout: str | None) -> Value:
    """Add a conv2d with its epilogue to the plan. The result has the layout *layout* if the layer can write
    it."""
    b, x = context.builder, context.value(node.inputs[0])
    return _finished(context, node, conv_of, lambda layer, other: layer.build(b, x, other, layout))


def multiplied(context: Context, node: Node) -> Value:
    """Add a linear layer with its epilogue to the plan."""
    b, x = context.builder, context.value(node.inputs[0])
    return _finished(context, node, linear_of, lambda layer, other: layer.build(b, x, other))


def _transposed(context: Context, node: Node) -> Value:
    layer: ConvTranspose2d = _kept(context, node, ConvTranspose2d, TRANSPOSED)
    return unnamed(context, layer.build(context.builder, context.value(node.inputs[0])))


def _finished(
    context: Context, node: Node, layer_of: Callable[..., Any], build: Callable[[Any, Value | None], Value]
) -> Value:
    """Add a layer with its epilogue to the plan. ``build(layer, residual)`` adds the dispatch of the layer.
    If the residual is not None, the dispatch adds the residual to the result, and writes the sum over the
    residual. A residual that must not be overwritten is added by a second dispatch."""
    b, x = context.builder, context.value(node.inputs[0])
    other = context.value(node.inputs[3]) if node.input(3) else None
    # The kernel may overwrite the residual with the sum if no other node reads the residual.
    alone = other is not None and b.made(other) and not b.shares(other) and other.slot != x.slot
    apart = other is not None and (
        not alone or context.read_later(node, other) or _large(context, node, layer_of)
    )
    y = unnamed(context, build(layer_of(context, node, apart), None if apart else other))
    if other is None or not apart:
        return y
    last: Node = node.attributes["after"][-1]
    of = last.attributes
    op: Any = last.op
    one, two = (y, other) if last.inputs[0] == OWN else (other, y)
    summed = elementwise.combined(b, one, two, op, of["a"], of["b"], of["y"], of.get("activation"))
    return unnamed(context, summed)


def _large(context: Context, node: Node, layer_of: Callable[..., Any]) -> bool:
    """Return True if a layer computes a result of at least SUM_APART_BYTES on matrix units. Such a layer uses
    the widest tile, which leaves no registers for a residual."""
    size = context.graph.specs[node.outputs[0]].nbytes
    return size >= SUM_APART_BYTES and layer_of(context, node, True).choice().path == COOPMAT


def only_reader(context: Context, node: Node) -> Node | None:
    """Return the only reader of a node's result, if this reader is a convolution that reads the result as its
    image and has no residual. Otherwise, return None."""
    name = node.outputs[0]
    readers = context.readers(name)
    # ``uses`` also counts a graph result, which has no reader
    if len(readers) != 1 or context.uses[name] != 1:
        return None
    if readers[0].op != "conv2d" or readers[0].inputs[0] != name:
        return None
    return None if readers[0].input(3) else readers[0]


def _after(node: Node, shape: tuple[int, ...], apart: bool = False) -> After:
    """Return the epilogue of a layer whose results have the shape *shape*. If *apart*, leave out the
    residual addition."""
    found = NOTHING
    for step in node.attributes.get("after", ()):
        a = step.attributes
        if step.op == "dequantize":
            found = AS_NUMBERS
        elif step.op == "lookup":
            found = through_table(signed(a["table"]), node.attributes["y"])
        elif not apart:
            first = step.inputs[0] == OWN
            own, other = (a["a"], a["b"]) if first else (a["b"], a["a"])
            found = found.then(sum_after(step.op, own, other, a["y"], a.get("activation"), first, shape))
    return found


def prepare(graph: Graph) -> None:
    """Compute and cache the formulas and tables of all residual additions of a graph."""
    for node in graph.nodes:
        if node.input(3) and node.op in ("conv2d", "linear"):
            _after(node, graph.specs[node.outputs[0]].shape).words()


ROWS: dict[str, DeviceOperator] = {
    "conv_transpose2d": DeviceOperator(same_type, _transposed, OF_LAYERS),
}
