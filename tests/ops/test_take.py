"""Tests of take, slice and split, compared with NumPy's indexing."""

import numpy as np
import pytest

import vkq
from vkq.layout.extent import BLOCKED, IMAGE, MATRIX
from vkq.ops.take import concatenated_words, gathered
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run
from vkq.runtime.tensor import Tensor

DTYPES = ["int8", "uint8", "float32", "int32", "float16"]


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if dtype.startswith("float"):
        return random.normal(size=shape).astype(dtype)
    low = -128 if dtype == "int8" else 0
    return random.integers(low, low + 256, shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 5, 3, 7), (3, 9), (11,), (1, 2, 3, 4, 5)], ids=str)
def test_take(device: vkq.Device, dtype: str, shape: tuple[int, ...]) -> None:
    x = numbers(shape, dtype)
    places = np.random.default_rng(1).integers(-1, x.size, (4, 3, 5))
    got = vkq.take(x, places, 7, device=device)
    want = np.where(places < 0, np.array(7, dtype), x.ravel()[places])
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("layout", [IMAGE, MATRIX, BLOCKED])
def test_take_from_any_layout(device: vkq.Device, layout: str) -> None:
    x = numbers((2, 18, 3, 5), "int8")
    q = vkq.QParams(0.5, 3)
    got = vkq.take(Tensor.from_numpy(x, device, layout, q), np.arange(x.size)[::-1].reshape(x.shape))
    assert got.qparams == q
    np.testing.assert_array_equal(got.numpy(), x.ravel()[::-1].reshape(x.shape))


SLICES = [
    (slice(None), slice(1, 4)),
    (slice(0, 1), slice(None, None, 2), slice(1, None)),
    (slice(None), slice(8, 2, -3), slice(None), slice(3, 7)),
    (slice(1, 2), slice(4, 8), slice(0, 2), slice(4, 5)),
    (slice(5, 9),),
]


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16"])
@pytest.mark.parametrize("slices", SLICES, ids=str)
@pytest.mark.parametrize("layout", [IMAGE, MATRIX, BLOCKED])
def test_slice(device: vkq.Device, slices: tuple[slice, ...], dtype: str, layout: str) -> None:
    x = numbers((2, 9, 3, 7), dtype)
    tensor = Tensor.from_numpy(x, device, layout if dtype == "uint8" else None)
    np.testing.assert_array_equal(vkq.slice(tensor, slices).numpy(), x[slices])


@pytest.mark.parametrize("shape", [(6, 5), (7,), (2, 3, 2, 5, 4)], ids=str)
def test_slice_of_other_ranks(device: vkq.Device, shape: tuple[int, ...]) -> None:
    x = numbers(shape, "int8")
    slices = tuple(slice(1, d) for d in shape)
    np.testing.assert_array_equal(vkq.slice(x, slices, device=device), x[slices])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_split(device: vkq.Device, axis: int, dtype: str) -> None:
    x = numbers((4, 9, 6), dtype)
    sizes = [1, 0, x.shape[axis] - 1]
    parts = vkq.split(x, sizes, axis, device=device)
    for got, want in zip(parts, np.split(x, np.cumsum(sizes)[:-1], axis), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concat_words(device: vkq.Device, axis: int, dtype: str) -> None:
    shapes = [[2, 3, 4] for _ in range(3)]
    for i, shape in enumerate(shapes):
        shape[axis] = i
    arrays = [numbers(tuple(shape), dtype, i) for i, shape in enumerate(shapes)]
    tensors, b = [Tensor.from_numpy(a, device) for a in arrays], Builder(device)
    plan = b.plan(concatenated_words(b, [b.input(tensor.spec) for tensor in tensors], axis))
    np.testing.assert_array_equal(run(plan, tensors).numpy(), np.concatenate(arrays, axis))


# (x shape, ids shape, axis, variants for 8-bit, float16 and 32-bit elements). "": several dispatches gather
# the rows.
ROWS = [
    ((9, 12), (7,), 0, ("bytes", "words", "vectors")),
    ((5, 7), (2, 3), 0, ("bytes", "", "words")),
    ((3, 6, 10), (5,), 1, ("bytes", "words", "words")),
    ((6, 5, 8), (3,), 0, ("bytes", "vectors", "vectors")),
    ((2, 3, 2, 4), (5,), 1, ("", "vectors", "vectors")),
    ((4, 9), (2,), 1, ("", "", "words")),
    ((11,), (3, 4), 0, ("", "", "words")),
    ((2, 9), (1, 2, 3), 0, ("", "", "words")),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "count", "axis", "variants"), ROWS, ids=str)
