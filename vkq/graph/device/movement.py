"""Movement operators on a device. Some have special kernels. The others gather elements by an index list: for
each element of the result, the list has the index of the source element."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...kernels.repack import reshaped
from ...kernels.strided import contiguous, strided
from ...layout.extent import BLOCKED, Spec
from ...ops import resize, shape, take
from ...runtime.builder import Value
from ..graph import Array, Graph, Node
from ..operators.images import resize_of
from ..operators.movement import margins, permutation, slices
from ..operators.operator import axis_of
from ..operators.table import compute
from . import pairs
from .context import (
    BYTES,
    Context,
    DeviceOperator,
    Record,
    anything,
    first_is_bytes,
    parameters_are_constant,
    unnamed,
)
from .layouts import wanted


def _bytes_or_words(direct: Callable[[Context, Node], Value]) -> Record:
    """Return a function for the operator table. The function calls *direct* for 8-bit arrays of at most four
    axes, and copies all other arrays by an index list."""

    def record(context: Context, node: Node) -> Value:
        spec = context.graph.specs[node.inputs[0]]
        if spec.dtype in BYTES and len(spec.shape) <= 4:
            return direct(context, node)
        return _by_indices(context, node)

    return record


def _by_strides(
    of: Callable[[Context, Node], tuple[tuple[int, ...], tuple[int, ...]]], otherwise: Record
) -> Record:
    """Return a function for the operator table. The function calls *otherwise* for 8-bit arrays. It copies
    arrays of wider elements with the sizes and strides that *of* returns."""

    def record(context: Context, node: Node) -> Value | tuple[Value, ...]:
        x = context.value(node.inputs[0])
        if x.spec.dtype in BYTES:
            return otherwise(context, node)
        y = strided(context.builder, x, *of(context, node))
        return reshaped(context.builder, y, context.graph.specs[node.outputs[0]].shape)

    return record


def _transpose(context: Context, node: Node) -> Value:
    x = context.value(node.inputs[0])
    return unnamed(context, shape.transposed(context.builder, x, permutation(node, len(x.spec.shape))))


def _permute(context: Context, node: Node) -> Value:
    a, b, x = node.attributes, context.builder, context.value(node.inputs[0])
    layout = wanted(context, node.outputs[0])
    return unnamed(context, shape.permuted_as(b, x, a["shape"], a["perm"], a["to"], layout))


def _transposed(context: Context, node: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    given = context.graph.specs[node.inputs[0]].shape
    own, perm = contiguous(given), permutation(node, len(given))
    return tuple(given[a] for a in perm), tuple(own[a] for a in perm)


def _expanded(context: Context, node: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    given, whole = (context.graph.specs[name].shape for name in (node.inputs[0], node.outputs[0]))
    own = (*(0,) * (len(whole) - len(given)), *contiguous(given))
    padded = (*(1,) * (len(whole) - len(given)), *given)
    return whole, tuple(0 if d == 1 else s for d, s in zip(padded, own, strict=True))


def _tiled(context: Context, node: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes and the strides with which a Tile reads its input. Each axis of the input becomes two
    axes: one for the repeats, with the stride 0, and one for the elements."""
    given = context.graph.specs[node.inputs[0]].shape
    repeats = context.graph.constants[node.inputs[1]].reshape(-1).tolist()
    pairs = list(zip(repeats, given, contiguous(given), strict=True))
    return tuple(n for r, d, _ in pairs for n in (r, d)), tuple(n for *_, s in pairs for n in (0, s))


def _slice(context: Context, node: Node) -> Value:
    x, constants = context.value(node.inputs[0]), context.graph.constants
    lists = [[int(v) for v in constants[name].reshape(-1)] if name else None for name in node.inputs[1:]]
    dims = x.spec.shape
    parts = [range(*s.indices(d)) for s, d in zip(slices(node, dims, lists), dims, strict=True)]
    return take.sliced(context.builder, x, parts)


# Operators whose result never shares the memory of an input.
READERS = ("conv2d", "MaxPool", "avg_pool2d", "global_avg_pool2d", "mean_lookup", "Concat")


def _in_place(context: Context, node: Node, xs: list[Value]) -> Value | None:
    """Concatenate along channels in kPackedInt8_16C without a copy. In this layout blocks of channels are
    contiguous, so that the dispatches that compute the inputs can write directly into the result. Return None
    if that is not possible."""
    spec = context.graph.specs[node.outputs[0]]
    channels = len(spec.shape) == 4 and node.attributes["axis"] in (1, -3)
    whole = all(x.spec.layout == BLOCKED and x.spec.shape[1] % 16 == 0 for x in xs[:-1])
    if not channels or not whole or xs[-1].spec.layout != BLOCKED:
        return None
    alone = all(len(context.names(x)) == 1 for x in xs)
    if not alone or not all(_read_as_it_is(context, name) for name in (*node.inputs, node.outputs[0])):
        return None
    return context.builder.joined(xs, Spec(spec.shape, spec.dtype, BLOCKED))


