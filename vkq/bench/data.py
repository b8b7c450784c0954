"""Make the data of a case: the operands, which are random numbers with a seed from the case's sizes; the
layer with these operands; and the layer's expected result."""

from __future__ import annotations

import inspect
import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vkq import reference
from vkq.bench import movers
from vkq.check.cases import CHANNELS, DQ8CA, FLOAT, FLOAT_WEIGHTS, GROUPED, GROUPED_HALF, Q8TA, Q8TO, Case
from vkq.check.expected import Expected
from vkq.errors import ArgumentError
from vkq.numerics.grouped import GroupedWeight, largest_group
from vkq.numerics.qparams import QParams
from vkq.ops.conv2d import Conv2d
from vkq.ops.conv_transpose2d import ConvTranspose2d
from vkq.ops.linear import Linear
from vkq.problem.mover import Mover
from vkq.runtime.device import Device
from vkq.runtime.tensor import Tensor

Array = npt.NDArray[Any]
KINDS: dict[str, Any] = {"linear": Linear, "conv2d": Conv2d, "conv_transpose2d": ConvTranspose2d}


@dataclass(frozen=True)
class Weights:
    """The constants of a layer."""

    w: npt.NDArray[Any]  # the weight
    scale: npt.NDArray[np.float32]  # the weight's scales; 1 for a float weight
    bias: Array  # int32 or float32
    x: QParams | None  # the quantization parameters of the input; None: floats
    y: QParams | None  # the quantization parameters of the result; None: floats
    groups: GroupedWeight | None = None  # the weight in groups along K, for schemes that need it, not w

    @property
    def w_scale(self) -> npt.NDArray[np.float32] | None:
        """The argument ``w_scale`` of a layer: the weight's scales, or None for a float weight."""
        return None if self.w.dtype.kind == "f" else self.scale


def weights(case: Case) -> Weights:
    """Return the weights of a case. They do not depend on the number of rows (M of a linear layer), or on the
    number and size of images (N, H and W of a convolution)."""
    if isinstance(case.problem, Mover):
        return Weights(np.zeros(0, np.int8), np.zeros(0, np.float32), np.zeros(0), movers.X, movers.Y)
    p = case.problem
    rng = _rng("w", p.weight_shape, case.scheme, case.scale)
    w = rng.integers(-127, 128, p.weight_shape, dtype=np.int8)
    scale = rng.uniform(0.002, 0.008, p.gemm_n if case.scale == "channel" else 1).astype(np.float32)
    if case.scheme not in Q8TA:
        bias = rng.normal(0, 1, p.gemm_n).astype(np.float32)
        if case.scheme in FLOAT_WEIGHTS:
            w = (w * 0.005).astype(FLOAT_WEIGHTS[case.scheme])
            return Weights(w, np.ones(1, np.float32), bias, None, None)
        return Weights(w, scale, bias, None, None, _grouped(case, w))
    x = QParams(0.05, -3)
    typical = 73 * 73 * math.sqrt(p.gemm_k)  # standard deviation of the int32 sums
    y = QParams(typical * 0.05 * 0.005 / 50, 5) if case.scheme in Q8TO else None
    return Weights(w, scale, rng.integers(-int(typical), int(typical) + 1, p.gemm_n).astype(np.int32), x, y)


