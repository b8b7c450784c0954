"""Tests of f32 and f16: float weights, float32 sums. Each product and sum is rounded once, and the sizes of a
layer determine the order of additions, so every bit of a result is defined. Linear layers add products in the
order of k; with few rows, they add `slices` partial sums. Convolutions add products in the order (channel,
kh, kw)."""

import numpy as np
import numpy.typing as npt
import pytest

import vkq
from tests.device.reported import profile_says
from vkq.kernels import float_depthwise, float_direct
from vkq.kernels.float_product import slices
from vkq.kernels.float_shared import MOST_READS, FloatShared
from vkq.kernels.floats import lanes

Float32 = npt.NDArray[np.float32]
Sizes = tuple[int, int, tuple[int, int], int, int, int]
# (M, K, N). M and N are not multiples of a tile. Some cases have one row, one column, a K that is split into
# parts of different lengths, or K = 0.
LINEAR = [(1, 300, 37), (5, 37, 10), (33, 64, 130), (8, 1100, 6), (9, 130, 1), (70, 3, 65), (3, 0, 5)]
# (IC, OC, kernel, groups, stride, dilation). In some cases an invocation computes one channel, in others
# several. Some cases have groups or a kernel that is not square.
CONVOLUTIONS = [
    (3, 5, (3, 3), 1, 1, 1),
    (6, 12, (3, 2), 3, 2, 1),
    (8, 16, (1, 1), 1, 1, 1),
    (6, 12, (3, 3), 2, 1, 2),
    (4, 19, (5, 1), 1, 2, 1),
]
# As CONVOLUTIONS, for kernels whose lanes share loads of x. In some cases the output channels fill all lanes,
# in others they leave a remainder. Some cases have groups, strides and dilation.
SHARED = [
    (5, 30, (3, 3), 1, 1, 1),
    (4, 64, (1, 3), 2, 2, 2),
    (9, 33, (1, 1), 1, 1, 1),
    (3, 24, (7, 7), 1, 3, 1),
]


