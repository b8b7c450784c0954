"""Tests of schemes: the scheme that a layer's operands select, and the constants into which each scheme
folds its parameters."""

import numpy as np
import pytest

import vkq
from vkq.schemes.base import Scheme
from vkq.schemes.choose import SCHEMES, scheme_of

Q = vkq.QParams(0.05, 3)
W = np.random.default_rng(31).integers(-128, 128, (6, 10)).astype(np.int8)


def scheme(**options: object) -> Scheme:
    given = {
        "x_qparams": Q, "y_qparams": None, "bias": None, "w_zero_point": None, "activation": None,
        "path": "auto", "by_rows": True,
    }  # fmt: skip
    return scheme_of("linear", 2, W, 0.01, **(given | options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "name", "inputs"),
    [
        ({}, "q8ta_q8csw", ("int8", "float32")),
        ({"y_qparams": Q}, "q8ta_q8csw_q8to", ("int8", "float32")),
        ({"x_qparams": vkq.QParams(0.1, 3, "uint8")}, "q8ta_q8csw", ("uint8", "float32")),
        ({"x_qparams": "dynamic"}, "dq8ca_q8csw", ("float32",)),
        ({"x_qparams": None}, "q8csw", ("float32", "float16")),
        ({"x_qparams": None, "y_qparams": Q}, "q8csw_q8to", ("float32", "float16")),
        ({"x_qparams": None, "compute": "float16"}, "q8csw_f16", ("float32", "float16")),
    ],
)
def test_the_operands_ask_for_a_scheme(
    options: dict[str, object], name: str, inputs: tuple[str, ...]
) -> None:
    found = scheme(**options)
    assert (found.name, found.inputs) == (name, inputs)
    assert type(found) in SCHEMES
    assert found.integer == (not name.startswith("q8csw"))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"x_qparams": "static"}, "x_qparams is 'static'; it must be a QParams, None or 'dynamic'"),
        ({"x_qparams": "dynamic", "by_rows": False}, "it must be a QParams or None"),
        ({"x_qparams": "dynamic", "y_qparams": Q}, "y_qparams is given with x_qparams='dynamic'"),
        ({"x_qparams": None, "path": "dot"}, "path dot needs int8 activations"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, object], error: str) -> None:
    with pytest.raises(vkq.ArgumentError, match=error):
        scheme(**options)


@pytest.mark.parametrize("form", ["s8s8", "u8s8", "u8u8", "float"])
@pytest.mark.parametrize("zero", [0, 5])
def test_folding_gives_the_centred_sum(form: str, zero: int) -> None:
    """offset + sum x'w' - wz' sum x' equals bias + the sum of (x - xz)(w - wz). xz and wz are the zero
    points. x', w' and wz' are x, w and wz with the shift of a dot form, which is 0 or 128."""
    rng = np.random.default_rng(32)
    found = scheme(w_zero_point=np.full(6, zero), bias=np.arange(6, dtype=np.int32))
    zeros = found.operands.stored_zero_point
    blocked = np.pad(W, ((0, 2), (0, 2)))
    blocked[:6, 10:] = zero  # padding has the weight's zero point, so it adds nothing
    parameters = found.channel_parameters(blocked[None], form, zeros[None])  # type: ignore[attr-defined]
    offset, w_zero = (parameters[:, i].reshape(-1)[:6].astype(np.int64) for i in (0, 1))
    x = rng.integers(-128, 128, 12).astype(np.int64)
    x_, w_ = x + 128 * (form in ("u8s8", "u8u8")), blocked[:6].astype(np.int64) + 128 * (form == "u8u8")
    want = ((x[:10] - Q.zero_point) * (W.astype(np.int64) - zero)).sum(axis=1) + np.arange(6)
    np.testing.assert_array_equal(offset + (x_ * w_).sum(axis=1) - w_zero * x_.sum(), want)
