"""Tests of softmax on the device: results equal the reference bit for bit along every axis, and the
reference is near the float64 softmax."""

from __future__ import annotations

import numpy as np
import pytest

import vkq
from vkq import QParams, Tensor
from vkq.kernels import quantize
from vkq.layout.pack import activation_layouts
from vkq.numerics.qparams import QDType
from vkq.ops import operand
from vkq.ops.softmax import softmaxed
from vkq.reference.softmax import softmax, softmax_litert, softmax_onnxruntime

from ..referees import ort_ops

SHAPES = {  # shape -> reason for the case
    (1, 1): "one number",
    (7,): "a vector",
    (3, 10): "the last word is partial",
    (5, 4): "each row is one word",
    (2, 3, 257): "rows with more elements than invocations",
    (1, 1000): "a classifier",
    (130, 21): "more rows than a workgroup has",
    (1, 5000): "a sum above 2**32",
    (9, 514): "long rows, four in a vector; more vectors than invocations",
    (2, 1300): "64 invocations for four rows",
    (5, 4096): "the longest rows of this kind",
}


def random_bytes(shape: tuple[int, ...], dtype: QDType) -> np.ndarray:
    return np.random.default_rng(60).integers(0, 256, shape).astype(np.uint8).view(dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("scale", [0.001, 0.05, 1.0])
def test_rows(device: vkq.Device, scale: float, dtype: QDType) -> None:
    middle = 128 if dtype == "uint8" else 0
    q = QParams(scale, middle, dtype)
    outputs = [None, QParams(1 / 256, middle - 128, dtype), QParams(0.001, middle, dtype)]
    for shape, reason in SHAPES.items():
        x = random_bytes(shape, dtype)
        for yq in outputs:
            got = vkq.softmax(x, -1, yq, x_qparams=q, device=device)
            want = softmax(x, q, -1, yq)
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want, err_msg=reason)


@pytest.mark.parametrize("name", [one.name for one in activation_layouts()])
def test_every_axis_and_layout_of_images(device: vkq.Device, name: str) -> None:
    x, q, yq = random_bytes((2, 21, 3, 5), "int8"), QParams(0.03), QParams(1 / 256, -128)
    tensor = Tensor.from_numpy(x, device, name, q)
    for axis in range(4):
        y = vkq.softmax(tensor, axis, yq)
        assert (y.layout, y.qparams) == (name, yq)
        np.testing.assert_array_equal(y.numpy(), softmax(x, q, axis, yq), err_msg=str(axis))
    for axis in range(4):
        np.testing.assert_array_equal(
            vkq.softmax(tensor, axis).numpy(), softmax(x, q, axis), err_msg=str(axis)
        )