def _grouped(case: Case, w: npt.NDArray[np.int8]) -> GroupedWeight | None:
    """Return a weight in groups for a linear layer of a scheme with groups; else None. The codes are the
    bytes of *w* in groups of `largest_group` elements. Each group has a random float16 scale."""
    if case.scheme not in GROUPED or case.op != "linear":
        return None
    bits, (n, k), group = GROUPED[case.scheme], w.shape, largest_group(w.shape[1])
    codes = np.pad(w.view(np.uint8), ((0, 0), (0, -k % group)))
    packed = codes[:, : codes.shape[1] * bits // 8].reshape(n, -(-k // group), group * bits // 8)
    scale = _rng("g", w.shape).uniform(0.002, 0.008, packed.shape[:2]).astype(np.float16)
    return GroupedWeight(packed, scale, None, bits, k)


def activations(case: Case) -> Array:
    """Return the input of a case: int8 values from the full range, or normally distributed float32 or
    float16 values.

    If two cases differ only in the number of rows (or images), the smaller input is the beginning of the
    larger input.
    """
    if isinstance(case.problem, Mover):
        return movers.activations(case.problem)
    rng = _rng("x", case.problem.x_shape[1:], case.scheme)
    if case.scheme not in Q8TA:
        x = rng.standard_normal(case.problem.x_shape, np.float32)
        return x.astype(np.float16) if case.scheme in GROUPED_HALF else x
    return rng.integers(-128, 128, case.problem.x_shape, dtype=np.int8)


def layer(case: Case, data: Weights, path: str, device: Device) -> Any:
    """Return the vkq layer of a case on one path. Raises ArgumentError if the case names a method but its
    operator has no methods."""
    if isinstance(case.problem, Mover):
        return movers.MoverLayer(case.problem, device)
    kind, options = KINDS[case.op], window_options(case)
    if case.method is not None:
        if not has_methods(case):
            raise ArgumentError(
                f"{case.name}: method {case.method!r} is requested, but {kind.__name__} has no methods;"
                " leave it out"
            )
        options["method"] = case.method
    if case.scheme in GROUPED:
        if data.groups is None:
            raise ArgumentError(f"{case.name}: {case.scheme} is for linear layers")
        return kind(data.groups, bias=data.bias, path=path, device=device, **options)
    if case.scheme in CHANNELS:
        options["compute"] = CHANNELS[case.scheme]
    x_qparams = "dynamic" if case.scheme in DQ8CA else data.x
    return kind(
        data.w, data.w_scale, x_qparams=x_qparams, y_qparams=data.y, bias=data.bias, path=path, device=device,
        **options
    )  # fmt: skip


def tensor(case: Case, layer: Any, x: Array) -> Tensor:
    """Return the input on the device, in the layout that the layer reads without a repack."""
    if isinstance(case.problem, Mover):
        made: Tensor = layer.tensor(x)
        return made
    return Tensor.from_numpy(x, layer.device, layer.input_layout(x.shape) if case.scheme in Q8TA else None)


def has_methods(case: Case) -> bool:
    """Return True if the layer class of a case has the argument ``method``."""
    return case.op in KINDS and "method" in inspect.signature(KINDS[case.op]).parameters


def window_options(case: Case) -> dict[str, Any]:
    """Return the keyword arguments of a convolution: stride, padding, ... Empty for a linear layer."""
    names = ("stride", "padding", "output_padding", "dilation", "groups")
    return {name: getattr(case.problem, name) for name in names if hasattr(case.problem, name)}


def expected(case: Case, data: Weights, x: Array, sums: str = "float32") -> Expected:
    """Return the expected result of `vkq.reference`, computed image by image to keep the float64 copies
    small.

    Results of weight-only schemes may differ by the error bound of a sum in any order:

        (K + 4) * unit of roundoff * (sum |x| |w| scale + |bias|)

    *sums*: the type in which the device adds (see `vkq.select.path.float_sums`).
    """
    if isinstance(case.problem, Mover):
        return Expected(movers.expected(case.problem, x))
    if data.groups is not None:
        y = reference.linear_grouped(x, data.groups, data.bias)
        size, ones = (
            reference.linear_grouped(part, data.groups, data.bias, magnitude=True)
            for part in (x, np.ones_like(x))
        )
        half, k = case.scheme in GROUPED_HALF, case.layer.gemm_k
        return Expected.of_half_rows(y, size, ones, k) if half else Expected.of_sum(y, size, k)
    if case.scheme not in FLOAT:
        return Expected(_by_image(case, x, lambda part: _exact(case, data, part)))
    y = _by_image(case, x, lambda part: _weight_only(case, data, part))
    size, ones = (
        _by_image(case, part, lambda part: _weight_only(case, data, part, magnitude=True))
        for part in (x, np.ones_like(x))
    )
    k = case.layer.gemm_k
    if sums == "float32":
        return Expected.of_sum(y, size, k)
    return (Expected.of_half if sums == "float16" else Expected.of_half_sums)(y, size, ones, k)


def _by_image(case: Case, x: Array, answer: Any) -> Array:
    if case.op != "linear" and x.shape[0] > 1:
        return np.concatenate([answer(x[i : i + 1]) for i in range(x.shape[0])])
    return np.asarray(answer(x))


def _exact(case: Case, data: Weights, x: Array) -> Array:
    if data.x is None:
        return reference.linear_dynamic(x, data.w, data.scale, bias=data.bias)
    op = {
        "linear": reference.linear,
        "conv2d": reference.conv2d,
        "conv_transpose2d": reference.conv_transpose2d,
    }[case.op]
    return op(x, data.w, x=data.x, w_scale=data.scale, bias=data.bias, y=data.y, **window_options(case))


def _weight_only(case: Case, data: Weights, x: Array, magnitude: bool = False) -> Array:
    op = {
        "linear": reference.linear_q8csw,
        "conv2d": reference.conv2d_q8csw,
        "conv_transpose2d": reference.conv_transpose2d_q8csw,
    }[case.op]
    return op(x, data.w, data.w_scale, data.bias, magnitude=magnitude, **window_options(case))


def _rng(*key: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(key).encode()))
