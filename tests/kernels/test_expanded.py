"""Tests of a 1x1 convolution and the depthwise convolution after it in one dispatch: the result equals that
of two dispatches, byte for byte."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vkq
from tests.conftest import share
from vkq import QParams, Tensor
from vkq.kernels.after import through_table
from vkq.kernels.depthwise import Depthwise
from vkq.kernels.expanded import SHADER, ExpandDepthwise, ExpansionTile
from vkq.kernels.gemm import Int8Gemm
from vkq.layout.extent import BLOCKED, IMAGE, Spec
from vkq.ops.expanded import Expansion
from vkq.probe.matrices import Matrices
from vkq.runtime.builder import Builder

from .matrix_layers import SHAPES, name_of, units


@dataclasses.dataclass(frozen=True)
class Case:
    """A 1x1 convolution from *ic* to *e* channels on an image of *h* x *w* pixels, and options of the
    depthwise convolution after it."""

    ic: int
    e: int
    h: int
    w: int
    kernel: int = 3
    stride: int = 1
    padding: Any = 1
    dtype: str = "int8"
    points: bool = False  # weight zero points
    table: bool = False  # tables after both convolutions
    n: int = 1


CASES = {
    "ragged": Case(5, 22, 7, 9),  # no size is a multiple of a block
    "stride": Case(16, 36, 15, 13, stride=2, n=2),
    "five": Case(33, 20, 9, 14, kernel=5, padding=2, points=True),
    "five by two": Case(12, 17, 14, 22, kernel=5, stride=2, padding=2, table=True),
    "before alone": Case(8, 16, 6, 5, padding=(2, 3, 0, 0), dtype="uint8"),  # (top, left, bottom, right)
    "behind alone": Case(24, 32, 10, 12, stride=2, padding=(0, 0, 1, 1), dtype="uint8", points=True),
    "none": Case(4, 8, 5, 8, padding=0),
}


def layers(device: vkq.Device, case: Case, path: str = "auto") -> tuple[vkq.Conv2d, vkq.Conv2d, np.ndarray]:
    """Return the 1x1 convolution, the depthwise convolution, and an image."""
    rng, moved = np.random.default_rng(case.ic), 128 if case.dtype == "uint8" else 0
    x_q, between, y_q = (QParams(s, z + moved, case.dtype) for s, z in ((0.02, 9), (0.05, -100), (0.1, 3)))

    def made(shape: tuple[int, ...], x: QParams, y: QParams, scale: float, **options: Any) -> vkq.Conv2d:
        points = {"w_zero_point": rng.integers(-9, 9, case.e)} if case.points else {}
        layer = vkq.Conv2d(
            rng.integers(-128, 128, shape, dtype=np.int8), rng.uniform(scale, 3 * scale, case.e).astype("f4"),
            x_qparams=x, y_qparams=y, bias=rng.integers(-3000, 3000, case.e, dtype=np.int32), path=path,
            device=device, activation="relu6", **points, **options,
        )  # fmt: skip
        if case.table:
            layer.finish(through_table(rng.permutation(256).astype(np.uint8).view(np.int8), y))
        return layer

    first = made((case.e, case.ic, 1, 1), x_q, between, 2e-2 / np.sqrt(case.ic))
    shape = (case.e, 1, case.kernel, case.kernel)
    second = made(shape, between, y_q, 1e-2, stride=case.stride, padding=case.padding, groups=case.e)
    return first, second, rng.integers(0, 256, (case.n, case.ic, case.h, case.w), np.uint8).view(case.dtype)


def expanded(
    first: vkq.Conv2d, second: vkq.Conv2d, x: np.ndarray, layout: str, tile: ExpansionTile
) -> np.ndarray:
    """Return the result of both convolutions in one dispatch, with this tile and this layout of x."""
    b, device, q = Builder(first.device), first.device, first.x_qparams
    p = second._problem(first._problem(x.shape).y_shape)
    kernel = second._kernel(second._method(p)[0], p)
    assert isinstance(kernel, Depthwise)
    given = b.input(Spec(x.shape, x.dtype.name, layout, q))
    y = b.new(second._scheme.result(p.y_shape, layout))
    ExpandDepthwise(first.gemm, kernel).build(b, p, given, y, tile)
    plan = b.plan(y)
    assert [name.split(":")[0] for name in plan.variants] == [SHADER + "_coopmat" * bool(tile.matrices)]
    result = Tensor.of(device, plan.result)
    device.add(plan, [Tensor.from_numpy(x, device, layout, q).buffer], [result.buffer])
    return result.numpy()


PATHS = ["dot_s8s8", "dot_u8s8", "dot_u8u8"]
TILES = (ExpansionTile(3, 8, 2, 32), ExpansionTile(8, 4, 4, 64))


@pytest.mark.parametrize("path", PATHS)
def test_the_bytes_of_the_layers_apart(device: vkq.Device, path: str) -> None:
    """The result of one dispatch equals that of two dispatches, in both layouts and with both tiles."""
    at, every = PATHS.index(path), list(itertools.product(CASES.values(), (IMAGE, BLOCKED), TILES))
    for case, layout, tile in share(every[at :: 1 if at == 0 else 3], device, of=10 if at else 14):
        first, second, x = layers(device, case, path)
        got = expanded(first, second, x, layout, tile)
        np.testing.assert_array_equal(got, second(first(x)), err_msg=f"{case} {layout} {tile}", strict=True)


SIGNED = [shape for shape in SHAPES if shape.form == "s8s8" and shape.m in (8, 16)]


@pytest.mark.parametrize("shape", SIGNED, ids=name_of)
def test_on_matrix_units(strict_device: vkq.Device, shape: Matrices, monkeypatch: pytest.MonkeyPatch) -> None:
    """On matrix units, results of one dispatch equal those of two dispatches. The first shape of matrices
    runs all cases without weight zero points; each other shape runs one case."""
    able = [case for case in CASES.values() if not case.points]
    cases = [
        (case, *layers(strict_device, case, "dot_s8s8")) for case in able[: 1 if shape != SIGNED[0] else None]
    ]
    want = [second(first(x)) for _, first, second, x in cases]
    units(strict_device, monkeypatch, shape)
    for (case, first, second, x), y in zip(cases, want, strict=True):
        for tile in (
            ExpansionTile(3, 8, 4, 2 * shape.subgroup, shape),
            ExpansionTile(8, 4, 8, shape.subgroup, shape),
        ):
            got = expanded(first, second, x, BLOCKED, tile)
            np.testing.assert_array_equal(got, y, err_msg=f"{case} {tile}", strict=True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"padding": 3}, "padding is (3, 3, 3, 3); each result must read a pixel of the image"),
        ({"kernel": 2, "padding": 0}, "the depthwise convolution needs a kernel of 3x3 or 5x5"),
        ({"stride": 3}, "the depthwise convolution needs a kernel of 3x3 or 5x5, stride 1 or 2"),
    ],
)
def test_what_one_dispatch_cannot_compute(device: vkq.Device, changes: dict[str, Any], why: str) -> None:
    """A depthwise convolution with other kernels, strides or padding is not fused, and the reason is
    stated."""
    first, second, x = layers(device, dataclasses.replace(CASES["ragged"], **changes), "dot_s8s8")
    p = second._problem(first._problem(x.shape).y_shape)
    kernel = second._kernel(second._method(p)[0], p)
    assert isinstance(kernel, Depthwise)
    assert isinstance(first.gemm, Int8Gemm)
    assert str(ExpandDepthwise.refusal(first.gemm, kernel, p)).startswith(why)
    with choices(device, expanded_bytes=1 << 30):
        assert Expansion.of(first, second, Spec(x.shape, "int8", IMAGE)) is None


@contextlib.contextmanager
def choices(device: vkq.Device, **says: Any) -> Iterator[None]:
    """Context manager: override fields of the device's profile."""
    changed = dataclasses.replace(device.capabilities, choices=tuple(says.items()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "capabilities", changed)
        yield


def test_layers_of_two_forms_are_apart(device: vkq.Device) -> None:
    """Two layers are fused only if both use dot products of the same form."""
    (first, _, x), (_, second, _) = (layers(device, CASES["ragged"], path) for path in PATHS[1:])
    spec = Spec(x.shape, "int8", IMAGE)
    with choices(device, expanded_bytes=1 << 30):
        assert Expansion.of(first, second, spec) is None
        assert Expansion.of(*layers(device, CASES["ragged"], PATHS[1])[:2], spec) is not None


@pytest.mark.parametrize(("least", "found"), [(11663, False), (11664, True)])
def test_the_profile_bounds_the_image_between(device: vkq.Device, least: int, found: bool) -> None:
    """On a device with one core, the intermediate image of 36 channels of 18x18 has 11,664 bytes per
    core. The profile's `expanded_bytes` limits this size; for a 5x5 kernel the limit is three tenths of
    `expanded_bytes`."""
    x = Spec((1, 8, 18, 18), "int8", IMAGE)
    for kernel, times in ((3, 1), (5, 10 / 3)):
        case = Case(8, 36, 18, 18, kernel=kernel, padding=kernel // 2)
        with choices(device, expanded_bytes=math.ceil(least * times), multiprocessors=1):
            assert (Expansion.of(*layers(device, case, "dot_s8s8")[:2], x) is not None) == found


def test_a_tile_fits_the_device_and_fills_it(device: vkq.Device) -> None:
    """A device with one core gets fewer, larger tiles, which recompute fewer halo pixels. A device with
    100 cores gets more tiles, so that all cores have work."""
    first, second, x = layers(device, Case(16, 64, 28, 28), "dot_s8s8")
    counts = []
    for cores in (1, 100):
        with choices(device, expanded_bytes=1 << 30, multiprocessors=cores):
            found = Expansion.of(first, second, Spec(x.shape, "int8", IMAGE))
        assert found is not None
        counts.append(found.tile.count(found.problem))
    assert counts[0] < counts[1]