@pytest.mark.parametrize("x", [random_bytes((9, 1001), "int8"), random_bytes((2, 1001, 1, 5), "int8")])
@pytest.mark.parametrize("sure", [True, False])
def test_long_rows(device: vkq.Device, x: np.ndarray, sure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmax of long rows equals the reference, for matrices, whose vectors hold elements of four rows, and
    along the channels of images. With *sure* False, the kernel relies neither on a quotient being far from
    ties nor on the device's float rounding."""
    device._plans.clear()
    if not sure:
        monkeypatch.setattr(quantize, "SAFE", -1.0)
        monkeypatch.setattr(device, "_soft_float", True)
    q, yq = QParams(0.02), QParams(0.0003, -128)
    tensor = Tensor.from_numpy(x, device, None, q)
    y = vkq.softmax(tensor, 1, yq)
    assert y.layout == tensor.layout
    np.testing.assert_array_equal(y.numpy(), softmax(x, q, 1, yq))
    device._plans.clear()


def test_without_trust_in_the_floats_of_the_device(
    device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_soft_float", True)
    x, q = random_bytes((9, 77), "int8"), QParams(0.02)
    np.testing.assert_array_equal(vkq.softmax(x, x_qparams=q, device=device), softmax(x, q))


@pytest.mark.parametrize("n", [1, 2, 100, 5000])
@pytest.mark.parametrize("scale", [2.0**-126, 0.001, 0.05, 0.5, 100.0])
def test_reference_is_near_the_real_softmax(n: int, scale: float) -> None:
    x = np.random.default_rng(n).integers(-128, 128, (20, n)).astype(np.int8)
    x[0] = 5
    real = np.exp((x.astype(np.float64) - x.max(axis=1, keepdims=True)) * scale)
    real /= real.sum(axis=1, keepdims=True)
    error = np.abs(softmax(x, QParams(scale)) - real)
    assert (error <= (n + 2) * 2.0**-31 + 4 * 2.0**-24 * real).all()


def test_reference_is_near_onnxruntime() -> None:
    """The reference differs from ONNX Runtime by at most one of 256 steps, because QLinearSoftmax uses
    floor(1 / y_scale) and sums floats."""
    x, q, yq = random_bytes((50, 33), "uint8"), QParams(0.05, 128, "uint8"), QParams(1 / 256, 0, "uint8")
    inputs = [x, *ort_ops.parameters(q), *ort_ops.parameters(yq)]
    want = ort_ops.run("QLinearSoftmax", inputs, "uint8", axis=-1, opset=13)
    difference = np.abs(softmax(x, q, -1, yq).astype(int) - want)
    assert difference.max() <= 1
    assert difference.mean() < 0.01


def test_float_results_along_any_axis(device: vkq.Device) -> None:
    for shape in ((5,), (4, 7), (3, 5, 2), (2, 3, 2, 2, 3)):
        x = random_bytes(shape, "int8")
        for axis in range(len(shape)):
            got = vkq.softmax(x, axis, x_qparams=QParams(0.05), device=device)
            np.testing.assert_array_equal(got, softmax(x, QParams(0.05), axis), err_msg=f"{shape} {axis}")


def test_empty(device: vkq.Device) -> None:
    for shape in ((0, 5), (5, 0)):
        assert vkq.softmax(np.zeros(shape, np.int8), x_qparams=QParams(1.0), device=device).shape == shape


def test_refusals(device: vkq.Device) -> None:
    x, q = np.zeros((2, 3, 4), np.int8), QParams(1.0)
    with pytest.raises(vkq.ArgumentError, match="axis is 3 and x has 3 axes"):
        vkq.softmax(x, 3, x_qparams=q, device=device)
    with pytest.raises(vkq.ArgumentError, match="carries no qparams"):
        vkq.softmax(x, device=device)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_onnxruntime_form(device: vkq.Device, dtype: QDType) -> None:
    """ONNX Runtime's variant, whose bytes depend on the order of additions: the reference equals ONNX
    Runtime, and the device equals the reference."""
    low = -128 if dtype == "int8" else 0
    for seed, (shape, reason) in enumerate(SHAPES.items()):
        random = np.random.default_rng(seed)
        xq = QParams(float(10 ** random.uniform(-3, 0)), int(random.integers(low, low + 256)), dtype)
        yq = QParams(1 / 256 if seed % 2 else 0.01, low + seed, dtype)
        x = random_bytes(shape, dtype)
        inputs = [x, *ort_ops.parameters(xq), *ort_ops.parameters(yq)]
        want = ort_ops.run("QLinearSoftmax", inputs, dtype, axis=-1, opset=13)
        np.testing.assert_array_equal(softmax_onnxruntime(x, xq, -1, yq), want, err_msg=reason)
        got = vkq.softmax(x, -1, yq, x_qparams=xq, onnxruntime=True, device=device)
        np.testing.assert_array_equal(got, want, err_msg=reason)


def test_onnxruntime_form_of_a_row_that_one_invocation_would_loop_over_for_too_long(
    device: vkq.Device,
) -> None:
    """lavapipe allows 65,535 iterations of a loop: one invocation can compute a row of 16,759 elements,
    and 64 invocations a row of 240,000. ONNX Runtime's variant is exact for longer rows."""
    xq = QParams(0.01, 0, "uint8")
    for length, scale in ((20_001, 1.5e-4), (262_145, 1.1e-5)):
        x, yq = random_bytes((1, length), "uint8"), QParams(scale, 0, "uint8")
        got = vkq.softmax(x, -1, yq, x_qparams=xq, onnxruntime=True, device=device)
        np.testing.assert_array_equal(got, softmax_onnxruntime(x, xq, -1, yq))


# number of invocations that share a row; the last workgroup is partly empty
@pytest.mark.parametrize("threads", [2, 4, 16])
def test_onnxruntime_form_of_short_rows_that_invocations_share(
    device: vkq.Device, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vkq.ops.softmax.sharers_of_rows", lambda *_: threads)
    xq, yq = QParams(0.05, 7), QParams(1 / 256, -128)
    for shape, name in (((2, 3, 5, 37), "kPackedInt8_4H4W"), ((67, 128), "kPackedInt8_4H4W"),
                        ((2, 50, 3, 5), "kPackedInt8_4W4C")):  # fmt: skip
        x, axis = random_bytes(shape, "int8"), 1 if name == "kPackedInt8_4W4C" else -1
        got = vkq.softmax(Tensor.from_numpy(x, device, name, xq), axis, yq, onnxruntime=True).numpy()
        np.testing.assert_array_equal(got, softmax_onnxruntime(x, xq, axis, yq))


@pytest.mark.parametrize("name", [one.name for one in activation_layouts()])
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_onnxruntime_form_along_every_axis(device: vkq.Device, axis: int, name: str) -> None:
    x, xq, yq = random_bytes((3, 6, 5, 7), "int8"), QParams(0.05), QParams(1 / 256, -128)
    got = vkq.softmax(Tensor.from_numpy(x, device, name, xq), axis, yq, onnxruntime=True).numpy()
    np.testing.assert_array_equal(got, softmax_onnxruntime(x, xq, axis, yq))


@pytest.mark.parametrize("soft", [False, True], ids=["floats", "integers"])
def test_litert_form(device: vkq.Device, soft: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """LiteRT's variant equals the reference for every length and both types. tests/tflite compares the kernel
    with LiteRT."""
    monkeypatch.setattr(device, "_soft_float", soft)
    for seed, (shape, reason) in enumerate(SHAPES.items()):
        dtype: QDType = "uint8" if seed % 2 else "int8"
        xq, yq = (
            QParams(0.01 * 3**seed % 1, 5, dtype),
            QParams(1 / 256, -128 if dtype == "int8" else 0, dtype),
        )
        x = random_bytes(shape, dtype)
        options = (-1, yq, xq, False, True)
        got = operand.apply("softmax", softmaxed, {"x": x}, options, device, None)
        np.testing.assert_array_equal(got, softmax_litert(x, xq, -1, yq), err_msg=reason)
