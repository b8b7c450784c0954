"""Tests of weights in groups: they are quantized as in ONNX Runtime, and error messages state the given
values."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnxruntime.capi import _pybind_state

import vkq
from vkq.numerics.grouped import GROUPS, largest_group


@pytest.mark.parametrize("k", [384, 307])  # an odd number of groups of 128; a last group that is not full
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", [4, 8])
def test_the_same_codes_as_onnx_runtime(bits: int, group: int, symmetric: bool, k: int) -> None:
    """Codes equal ONNX Runtime's for groups of both signs, of one sign, and of zeros. (A group of zeros has
    the scale 1 in vkq and 0 in ONNX Runtime.)"""
    n, blocks = 7, -(-k // group)
    w = np.random.default_rng(group).standard_normal((n, k), np.float32)
    w[2, :group], w[3, :group], w[4, :group] = 0, np.abs(w[3, :group]), -np.abs(w[4, :group])
    packed, scale = (
        np.zeros((n, blocks, group * bits // 8), np.uint8),
        np.zeros(n * blocks, np.float32),
    )
    zero = np.zeros(n * -(-blocks * bits // 8), np.uint8)
    quantize = getattr(_pybind_state, f"quantize_matmul_{bits}bits")
    quantize(packed, np.ascontiguousarray(w.T), scale, zero, group, n, k, symmetric)
    found = vkq.quantize_weight(w, bits=bits, group=group, symmetric=symmetric)
    scale[2 * blocks] = 1
    theirs = vkq.GroupedWeight(packed, scale, None if symmetric else zero, bits, k)
    np.testing.assert_array_equal(found.codes(), theirs.codes())
    np.testing.assert_array_equal(found.scale.reshape(-1), scale)
    np.testing.assert_array_equal(found.zero_points(), theirs.zero_points())
    half = np.abs(found.dequantize() - w) <= np.abs(found.along_k(found.scales())) * 0.501
    assert half.all() or symmetric  # with symmetric codes, one extreme of a group saturates


def test_float16_scales_and_largest_values() -> None:
    w = np.float32([[0.5] * 31 + [-4.0], [1e-9] * 31 + [-1e-9]])
    found = vkq.quantize_weight(w, bits=4, group=32, scale_dtype="float16")
    assert found.scale.dtype == np.float16
    np.testing.assert_array_equal(found.dequantize()[0], w[0])
    assert (found.scales()[1], found.dequantize()[1].max()) == (1, 0)  # row 1: the float16 scale 0 becomes 1
    assert found.nbytes == 2 * 16 + 2 * 2
    with pytest.raises(vkq.ArgumentError, match=r"weight\[0, 0:32\] spans .*: use scale_dtype='float32'"):
        vkq.quantize_weight(w * np.float32(1e9), bits=4, group=32, scale_dtype="float16")


@pytest.mark.filterwarnings("error")
def test_ranges_that_no_scale_spans() -> None:
    """A group whose range is wider than the largest float32 is refused; here it is the second group."""
    w = np.zeros((1, 64), np.float32)
    w[0, 40:42] = -3e38, 3e38
    with pytest.raises(vkq.ArgumentError, match=r"weight\[0, 32:64\] spans .*: make the weight smaller"):
        vkq.quantize_weight(w, bits=4, group=32, symmetric=False)
    assert np.isfinite(vkq.quantize_weight(w, bits=4, group=32).dequantize()).all()


@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (0, 0)])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_no_channels_and_no_groups(bits: int, symmetric: bool, shape: tuple[int, int]) -> None:
    w = np.zeros(shape, np.float32)
    found = vkq.quantize_weight(w, bits=bits, group=32, symmetric=symmetric)
    assert found.shape == found.codes().shape == found.dequantize().shape == shape
    assert found.zero_points().shape == (shape[0], shape[1] // 32)


@pytest.mark.parametrize(
    ("shape", "options", "error"),
    [
        ((96,), {"bits": 4, "group": 32}, r"it must be \(N, K\)"),
        ((2, 3, 32), {"bits": 4, "group": 32}, "give each matrix by itself"),
        ((3, 64), {"symmetric": False}, "symmetric=False, .* without group"),
        ((3, 64), {"scale_dtype": "float16"}, "scale_dtype='float16' without group"),
        ((3, 64), {"bits": 3, "group": 32}, "bits=3"),
        ((3, 64), {"bits": 4, "group": 8}, "group=8"),
        ((3, 64), {"bits": 4, "group": 32, "scale_dtype": "int8"}, "scale_dtype='int8'"),
        ((3, 64), {"bits": 4, "group": 32, "axis": 1}, "groups lie along K"),
    ],
)
def test_what_cannot_be_quantized(shape: tuple[int, ...], options: dict[str, Any], error: str) -> None:
    with pytest.raises(vkq.ArgumentError, match=error):
        vkq.quantize_weight(np.zeros(shape, np.float32), **options)


def made(
    packed: Any = (3, 2, 16), scale: Any = (3, 2), zero: Any = None, bits: int = 4, k: int | None = None
) -> vkq.GroupedWeight:
    def array(of: Any, dtype: Any) -> Any:
        return np.ones(of, dtype) if isinstance(of, tuple) else of

    points = array(zero, np.uint8)
    return vkq.GroupedWeight(array(packed, np.uint8), array(scale, np.float32), points, bits, k)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"packed": (3, 2, 4)}, r"packed has shape \(3, 2, 4\); it must be .* 8 or 16 or 32 or 64\)"),
        ({"k": 32}, r"k is 32 and packed has 2 groups of 32 .* from 33 to 64"),
        ({"k": 65}, "k is 65 .* from 33 to 64"),
        ({"packed": (3, 0, 16), "scale": (3, 0), "k": -3}, "k is -3"),
        ({"packed": (3, 32)}, r"packed has shape \(3, 32\)"),
        ({"packed": (3, 2, 8), "bits": 8}, r"it must be \(N, groups, 16 or 32 or 64 or 128\)"),
        ({"packed": np.zeros((3, 2, 16), np.int8)}, "packed has dtype int8"),
        ({"bits": 2}, "bits is 2"),
        ({"scale": (2, 3)}, r"scale has shape \(2, 3\); by packed it must be \(3, 2\), or flat"),
        ({"scale": np.ones((3, 2))}, "scale float64"),
        ({"scale": np.float32([[1, 1], [1, np.nan], [1, 1]])}, r"scale\[1, 1\] is nan; it must be finite"),
        ({"zero": (3, 2)}, r"zero_point \(packed\) has shape \(3, 2\); by packed it must be \(3, 1\)"),
        ({"zero": np.ones((3, 2), np.float16)}, "zero_point has dtype float16; it must be uint8"),
    ],
)
def test_what_is_no_weight(options: dict[str, Any], error: str) -> None:
    with pytest.raises(vkq.VkqError, match=error):
        made(**options)


def test_zero_points_of_every_form() -> None:
    packed = made(zero=np.uint8([[0x21], [0x43], [0x65]]))
    np.testing.assert_array_equal(packed.zero_points(), [[1, 2], [3, 4], [5, 6]])
    real = made(zero=np.float32([[0.5, -1], [0, 300], [7, 8]]))
    np.testing.assert_array_equal(real.zero_points(), [[0.5, -1], [0, 300], [7, 8]])
    np.testing.assert_array_equal(made().zero_points(), np.full((3, 2), 8))
    np.testing.assert_array_equal(made((3, 2, 32), bits=8).zero_points(), np.full((3, 2), 128))


@pytest.mark.parametrize("points", ["none", "packed", "float16", "fractions"])
@pytest.mark.parametrize(
    ("bits", "group", "k"), [(4, 16, 48), (4, 16, 33), (4, 16, 20), (8, 16, 5), (4, 32, 33), (8, 128, 300)]
)
def test_filled_with_what_stands_for_zero(bits: int, group: int, k: int, points: str) -> None:
    """Codes beyond K become the code of zero, or the nearest code if zero points have fractions. Nothing
    else changes. A weight whose groups are all full does not change at all."""
    rng, blocks = np.random.default_rng(k), -(-k // group)
    zero: Any = None
    if points == "packed":
        zero = rng.integers(0, 256, (3, -(-blocks * bits // 8)), np.uint8)
    elif points != "none":
        zero = rng.integers(0, 16, (3, blocks)).astype(np.float16)
        zero += np.float16(0.25 if points == "fractions" else 0)
    codes = rng.integers(0, 256, (3, blocks, group * bits // 8), np.uint8)
    w = vkq.GroupedWeight(codes, rng.uniform(1, 2, (3, blocks)).astype(np.float16), zero, bits, k)
    full = w.filled()
    assert full.shape == (3, -(-k // max(group, 32)) * max(group, 32))
    assert full.filled() is full
    np.testing.assert_array_equal(full.dequantize()[:, :k], w.dequantize())
    beyond = (full.codes() - full.along_k(full.zero_points()))[:, k:]
    assert (
        np.abs(beyond * full.along_k(full.scales())[:, k:]) <= (0.5 if points == "fractions" else 0)
    ).all()
    assert w.dequantize().shape == w.codes().shape == w.shape == (3, k)


def test_the_largest_group() -> None:
    assert [largest_group(k) for k in (1, 31, 48, 32, 96, 192, 640)] == [32, 32, 16, 32, 32, 64, 128]


@pytest.mark.parametrize("again", [lambda w: pickle.loads(pickle.dumps(w)), copy.deepcopy, copy.copy])
def test_copies_cannot_be_changed_either(again: Callable[[vkq.GroupedWeight], vkq.GroupedWeight]) -> None:
    w = made(zero=np.uint8([[0x21], [0x43], [0x65]]), k=50)
    other = again(w)
    assert (other.shape, other.bits) == (w.shape, w.bits)
    np.testing.assert_array_equal(other.dequantize(), w.dequantize())
    for array in (other.packed, other.scale, other.zero_point):
        assert array is not None
        assert not array.flags.writeable
