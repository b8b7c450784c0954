"""Tests of a depthwise convolution and a following 1x1 convolution in one dispatch: results have the bytes of
two dispatches."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

import vkq
from tests.conftest import share
from vkq import QParams, Tensor
from vkq.kernels.after import through_table
from vkq.kernels.binary import sum_after
from vkq.kernels.depthwise import Depthwise
from vkq.kernels.projected import SHADER, DepthwiseProject, ProjectionTile
from vkq.layout.extent import BLOCKED, IMAGE, Spec
from vkq.numerics.elementwise import binary
from vkq.numerics.tables import table_of
from vkq.ops import table
from vkq.ops.projected import Projection
from vkq.probe.matrices import Matrices
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run

from .matrix_layers import SHAPES, name_of, units
from .test_expanded import choices


@dataclasses.dataclass(frozen=True)
class Case:
    """The channels of x and of y, the image size, and the options of the depthwise convolution."""

    c: int
    oc: int
    h: int
    w: int
    kernel: int = 3
    stride: int = 1
    padding: Any = 1
    dtype: Any = "int8"
    points: bool = False  # weight zero points
    table: bool = False  # tables after both convolutions
    sum: bool = False  # y is added to its former content
    n: int = 1


CASES = {
    "ragged": Case(22, 5, 7, 9),  # no size is a multiple of a block
    "outputs": Case(33, 50, 6, 6, sum=True),  # more outputs than a tile has; blocks of channels
    "stride": Case(36, 16, 15, 13, stride=2, n=2),
    "five": Case(20, 33, 9, 14, kernel=5, padding=2, points=True),
    "five by two": Case(70, 12, 14, 22, kernel=5, stride=2, padding=2, table=True),
    "before alone": Case(16, 8, 6, 5, padding=(2, 2, 0, 0), dtype="uint8", sum=True),
    "behind alone": Case(32, 24, 10, 12, stride=2, padding=(0, 0, 1, 1), dtype="uint8", points=True),
    "none": Case(8, 4, 5, 8, padding=0, table=True, sum=True),
}


def layers(device: vkq.Device, case: Case, path: str = "auto") -> tuple[vkq.Conv2d, vkq.Conv2d, np.ndarray]:
    """Return both layers and an image."""
    rng, moved = np.random.default_rng(case.c), 128 if case.dtype == "uint8" else 0
    x_q, between, y_q = (QParams(s, z + moved, case.dtype) for s, z in ((0.02, 9), (0.05, -100), (0.1, 3)))

    def made(shape: tuple[int, ...], x: QParams, y: QParams, scale: float, **options: Any) -> vkq.Conv2d:
        oc = shape[0]
        points: dict[str, Any] = {"w_zero_point": rng.integers(-9, 9, oc)} if case.points else {}
        layer = vkq.Conv2d(
            rng.integers(-128, 128, shape, dtype=np.int8), rng.uniform(scale, 3 * scale, oc).astype("f4"),
            x_qparams=x, y_qparams=y, bias=rng.integers(-3000, 3000, oc, dtype=np.int32), path=path,
            device=device, **points, **options,
        )  # fmt: skip
        if case.table:
            layer.finish(through_table(rng.permutation(256).astype(np.uint8).view(np.int8), y))
        return layer

    shape = (case.c, 1, case.kernel, case.kernel)
    first = made(
        shape, x_q, between, 1e-2, stride=case.stride, padding=case.padding, groups=case.c, activation="relu6"
    )
    second = made((case.oc, case.c, 1, 1), between, y_q, 2e-2 / np.sqrt(case.c))
    return first, second, rng.integers(0, 256, (case.n, case.c, case.h, case.w), np.uint8).view(case.dtype)


@dataclasses.dataclass(frozen=True)
class Given:
    """Both layers, an image, the former content of y, and the expected result."""

    first: vkq.Conv2d
    second: vkq.Conv2d
    x: np.ndarray
    other: np.ndarray
    want: np.ndarray


def given(device: vkq.Device, case: Case, path: str = "auto") -> Given:
    """Return a case's operands, and the result of the layers apart (and NumPy's sum with the former content
    of y)."""
    first, second, x = layers(device, case, path)
    y = second(first(x))
    other = np.random.default_rng(3).integers(0, 256, y.shape, np.uint8).view(case.dtype)
    if not case.sum:
        return Given(first, second, x, other, y)
    own, moved = second.y_qparams, 128 if case.dtype == "uint8" else 0
    assert own
    oq, yq = QParams(0.11, 7 + moved, case.dtype), QParams(0.15, moved, case.dtype)
    last = sum_after("add", own, oq, yq, None, True, y.shape)
    after = second._scheme.after
    second.finish(after.then(last) if case.table else last)
    return Given(first, second, x, other, binary("add", y, other, own, oq, yq, None))


def projected(g: Given, layout: str, tile: ProjectionTile) -> np.ndarray:
    """Return the result of one dispatch with this tile and this layout of x."""
    first, second, device = g.first, g.second, g.first.device
    p = first._problem(g.x.shape)
    kernel = first._kernel(first._method(p)[0], p)
    assert isinstance(kernel, Depthwise)
    assert second.gemm
    both = DepthwiseProject(kernel, second.gemm)
    assert DepthwiseProject.refusal(kernel, second.gemm, p) is None
    b, result = Builder(device), second._scheme.result(g.want.shape, layout)
    tensors = [Tensor.from_numpy(one, device, layout) for one in (g.x, g.other)]
    x, other = (b.input(one.spec) for one in tensors)
    same = QParams(1.0, 0, g.other.dtype.name)
    # A copy of the former content, because the plan overwrites it.
    y = b.view(table.looked_up(b, other, table_of("identity", same, same), None), result)
    both.build(b, p, x, y, tile)
    plan = b.plan(y)
    assert plan.variants[-1].split(":")[0] == SHADER + "_coopmat" * bool(tile.matrices)
    for _ in range(2):
        got = run(plan, tensors).numpy()
    return got


PATHS = ["dot_s8s8", "dot_u8s8", "dot_u8u8"]
# Blocks of channels that do not divide all channels, tiles that do not divide the image, outputs in parts.
TILES = (ProjectionTile(3, 8, 2, 7, 16), ProjectionTile(8, 4, 5, 7, 64), ProjectionTile(1, 4, 64, 16, 64))


@pytest.mark.parametrize("path", PATHS)
def test_the_bytes_of_the_layers_apart(device: vkq.Device, path: str) -> None:
    at, every = PATHS.index(path), list(itertools.product(CASES.values(), (IMAGE, BLOCKED), TILES))
    for case, layout, tile in share(every[at :: 1 if at == 0 else 3], device, of=10 if at else 14):
        g = given(device, case, path)
        got = projected(g, layout, tile)
        np.testing.assert_array_equal(got, g.want, err_msg=f"{case} {layout} {tile}", strict=True)


SIGNED = [shape for shape in SHAPES if shape.form == "s8s8" and shape.m in (8, 16)]


@pytest.mark.parametrize("shape", SIGNED, ids=name_of)
def test_on_matrix_units(strict_device: vkq.Device, shape: Matrices, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are correct on matrix units: all cases without weight zero points for the first shape of
    matrices, one case for each other shape."""
    able = [case for case in CASES.values() if not case.points]
    cases = able[: 1 if shape != SIGNED[0] else None]
    made = [given(strict_device, case, "dot_s8s8") for case in cases]
    units(strict_device, monkeypatch, shape)
    unit = 16 // min(shape.m, 16)
    for case, g in zip(cases, made, strict=True):
        for tile in (
            ProjectionTile(3, 8, 8, 3 * unit, 2 * shape.subgroup, shape),
            ProjectionTile(8, 4, 16, 2 * unit, 2 * shape.subgroup, shape, 2),
        ):
            got = projected(g, BLOCKED, tile)
            np.testing.assert_array_equal(got, g.want, err_msg=f"{case} {tile}", strict=True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"padding": 3}, "padding is (3, 3, 3, 3); each result must read a pixel of the image"),
        ({"kernel": 2, "padding": 0}, "the depthwise convolution needs a kernel of 3x3 or 5x5"),
        ({"stride": 3}, "the depthwise convolution needs a kernel of 3x3 or 5x5, stride 1 or 2"),
    ],
)
def test_what_one_dispatch_cannot_compute(device: vkq.Device, changes: dict[str, Any], why: str) -> None:
    first, second, x = layers(device, dataclasses.replace(CASES["ragged"], **changes), "dot_s8s8")
    p = first._problem(x.shape)
    kernel = first._kernel(first._method(p)[0], p)
    assert isinstance(kernel, Depthwise)
    assert second.gemm
    assert str(DepthwiseProject.refusal(kernel, second.gemm, p)).startswith(why)
    with choices(device, projected_bytes=1 << 30):
        assert Projection.of(first, second, Spec(x.shape, "int8", IMAGE)) is None