def _read_as_it_is(context: Context, name: str) -> bool:
    """Return True if a value is not a graph result, and no reader's result shares the value's memory."""
    readers = context.readers(name)
    return name not in context.results and all(
        node.op in READERS and (node.op != "Concat" or len(node.inputs) > 1) for node in readers
    )


def _concat(context: Context, node: Node) -> Value:
    xs = context.in_one_layout(node.inputs)
    if len(xs) == 1:
        return xs[0]
    if xs[0].spec.dtype in BYTES:
        if (whole := _in_place(context, node, xs)) is not None:
            return whole
        return unnamed(context, shape.concatenated(context.builder, xs, node.attributes["axis"]))
    return take.concatenated_words(context.builder, xs, node.attributes["axis"])


def _pad(context: Context, node: Node) -> Value:
    x, constants = context.value(node.inputs[0]), context.graph.constants
    axes = [int(v) for v in constants[node.inputs[3]]] if node.input(3) else None
    around = margins(node, len(x.spec.shape), [int(v) for v in constants[node.inputs[1]]], axes)
    if node.attributes.get("mode", "constant") != "constant" or min(min(pair) for pair in around) < 0:
        return _by_indices(context, node)
    fill = int(constants[node.inputs[2]].reshape(())) if node.input(2) else 0
    return unnamed(context, shape.padded(context.builder, x, around, fill, None))


def _resize(context: Context, node: Node) -> Value:
    x, constants = context.value(node.inputs[0]), context.graph.constants
    how = resize_of(
        node, x.spec.shape, [None, *(constants[name] if name else None for name in node.inputs[1:])]
    )
    if x.spec.dtype not in BYTES:
        numbers = take.numbers(context.builder, x.spec.shape, math.prod(how.y_shape))
        return take.gather(context.builder, x, numbers[:, :, how.nearest(0)][..., how.nearest(1)])
    return unnamed(context, resize.resized_as(context.builder, x, how, node.attributes.get("real")))


def _resize_check(graph: Graph, node: Node) -> str | None:
    """Return the reason why a Resize cannot run, or None. Linear interpolation needs 8-bit elements; the
    other modes copy elements of any width."""
    return first_is_bytes(graph, node) if node.attributes.get("mode", "nearest") == "linear" else None


def _sources(context: Context, node: Node) -> tuple[Array, float]:
    """Return (indices, fill) of a movement.

    - indices: for each element of the result, the index of its source element in the input, or -1 for padding
    - fill: the value of the padding"""
    graph = context.graph
    shapes = [graph.specs[name].shape for name in (node.inputs[0], node.outputs[0])]
    numbers = take.numbers(context.builder, shapes[0], math.prod(shapes[1]))
    arrays: list[Array | None] = [
        numbers,
        *(graph.constants[name] if name else None for name in node.inputs[1:]),
    ]
    fill = 0.0
    if node.op == "Pad" and len(arrays) > 2:
        constant = node.attributes.get("mode", "constant") == "constant"
        fill = float(there.reshape(())) if constant and (there := arrays[2]) is not None else 0.0
        arrays[2] = np.array(-1, np.int32)
    elif node.op == "Pad":
        arrays += [np.array(-1, np.int32)]
    return compute(node, arrays)[0], fill


def _by_indices(context: Context, node: Node) -> Value:
    """Add a movement that copies by an index list."""
    places, fill = _sources(context, node)
    return take.gather(context.builder, context.value(node.inputs[0]), places, fill)


def _gather(context: Context, node: Node) -> Value:
    if node.inputs[1] in context.graph.constants:
        return _by_indices(context, node)
    if (both := pairs.embedded(context, node)) is not None:
        return both
    x, ids = context.value(node.inputs[0]), context.value(node.inputs[1])
    return unnamed(context, take.gathered(context.builder, x, ids, axis_of(node, len(x.spec.shape), 0)))


def _gather_check(graph: Graph, node: Node) -> str | None:
    dtype = graph.specs[node.inputs[1]].dtype
    if node.inputs[1] in graph.constants or dtype == "int32":
        return None
    return f"selects elements by {dtype} indices; run-time indices must be int32"


ROWS: dict[str, DeviceOperator] = {
    "Gather": DeviceOperator(_gather_check, _gather),
    "Resize": DeviceOperator(_resize_check, _resize),
    "Transpose": DeviceOperator(
        parameters_are_constant, _by_strides(_transposed, _bytes_or_words(_transpose))
    ),
    "permute": DeviceOperator(anything, _permute, BYTES),
    "Expand": DeviceOperator(parameters_are_constant, _by_strides(_expanded, _by_indices)),
    "Tile": DeviceOperator(parameters_are_constant, _by_strides(_tiled, _by_indices)),
    "Slice": DeviceOperator(parameters_are_constant, _slice),
    "Concat": DeviceOperator(anything, _concat),
    "Pad": DeviceOperator(parameters_are_constant, _bytes_or_words(_pad)),
    **{
        name: DeviceOperator(parameters_are_constant, _by_indices)
        for name in ("DepthToSpace", "SpaceToDepth")
    },
}
