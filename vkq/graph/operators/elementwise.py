"""ONNX's element-wise operators on float32, float16, int32 and bool, computed with the same rounding steps as
on a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import ModelError
from ...numerics.described import CASTS, TESTS, WHOLE_TESTS, applied, array_of, number_of, takes
from ..graph import Array, Node, Spec
from .operator import Inputs, Operator, broadcast, one, same, there

Computation = Callable[[Node, Sequence["Array | None"]], list[Array]]
Unary = Callable[[Array, Mapping[str, Any]], Any]
erf = np.vectorize(math.erf, otypes=[np.float64])
SIXTH = np.float32(1 / 6)  # 1 / 6, the slope of HardSwish's gate


def _sigmoid(x: Array) -> Any:
    return 1 / (1 + np.exp(-np.clip(x, -700, 700)))


def _gelu(x: Array, a: Mapping[str, Any]) -> Any:
    if a.get("approximate", "none") == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


# Operators that are computed in float64 and then rounded to the type of their input.
ROUNDED: dict[str, Unary] = {
    "Sigmoid": lambda x, a: _sigmoid(x),
    "Tanh": lambda x, a: np.tanh(x),
    "Exp": lambda x, a: np.exp(np.minimum(x, 700)),
    "Log": lambda x, a: np.log(x),
    "Erf": lambda x, a: erf(x),
    "Gelu": _gelu,
    "QuickGelu": lambda x, a: x * _sigmoid(np.float64(np.float32(a.get("alpha", 1.702))) * x),
    "Swish": lambda x, a: x * _sigmoid(np.float64(np.float32(a.get("alpha", 1.0))) * x),
    "Softplus": lambda x, a: np.logaddexp(x, 0),
    "Mish": lambda x, a: x * np.tanh(np.logaddexp(x, 0)),
    "Sin": lambda x, a: np.sin(x),
    "Cos": lambda x, a: np.cos(x),
    "Tan": lambda x, a: np.tan(x),
    "Asin": lambda x, a: np.arcsin(x),
    "Acos": lambda x, a: np.arccos(x),
    "Atan": lambda x, a: np.arctan(x),
    "Sinh": lambda x, a: np.sinh(x),
    "Cosh": lambda x, a: np.cosh(x),
    "Asinh": lambda x, a: np.arcsinh(x),
    "Acosh": lambda x, a: np.arccosh(x),
    "Atanh": lambda x, a: np.arctanh(x),
}
# Operators that are computed in the type of their input. Each step is rounded to this type, and attributes
# are converted to it.
STEPPED: dict[str, Unary] = {
    "Relu": lambda x, a: np.maximum(x, 0),
    "Identity": lambda x, a: x,
    "Abs": lambda x, a: np.abs(x),
    "Neg": lambda x, a: -x,
    "Sqrt": lambda x, a: np.sqrt(x),
    "Reciprocal": lambda x, a: 1 / x,
    "Floor": lambda x, a: np.floor(x),
    "Ceil": lambda x, a: np.ceil(x),
    "Round": lambda x, a: np.rint(x),
    "Sign": lambda x, a: np.sign(x),
    "Softsign": lambda x, a: x / (1 + np.abs(x)),
    "HardSigmoid": lambda x, a: np.clip(a.get("alpha", 0.2) * x + a.get("beta", 0.5), 0, 1),
    "HardSwish": lambda x, a: x * np.clip(x * x.dtype.type(SIXTH) + x.dtype.type(0.5), 0, 1),
    "LeakyRelu": lambda x, a: np.where(x >= 0, x, a.get("alpha", 0.01) * x),
    "Elu": lambda x, a: np.where(x > 0, x, a.get("alpha", 1.0) * (np.exp(np.minimum(x, 0)) - 1)),
    "Celu": lambda x, a: (
        np.maximum(x, 0)
        + np.minimum(a.get("alpha", 1.0) * (np.exp(np.minimum(x, 0) / a.get("alpha", 1.0)) - 1), 0)
    ),
    "Selu": lambda x, a: (
        a.get("gamma", 1.0507009873554805)
        * np.where(x > 0, x, a.get("alpha", 1.6732632423543772) * (np.exp(np.minimum(x, 0)) - 1))
    ),
    "BitwiseNot": lambda x, a: np.invert(x),
    "ThresholdedRelu": lambda x, a: np.where(x > a.get("alpha", 1.0), x, 0),
}
BINARY: dict[str, Callable[[Array, Array], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": lambda a, b: a / b if a.dtype.kind == "f" else np.trunc(a / b),
    "Pow": np.power,
    "PRelu": lambda x, slope: np.where(x >= 0, x, slope * x),
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
}
COMPARISONS: dict[str, Callable[[Array, Array], Any]] = {
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}
VARIADIC: dict[str, Callable[[Array, Array], Any]] = {"Max": np.maximum, "Min": np.minimum, "Sum": np.add}


def _described(op: str, otherwise: Callable[[Node, list[Array]], Any], first: int = 0) -> Computation:
    """Return the NumPy computation of *op*. If a device computes *op* in the operands' type, the
    computation has the device's rounding steps (`vkq.numerics.described`). For all other types the
    computation is *otherwise*. *first*: the index of the operand whose type is the type of the arithmetic;
    1 for Where, whose operand 0 is the condition."""

    def compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
        given, attributes = [v for v in x if v is not None], dict(node.attributes)
        dtype = there(x[first]).dtype.name
        with np.errstate(all="ignore"):
            alike = len({v.dtype for v in given[first:]}) == 1
            known = alike and takes(op, dtype) and (op != "Cast" or attributes["to"] in CASTS)
            if not known:
                return one(otherwise(node, given))
            if op == "Clip":
                bounds = zip(("min", "max"), (*x[1:], None, None), strict=False)
                attributes["bounds"] = tuple(name for name, v in bounds if v is not None)
            found = applied(op, attributes, dtype, *map(number_of, given))
            tests = op in TESTS or op in WHOLE_TESTS
            return one(array_of(found, attributes["to"] if op == "Cast" else "bool" if tests else dtype))

    return compute


def _rounded(op: str, f: Unary) -> Operator:
    def otherwise(node: Node, x: list[Array]) -> Any:
        return np.asarray(f(x[0].astype(np.float64), node.attributes)).astype(x[0].dtype)

    return Operator("elementwise", same, _described(op, otherwise), 1)


def _stepped(op: str, f: Unary) -> Operator:
    def otherwise(node: Node, x: list[Array]) -> Any:
        kind = x[0].dtype.type
        own = {k: kind(v) if isinstance(v, float) else v for k, v in node.attributes.items()}
        return np.asarray(f(x[0], own), x[0].dtype)

    return Operator("elementwise", same, _described(op, otherwise), 1)


def _binary(
    op: str, f: Callable[[Array, Array], Any], dtype: str | None = None, least: int = 2, most: int | None = 2
) -> Operator:
    def otherwise(node: Node, x: list[Array]) -> Any:
        total = x[0]
        for other in x[1:]:
            total = np.asarray(f(total, other))
        return total.astype(dtype or x[0].dtype)

    return Operator("elementwise", lambda x: broadcast(x, dtype, least), _described(op, otherwise), most)


def _mean(node: Node, x: list[Array]) -> Any:
    return np.asarray(sum(v.astype(np.float64) for v in x) / len(x)).astype(x[0].dtype)


def _modulo(node: Node, x: list[Array]) -> Any:
    return np.asarray((np.fmod if node.attributes.get("fmod", 0) else np.mod)(x[0], x[1]), x[0].dtype)


def _never(node: Node, x: list[Array]) -> Any:
    raise ModelError(f"{node}: its operands are {[v.dtype.name for v in x]}; they must be int32")


def _is_infinite(node: Node, x: list[Array]) -> Any:
    up, down = (node.attributes.get(f"detect_{name}", 1) for name in ("positive", "negative"))
    return (np.isposinf(x[0]) & bool(up)) | (np.isneginf(x[0]) & bool(down))


def _clip(node: Node, x: Sequence[Array | None]) -> list[Array]:
    """Compute Clip. A bound is a tensor of one element, with any number of axes."""
    bounds = [None if v is None else v.reshape(()) for v in x[1:]]

    def otherwise(node: Node, given: list[Array]) -> Any:
        low, high = (bounds[i] if i < len(bounds) else None for i in (0, 1))
        found = given[0] if low is None else np.maximum(given[0], low)
        return found if high is None else np.minimum(found, high)

    return _described("Clip", otherwise)(node, [x[0], *bounds])


def _where(node: Node, x: Sequence[Array | None]) -> list[Array]:
    def otherwise(node: Node, given: list[Array]) -> Any:
        return np.where(*given)

    return _described("Where", otherwise, 1)(node, [there(x[0]).astype(bool), *x[1:]])


def _cast_like(node: Node, x: Sequence[Array | None]) -> list[Array]:
    to = {"to": there(x[1]).dtype.name}
    return _cast(Node("Cast", node.inputs[:1], node.outputs, to), x[:1])


def _test(op: str, otherwise: Callable[[Node, list[Array]], Any], least: int = 1) -> Operator:
    return Operator("elementwise", lambda x: broadcast(x, "bool", least), _described(op, otherwise), least)


def normalization(node: Node, x: Sequence[Array]) -> tuple[Array, Array]:
    """Return (factor, addend) of each channel for a BatchNormalization's scale, bias, mean and variance,
    computed with the rounding steps of ONNX Runtime."""
    scale, bias, mean, variance = x
    epsilon = scale.dtype.type(node.attributes.get("epsilon", 1e-5))
    with np.errstate(all="ignore"):
        factor = scale * (1 / np.sqrt(variance + epsilon))
        return factor, bias - mean * factor


def _batch_normalization(node: Node, x: Sequence[Array | None]) -> list[Array]:
    """Return (x - mean) / sqrt(var + epsilon) * scale + bias, in the dtype of x. In training mode, mean and
    variance are those of x."""
    given = there(x[0])
    parameters = [there(v).reshape(-1, *(1,) * (given.ndim - 2)) for v in x[1:5]]
    if node.attributes.get("training_mode", 0):
        rows = np.moveaxis(given, 1, 0).reshape(given.shape[1], -1).astype(np.float64)
        own = (rows.mean(1).astype(given.dtype), rows.var(1).astype(given.dtype))
        parameters[2:] = (v.reshape(parameters[0].shape) for v in own)
    factor, addend = normalization(node, parameters)
    with np.errstate(all="ignore"):
        return one((given * factor + addend).astype(given.dtype))


def _like_normalized(x: Inputs) -> list[Spec]:
    spec, *_ = (x.spec(i) for i in range(3 if x.node.attributes.get("training_mode", 0) else 5))
    return [spec]


_cast = _described("Cast", lambda node, x: x[0].astype(node.attributes["to"]))
OPERATORS: dict[str, Operator] = {
    **{name: _rounded(name, f) for name, f in ROUNDED.items()},
    **{name: _stepped(name, f) for name, f in STEPPED.items()},
    **{name: _binary(name, f) for name, f in BINARY.items()},
    **{name: _binary(name, f, least=1, most=None) for name, f in VARIADIC.items()},
    **{name: _binary(name, f, "bool") for name, f in COMPARISONS.items()},
    "Mean": Operator("elementwise", lambda x: broadcast(x), _described("Mean", _mean)),
    "Mod": Operator("elementwise", lambda x: broadcast(x, None, 2), _described("Mod", _modulo), 2),
    "Not": _test("Not", lambda node, x: ~x[0].astype(bool)),
    "IsNaN": _test("IsNaN", lambda node, x: np.isnan(x[0])),
    "IsInf": _test("IsInf", _is_infinite),
    "fixed_point": Operator(
        "elementwise", lambda x: broadcast(x, "int32", 3), _described("fixed_point", _never)
    ),
    "Clip": Operator("elementwise", same, _clip, 3),
    "Cast": Operator("elementwise", lambda x: [Spec(x.node.attributes["to"], x.spec(0).shape)], _cast, 1),
    "CastLike": Operator("elementwise", lambda x: [Spec(x.spec(1).dtype, x.spec(0).shape)], _cast_like),
    "Where": Operator("elementwise", lambda x: broadcast(x, x.spec(1).dtype, 3), _where, 3),
    "BatchNormalization": Operator("elementwise", _like_normalized, _batch_normalization),
}
