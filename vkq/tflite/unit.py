"""L2_NORMALIZATION of int8 values, with the integer steps of LiteRT's own kernel. `roots` has the same steps
in NumPy."""

from __future__ import annotations

import numpy as np

from ..numerics.fixed import coded
from .file import FileOperator
from .lowering import Lowering, Unsupported

MOST_ELEMENTS = 1 << 13  # of a row: the sum of their squares is below 2^29
PAIRS = 14  # the sum of squares is shifted left by at most this many pairs of bits
RESULT_BITS = 7  # a result is in units of 1 / 128
START, THREE, HALF_ROOT = 1 << 28, 3 << 27, 1518500250  # 1, 1.5 and sqrt(1/2) in fixed point
NEWTON_STEPS, LARGEST = 5, (1 << 31) - 1


def unit_rows(low: Lowering, operator: FileOperator) -> str:
    """Emit each row of x, divided by its norm. Return the result's name."""
    x, y = low.q(operator.inputs[0]), low.q(operator.outputs[0])
    shape = low.shape(operator.inputs[0])
    if x.dtype != "int8" or (y.dtype, y.scale, y.zero_point) != ("int8", 1 / 128, 0):
        raise Unsupported(f"x has {x} and y {y}; both must be int8, and y in units of 1/128")
    if shape[-1] > MOST_ELEMENTS:
        raise Unsupported(f"its rows have {shape[-1]} elements; vkq takes at most {MOST_ELEMENTS}")
    wide = low.emit("Cast", [low.last_of(operator.inputs[0])], to="int32")
    wide = low.emit("Sub", [wide, _number(low, x.zero_point)])
    axes = low.constant(np.array([len(shape) - 1]), "axes")
    total = low.emit("ReduceSum", [low.emit("Mul", [wide, wide]), axes], keepdims=1)
    ends = [_number(low, v) for v in (y.qmin, y.qmax)]
    result = low.emit("fixed_point", [wide, *_inverse_root(low, total)])
    return low.emit("Cast", [low.emit("Clip", [result, *ends])], to="int8")


def _number(low: Lowering, value: int) -> str:
    return low.constant(np.int32(value), "number")


def _inverse_root(low: Lowering, total: str) -> tuple[str, str]:
    """Emit the multiplier and the encoded shift for 1 / sqrt(total), times 2 ** RESULT_BITS. Return the names
    of both."""
    limits = np.array([1 << (29 - 2 * n) for n in range(1, PAIRS + 1)], np.int32)
    rank = len(low.specs[total].shape)
    below = low.emit("Less", [total, low.constant(limits, "limits")])
    axes = low.constant(np.array([rank - 1]), "axes")
    pairs = low.emit("ReduceSum", [low.emit("Cast", [below], to="int32"), axes], keepdims=1)
    one = low.emit("LessOrEqual", [total, _number(low, 1)])
    scaled = low.emit("Mul", [total, _looked_up(low, [4**n for n in range(PAIRS + 1)], pairs)])
    half = low.emit("Div", [scaled, _number(low, 2)])
    half = low.emit("Div", [low.emit("Add", [half, _number(low, 1)]), _number(low, 2)])
    root = _number(low, START)
    for _ in range(NEWTON_STEPS):
        cube = _product(low, _product(low, root, root), root)
        cube = low.emit("Mul", [cube, _number(low, 1 << 6)])
        parts = [_product(low, _number(low, THREE), root), _product(low, half, cube)]
        root = low.emit("Mul", [low.emit("Sub", parts), _number(low, 1 << 3)])
    shifts = [11 - n for n in range(PAIRS + 1)]
    lift = _looked_up(low, [1 << max(-s, 0) for s in shifts], pairs)
    whole = low.emit("Mul", [_product(low, root, _number(low, HALF_ROOT)), lift])
    codes = _looked_up(low, [coded(RESULT_BITS - max(s, 0)) for s in shifts], pairs)
    first = low.emit("Where", [one, _number(low, LARGEST), whole])
    return first, low.emit("Where", [one, _number(low, coded(RESULT_BITS)), codes])


def _product(low: Lowering, a: str, b: str) -> str:
    return low.emit("fixed_point", [a, b, _number(low, coded(0))])


def _looked_up(low: Lowering, table: list[int], places: str) -> str:
    return low.emit("Gather", [low.constant(np.array(table, np.int32), "table"), places], axis=0)
