"""A depthwise convolution and the 1x1 behind it in one dispatch: the bytes of each one's reference."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import vkq
from tests.cases import Data, random_data
from vkq import QParams, Tensor
from vkq.kernels.after import through_table
from vkq.kernels.binary import sum_after
from vkq.kernels.depthwise_pointwise import SHADER, DepthwisePointwise, PairTile
from vkq.layout.extent import BLOCKED, IMAGE, Spec
from vkq.numerics.elementwise import binary
from vkq.numerics.stored import signed
from vkq.ops.conv2d import Conv2d
from vkq.problem.conv2d import Conv2dProblem
from vkq.problem.names import parse
from vkq.runtime.builder import Builder

S1 = "conv2d[N=1,IC=18,H=5,W=7,OC=18,KH=3,KW=3,padding=1,groups=18]"
S2 = "conv2d[N=2,IC=20,H=9,W=8,OC=20,KH=3,KW=3,stride=2,padding=1,groups=20]"
WIDE = "conv2d[N=2,IC=13,H=6,W=10,OC=13,KH=5,KW=5,padding=2,groups=13]"
WIDE_S2 = "conv2d[N=1,IC=37,H=8,W=11,OC=37,KH=5,KW=5,stride=2,padding=2,groups=37]"
BARE = "conv2d[N=3,IC=8,H=4,W=3,OC=8,KH=3,KW=3,groups=8]"
CASES: list[tuple[str, int, str, str, PairTile, dict[str, Any]]] = [
    (S1, 10, "dot_s8s8", IMAGE, PairTile(4, 3, 4), {}),
    (S1, 37, "dot_u8s8", BLOCKED, PairTile(3, 4, 1), {"w_zero_points": "channel"}),  # several tiles
    (S2, 24, "dot_u8u8", IMAGE, PairTile(2, 6, 5), {"x_dtype": "uint8"}),
    (S2, 7, "portable", IMAGE, PairTile(5, 2, 3), {"w_zero_points": "tensor"}),
    (WIDE, 16, "dot_s8s8", BLOCKED, PairTile(8, 4, 2), {"w_zero_points": "channel"}),
    (WIDE_S2, 5, "portable", BLOCKED, PairTile(1, 2, 16), {"x_dtype": "uint8", "w_zero_points": "channel"}),
    (BARE, 66, "dot_u8s8", IMAGE, PairTile(2, 16, 2), {}),
]  # fmt: skip


def pair(name: str, oc: int, seed: int, **kind: Any) -> tuple[Data, Data]:
    """Operands of both; the second's x is the first's result."""
    p, rng = parse(name), np.random.default_rng(seed)
    assert isinstance(p, Conv2dProblem)
    one = random_data(p, rng, **kind)
    between = one.expected(one.y_q)
    behind = Conv2dProblem.of(between.shape, (oc, p.oc, 1, 1))
    two = random_data(behind, rng, **kind)
    return one, dataclasses.replace(two, x=between, x_q=one.y_q, y_q=dataclasses.replace(
        two.y_q, scale=two.y_q.scale * one.y_q.scale / two.x_q.scale))  # fmt: skip


def layer(device: vkq.Device, data: Data, path: str, **more: Any) -> Conv2d:
    return Conv2d(
        data.w, data.w_scale, x_qparams=data.x_q, y_qparams=data.y_q, bias=data.bias, path=path,
        w_zero_point=data.w_zero_point, device=device, **data.options, **more,
    )  # fmt: skip


def run(
    device: vkq.Device, layers: tuple[Conv2d, Conv2d], p: Conv2dProblem, x: np.ndarray, tile: PairTile,
    layout: str, other: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """What the kernel makes of x; *other* is what it adds to."""
    gemm = layers[1].gemm
    assert gemm is not None
    kernel = DepthwisePointwise(layers[0]._convolution, gemm)
    assert kernel.fits(p)
    assert kernel.takes(p, tile)
    y = gemm.arithmetic.result((p.n, gemm.n, p.oh, p.ow), layout)
    b = Builder(device)
    given = b.input(Spec(x.shape, x.dtype.name, layout))
    result = b.new(y)
    kernel.build(b, p, tile, given, result)
    plan = b.plan(result)
    assert [name.partition(":")[0] for name in plan.variants] == [SHADER]
    start = np.zeros(y.shape, x.dtype) if other is None else other
    x_tensor, y_tensor = (
        Tensor.from_numpy(x, device, layout),
        Tensor.from_numpy(start, device, layout, y.qparams),
    )
    with device.record() as recording:
        recording.add(plan, [x_tensor.buffer], [y_tensor.buffer])
    recording.run()
    return y_tensor.numpy()


@pytest.mark.parametrize(("name", "oc", "path", "layout", "tile", "kind"), CASES)
def test_the_bytes_of_one_after_the_other(
    any_device: vkq.Device, name: str, oc: int, path: str, layout: str, tile: PairTile, kind: dict[str, Any]
) -> None:
    check(any_device, name, oc, path, layout, tile, kind)


def test_both_drivers(device: vkq.Device) -> None:
    """SwiftShader takes seconds for each pipeline, so one serves several tiles."""
    for oc, tile in ((24, PairTile(2, 6, 5)), (37, PairTile(3, 4, 3)), (3, PairTile(16, 1, 4))):
        check(device, S2, oc, "dot_u8u8", BLOCKED, tile, {"w_zero_points": "channel"})


def check(
    device: vkq.Device, name: str, oc: int, path: str, layout: str, tile: PairTile, kind: dict[str, Any]
) -> None:
    one, two = pair(name, oc, len(name) + oc, **kind)
    want = two.expected(two.y_q)
    assert len(np.unique(one.expected(one.y_q))) > 15
    assert len(np.unique(want)) > 15
    p = one.problem
    assert isinstance(p, Conv2dProblem)
    got = run(device, (layer(device, one, path), layer(device, two, path)), p, one.x, tile, layout)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize(("kind", "layout"), [("lookup", IMAGE), ("add", BLOCKED)])
def test_last_steps(any_device: vkq.Device, kind: Any, layout: str) -> None:
    """A table or an activation's bounds between, a table or a residual at the end."""
    one, two = pair(S1, 22, 5)
    p, rng = one.problem, np.random.default_rng(6)
    assert isinstance(p, Conv2dProblem)
    first = layer(any_device, one, "dot_s8s8", activation=(-40 * one.y_q.scale, 9e9))
    between = one.expected(one.y_q, activation=(-40 * one.y_q.scale, 9e9))
    entries = rng.integers(0, 256, 256, np.uint8).view(np.int8)
    if kind == "lookup":
        first.finish(through_table(signed(entries), one.y_q))
        between = entries[between.astype(int) + 128]
    two = dataclasses.replace(two, x=between)
    second, before, other = layer(any_device, two, "dot_s8s8"), two.expected(two.y_q), None
    if kind == "lookup":
        second.finish(through_table(signed(entries), two.y_q))
        want = entries[before.astype(int) + 128]
    else:
        y_q, other_q = QParams(2 * two.y_q.scale, 4), QParams(two.y_q.scale, 7)
        other = rng.integers(-128, 128, before.shape, np.int8)
        second.finish(sum_after("add", two.y_q, other_q, y_q, (0.0, 9e9), True, before.shape))
        want = binary("add", before, other, two.y_q, other_q, y_q, (0.0, 9e9))
    got = run(any_device, (first, second), p, one.x, PairTile(3, 2, 8), layout, other)
    np.testing.assert_array_equal(got, want, strict=True)


def test_what_it_does_not_take(any_device: vkq.Device) -> None:
    one, two = pair(S1, 10, 3)
    p = one.problem
    assert isinstance(p, Conv2dProblem)
    first, gemm = layer(any_device, one, "portable")._convolution, layer(any_device, two, "portable").gemm
    other = layer(any_device, pair(S2, 10, 3)[1], "portable").gemm
    assert gemm is not None
    assert other is not None
    kernel = DepthwisePointwise(first, gemm)
    assert kernel.fits(p)
    assert not DepthwisePointwise(first, other).fits(p)  # another number of channels between
    assert not kernel.fits(dataclasses.replace(p, stride=(2, 1)))
    assert not kernel.fits(dataclasses.replace(p, dilation=(2, 2)))
    assert not kernel.takes(p, PairTile(1 << 20, 1, 1))  # no such shared memory
    assert list(kernel.tiles(p))
