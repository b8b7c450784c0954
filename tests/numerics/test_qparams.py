from __future__ import annotations

import numpy as np
import pytest

from vkq.errors import ArgumentError, DTypeError, VkqError
from vkq.numerics.qparams import SMALLEST_SCALE, QParams, check_bias, check_scales, check_zero_points


def test_scale_is_rounded_to_float32_once():
    q = QParams(0.1)
    assert q.scale == float(np.float32(0.1)) != 0.1
    assert type(q.scale) is float
    assert q == QParams(np.float32(0.1)) == QParams(q.scale)
    assert hash(q) == hash(QParams(0.1))


def test_ranges():
    assert (QParams(1.0).qmin, QParams(1.0).qmax) == (-128, 127)
    assert (QParams(1.0, dtype="uint8").qmin, QParams(1.0, dtype="uint8").qmax) == (0, 255)


@pytest.mark.parametrize(
    "scale",
    [
        0,
        0.0,
        -0.0,
        -1.0,
        float("nan"),
        float("inf"),
        -float("inf"),
        1e-38,
        2.0**-127,
        1e-60,
        1e39,
        10**400,
        -1,
    ],
)
def test_refuses_scales_that_no_device_can_use(scale):
    with pytest.raises(ArgumentError, match=r"scale is .*positive, finite and at least 2\*\*-126"):
        QParams(scale)
    if abs(scale) < 1e300:
        with pytest.raises(ArgumentError, match=r"conv2d: w_scale\[1\] is "):
            check_scales([1.0, float(scale), 1.0], 3, "conv2d: w_scale")


def test_takes_the_smallest_and_the_largest_scale():
    assert QParams(SMALLEST_SCALE).scale == 2.0**-126
    assert QParams(float(np.finfo(np.float32).max)).scale == np.finfo(np.float32).max


@pytest.mark.parametrize("scale", [True, np.True_, "1", None, 1j, [1.0]])
def test_refuses_scales_of_another_type(scale):
    with pytest.raises(DTypeError, match=r"scale is .* it must be a real number"):
        QParams(scale)


@pytest.mark.parametrize(
    ("zero_point", "dtype"),
    [(-129, "int8"), (128, "int8"), (-1, "uint8"), (256, "uint8"), (np.int32(300), "uint8")],
)
def test_refuses_zero_points_outside_the_dtype(zero_point, dtype):
    with pytest.raises(ArgumentError, match=rf"zero_point is {zero_point}; {dtype} holds"):
        QParams(1.0, zero_point, dtype)


@pytest.mark.parametrize("zero_point", [True, np.False_, 0.0, np.float32(1), "0", None])
def test_refuses_zero_points_that_are_not_integers(zero_point):
    with pytest.raises(DTypeError, match=r"zero_point is .* it must be an integer"):
        QParams(1.0, zero_point)


def test_refuses_a_zero_point_of_the_other_dtype():
    with pytest.raises(DTypeError, match="zero_point has dtype uint8 but the tensor is int8"):
        QParams(1.0, np.uint8(3), "int8")


@pytest.mark.parametrize("dtype", ["int16", "float32", None, np.int8])
def test_refuses_unknown_dtypes(dtype):
    with pytest.raises(DTypeError, match='must be "int8" or "uint8"'):
        QParams(1.0, 0, dtype)
    with pytest.raises(DTypeError, match='must be "int8" or "uint8"'):
        QParams.from_range(0, 1, dtype)


def test_of_takes_what_an_onnx_file_holds():
    assert QParams.of(np.float32(0.5), np.uint8(200)) == QParams(0.5, 200, "uint8")
    assert QParams.of(np.array(0.5, np.float16), np.array([-7], np.int8)) == QParams(0.5, -7, "int8")
    assert QParams.of(0.5, 3) == QParams(0.5, 3, "int8")
    assert QParams.of(0.5) == QParams(0.5)
    assert type(QParams.of(0.5, np.int8(-7)).zero_point) is int
    with pytest.raises(DTypeError, match="zero_point has dtype int32; it must be int8 or uint8"):
        QParams.of(0.5, np.int32(1))
    with pytest.raises(ArgumentError, match=r"scale has shape \(2,\)"):
        QParams.of(np.ones(2, np.float32), np.int8(1))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("lo", "hi"), [(-1, 1), (0.5, 2), (-7, -3), (0, 255), (-1e-3, 1e30), (-0.0, 3)])
def test_from_range_keeps_zero_and_spans_the_range(dtype, lo, hi):
    q = QParams.from_range(lo, hi, dtype)
    step = q.scale * 1.0001
    assert (q.qmin - q.zero_point) * q.scale <= min(lo, 0) + step
    assert (q.qmax - q.zero_point) * q.scale >= max(hi, 0) - step
    assert q.scale == np.float32(np.float32(max(hi, 0)) - np.float32(min(lo, 0))) / np.float32(255)