def test_layers_of_two_forms_are_apart(device: vkq.Device) -> None:
    (first, _, x), (_, second, _) = (layers(device, CASES["ragged"], path) for path in PATHS[1:])
    spec = Spec(x.shape, "int8", IMAGE)
    with choices(device, projected_bytes=1 << 30):
        assert Projection.of(first, second, spec) is None
        assert Projection.of(*layers(device, CASES["ragged"], PATHS[1])[:2], spec) is not None


@pytest.mark.parametrize(("least", "found"), [(5831, False), (5832, True)])
def test_the_profile_bounds_the_image_between(device: vkq.Device, least: int, found: bool) -> None:
    """The intermediate image of 72 channels of 9x9 has 5,832 bytes for one core. The profile's
    `projected_bytes` limits this size."""
    case = Case(72, 8, 18, 18, stride=2)
    first, second, _ = layers(device, case, "dot_s8s8")
    with choices(device, projected_bytes=least, multiprocessors=1):
        assert (Projection.of(first, second, Spec((1, 72, 18, 18), "int8", IMAGE)) is not None) == found


def test_a_tile_fills_the_device(device: vkq.Device) -> None:
    """A large device gets small tiles, so that all of its cores work."""
    first, second, x = layers(device, Case(64, 16, 28, 28), "dot_s8s8")
    counts = []
    for cores in (1, 100):
        with choices(device, projected_bytes=1 << 30, multiprocessors=cores):
            found = Projection.of(first, second, Spec(x.shape, "int8", IMAGE))
        assert found is not None
        counts.append(found.tile.count(found.problem, 16))
    assert counts[0] < counts[1]
