"""Tests of float32 operators (binary, sums, pools): results equal NumPy's bit for bit on every device, or
are within a bound."""

from typing import Any, get_args

import numpy as np
import pytest

import vkq
from vkq.layout.extent import Spec
from vkq.ops import operand, real
from vkq.ops.real import RealOp, combined, pooled, summed
from vkq.problem.window import Window
from vkq.runtime.builder import Builder

FUNCTIONS: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum,
    "min": np.minimum,
}  # fmt: skip
NORMAL = np.finfo(np.float32).tiny


def run(device: vkq.Device, op: RealOp, x: np.ndarray, z: np.ndarray) -> Any:
    return operand.apply(op, combined, {"x": x, "z": z}, (op,), device, None, ("float32",))


def numbers(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return values of all magnitudes, zeros and ones. Most products and quotients of them are normal
    numbers."""
    r = np.random.default_rng(seed)
    x = r.normal(0, 1, shape) * 2.0 ** r.integers(-62, 62, shape)
    return np.where(r.random(shape) < 0.1, r.integers(-1, 2, shape), x).astype(np.float32)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("op", get_args(RealOp))
def test_exact(device: vkq.Device, monkeypatch: pytest.MonkeyPatch, op: RealOp, soft: bool) -> None:
    """Results are exact for rows, scalars and whole operands that broadcast, and for nearly equal operands.
    Subnormal results are exact or zero."""
    monkeypatch.setattr(device, "_soft_float", soft)
    x = numbers(1, (3, 5, 7, 11))
    near = (x * np.float32(1 + 2**-20)).astype(np.float32)
    for z in (numbers(2, x.shape), near, numbers(3, (7, 1)), numbers(4, ()), numbers(5, (2, 3, 5, 7, 11))):
        z = np.where(z == 0, np.float32(1), z) if op == "div" else z
        with np.errstate(all="ignore"):
            want = FUNCTIONS[op](x, z)
        got = run(device, op, x, np.asarray(z))
        assert (got.dtype, got.shape) == (np.float32, want.shape)
        small = np.abs(want) < NORMAL
        np.testing.assert_array_equal(got[~small], want[~small])
        assert np.all((got[small] == want[small]) | (got[small] == 0))


def test_no_numbers(device: vkq.Device) -> None:
    """max and min return NaN if either operand is NaN; a quotient by zero is infinite."""
    x, z = np.array([np.nan, 1, -3, np.nan], np.float32), np.array([2, np.nan, 0, np.nan], np.float32)
    for op in ("max", "min"):
        np.testing.assert_array_equal(run(device, op, x, z), FUNCTIONS[op](x, z))
    np.testing.assert_array_equal(run(device, "div", x[2:3], z[2:3]), [-np.inf])


ZEROS = np.float32([0, 1, 3, 2.0**-126, 2.0**-64, 2.0**64, 2.0**127])
SUBNORMAL = np.float32([2.0**-149, 3 * 2.0**-130, 2.0**-126 - 2.0**-149])


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("op", ["mul", "div", "max", "min"])
def test_zeros_have_signs(
    device: vkq.Device, monkeypatch: pytest.MonkeyPatch, op: RealOp, soft: bool
) -> None:
    """Zeros keep their signs: of two zeros, max returns the positive one and min the negative one.
    Quotients keep subnormal values; other operators may flush them. Floats computed by integer operations
    (soft) have no infinity."""
    monkeypatch.setattr(device, "_soft_float", soft)
    known = [ZEROS, SUBNORMAL] if op == "div" else [ZEROS]
    edges = np.concatenate([*known, np.float32([] if soft else [np.inf])])
    x, z = np.meshgrid(np.append(edges, -edges), np.append(edges, -edges))
    with np.errstate(all="ignore"):
        want = FUNCTIONS[op](x, z)
    if op in ("max", "min"):
        want = np.where((x == 0) & (z == 0), FUNCTIONS[op](np.copysign(1, x), np.copysign(1, z)) * 0, want)
    got = run(device, op, x, z)
    number = ~np.isnan(want)
    small = number & (np.abs(want) < NORMAL)
    np.testing.assert_array_equal(got[~small], want[~small])
    assert np.all((got[small] == want[small]) | (got[small] == 0))
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


def test_refused(any_device: vkq.Device) -> None:
    with pytest.raises(vkq.ArgumentError, match="do not broadcast"):
        run(any_device, "add", np.zeros((2, 3), np.float32), np.zeros(2, np.float32))


@pytest.mark.parametrize("soft", [False, True])
def test_sums_of_rows(device: vkq.Device, monkeypatch: pytest.MonkeyPatch, soft: bool) -> None:
    """Sums of rows are within 2^-23 of the sum of magnitudes, also if nearly all terms cancel."""
    monkeypatch.setattr(device, "_soft_float", soft)
    monkeypatch.setattr("vkq.ops.real.PART", 64 * 300)  # longer rows need several dispatches
    for kept, shape in ((0, (37,)), (1, (5, 3, 1001)), (2, (2, 3, 7)), (1, (3, 127)), (1, (2, 65_537))):
        x = np.random.default_rng(6).normal(1000, 1, shape).astype(np.float32)
        x[..., ::2] *= -1
        got = operand.apply("sum", summed, {"x": x}, (kept,), device, None, ("float32",))
        axes = tuple(range(kept, len(shape)))
        wide = x.astype(np.float64)
        assert got.shape == shape[:kept]
        assert np.all(np.abs(got - wide.sum(axes)) <= 2.0**-23 * np.abs(wide).sum(axes))


@pytest.mark.parametrize("soft", [False, True])
def test_sums_with_infinities(device: vkq.Device, monkeypatch: pytest.MonkeyPatch, soft: bool) -> None:
    """Sums are infinite if they contain infinities of one sign or exceed float32. They are NaN if they
    contain NaN or infinities of both signs; float arithmetic computed in integers (*soft*) does not
    support these NaN sums."""
    monkeypatch.setattr(device, "_soft_float", soft)
    inf, nan = np.inf, np.nan
    rows = [[inf, 1, 2], [1, -inf, -inf], [3, 1, inf], [3e38, 3e38, 0], [inf, 0, -inf], [1, nan, 2]]
    x = np.array(rows[: 4 if soft else 6], np.float32)
    got = operand.apply("sum", summed, {"x": x}, (1,), device, None, ("float32",))
    np.testing.assert_array_equal(got, np.float32([inf, -inf, inf, inf, nan, nan])[: len(x)])


# (x shape, kernel, stride, padding, dilation, ceil_mode). The cases have one tap, remainders, padding on one
# side, dilated windows that read only padding, a last window beyond the padding, and windows as large as the
# image, which several invocations share.
WINDOWS: list[tuple[Any, ...]] = [
    ((2, 3, 5, 7), (1, 1), 1, 0, 1, False),
    ((1, 2, 9, 11), (3, 2), (2, 1), (1, 0, 0, 1), 1, False),
    ((1, 1, 4, 4), (2, 2), 1, 2, 3, False),
    ((1, 3, 7, 8), (3, 3), 2, 1, 1, True),
    ((2, 3, 19, 23), (19, 23), 1, 0, 1, False),
    ((1, 2, 40, 31), (17, 18), (5, 3), (8, 9), 1, False),
]


def by_hand(x: np.ndarray, window: Window, of: str, count_padding: bool, lanes: int) -> np.ndarray:
    """Return the pool, window by window, with the kernel's order of additions."""
    (_, _, h, w), (top, left, bottom, right) = window.x_shape, window.padding
    y = np.zeros(window.y_shape, np.float32)
    for n, c, i, j in np.ndindex(y.shape):
        rows = i * window.stride[0] - top + np.arange(window.kernel[0]) * window.dilation[0]
        columns = j * window.stride[1] - left + np.arange(window.kernel[1]) * window.dilation[1]
        count = np.sum(rows < h + bottom) * np.sum(columns < w + right)
        rows, columns = (at[(at >= 0) & (at < size)] for at, size in ((rows, h), (columns, w)))
        seen = x[n, c][np.ix_(rows, columns)].reshape(-1)
        if of == "max":
            y[n, c, i, j] = seen.max(initial=-np.inf)
            continue
        shares = np.zeros(lanes, np.float32)
        for k, value in enumerate(seen):
            shares[k % lanes] += value
        while len(shares) > 1:
            shares = shares[: len(shares) // 2] + shares[len(shares) // 2 :]
        with np.errstate(invalid="ignore"):
            y[n, c, i, j] = shares[0] / np.float32(count if count_padding else seen.size)
    return y


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("of", ["max", "mean", "mean with padding"])
@pytest.mark.parametrize("sizes", WINDOWS, ids=lambda s: "-".join(map(str, s)))
def test_pools(
    device: vkq.Device, sizes: tuple[Any, ...], of: Any, soft: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_soft_float", soft)
    window, counted = Window.of("pool", *sizes), of.endswith("padding")
    x = np.random.default_rng(3).normal(0, 1, window.x_shape).astype(np.float32)
    got = operand.apply(
        "pool", lambda b, x: pooled(b, x, window, of[:4].strip(), counted), {"x": x}, (), device, None,
        ("float32",),
    )  # fmt: skip
    wanted = by_hand(x, window, of, counted, 64 if window.taps >= 256 else 1)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("sizes", WINDOWS, ids=lambda s: "-".join(map(str, s)))
def test_the_largest_along_one_axis_and_then_the_other(
    device: vkq.Device, sizes: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real, "BY_AXES", 1)
    window = Window.of("pool", *sizes)
    x = np.random.default_rng(4).normal(0, 1, window.x_shape).astype(np.float32)
    got = operand.apply("pool", pooled, {"x": x}, (window, "max"), device, None, ("float32",))
    np.testing.assert_array_equal(got, by_hand(x, window, "max", False, 1))


def test_pools_keep_what_is_no_number(device: vkq.Device) -> None:
    x = np.zeros((1, 4, 20, 20), np.float32)
    x[0, :, 3, 5], x[0, 3] = [np.nan, np.inf, -np.inf, 0], -np.inf
    window = Window.of("pool", x.shape, 20, 1, 0, 1, False)
    got = [
        operand.apply("pool", pooled, {"x": x}, (window, of), device, None, ("float32",)).ravel()
        for of in ("max", "mean")
    ]
    np.testing.assert_array_equal(got[0], np.float32([np.nan, np.inf, 0, -np.inf]))
    np.testing.assert_array_equal(got[1], np.float32([np.nan, np.inf, -np.inf, -np.inf]))


def test_windows_beyond_int32_are_refused(device: vkq.Device) -> None:
    b = Builder(device)
    window = Window.of("pool", (1, 1, 4, 4), 1, 1, 0, (1, 1 << 31), False)
    with pytest.raises(vkq.ArgumentError, match=r"must be below 2\^31, not 2147483648"):
        pooled(b, b.input(Spec((1, 1, 4, 4), "float32")), window, "max")


def test_a_window_of_a_million_numbers_is_one_dispatch(device: vkq.Device) -> None:
    b = Builder(device)
    window = Window.of("pool", (1, 1, 1100, 1000), (1100, 1000), 1, 0, 1, False)
    pooled(b, b.input(Spec((1, 1, 1100, 1000), "float32")), window, "mean")
    assert b.dispatches == 1
    assert real._lanes(window.taps) == 128
