"""Choose a scheme by a layer's operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError
from ..numerics.calibration import rounded_bias
from ..numerics.grouped import GroupedWeight
from ..numerics.qparams import QParams, check_bias
from ..numerics.requantize import OVERFLOW, Activation, activation_range
from .base import COMPUTE, Operands, Scheme, Weight, XParams, check_compute
from .dq8ca_q8csw import Dq8caQ8csw
from .f32 import F32
from .q4gsw import Q4gsw
from .q8csw import Q8csw
from .q8ta_q8csw import Q8taQ8csw

SCHEMES = (Q8taQ8csw, Dq8caQ8csw, Q8csw, Q4gsw, F32)


def scheme_of(
    op: str,
    rank: int,
    weight: Weight,
    w_scale: npt.ArrayLike | None,
    *,
    x_qparams: XParams,
    y_qparams: QParams | None,
    bias: npt.ArrayLike | None,
    w_zero_point: npt.ArrayLike | None,
    activation: Activation,
    path: str,
    by_rows: bool,
    compute: str = COMPUTE[0],
    overflow: str = OVERFLOW[0],
) -> Scheme:
    """Check a layer's operands, and return its scheme. weight: an array of *rank* axes, output channels
    first. by_rows: whether the operator can quantize x by rows (x_qparams="dynamic").

    Raises ArgumentError, DTypeError or AccumulatorOverflowError; the message names the operand.
    """
    kind = _kind(op, weight, x_qparams, by_rows)
    if overflow not in OVERFLOW:
        raise ArgumentError(f"{op}: overflow is {overflow!r}; it must be one of {', '.join(OVERFLOW)}")
    check_compute(op, compute)
    if compute != COMPUTE[0] and kind.one_compute:
        why = kind.one_compute.format(x=x_qparams)
        raise ArgumentError(f"{op}: compute is {compute!r} with {why}")
    kind.check_result(op, y_qparams)
    w, scales, zeros = kind.check_weight(op, rank, weight, w_scale, w_zero_point)
    offset = None if bias is None else _bias(np.asarray(bias), scales, x_qparams, y_qparams, f"{op}: bias")
    activation_range(activation)
    return kind(
        Operands(op, w, scales, zeros, offset, x_qparams, y_qparams, activation, path, compute, overflow)
    )


def _bias(
    bias: npt.NDArray[Any],
    scales: npt.NDArray[np.float32],
    x: XParams,
    y: QParams | None,
    what: str,
) -> npt.NDArray[Any]:
    """Return the bias as int32, or as float32 for a float32 result. A float32 bias of an 8-bit result is
    rounded to int32. With float activations, the scheme refuses a bias that is not float32."""
    if not isinstance(x, QParams) and bias.dtype != np.float32:
        return bias
    if y is None or bias.dtype != np.float32 or not isinstance(x, QParams):
        return check_bias(bias, len(scales), y is None or x is None, what)
    return rounded_bias(check_bias(bias, len(scales), True, what), x.scale, scales, what)


def _kind(op: str, weight: Weight, x: XParams, by_rows: bool) -> type[Scheme]:
    if isinstance(weight, GroupedWeight):
        return Q4gsw
    if x is None and F32.takes(weight):
        return F32
    if x is None:
        return Q8csw
    if isinstance(x, QParams):
        return Q8taQ8csw
    if x == "dynamic" and by_rows:
        return Dq8caQ8csw
    allowed = "a QParams, None or 'dynamic'" if by_rows else "a QParams or None"
    raise ArgumentError(f"{op}: x_qparams is {x!r}; it must be {allowed}")
