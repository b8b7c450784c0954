"""Tests of layers as users call them: inputs, results, errors and explanations."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vkq
from vkq import reference
from vkq.kernels import methods as conv_methods
from vkq.kernels.gemm import Rows
from vkq.kernels.matrix_units import Pixels
from vkq.kernels.repack import repack_into, repacked
from vkq.layout.extent import BLOCKED, IMAGE, MATRIX, Spec
from vkq.numerics.quantize import dequantize, quantize
from vkq.problem.conv2d import Conv2dProblem
from vkq.runtime.builder import Builder, Value

from .run import assert_same_bits

Q = vkq.QParams(0.05, 3)
Y = vkq.QParams(2.0, -4)
RNG = np.random.default_rng(0)
W = RNG.integers(-128, 128, (6, 10)).astype(np.int8)
CONV_W = RNG.integers(-128, 128, (6, 3, 3, 3)).astype(np.int8)
X = RNG.integers(-128, 128, (4, 10)).astype(np.int8)


def test_numpy_in_numpy_out_and_tensor_in_tensor_out(device: vkq.Device) -> None:
    layer = vkq.Linear(W, 0.1, x_qparams=Q, y_qparams=Y, device=device)
    want = reference.linear(X, W, x=Q, w_scale=0.1, y=Y)
    assert_same_bits(layer(X), want)
    y = layer(vkq.Tensor.from_numpy(X, device))
    assert isinstance(y, vkq.Tensor)
    assert (y.dtype, y.shape, y.qparams) == ("int8", (4, 6), Y)
    assert_same_bits(y.numpy(), want)


def test_float32_input_is_quantized_on_the_device(device: vkq.Device) -> None:
    x = RNG.normal(size=(2, 3, 7, 5)).astype(np.float32)
    layer = vkq.Conv2d(CONV_W, 0.1, padding=1, x_qparams=Q, y_qparams=Y, device=device)
    want = reference.conv2d(quantize(x, Q), CONV_W, x=Q, w_scale=0.1, y=Y, padding=1)
    assert_same_bits(layer(x), want)
    assert_same_bits(layer(vkq.Tensor.from_numpy(x, device)).numpy(), want)


def test_any_packed_layout_is_taken(device: vkq.Device) -> None:
    x = RNG.integers(-128, 128, (2, 3, 7, 5)).astype(np.int8)
    layer = vkq.Conv2d(CONV_W, 0.1, x_qparams=Q, y_qparams=Y, device=device)
    for layout in ("kPackedInt8_4C", "kPackedInt8_4C1W", "kPackedInt8_4W"):
        assert_same_bits(layer(vkq.Tensor.from_numpy(x, device, layout)).numpy(), layer(x))


def test_a_chain_is_one_submission(any_device: vkq.Device) -> None:
    from vkq.device.extension import native_module

    native = native_module()
    chain = [
        vkq.Conv2d(CONV_W, 0.1, padding=1, x_qparams=Q, y_qparams=Q, device=any_device),
        vkq.Conv2d(
            RNG.integers(-9, 9, (5, 6, 1, 1)).astype(np.int8),
            0.1,
            x_qparams=Q,
            y_qparams=Y,
            device=any_device,
        ),
    ]
    x = RNG.integers(-128, 128, (1, 3, 9, 9)).astype(np.int8)
    native.inject("vkQueueSubmit", 0, 0)
    try:
        y = chain[1](chain[0](vkq.Tensor.from_numpy(x, any_device)))
        assert native.injected_calls() == 0
        got = y.numpy()
        assert native.injected_calls() == 1
    finally:
        native.inject("", 0, 0)
    middle = reference.conv2d(x, CONV_W, x=Q, w_scale=0.1, y=Q, padding=1)
    assert_same_bits(got, chain[1](middle))


@pytest.mark.parametrize("shape", [(0, 10), (3, 0, 10), (10,), (2, 3, 10), (2, 3, 5, 10), (2, 1, 3, 2, 10)])
def test_leading_dims(shape: tuple[int, ...], device: vkq.Device) -> None:
    x = RNG.integers(-128, 128, shape).astype(np.int8)
    got = vkq.linear(x, W, 0.1, x_qparams=Q, y_qparams=Y, device=device)
    assert_same_bits(got, reference.linear(x, W, x=Q, w_scale=0.1, y=Y))


def test_inputs_of_every_memory_order(device: vkq.Device) -> None:
    layer = vkq.Linear(np.asfortranarray(W), 0.1, x_qparams=Q, device=device)
    want = layer(X)
    frozen = X.copy()
    frozen.setflags(write=False)
    for x in (np.asfortranarray(X), np.repeat(X, 2, axis=1)[:, ::2], X[::-1][::-1], frozen):
        before = x.copy()
        assert_same_bits(layer(x), want)
        assert np.array_equal(x, before)
    real = X.astype(np.float32)
    assert_same_bits(layer(real.astype(">f4")), layer(real))


def test_explain_names_path_shader_and_scratch(any_device: vkq.Device) -> None:
    layer = vkq.Conv2d(
        CONV_W, 0.1, x_qparams=Q, y_qparams=Y, path="dot_u8s8", method="im2col", device=any_device
    )
    told = layer.explain((1, 3, 32, 32))
    assert told.path == "dot_u8s8"
    assert told.scheme == "q8ta_q8csw_q8to"
    assert told.macs == 30 * 30 * 6 * 27
    assert any(name.startswith("gemm_q8ta_q8csw__") and ":u8s8.q8to." in name for name in told.variants)
    assert told.problem == "conv2d[N=1,IC=3,H=32,W=32,OC=6,KH=3,KW=3]"
    assert "dot_u8s8" in str(told)
    assert vkq.Linear(W, 0.1, device=any_device).explain((1, 10)).scheme == "q8csw"
    assert vkq.Linear(W, 0.1, x_qparams=Q, device=any_device).explain((0, 10)).variants == ()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"weight": W.astype(np.int32)},
            vkq.DTypeError,
            "linear: weight has dtype int32; it must be int8 or uint8",
        ),
        (
            {"weight": (W, np.ones(4, np.float32))},
            vkq.DTypeError,
            r"w_scale: call Linear\(\*quantize_weight\(w\)\)",
        ),
        ({"weight": W[0]}, vkq.ArgumentError, r"linear: weight has 1 axes \(shape \(10,\)\); it must have 2"),
        ({"w_scale": 0.0}, vkq.ArgumentError, r"linear: w_scale\[0\] is 0.0; a scale must be positive"),
        (
            {"w_scale": [0.1, 0.2]},
            vkq.ArgumentError,
            r"linear: w_scale has shape \(2,\) but there are 6 output channels",
        ),
        ({"w_scale": 1e38}, vkq.ArgumentError, "output channel 0: x_scale \\* w_scale / y_scale is"),
        (
            {"bias": np.zeros(6)},
            vkq.DTypeError,
            "linear: bias has dtype float64; with int8 output it must be int32",
        ),
        (
            {"bias": np.zeros(5, np.int32)},
            vkq.ArgumentError,
            r"linear: bias has shape \(5,\); it must be \(6,\)",
        ),
        (
            {"bias": np.full(6, 2**31 - 1, np.int32)},
            vkq.AccumulatorOverflowError,
            "output channel 0: the accumulator may reach",
        ),
        (
            {"w_zero_point": 200},
            vkq.ArgumentError,
            r"linear: w_zero_point\[0\] is 200; int8 holds -128 to 127",
        ),
        ({"activation": "gelu"}, vkq.ArgumentError, "activation is 'gelu'"),
        ({"path": "fast"}, vkq.ArgumentError, "linear: path is 'fast'; it must be one of auto, dot"),
    ],
)
def test_bad_parameters_are_refused_at_construction(
    arguments: dict[str, object], error: type[Exception], text: str, any_device: vkq.Device
) -> None:
    scale = vkq.QParams(3.0) if arguments.get("w_scale") == 1e38 else Q
    y = vkq.QParams(1e-3) if arguments.get("w_scale") == 1e38 else Y
    given = {
        "weight": W,
        "w_scale": 0.1,
        "x_qparams": scale,
        "y_qparams": y,
        "device": any_device,
    } | arguments
    with pytest.raises(error, match=text):
        vkq.Linear(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        (np.zeros((4, 9), np.int8), vkq.ArgumentError, r"x has K=9 \(shape \(4, 9\)\) but weight has K=10"),
        (
            np.zeros((4, 10), np.uint8),
            vkq.DTypeError,
            "linear: x has dtype uint8; it must be int8 or float32",
        ),
        (
            np.zeros((4, 10), np.float64),
            vkq.DTypeError,
            r"linear: x has dtype float64; it must be int8 or float32; give x\.astype\(np\.float32\)",
        ),
    ],
)
def test_bad_inputs_are_refused(
    x: np.ndarray, error: type[Exception], text: str, any_device: vkq.Device
) -> None:
    layer = vkq.Linear(W, 0.1, x_qparams=Q, device=any_device)
    with pytest.raises(error, match=text):
        layer(x)


def test_quantized_x_needs_a_layer_of_it(any_device: vkq.Device) -> None:
    with pytest.raises(
        vkq.DTypeError, match="must be float32 or float16; for quantized x, make the layer with"
    ):
        vkq.Linear(W, 0.1, device=any_device)(np.zeros((4, 10), np.int8))


def test_tensors_of_other_parameters_or_devices_are_refused(
    device: vkq.Device, any_device: vkq.Device
) -> None:
    first = vkq.Linear(W, 0.1, x_qparams=Q, y_qparams=Y, device=device)
    second = vkq.Linear(RNG.integers(-9, 9, (2, 6)).astype(np.int8), 0.1, x_qparams=Q, device=device)
    with pytest.raises(vkq.ArgumentError, match=r"was quantized with QParams\(scale=2.0, zero_point=-4"):
        second(first(vkq.Tensor.from_numpy(X, device)))
    if device is not any_device:
        with pytest.raises(vkq.ArgumentError, match="they must be the same"):
            first(vkq.Tensor.from_numpy(X, any_device))


def test_conv2d_options_are_refused_with_the_sizes(any_device: vkq.Device) -> None:
    with pytest.raises(vkq.ArgumentError, match="groups must divide OC"):
        vkq.Conv2d(CONV_W, 0.1, groups=4, x_qparams=Q, device=any_device)
    with pytest.raises(vkq.ArgumentError, match="stride"):
        vkq.Conv2d(CONV_W, 0.1, stride=0, x_qparams=Q, device=any_device)
    layer = vkq.Conv2d(CONV_W, 0.1, x_qparams=Q, device=any_device)
    with pytest.raises(vkq.ArgumentError, match=r"OH = .* = 0; it must be at least 1"):
        layer(np.zeros((1, 3, 2, 9), np.int8))


def test_same_padding(device: vkq.Device) -> None:
    x = RNG.integers(-128, 128, (1, 3, 6, 5)).astype(np.int8)
    w = RNG.integers(-128, 128, (2, 3, 4, 2)).astype(np.int8)
    got = vkq.conv2d(x, w, 0.1, padding="same", x_qparams=Q, device=device)
    assert_same_bits(got, reference.conv2d(x, w, x=Q, w_scale=0.1, y=None, padding="same"))
    assert got.shape == (1, 2, 6, 5)


def in_blocks(b: Builder, x: Value, y: Value, other: str, build: Callable[[Value, Value], None]) -> None:
    """Repack x to the layout *other*, run *build*, and repack its int8 result to the layout of y."""
    inside = y if y.spec.dtype == "float32" else b.new(Spec(y.spec.shape, "int8", other, y.spec.qparams))
    build(repacked(b, x, other), inside)
    if inside is not y:
        repack_into(b, inside, y)


class BlockedConv:
    """An im2col convolution that reads and writes blocks of channels."""

    def __init__(self, c: conv_methods.Convolution, p: Conv2dProblem):
        self.kernel = conv_methods.Im2col(c.gemm, p.kh * p.kw)

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        in_blocks(b, x, y, IMAGE, lambda x, y: self.kernel.build(b, p, x, y))


def blocked_linear(layer: vkq.Linear, monkeypatch: pytest.MonkeyPatch) -> vkq.Linear:
    """Return the layer with kernels that read and write blocks of channels."""

    def build(b: Builder, x: Value, y: Value, pixels: Pixels, extra: object) -> None:
        in_blocks(b, x, y, MATRIX, lambda x, y: layer._gemm.build(b, x, y, Rows(pixels.rows)))

    # On some GPUs a small x in MATRIX would keep its layout.
    monkeypatch.setattr("vkq.ops.linear.is_faster_as_given", lambda *_: False)
    monkeypatch.setattr(layer, "_layout_for", lambda problem: BLOCKED)
    monkeypatch.setattr(layer, "_matrix", SimpleNamespace(build=build))
    return layer


def given(x: np.ndarray, device: vkq.Device) -> list[Any]:
    """Return one input in all forms that a layer accepts, int8 and float32: an array, and Tensors in every
    layout."""
    layouts = [BLOCKED, MATRIX] + ([IMAGE] if x.ndim == 4 else [])
    real = dequantize(x, Q)
    return [
        x,
        *(vkq.Tensor.from_numpy(x, device, name, Q) for name in layouts),
        real,
        vkq.Tensor.from_numpy(real, device),
    ]


@pytest.mark.parametrize("y", [Y, None])
@pytest.mark.parametrize("channels", [1, 16, 35])
def test_a_method_chooses_the_layout(
    device: vkq.Device, channels: int, y: vkq.QParams | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = conv_methods.Method(
        "blocked", lambda layer, p: None, lambda layer, p: "a test", BlockedConv, BLOCKED
    )
    monkeypatch.setattr(conv_methods, "METHODS", [method, *conv_methods.METHODS])
    w = RNG.integers(-128, 128, (17, channels, 3, 3)).astype(np.int8)
    x = RNG.integers(-128, 128, (2, channels, 5, 7)).astype(np.int8)
    layer = vkq.Conv2d(w, 0.1, x_qparams=Q, y_qparams=y, device=device)
    want = reference.conv2d(x, w, x=Q, w_scale=0.1, y=y)
    for one in given(x, device):
        result = layer(one)
        if isinstance(one, vkq.Tensor):
            assert result.layout == (BLOCKED if y else "contiguous")
            result = result.numpy()
        assert_same_bits(result, want)


def test_a_chain_keeps_the_layout_and_another_converts(
    device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = conv_methods.Method(
        "blocked", lambda layer, p: None, lambda layer, p: None, BlockedConv, BLOCKED
    )
    monkeypatch.setattr(conv_methods, "METHODS", [method, *conv_methods.METHODS])
    repacks = []
    want = RNG.integers(-128, 128, (1, 3, 6, 6)).astype(np.int8)
    y = vkq.Tensor.from_numpy(want, device)
    for name in ("blocked", "blocked", "im2col", "blocked"):
        w = RNG.integers(-128, 128, (want.shape[1] + 14, want.shape[1], 1, 1)).astype(np.int8)
        layer = vkq.Conv2d(w, 0.01, x_qparams=Q, y_qparams=Q, method=name, device=device)
        repacks.append(sum(name.startswith("repack") for name in layer.plan(y.spec).variants))
        y, want = layer(y), reference.conv2d(want, w, x=Q, w_scale=0.01, y=Q)
    assert_same_bits(y.numpy(), want)
    # Each sum is: repacks inside the "blocked" test kernel (from and to blocks) + repacks that the layer
    # adds around the kernel.
    assert repacks == [2 + 1, 2 + 0, 0 + 1, 2 + 1]


@pytest.mark.parametrize("y", [Y, None])
@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (2, 3, 2), (2, 1, 3, 2), (0,), (2, 0, 3)])
def test_a_linear_layer_in_blocks_of_channels(
    device: vkq.Device, lead: tuple[int, ...], y: vkq.QParams | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A linear layer accepts a 4-D Tensor in blocks of channels, although this layout is for images."""
    for n, k in ((17, 35), (16, 16), (5, 1)):
        w = RNG.integers(-128, 128, (n, k)).astype(np.int8)
        x = RNG.integers(-128, 128, (*lead, k)).astype(np.int8)
        layer = blocked_linear(vkq.Linear(w, 0.1, x_qparams=Q, y_qparams=y, device=device), monkeypatch)
        want = reference.linear(x, w, x=Q, w_scale=0.1, y=y)
        for one in given(x, device):
            result = layer(one)
            if isinstance(one, vkq.Tensor):
                assert result.qparams == y
                assert result.layout == ("contiguous" if y is None else MATRIX if len(lead) == 3 else BLOCKED)
                result = result.numpy()
            assert_same_bits(result, want)


