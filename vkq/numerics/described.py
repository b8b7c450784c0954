"""Element-wise operators on float32, float16, int32 and bool by their ONNX names, described once for NumPy
and devices (`vkq.numerics.steps`).

float16 operands are computed in float32, and each operator's result is rounded to float16.
`vkq.numerics.halves` has versions of some of these operators with fewer steps and the same bits. int32
arithmetic wraps, and an int32 division by zero gives 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import elementary as e
from . import halves
from .arcs import (
    arccosine,
    arcsine,
    arctangent,
    hyperbolic_cosine,
    hyperbolic_sine,
    inverse_hyperbolic_cosine,
    inverse_hyperbolic_sine,
    inverse_hyperbolic_tangent,
)
from .circular import cosine, sine, tangent
from .exponential import celu, elu, exp, log, mish, selu, sigmoid, softplus, swish, tanh
from .fixed import fixed_product
from .normal import erf, gelu, gelu_tanh
from .powers import power
from .rational import add, divide, multiply, square_root, subtract
from .steps import DTYPES, INFINITY, Array, Computed, Kind, Number, flushed, is_nan, magnitude

Attributes = Mapping[str, Any]
Function = Callable[..., Number]  # called with (attributes, operand, operand, ...)
KINDS: dict[str, Kind] = {"float32": "f", "float16": "f", "int32": "i", "bool": "b"}
CASTS = (*KINDS, "int8", "uint8")  # the types that `cast` converts to


def _plain(f: Callable[..., Number]) -> Function:
    return lambda a, *x: f(*x)


def _with(f: Callable[..., Number], *names: str) -> Function:
    """Return an operator that passes the node's attributes *names*, rounded to float32, to f."""
    return lambda a, x: f(x, **{name: float(np.float32(a[name])) for name in names if name in a})


def _folded(f: Callable[[Number, Number], Number]) -> Function:
    return lambda a, *x: functools.reduce(f, x)


def _mean(a: Attributes, *x: Number) -> Number:
    return divide(functools.reduce(add, x), x[0].of(float(len(x))))


def _is_infinite(a: Attributes, x: Number) -> Number:
    up, down = x.u.equals(INFINITY), x.u.equals(INFINITY | 0x80000000)
    found = x.of(False, "b")
    found = found | up if a.get("detect_positive", 1) else found
    return found | down if a.get("detect_negative", 1) else found


def _gelu(a: Attributes, x: Number) -> Number:
    return gelu_tanh(x) if a.get("approximate", "none") == "tanh" else gelu(x)


def _clip(a: Attributes, x: Number, *bounds: Number) -> Number:
    """Clip x. *bounds*: the bounds that the node has as operands; the attribute ``bounds`` has their names
    ("min", "max")."""
    for name, bound in zip(a["bounds"], bounds, strict=True):
        x = (e.maximum if name == "min" else e.minimum)(x, bound)
    return x


REAL: dict[str, Function] = {
    "Add": _folded(add), "Sub": _plain(subtract), "Mul": _plain(multiply), "Div": _plain(divide),
    "Pow": _plain(power), "Mod": _plain(e.remainder), "PRelu": _plain(e.prelu), "Sum": _folded(add),
    "Max": _folded(e.maximum), "Min": _folded(e.minimum), "Mean": _mean, "Clip": _clip,
    "Exp": _plain(exp), "Log": _plain(log), "Sin": _plain(sine), "Cos": _plain(cosine),
    "Tan": _plain(tangent), "Asin": _plain(arcsine), "Acos": _plain(arccosine), "Atan": _plain(arctangent),
    "Sinh": _plain(hyperbolic_sine), "Cosh": _plain(hyperbolic_cosine),
    "Asinh": _plain(inverse_hyperbolic_sine), "Acosh": _plain(inverse_hyperbolic_cosine),
    "Atanh": _plain(inverse_hyperbolic_tangent),
    "Tanh": _plain(tanh), "Sigmoid": _plain(sigmoid), "Softplus": _plain(softplus), "Mish": _plain(mish),
    "Erf": _plain(erf), "Gelu": _gelu, "Swish": _with(swish, "alpha"), "Elu": _with(elu, "alpha"),
    "QuickGelu": lambda a, x: swish(x, float(np.float32(a.get("alpha", 1.702)))),
    "Selu": _with(selu, "alpha", "gamma"), "Celu": _with(celu, "alpha"),
    "HardSigmoid": _with(e.hard_sigmoid, "alpha", "beta"), "HardSwish": _plain(e.hard_swish),
    "LeakyRelu": _with(e.leaky_relu, "alpha"), "ThresholdedRelu": _with(e.thresholded_relu, "alpha"),
    "Relu": lambda a, x: e.maximum(x, x.of(0.0)), "Softsign": _plain(e.softsign),
    "Sqrt": _plain(square_root), "Reciprocal": lambda a, x: divide(x.of(1.0), x),
    "Floor": _plain(e.floor), "Ceil": _plain(e.ceil), "Round": _plain(e.round_even), "Sign": _plain(e.sign),
    "Abs": _plain(magnitude), "Neg": lambda a, x: -x, "Identity": lambda a, x: x,
}  # fmt: skip
TESTS: dict[str, Function] = {  # operators on floats that return bool
    "Equal": _plain(e.equal), "Less": _plain(e.less), "LessOrEqual": _plain(e.less_or_equal),
    "Greater": lambda a, x, y: e.less(y, x), "GreaterOrEqual": lambda a, x, y: e.less_or_equal(y, x),
    "IsNaN": _plain(is_nan), "IsInf": _is_infinite,
}  # fmt: skip


def _size(x: Number) -> Number:
    return (x < 0).where(x.of(0) - x, x)


