"""Random models: float operators between DequantizeLinear and QuantizeLinear.

Scales are powers of two and values are small, so that all real results are exact in float32. Therefore a
graph gives equal bytes before and after a pass. Zero points are even: sums, products and means (of vkq
and of ONNX Runtime) add zero points before they round, and with an odd zero point, ties would round in the
opposite direction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from vkq.graph.graph import Graph, Node, Spec
from vkq.graph.passes.constants import fold_constants

SHAPE = (2, 4, 5, 6)
FUNCTIONS = [
    "Relu",
    "Clip",
    "Abs",
    "Neg",
    "Add",
    "Mul",
    "Sub",
    "Sigmoid",
    "HardSwish",
    "channel",
    "both",
    "Identity",
    "Max",
]
MOVEMENTS = [
    "Transpose",
    "Slice",
    "Pad",
    "Flatten",
    "Split",
    "Gather",
    "MaxPool",
    "Resize",
    "Tile",
    "Expand",
    "Unsqueeze",
    "Concat",
]


class Builder:
    """A graph of ONNX's operators under construction."""

    def __init__(self, draw: Any, dtype: str, shape: tuple[int, ...] = SHAPE):
        self.draw, self.dtype = draw, dtype
        self.random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        self.nodes: list[Node] = []
        self.constants: dict[str, Any] = {}
        self.specs = {"x": Spec(dtype, shape)}
        self.shapes = {"x": shape}
        self.scales = {"x": 0.25}

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        self.specs[name] = Spec.of(self.constants[name])
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(Node(kind, inputs, (name,), attributes, f"n{len(self.nodes)}"))
        return name

    def parameters(self, scale: float) -> tuple[str, str]:
        zero = self.draw(st.sampled_from([0, 2, -128 if self.dtype == "int8" else 0]))
        return self.constant(np.float32(scale)), self.constant(np.array(zero, self.dtype))

    def real(self, x: str, scale: float) -> tuple[str, tuple[str, str]]:
        pair = self.parameters(scale)
        return self.op("DequantizeLinear", x, *pair), pair

    def stored(self, x: str, scale: float | None = None, pair: tuple[str, str] | None = None) -> str:
        return self.op("QuantizeLinear", x, *(pair or self.parameters(scale or 0.5)))

    def graph(self, *outputs: str) -> Graph:
        raw = Graph(["x"], list(outputs), self.nodes, self.constants, self.specs)
        return fold_constants(raw)

    def weight(self, *shape: int, axis: int = 0) -> str:
        data = self.constant(self.random.integers(-7, 8, shape).astype(np.int8))
        if self.draw(st.booleans()):
            scales = 2.0 ** self.random.integers(-4, 0, shape[axis])
            zeros = self.constant(np.zeros(shape[axis], np.int8))
            scale = self.constant(scales.astype(np.float32))
            return self.op("DequantizeLinear", data, scale, zeros, axis=axis)
        return self.op("DequantizeLinear", data, self.constant(np.float32(0.125)))


def elementwise(b: Builder, x: str, shape: tuple[int, ...]) -> str:
    """Add one to four element-wise float operators in sequence; return the name of the result."""
    for _ in range(b.draw(st.integers(1, 4))):
        kind = b.draw(st.sampled_from(FUNCTIONS))
        if kind in ("Relu", "Abs", "Neg", "Sigmoid", "HardSwish", "Identity"):
            x = b.op(kind, x)
        elif kind == "Clip":
            x = b.op("Clip", x, b.constant(np.float32(-1)), b.constant(np.float32(6)))
        elif kind == "channel":
            c = b.constant((b.random.integers(-4, 5, (shape[1], 1, 1)) / 4).astype(np.float32))
            x = b.op(b.draw(st.sampled_from(["Add", "Mul"])), x, c)
        elif kind == "both":
            x = b.op(b.draw(st.sampled_from(["Add", "Mul", "Max"])), x, b.op("Relu", x))
        else:
            x = b.op(kind, x, b.constant(np.float32(b.draw(st.sampled_from([0.5, -1.0, 2.0])))))
    return x