def test_a_layout_is_chosen_once(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer chooses its layout once. If the choice changes later, its plans still fit its inputs."""
    layer = vkq.Linear(W, 0.1, x_qparams=Q, y_qparams=Y, device=any_device)
    want = layer(X)
    monkeypatch.setattr(layer, "_layout_for", lambda problem: BLOCKED)
    assert layer(vkq.Tensor.from_numpy(X, any_device)).layout == MATRIX
    assert_same_bits(layer(X), want)


def test_a_float_bias_is_rounded_for_an_8_bit_result(device: vkq.Device) -> None:
    """A layer with 8-bit results rounds a float bias as ONNX Runtime's quantizer does: its results equal
    those of the layer with the rounded int32 bias."""
    rng = np.random.default_rng(4)
    x = rng.integers(-128, 128, (3, 7), dtype=np.int8)
    w, scale = vkq.quantize_weight(rng.normal(0, 0.2, (5, 7)))
    bias = rng.normal(0, 2, 5).astype(np.float32)
    given = {"x_qparams": vkq.QParams(0.03, 4), "y_qparams": vkq.QParams(0.1, -2), "device": device}
    whole = np.rint(bias / (np.float32(0.03) * scale)).astype(np.int32)
    assert np.abs(whole).min() > 10
    want = vkq.linear(x, w, scale, bias=whole, **given)
    np.testing.assert_array_equal(vkq.linear(x, w, scale, bias=bias, **given), want)
    with pytest.raises(vkq.ArgumentError, match=r"linear: bias\[0\] is 1.*e\+20.*int32 cannot hold it"):
        vkq.linear(x, w, scale, bias=np.full(5, 1e20, np.float32), **given)


def test_reprs_fit_a_line(device: vkq.Device) -> None:
    layer = vkq.Conv2d(
        np.ones((512, 512, 3, 3), np.int8),
        0.5,
        x_qparams=vkq.QParams(0.5),
        y_qparams=vkq.QParams(1.0),
        device=device,
    )
    assert repr(layer).startswith("<vkq.Conv2d 512x512x3x3 q8ta_q8csw_q8to on ")
    image = vkq.Tensor.from_numpy(np.zeros((1, 3, 224, 224), np.float32), device)
    for one in (layer, image, device):
        assert len(repr(one)) <= 80, repr(one)


def zeroed(call: Callable[..., Any], arrays: dict[str, np.ndarray], x: np.ndarray) -> Any:
    """Make a layer of copies of *arrays*, overwrite the copies with zeros, then return its result."""
    given = {name: array.copy() for name, array in arrays.items()}
    layer = call(**given)
    for array in given.values():
        array[...] = 0
    return layer(x)


@pytest.mark.parametrize("scheme", ["int8", "dynamic", "weight-only", "uint8"])
def test_arrays_may_be_changed_when_a_layer_is_made(any_device: vkq.Device, scheme: str) -> None:
    """Layers copy their weights: writes to the arrays after a layer is made have no effect, although the
    layer packs and uploads its weights at its first call."""
    rng = np.random.default_rng(6)
    dtype = np.uint8 if scheme == "uint8" else np.int8
    q = {"int8": Q, "uint8": Q, "dynamic": "dynamic"}.get(scheme)
    bias = rng.normal(size=6).astype(np.float32)
    for kind, shape, x_shape in (
        (vkq.Linear, (6, 8), (3, 8)),
        (vkq.Conv2d, (6, 4, 3, 3), (1, 4, 5, 5)),
        (vkq.ConvTranspose2d, (1, 6, 3, 3), (1, 1, 5, 5)),
    ):
        if scheme == "dynamic" and kind is not vkq.Linear:
            continue
        arrays = {
            "weight": rng.integers(1, 127, shape).astype(dtype),
            "w_scale": rng.uniform(0.01, 0.02, 6).astype(np.float32),
            "w_zero_point": rng.integers(1, 9, 6).astype(dtype),
            "bias": bias,
        }
        x = rng.normal(size=x_shape).astype(np.float32)

        def call(kind: Any = kind, **given: np.ndarray) -> Any:
            return kind(x_qparams=q, device=any_device, **given)

        np.testing.assert_array_equal(zeroed(call, arrays, x), call(**arrays)(x))


def test_grouped_arrays_may_be_changed(any_device: vkq.Device) -> None:
    rng = np.random.default_rng(7)
    arrays = {
        "packed": rng.integers(1, 255, (6, 2, 16)).astype(np.uint8),
        "scale": rng.uniform(0.01, 0.02, (6, 2)).astype(np.float32),
        "zero_point": rng.uniform(1, 9, (6, 2)).astype(np.float32),
    }
    x = rng.normal(size=(3, 64)).astype(np.float32)

    def call(**given: np.ndarray) -> vkq.Linear:
        return vkq.Linear(vkq.GroupedWeight(**given), device=any_device)

    np.testing.assert_array_equal(zeroed(call, arrays, x), call(**arrays)(x))
    with pytest.raises(ValueError, match="read-only"):
        vkq.GroupedWeight(**arrays).packed[0] = 0
