"""Tests of the kernel that reads attention heads from the columns of a product, rotates them and writes
them into caches. Results equal those of the NumPy steps bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkq
from vkq.graph.operators.scatter import placed
from vkq.kernels.heads import buffers, fits, headed
from vkq.numerics.heads import Part
from vkq.runtime.builder import Builder

BATCH, TOKENS, ROWS, WIDTH = 2, 3, 7, 32
HALF, FLOAT = "float16", "float32"


def numbers(dtype: str, *shape: int) -> np.ndarray:
    """Return random bits as floats: also infinities, NaN and subnormal numbers."""
    bits: Any = {HALF: np.uint16, FLOAT: np.uint32}[dtype]
    return np.random.default_rng(len(shape)).integers(0, np.iinfo(bits).max, shape, bits).view(dtype)


def check(
    device: vkq.Device, parts: tuple[Part, ...], dtype: str, columns: int, pairs: int, interleaved: bool,
    apart: bool = True,
) -> None:  # fmt: skip
    """Check all results of *parts*. *apart*: whether each batch element has its own angles."""
    x = numbers(dtype, BATCH, TOKENS, columns)
    angles = np.random.default_rng(1).normal(0, 2, (BATCH if apart else 1, TOKENS, 1, pairs))
    turns = [np.cos(angles).astype(FLOAT), np.sin(angles).astype(FLOAT)]
    start = np.array([2, ROWS - 1], np.int32)  # the second batch element writes the last row, row 0 and row 1
    cached = [part for part in parts if part.order == "cache"]
    pasts = [numbers(part.dtype, *part.shape(BATCH, TOKENS, ROWS)) for part in cached]
    turns = turns if any(part.rotated for part in parts) else []
    arrays = [x, *turns, *([start] if cached else []), *pasts]
    tensors = [vkq.Tensor.from_numpy(a, device) for a in arrays]
    b = Builder(device)
    given = [b.input(tensor.spec) for tensor in tensors]
    begin = given[1 + len(turns)] if cached else None
    values = headed(
        b, given[0], given[1 : 1 + len(turns)], begin, given[len(given) - len(pasts) :], parts, interleaved
    )
    plan = b.plan(*values)
    assert len(plan.variants) == 1
    found = [vkq.Tensor.of(device, spec) for spec in plan.results]
    device.add(plan, [tensor.buffer for tensor in tensors], [y.buffer for y in found])
    rest = iter(pasts)
    for part, y in zip(parts, found, strict=True):
        with np.errstate(all="ignore"):
            want = part.computed(x, turns, interleaved)
        want = placed(next(rest), start, want) if part.order == "cache" else want
        got, bits = y.numpy(), f"u{want.dtype.itemsize}"
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        same = (got.view(bits) == np.ascontiguousarray(want).view(bits)) | (np.isnan(got) & np.isnan(want))
        assert same.all(), (part, np.argwhere(~same)[:4])
        if not part.rotated and part.dtype == dtype:
            assert got.tobytes() == want.tobytes()


@pytest.mark.usefixtures("conversions")
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
@pytest.mark.parametrize("pairs", [WIDTH // 2, 8])
def test_queries_keys_and_values(device: vkq.Device, pairs: int, dtype: str, interleaved: bool) -> None:
    """One dispatch computes the queries, keys and values of a decoder's layer. The heads are rotated as a
    whole or in part."""
    sizes = {"q": 4, "k": 2, "v": 2}
    q = Part(8, sizes["q"], WIDTH, True, FLOAT, "tokens")
    k = Part(8 + 4 * WIDTH, sizes["k"], WIDTH, True, dtype, "cache")
    v = Part(8 + 6 * WIDTH, sizes["v"], WIDTH, False, dtype, "cache")
    check(device, (q, k, v), dtype, 8 * WIDTH + 16, pairs, interleaved)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("to", [HALF, FLOAT])
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_single_parts(device: vkq.Device, dtype: str, to: str, apart: bool) -> None:
    """A part may be converted to another dtype, and its result may have the axis of heads before the axis
    of tokens."""
    for order in ("tokens", "heads", "cache"):
        for rotated in (False, True):
            part = Part(0, 3, 24, rotated, to, order)  # type: ignore[arg-type]
            check(device, (part,), dtype, 72, 8, False, apart)


def test_software(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(any_device, "_soft_float", True)
    parts = (Part(0, 2, 16, True, HALF, "heads"), Part(32, 2, 16, False, HALF, "cache"))
    check(any_device, parts, HALF, 64, 8, False)


@pytest.mark.parametrize("shared", [2, 1])
def test_in_place(any_device: vkq.Device, shared: int) -> None:
    """The result may overwrite the past cache. If the results overwrite all caches, only new rows are
    written."""
    parts = [Part(32 * i, 2, 16, False, HALF, "cache") for i in range(2)]
    x, pasts, start = numbers(HALF, 1, 3, 64), numbers(HALF, 2, 1, 2, 900, 16), np.array([899], np.int32)
    tensors = [vkq.Tensor.from_numpy(a, any_device) for a in (x, start, *pasts)]
    b = Builder(any_device)
    given = [b.input(tensor.spec) for tensor in tensors]
    plan = b.plan(*headed(b, given[0], [], given[1], given[2:], parts, False))
    assert plan.over == dict(zip(plan.outputs, (2, 3), strict=True))
    results = [*tensors[2 : 2 + shared], *(vkq.Tensor.of(any_device, spec) for spec in plan.results[shared:])]
    buffers = [tensor.buffer for tensor in tensors], [y.buffer for y in results]
    groups = [x * y for step in plan.on(*buffers).steps for _, x, y in step.grids]
    assert groups == ([1] if shared == 2 else [-(-4 * 900 * 2 // 64)])  # 2 caches, 2 heads, 2 vectors a row
    any_device.add(plan, *buffers)
    for part, past, y in zip(parts, pasts, results, strict=True):
        assert y.numpy().tobytes() == placed(past, start, part.computed(x, [], False)).tobytes()


def test_what_the_kernel_supports() -> None:
    part = Part(8, 2, 16, True, HALF, "tokens")
    assert fits(part, 40, 8, False)
    assert fits(part, 40, 4, True)
    for columns, pairs, interleaved in ((44, 8, False), (40, 4, False), (40, 2, True), (40, 16, False)):
        assert not fits(part, columns, pairs, interleaved)
    assert not fits(Part(4, 2, 16, False, HALF, "tokens"), 40, 0, False)
    assert not fits(Part(8, 2, 12, False, HALF, "tokens"), 40, 0, False)
    assert buffers([part, Part(8, 2, 16, False, HALF, "cache")]) == 7