def movement(b: Builder, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Add an operator that moves data (Transpose, Slice, Pad, ...); return its result's name and shape."""
    n, c, h, w = shape
    kind = b.draw(st.sampled_from(MOVEMENTS))
    ints = lambda *v: b.constant(np.array(v, np.int64))  # noqa: E731
    if kind == "Transpose":
        perm = b.draw(st.permutations(range(4)))
        return b.op("Transpose", x, perm=tuple(perm)), tuple(shape[a] for a in perm)
    if kind == "Slice":
        return b.op("Slice", x, ints(1), ints(100), ints(2), ints(2)), (n, c, len(range(1, h, 2)), w)
    if kind == "Pad":
        return b.op("Pad", x, ints(0, 1, 0, 2, 0, 0, 1, 0)), (n, c + 1, h + 1, w + 2)
    if kind == "Flatten":
        flat = b.op("Flatten", x, axis=2)
        return b.op("Reshape", flat, ints(n, c, h, w)), shape
    if kind == "Split":
        name = f"v{len(b.nodes)}"
        b.nodes.append(Node("Split", (x, ints(1, c - 1)), (name, f"{name}b"), {"axis": 1}, "split"))
        return f"{name}b", (n, c - 1, h, w)
    if kind == "Gather":
        return b.op("Gather", x, ints(1, 0, 1), axis=0), (3, c, h, w)
    if kind == "MaxPool":
        return b.op("MaxPool", x, kernel_shape=(2, 2)), (n, c, h - 1, w - 1)
    if kind == "Resize":
        scales = b.constant(np.array([1, 1, 2, 2], np.float32))
        return b.op("Resize", x, "", scales, mode="nearest"), (n, c, 2 * h, 2 * w)
    if kind == "Tile":
        return b.op("Tile", x, ints(1, 2, 1, 1)), (n, 2 * c, h, w)
    if kind == "Expand":
        return b.op("Expand", x, ints(n, c, h, w)), shape
    if kind == "Unsqueeze":
        return b.op("Squeeze", b.op("Unsqueeze", x, ints(0)), ints(0)), shape
    return b.op("Concat", x, x, axis=1), (n, 2 * c, h, w)


def residual(b: Builder, x: str, shape: tuple[int, ...]) -> str:
    """Add a convolution of x, and its sum with x or with a second convolution of x; return the
    sum's name."""
    sides = [x]
    for _ in range(b.draw(st.integers(1, 2))):
        y = b.op("Conv", x, b.weight(shape[1], shape[1], 3, 3), pads=(1, 1, 1, 1))
        if b.draw(st.booleans()):
            y = elementwise(b, b.real(b.stored(y, 1.0), 1.0)[0], shape)
        sides.append(b.real(b.stored(y, 1.0), 1.0)[0])
    one, two = sides[-1], sides[-2]
    return b.op("Add", *((one, two) if b.draw(st.booleans()) else (two, one)))


@st.composite
def models(draw: Any) -> Graph:
    """Draw a graph with an 8-bit input and 8-bit or float32 results, with all operators that the passes
    handle."""
    b = Builder(draw, draw(st.sampled_from(["int8", "uint8"])))
    q, shape, scale = "x", SHAPE, 0.25
    for _ in range(draw(st.integers(1, 4))):
        x, pair = b.real(q, scale)
        kind = draw(
            st.sampled_from(
                ["elementwise", "movement", "conv", "add", "pool", "two", "where", "mixed", "residual"]
            )
        )
        new = scale
        if kind == "elementwise":
            x = elementwise(b, x, shape)
        elif kind == "movement":
            x, shape = movement(b, x, shape)
            pair = pair if draw(st.booleans()) else None  # None: new quantization parameters for x
        elif kind == "conv":
            x = b.op("Conv", x, b.weight(3, shape[1], 3, 3), pads=(1, 1, 1, 1))
            x = b.op("Relu", x) if draw(st.booleans()) else x
            shape, new = (shape[0], 3, *shape[2:]), 4.0
        elif kind == "residual":
            x = residual(b, x, shape)
        elif kind == "add":
            other, _ = b.real(b.stored(b.op("Relu", x), 0.25), 0.25)
            x = b.op(draw(st.sampled_from(["Add", "Mul"])), x, other)
        elif kind == "two":
            other, _ = b.real(b.stored(b.op("Relu", x), 0.25), 0.25)
            x = b.op(draw(st.sampled_from(["Sub", "Max", "Min"])), x, other)
        elif kind == "where":
            other, _ = b.real(b.stored(b.op("Abs", x), 0.25), 0.25)
            chosen = b.constant(b.random.integers(0, 2, shape[1:]).astype(bool))
            x = b.op("Where", chosen, x, other)
        elif kind == "pool":
            x = b.op("AveragePool", x, kernel_shape=(2, 2), count_include_pad=1)
            shape = (*shape[:2], shape[2] - 1, shape[3] - 1)
        else:
            x, shape = movement(b, b.op("Relu", x), shape)
        if kind != "movement" or pair is None:
            scale = new if draw(st.booleans()) else 0.5
            pair = None
        q = b.stored(x, scale, pair)
        if min(shape) < 2 or len(shape) != 4:
            break
    if draw(st.booleans()):
        return b.graph(q)
    x, _ = b.real(q, scale)
    return b.graph(q, x)
