"""Tests of weights, biases and ranges computed from floats, compared with NumPy's percentile and
onnxruntime.quantization."""

from __future__ import annotations

import numpy as np
import pytest

from vkq import ArgumentError, Calibrator, DTypeError, QParams, quantize_weight
from vkq.numerics.calibration import HALF_BINS, rounded_bias, usable_samples


@pytest.mark.parametrize(
    ("shape", "axis"), [((7, 5), 0), ((6, 3, 3, 2), 0), ((6, 4, 1, 2), 1), ((5, 3), None)]
)
def test_weights_are_quantized_as_onnxruntime_does(shape: tuple[int, ...], axis: int | None) -> None:
    from onnx import TensorProto
    from onnxruntime.quantization.quant_utils import quantize_data

    w = np.random.default_rng(3).normal(0, 0.3, shape).astype(np.float32)
    got, scale = quantize_weight(w, axis)
    channels = [w] if axis is None else [np.take(w, i, axis) for i in range(shape[axis])]
    parts = [got] if axis is None else [np.take(got, i, axis) for i in range(shape[axis])]
    for i, (channel, q) in enumerate(zip(channels, parts, strict=True)):
        # returns (zero point, scale, q), with q in [-127, 127]
        _, their_scale, theirs = quantize_data(channel, TensorProto.INT8, True)
        np.testing.assert_array_equal(scale[i], np.float32(their_scale))
        np.testing.assert_array_equal(q, theirs)


def test_a_channel_of_zeros_and_tiny_numbers_have_a_scale() -> None:
    q, scale = quantize_weight(np.array([[0.0, 0.0], [1e-40, -1e-40]], np.float32))
    assert scale.tolist() == [1.0, 2.0**-126]
    assert not q[0].any()


@pytest.mark.parametrize(
    ("weight", "axis", "error", "said"),
    [
        (np.ones((2, 3), np.int8), 0, DTypeError, "weight has dtype int8"),
        (
            np.ones((2, 3), np.float32),
            2,
            ArgumentError,
            r"axis is 2 and weight has 2 axes \(shape \(2, 3\)\)",
        ),
        (np.array([[1, np.nan]], np.float32), 0, ArgumentError, r"weight\[0, 1\] is nan"),
        (np.array([[1, 1e39]]), 0, ArgumentError, r"weight\[0, 1\] is 1e\+39"),
    ],
)
def test_weights_that_are_refused(weight: np.ndarray, axis: int, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        quantize_weight(weight, axis)


def test_a_bias_beyond_int32_is_refused() -> None:
    scales = np.float32([0.5, 2.0**-30])
    # ties are rounded to even
    assert rounded_bias(np.float32([0.75, 1.5 * 2**-30]), 1.0, scales, "b").tolist() == [2, 2]
    with pytest.raises(ArgumentError, match=r"b\[1\] is 4.0, which is .* steps .*int32 cannot hold it"):
        rounded_bias(np.float32([0, 4]), 1.0, scales, "b")


def test_percentiles_are_numpys_within_a_bin() -> None:
    rng = np.random.default_rng(5)
    sigmas = 0.1, 1, 30  # standard deviations: each batch has a larger range
    batches = [rng.normal(0.3, sigma, (40, 50)).astype(np.float32) for sigma in sigmas]
    calibrator = Calibrator()
    for batch in batches:
        calibrator.observe(batch)
    everything = np.concatenate(batches).ravel()
    assert calibrator.count == everything.size
    assert (calibrator.low, calibrator.high) == (everything.min(), everything.max())
    assert calibrator.qparams() == QParams.from_range(float(everything.min()), float(everything.max()))
    bin_width = float(2.0 ** np.ceil(np.log2(np.abs(everything).max()))) / HALF_BINS
    for percentile in (99.93, 99.01, 90.005):  # of 6000 values, none of these is a whole number of values
        low, high = calibrator._between(percentile)
        lower = np.percentile(everything, 100 - percentile, method="inverted_cdf")
        upper = np.percentile(everything, percentile, method="inverted_cdf")
        assert lower - bin_width <= low <= lower + bin_width
        assert upper - bin_width <= high <= upper + bin_width
        assert calibrator.qparams(percentile=percentile).scale < calibrator.qparams().scale


def test_the_range_may_begin_with_zeros() -> None:
    calibrator = Calibrator()
    calibrator.observe(np.zeros(90, np.float32))
    calibrator.observe(np.full(10, 0.75, np.float32))
    assert calibrator.qparams("uint8").scale == np.float32(0.75) / np.float32(255)
    assert calibrator.qparams("uint8", percentile=80).scale < 0.001


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_number_is_not_observed(value: float) -> None:
    calibrator = Calibrator()
    with pytest.raises(ArgumentError, match=r"Calibrator: x\[1\] is"):
        calibrator.observe(np.array([1, value], np.float32))
    with pytest.raises(DTypeError, match="x has dtype int64"):
        calibrator.observe(np.array([1, 2]))
    with pytest.raises(ArgumentError, match="nothing was observed"):
        calibrator.qparams()
    calibrator.observe(np.ones(3, np.float32))
    with pytest.raises(ArgumentError, match=r"percentile is 50\.0"):
        calibrator.qparams(percentile=50.0)
    assert repr(calibrator) == "<vkq.Calibrator: 3 numbers in [1, 1]>"


def test_samples_without_a_range_are_refused() -> None:
    """Attention masks may hold -infinity, and the caches of a first token have no elements."""
    good = {
        "mask": np.array([0, -np.inf], np.float32),
        "past": np.zeros((1, 0, 4), np.float16),
        "ids": [1, 2],
    }
    assert list(usable_samples([good, good])) == [good, good]
    for wrong in (np.nan, np.inf):
        samples = usable_samples([good, {"x": np.array([1, wrong], np.float32)}])
        assert next(samples) is good
        with pytest.raises(ArgumentError, match=r"sample 1: input 'x' holds NaN or \+infinity"):
            next(samples)
    with pytest.raises(ArgumentError, match=r"sample 0 has no elements: its shapes are {'x': \(0, 3\)}"):
        next(usable_samples([{"x": np.zeros((0, 3), np.float32)}]))
