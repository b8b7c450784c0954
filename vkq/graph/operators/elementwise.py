"""Element-wise operators of ONNX, in float32 step by step (each function correctly rounded)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import ModelError
from ..graph import Array, Node, Spec
from .operator import Inputs, Operator, broadcast, one, same, there

Unary = Callable[[Array, Mapping[str, Any]], Any]
erf = np.vectorize(math.erf, otypes=[np.float64])
SIXTH = np.float32(1 / 6)  # ONNX's HardSwish multiplies by it


def _sigmoid(x: Array) -> Any:
    return 1 / (1 + np.exp(-np.clip(x, -700, 700)))


def _gelu(x: Array, a: Mapping[str, Any]) -> Any:
    if a.get("approximate", "none") == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


# In float64, then rounded to the input's type.
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
}
# In the input's own type, each step rounded; attributes are of that type too.
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
    "ThresholdedRelu": lambda x, a: np.where(x > a.get("alpha", 1.0), x, 0),
}
BINARY: dict[str, Callable[[Array, Array], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": lambda a, b: a / b if a.dtype.kind == "f" else np.trunc(a / b),
    "Pow": np.power,
    "PRelu": lambda x, slope: np.where(x >= 0, x, slope * x),
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


def _rounded(f: Unary) -> Operator:
    def compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
        given = there(x[0])
        with np.errstate(all="ignore"):
            return one(np.asarray(f(given.astype(np.float64), node.attributes)).astype(given.dtype))

    return Operator("elementwise", same, compute)


def _stepped(f: Unary) -> Operator:
    def compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
        given = there(x[0])
        own = {k: given.dtype.type(v) if isinstance(v, float) else v for k, v in node.attributes.items()}
        with np.errstate(all="ignore"):
            return one(np.asarray(f(given, own), given.dtype))

    return Operator("elementwise", same, compute)


def _binary(f: Callable[[Array, Array], Any], dtype: str | None = None, least: int = 2) -> Operator:
    def compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
        given = [there(v) for v in x]
        total = given[0]
        with np.errstate(all="ignore"):
            for other in given[1:]:
                total = np.asarray(f(total, other))
            return one(total.astype(dtype or given[0].dtype))

    return Operator("elementwise", lambda x: broadcast(x, dtype, least), compute)


def _clip(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given = there(x[0])
    low, high = (x[i] if i < len(x) else None for i in (1, 2))
    given = given if low is None else np.maximum(given, low.reshape(()))
    return one(given if high is None else np.minimum(given, high.reshape(())))


def _cast(node: Node, x: Sequence[Array | None]) -> list[Array]:
    with np.errstate(all="ignore"):
        return one(there(x[0]).astype(node.attributes["to"]))


def _cast_like(node: Node, x: Sequence[Array | None]) -> list[Array]:
    return one(there(x[0]).astype(there(x[1]).dtype))


def _where(node: Node, x: Sequence[Array | None]) -> list[Array]:
    return one(np.where(there(x[0]), there(x[1]), there(x[2])))


def normalization(node: Node, x: Sequence[Array]) -> tuple[Array, Array]:
    """What scale, bias, mean and variance say: one factor and one addend a channel, in ONNX Runtime's
    order."""
    scale, bias, mean, variance = x
    epsilon = scale.dtype.type(node.attributes.get("epsilon", 1e-5))
    with np.errstate(all="ignore"):
        factor = scale * (1 / np.sqrt(variance + epsilon))
        return factor, bias - mean * factor


def _batch_normalization(node: Node, x: Sequence[Array | None]) -> list[Array]:
    """(x - mean) / sqrt(var + epsilon) * scale + bias in float32."""
    given = there(x[0])
    parameters = [there(v).reshape(-1, *(1,) * (given.ndim - 2)) for v in x[1:5]]
    factor, addend = normalization(node, parameters)
    with np.errstate(all="ignore"):
        return one((given * factor + addend).astype(given.dtype))


def _like_normalized(x: Inputs) -> list[Spec]:
    spec, *_ = (x.spec(i) for i in range(5))
    if x.node.attributes.get("training_mode", 0):
        raise ModelError(f"{x.node}: training_mode is 1; a model for inference must have 0")
    return [spec]


OPERATORS: dict[str, Operator] = {
    **{name: _rounded(f) for name, f in ROUNDED.items()},
    **{name: _stepped(f) for name, f in STEPPED.items()},
    **{name: _binary(f) for name, f in BINARY.items()},
    **{name: _binary(f, least=1) for name, f in VARIADIC.items()},
    **{name: _binary(f, "bool") for name, f in COMPARISONS.items()},
    "Not": Operator(
        "elementwise", lambda x: broadcast(x, "bool"), lambda node, x: one(~there(x[0]).astype(bool))
    ),
    "Clip": Operator("elementwise", same, _clip),
    "Cast": Operator("elementwise", lambda x: [Spec(x.node.attributes["to"], x.spec(0).shape)], _cast),
    "CastLike": Operator("elementwise", lambda x: [Spec(x.spec(1).dtype, x.spec(0).shape)], _cast_like),
    "Where": Operator("elementwise", lambda x: broadcast(x, x.spec(1).dtype, 3), _where),
    "BatchNormalization": Operator("elementwise", _like_normalized, _batch_normalization),
}