def test_from_range_symmetric():
    assert QParams.from_range(-1, 2, symmetric=True) == QParams(float(np.float32(2) / np.float32(127)), 0)
    assert QParams.from_range(-3, 2, "uint8", True) == QParams(
        float(np.float32(3) / np.float32(127)), 128, "uint8"
    )


def test_from_range_of_nothing_or_next_to_nothing():
    assert QParams.from_range(0, 0) == QParams(1.0, -128)
    assert QParams.from_range(0, 0, symmetric=True) == QParams(1.0, 0)
    assert QParams.from_range(0, 1e-40).scale == SMALLEST_SCALE


@pytest.mark.parametrize(
    ("lo", "hi"), [(1, 0), (float("nan"), 1), (0, float("nan")), (0, float("inf")), (-3e38, 3e38), (0, 1e39)]
)
def test_from_range_refuses(lo, hi):
    with pytest.raises(ArgumentError, match="needs lo <= hi and a finite float32 width"):
        QParams.from_range(lo, hi)


@pytest.mark.parametrize("scale", [0.5, [0.5], np.float16(0.5), np.full(4, 0.5, ">f4"), np.full(4, 0.5)])
def test_check_scales_gives_one_float32_per_channel(scale):
    scales = check_scales(scale, 4, "w_scale")
    assert scales.dtype == np.float32
    assert scales.dtype.isnative
    np.testing.assert_array_equal(scales, np.full(4, 0.5))


def test_check_scales_leaves_its_argument_alone():
    given = np.ones(3, np.float32)
    check_scales(given, 3, "w_scale")[0] = 7
    np.testing.assert_array_equal(given, 1)


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 1), (1, 1), (0,)])
def test_per_channel_arrays_of_another_length_are_refused(shape):
    with pytest.raises(ArgumentError, match=r"linear: w_scale has shape .* but there are 3 output channels"):
        check_scales(np.ones(shape), 3, "linear: w_scale")
    with pytest.raises(
        ArgumentError, match=r"linear: w_zero_point has shape .* but there are 3 output channels"
    ):
        check_zero_points(np.ones(shape, np.int8), 3, np.int8, "linear: w_zero_point")


def test_no_channels():
    assert check_scales(1.0, 0, "w_scale").shape == check_scales(np.ones(0), 0, "w_scale").shape == (0,)


@pytest.mark.parametrize("scale", [True, "1", 1j])
def test_check_scales_refuses_what_is_not_real(scale):
    with pytest.raises(DTypeError, match="scales must be real numbers"):
        check_scales(scale, 1, "w_scale")


def test_check_zero_points():
    np.testing.assert_array_equal(check_zero_points(None, 2, np.int8, "z"), np.zeros(2, np.int32))
    np.testing.assert_array_equal(check_zero_points(np.array([0, 255], np.uint8), 2, np.uint8, "z"), [0, 255])
    with pytest.raises(ArgumentError, match=r"z\[1\] is 128; int8 holds -128 to 127"):
        check_zero_points([0, 128], 2, np.int8, "z")
    with pytest.raises(DTypeError, match="z has dtype uint8 but its tensor is int8"):
        check_zero_points(np.uint8(3), 2, np.int8, "z")
    with pytest.raises(DTypeError, match="z has dtype float64"):
        check_zero_points(0.0, 2, np.int8, "z")


def test_check_bias():
    assert check_bias(np.ones(2, ">i4"), 2, False, "b").dtype == np.int32
    assert check_bias(np.ones(2, np.float32), 2, True, "b").dtype == np.float32
    with pytest.raises(DTypeError, match="b has dtype float32; with int8 output it must be int32"):
        check_bias(np.ones(2, np.float32), 2, False, "b")
    with pytest.raises(
        DTypeError, match="b has dtype int64; with float32 output it must be int32 or float32"
    ):
        check_bias(np.ones(2, np.int64), 2, True, "b")
    with pytest.raises(ArgumentError, match=r"b has shape \(2, 1\); it must be \(2,\)"):
        check_bias(np.ones((2, 1), np.int32), 2, False, "b")
    with pytest.raises(ArgumentError, match=r"b\[1\] is nan; a bias must be finite"):
        check_bias(np.array([0, np.nan], np.float32), 2, True, "b")


def test_errors_are_also_builtin_errors():
    for error, builtin in ((ArgumentError, ValueError), (DTypeError, TypeError)):
        assert issubclass(error, VkqError)
        assert issubclass(error, builtin)