def _quotient(a: Attributes, x: Number, y: Number) -> Number:
    """Return x / y, truncated toward zero; 0 if y is 0."""
    size = _size(x).u.divided(y.equals(0).where(1, _size(y)).u).i
    found = ((x ^ y) < 0).where(x.of(0) - size, size)
    return y.equals(0).where(0, found)


def _modulo(a: Attributes, x: Number, y: Number) -> Number:
    """Return x - q * y, where q is x / y rounded toward minus infinity, or toward zero with ``fmod``; 0 if
    y is 0."""
    rest = x - _quotient(a, x, y) * y
    if not a.get("fmod", 0):
        rest = (~rest.equals(0) & ((rest ^ y) < 0)).where(rest + y, rest)
    return y.equals(0).where(0, rest)


def _larger(x: Number, y: Number) -> Number:
    return (x < y).where(y, x)


def _smaller(x: Number, y: Number) -> Number:
    return (y < x).where(y, x)


def _clip_whole(a: Attributes, x: Number, *bounds: Number) -> Number:
    for name, bound in zip(a["bounds"], bounds, strict=True):
        x = (_larger if name == "min" else _smaller)(x, bound)
    return x


WHOLE: dict[str, Function] = {
    "Add": lambda a, x, y: x + y, "Sub": lambda a, x, y: x - y, "Mul": lambda a, x, y: x * y,
    "Div": _quotient, "Mod": _modulo, "Sum": _folded(lambda x, y: x + y), "Max": _folded(_larger),
    "Min": _folded(_smaller), "Clip": _clip_whole, "Abs": lambda a, x: _size(x),
    "Neg": lambda a, x: x.of(0) - x, "Relu": lambda a, x: _larger(x, x.of(0)),
    "Sign": lambda a, x: (x < 0).where(-1, (x > 0).where(1, 0, "i")), "Identity": lambda a, x: x,
    "BitwiseAnd": lambda a, x, y: x & y, "BitwiseOr": lambda a, x, y: x | y,
    "BitwiseXor": lambda a, x, y: x ^ y, "BitwiseNot": lambda a, x: ~x,
    "fixed_point": _plain(fixed_product),
}  # fmt: skip
WHOLE_TESTS: dict[str, Function] = {
    "Equal": lambda a, x, y: x.equals(y), "Less": lambda a, x, y: x < y,
    "LessOrEqual": lambda a, x, y: x <= y, "Greater": lambda a, x, y: x > y,
    "GreaterOrEqual": lambda a, x, y: x >= y,
}  # fmt: skip
LOGIC: dict[str, Function] = {
    "And": lambda a, x, y: x & y, "Or": lambda a, x, y: x | y, "Xor": lambda a, x, y: x ^ y,
    "Equal": lambda a, x, y: ~(x ^ y), "Not": lambda a, x: ~x, "Identity": lambda a, x: x,
}  # fmt: skip


def takes(op: str, dtype: str) -> bool:
    """Return True if an operator supports operands of type *dtype*: of Where, the two values."""
    if dtype not in KINDS:
        return False
    if op in ("Where", "Cast"):
        return True
    if dtype == "bool":
        return op in LOGIC
    return op in (*REAL, *TESTS) if KINDS[dtype] == "f" else op in (*WHOLE, *WHOLE_TESTS)


def applied(op: str, attributes: Attributes, dtype: str, *x: Number) -> Number:
    """Return the result of an operator on operands of type *dtype*, for which `takes` is True."""
    if op == "Where":
        return x[0].where(x[1], x[2])
    if op == "Cast":
        return cast(x[0], dtype, attributes["to"])
    if KINDS[dtype] != "f":
        tables = (LOGIC,) if dtype == "bool" else (WHOLE, WHOLE_TESTS)
        return next(table[op] for table in tables if op in table)(attributes, *x)
    if op in TESTS:
        return TESTS[op](attributes, *x)
    if dtype != "float16":
        return REAL[op](attributes, *x)
    found = halves.OPERATORS[op](*x) if op in halves.OPERATORS else REAL[op](attributes, *x)
    return found if op in halves.EXACT else e.halved(found)


def cast(x: Number, dtype: str, to: str) -> Number:
    """Convert x from the type *dtype* to the type *to*. A float becomes an int32 by truncation toward zero.
    A bool is True for every value but 0. As int8 or uint8, an int32 keeps its lowest 8 bits, as in ONNX;
    the result is a float32, because kernels store bytes from floats."""
    if to in ("int8", "uint8"):
        whole, low = cast(x, dtype, "int32"), -128 if to == "int8" else 0
        return (((whole - low) & 0xFF) + low).as_float()
    if KINDS[dtype] == "b":
        x = x.where(1, 0, "i")
        dtype = "int32"
    if KINDS[dtype] == "i":
        if to == "int32":
            return x
        if to == "bool":
            return ~x.equals(0)
        x = e.from_int(x)
    elif to == "int32":
        return e.to_int(x)
    elif to == "bool":
        return ~magnitude(x).u.equals(0)
    return e.halved(x) if to == "float16" and dtype != "float16" else x


def number_of(array: Array) -> Number:
    """Return an array as a `Number`. Subnormal float32 values become zero."""
    kind = KINDS[array.dtype.name]
    value = Computed(array.astype(DTYPES[kind]), kind)
    return flushed(value) if array.dtype == np.float32 else value


def array_of(value: Number, dtype: str) -> Array:
    """Return a `Number` as an array of type *dtype*. All NaNs get the same bit pattern."""
    assert isinstance(value, Computed)
    array = value.array
    if KINDS.get(dtype) == "f":
        array = np.where(np.isnan(array), np.float32(np.nan), array)
    return array.astype(dtype)