def numbers(*shape: int, floats: str = "float32") -> npt.NDArray[np.floating]:
    found = np.random.default_rng([7, *shape]).standard_normal(shape).astype(floats)
    found.flat[: found.size // 7] = 6e-8  # 6e-8 is subnormal in float16
    return found


def in_order(x: Float32, w: npt.NDArray[np.floating], bias: Float32, parts: int) -> Float32:
    """Return x (M, K) @ w (N, K).T + bias. Products are added in the order of the kernel, and each product
    and sum is rounded."""
    total, length = np.zeros((len(x), len(w)), np.float32), -(-x.shape[1] // parts)
    for part in range(parts):
        sums = np.zeros_like(total)
        for k in range(part * length, min(x.shape[1], (part + 1) * length)):
            sums += x[:, k, None] * w[None, :, k].astype(np.float32)
        total += sums
    return total + bias


@pytest.mark.parametrize("floats", ["float32", "float16"])
@pytest.mark.parametrize("sizes", LINEAR, ids=lambda s: "x".join(map(str, s)))
def test_linear_has_the_bits_of_its_order(
    device: vkq.Device, sizes: tuple[int, int, int], floats: str
) -> None:
    m, k, n = sizes
    x, w, bias = numbers(m, k), numbers(n, k, floats=floats), numbers(n)
    layer = vkq.Linear(w, bias=bias, device=device)
    assert layer.scheme == ("f32" if floats == "float32" else "f16")
    np.testing.assert_array_equal(layer(x), in_order(x, w, bias, slices(m, k)))


def convolved(device: vkq.Device, sizes: Sizes, width: int) -> str:
    """Check that a convolution of these sizes equals, bit for bit, sums in the order (channel, kh, kw).
    Return the shader variant that ran."""
    ic, oc, (kh, kw), groups, stride, dilation = sizes
    x, w, bias = numbers(2, ic, 11, width), numbers(oc, ic // groups, kh, kw), numbers(oc)
    layer = vkq.Conv2d(
        w, bias=bias, stride=stride, padding=(1, 2), dilation=dilation, groups=groups, activation="relu",
        device=device,
    )  # fmt: skip
    y = layer(x)
    (variant,) = layer.explain(x.shape).variants
    padded, wanted = np.pad(x, ((0, 0), (0, 0), (1, 1), (2, 2))), np.zeros(y.shape, np.float32)
    high, wide = (size * stride for size in y.shape[2:])
    for o, c, i, j in np.ndindex(oc, ic // groups, kh, kw):
        channel = o // (oc // groups) * (ic // groups) + c
        top, left = i * dilation, j * dilation
        seen = padded[:, channel, top : top + high : stride, left : left + wide : stride]
        wanted[:, o] += seen * w[o, c, i, j]
    wanted = np.maximum(wanted + bias.reshape(-1, 1, 1), np.float32(0))
    np.testing.assert_array_equal(y, wanted)
    return variant


@pytest.mark.parametrize("tile", ["4x4", "8x8"])
@pytest.mark.parametrize("sizes", CONVOLUTIONS, ids=lambda s: "-".join(map(str, s)))
def test_convolution_has_the_bits_of_its_order(
    device: vkq.Device, sizes: Sizes, tile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile_says(monkeypatch, float_direct, tile_float=tile)
    monkeypatch.setattr(FloatShared, "fits", lambda *_: False)
    assert convolved(device, sizes, 9).startswith("conv2d_f32__direct")


@pytest.mark.parametrize("sizes", SHARED, ids=lambda s: "-".join(map(str, s)))
@pytest.mark.parametrize(("width", "read"), [(9, "numbers"), (12, "texels")])
def test_lanes_that_share_pixels_keep_the_order(
    device: vkq.Device, sizes: Sizes, width: int, read: str
) -> None:
    _, _, (_, kw), _, stride, dilation = sizes
    # number of columns that eight output pixels read; if it is small, lanes share their loads
    columns = 4 + 7 * stride + (kw - 1) * dilation
    shared = columns <= MOST_READS * lanes(device.capabilities)
    variant = convolved(device, sizes, width)
    assert variant.startswith(f"conv2d_f32__lanes:{read}" if shared else "conv2d_f32__direct")


@pytest.mark.parametrize(("stride", "width"), [(1, 12), (2, 9), (2, 16)])
@pytest.mark.parametrize("lines", [False, True])
def test_depthwise_kernels_keep_the_order(
    device: vkq.Device, stride: int, width: int, lines: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All depthwise kernels keep the order of additions: the kernel for rows (*lines*, the profile's choice),
    the kernel for whole vectors, and the direct kernel, which computes all other rows."""
    profile_says(monkeypatch, float_depthwise, lane_loads=lines)
    variant = convolved(device, (6, 12, (3, 3), 6, stride, 1), width)
    by_vectors = width % 4 == 0 and (width + 4 - 3) // stride % 4 == 3
    assert variant.startswith(
        "conv2d_q8csw__depthwise"
        if lines
        else "conv2d_q8csw__vectors"
        if by_vectors
        else "conv2d_f32__direct"
    )


def test_a_tensor_of_float16_gives_float16(device: vkq.Device) -> None:
    x, w = numbers(4, 20, floats="float16"), numbers(6, 20)
    y = vkq.Linear(w, device=device)(x)
    wanted = in_order(x.astype(np.float32), w, np.zeros(6, np.float32), 1).astype(np.float16)
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"w_scale": 0.5}, vkq.ArgumentError, "w_scale is given, and weight is float32, which has none"),
        ({"w_zero_point": 3}, vkq.ArgumentError, "w_zero_point is given, and weight is float32"),
        ({"y_qparams": vkq.QParams(0.5)}, vkq.ArgumentError, "y_qparams is given with a float32 weight"),
        ({"bias": np.zeros(6, np.int32)}, vkq.DTypeError, "with a float weight it must be float32"),
        ({"path": "dot"}, vkq.ArgumentError, "path dot needs int8 activations and an int8 weight"),
        ({"method": "gemv"}, vkq.ArgumentError, "method is 'gemv' with a float weight"),
        ({"x_qparams": vkq.QParams(0.5)}, vkq.DTypeError, "must be int8 or uint8"),
    ],
)
def test_what_does_not_go_with_a_float_weight(
    options: dict[str, object], error: type[Exception], said: str, any_device: vkq.Device
) -> None:
    with pytest.raises(error, match=said):
        vkq.Linear(numbers(6, 20), device=any_device, **options)


def test_other_methods_of_convolutions_need_integers(any_device: vkq.Device) -> None:
    with pytest.raises(vkq.ArgumentError, match="its weight is float32"):
        vkq.Conv2d(numbers(4, 3, 1, 1), method="pointwise", device=any_device)
