"""Tests of ONNX's Attention and RMSNormalization (opset 23, 24) on the device, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import vkq
from tests.onnx.test_attention import BOUND
from tests.onnx.test_fused import normal
from tests.onnx.test_grouped import HALF_BOUND, compared

FLAGS = np.random.default_rng(1).random((2, 1, 3, 5)) < 0.7
FLAGS[..., 0] = True
FORMS: dict[str, Any] = {
    "plain": {},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 2.0},
    "causal": {"is_causal": 1},
    "added": {"m": normal(3, 5, seed=5)},
    "added for all": {"m": normal(2, 6, 3, 5, seed=5)},
    "flags": {"m": FLAGS},
    "flags, causal": {"m": FLAGS, "is_causal": 1},
}


def attended(
    device: vkq.Device, form: str, flat: bool, held: int, dtype: Any = np.float32, opset: int = 23
) -> None:
    """Compare attention with ONNX Runtime: three queries of six heads, five keys of two heads, of which
    *held* are in the cache."""
    a = dict(FORMS[form])
    sizes = {"q": (6, 3, 8), "k": (2, 5 - held, 8), "v": (2, 5 - held, 7)}
    fed = {
        name: normal(2, tokens, heads * d, seed=i) if flat else normal(2, heads, tokens, d, seed=i)
        for i, (name, (heads, tokens, d)) in enumerate(sizes.items())
    }
    fed |= {"y": normal(2, 2, held, 8, seed=3), "z": normal(2, 2, held, 7, seed=4)} if held else {}
    fed |= {"m": a.pop("m")} if "m" in a else {}
    fed = {name: x.astype(dtype) if x.dtype == np.float32 else x for name, x in fed.items()}
    names = [name if name in fed else "" for name in "qkvmyz"]
    a |= {"q_num_heads": 6, "kv_num_heads": 2} if flat else {}
    node = helper.make_node("Attention", names, ["o", "py", "pz"] if held else ["o"], **a)
    (y, want), *caches = compared(device, node, fed, {}, opset)
    np.testing.assert_allclose(y, want, rtol=0, atol=BOUND if dtype == np.float32 else HALF_BOUND)
    for got, want in caches:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("held", [0, 2])
def test_by_token(device: vkq.Device, form: str, held: int) -> None:
    attended(device, form, True, held)


@pytest.mark.parametrize("form", ["plain", "flags, causal"])
@pytest.mark.parametrize("held", [0, 2])
def test_by_head(device: vkq.Device, form: str, held: int) -> None:
    attended(device, form, False, held, opset=24)


def test_float16(device: vkq.Device) -> None:
    attended(device, "causal", True, 2, np.float16)


@pytest.mark.parametrize("causal", [0, 1])
def test_lengths(device: vkq.Device, causal: int) -> None:
    """Attention of opset 24 reads caches that other nodes write, and an input with the number of valid keys
    of each batch element."""
    fed = {"q": normal(2, 6, 3, 8), "k": normal(2, 2, 9, 8, seed=1), "v": normal(2, 2, 9, 8, seed=2)}
    fed["n"] = np.int64([4, 9])
    node = helper.make_node("Attention", ["q", "k", "v", "", "", "", "n"], ["o"], is_causal=causal)
    ((y, want),) = compared(device, node, fed, {}, 24)
    np.testing.assert_allclose(y, want, rtol=0, atol=BOUND)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_the_scores_as_a_result(any_device: vkq.Device, mode: int) -> None:
    """Attention returns the scores as its fourth result, in each of ONNX's four modes."""
    fed = {"q": normal(1, 2, 3, 8), "k": normal(1, 2, 5, 8, seed=1), "v": normal(1, 2, 5, 8, seed=2)}
    node = helper.make_node(
        "Attention", ["q", "k", "v"], ["o", "", "", "s"], softcap=2.0, qk_matmul_output_mode=mode
    )
    for y, want in compared(any_device, node, fed, {}, 23):
        np.testing.assert_allclose(y, want, rtol=0, atol=BOUND)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_normalization(device: vkq.Device, dtype: Any, axis: int) -> None:
    """The results differ from ONNX Runtime's by at most the errors of both libraries: for values of magnitude
    1, each is within 2e-6 of the exact result; the scale makes some values larger. float16 values are rounded
    before and after the multiplication by the scale."""
    x = normal(2, 5, 37).astype(dtype)
    scale = normal(*x.shape[axis:], seed=1).astype(dtype)
    node = helper.make_node("RMSNormalization", ["x", "s"], ["y"], axis=axis, epsilon=1e-4)
    ((y, want),) = compared(device, node, {"x": x}, {"s": scale}, 23)
    np.testing.assert_allclose(y, want, rtol=0, atol=8e-6 if dtype == np.float32 else 2.0**-7)