def test_gathered_rows(
    device: vkq.Device, dtype: str, shape: tuple[int, ...], count: tuple[int, ...], axis: int,
    variants: tuple[str, str, str],
) -> None:  # fmt: skip
    """One dispatch copies rows that are whole words in both layouts; other rows need several steps.
    Negative ids count from the end, and ids beyond the axis read the nearest row."""
    size = shape[axis]
    ids = np.random.default_rng(3).integers(-size - 3, size + 3, count).astype(np.int32)
    tensors, b = [Tensor.from_numpy(a, device) for a in (numbers(shape, dtype), ids)], Builder(device)
    x, places = (b.input(tensor.spec) for tensor in tensors)
    plan = b.plan(gathered(b, x, places, axis))
    variant = variants[0] if dtype in ("int8", "uint8") else variants[1 if dtype == "float16" else 2]
    assert (f"gather_rows__element:{variant}" in plan.variants) == (len(plan.steps) == 1) == bool(variant)
    nearest = np.clip(np.where(ids < 0, ids + size, ids), 0, size - 1)
    np.testing.assert_array_equal(run(plan, tensors).numpy(), np.take(numbers(shape, dtype), nearest, axis))


def test_every_fill_of_a_type(any_device: vkq.Device) -> None:
    """Every fill value is written exactly: plans also distinguish 0.0 and -0.0, which compare equal."""
    places = np.array([-1, 0])
    for fill in (0.0, -0.0, 0, np.inf, -np.inf, np.nan, np.finfo(np.float32).max):
        got = vkq.take(np.float32([1]), places, fill, device=any_device)
        assert got.tobytes() == np.float32([fill, 1]).tobytes(), fill
    for dtype in ("int8", "uint8", "int32"):
        for fill in (int(np.iinfo(dtype).min), float(np.iinfo(dtype).max)):
            got = vkq.take(np.ones(1, dtype), places, fill, device=any_device)
            assert got.tolist() == [fill, 1]


def test_refused(any_device: vkq.Device) -> None:
    x = np.zeros((2, 3), np.int8)
    with pytest.raises(vkq.ArgumentError, match="places go from 0 to 6; x has 6 elements"):
        vkq.take(x, [0, 6], device=any_device)
    with pytest.raises(vkq.ArgumentError, match="places go from -2"):
        vkq.take(x, [-2], device=any_device)
    with pytest.raises(vkq.DTypeError, match="must be integers"):
        vkq.take(x, [0.5], device=any_device)
    for dtype, fill in (("int8", 200), ("int32", 2**31), ("int32", np.float32(2**31)), ("float32", 1e39)):
        for given in {fill, fill if dtype == "float32" else np.inf}:
            with pytest.raises(vkq.ArgumentError, match=rf"fill is .*; {dtype} cannot hold it"):
                vkq.take(x.astype(dtype), [0], given, device=any_device)
    for wrong in (slice(None, None, 0), slice(0.5, None), slice("a", None)):
        with pytest.raises(vkq.ArgumentError, match="bounds must be integers or None, and steps not 0"):
            vkq.slice(x, [wrong], device=any_device)
    with pytest.raises(vkq.ArgumentError, match="do not fit 2 axes"):
        vkq.slice(x, [slice(None)] * 3, device=any_device)
    with pytest.raises(vkq.ArgumentError, match="do not add up to axis 1"):
        vkq.split(x, [1, 1], 1, device=any_device)
