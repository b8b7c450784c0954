"""Tests of squeeze-and-excite in one dispatch: results equal those of the separate operators bit for bit."""

from typing import Any

import numpy as np
import pytest

import vkq
from vkq import QParams, Tensor
from vkq.device.profiles import preferred
from vkq.kernels.after import through_table
from vkq.kernels.excite import EXCITE, Excite
from vkq.layout.extent import BLOCKED, IMAGE, Spec
from vkq.ops import pool
from vkq.runtime.builder import Builder
from vkq.runtime.plan import Plan
from vkq.runtime.program import refusals

MEAN, HIDDEN = (0.03, -3), (0.06, -20)


def layers(
    device: vkq.Device, channels: int, hidden: int, path: str, dtype: Any, points: bool
) -> tuple[vkq.Conv2d, vkq.Conv2d]:
    """Return the two layers of squeeze-and-excite: the first has an activation, the second a lookup table."""
    rng, moved = np.random.default_rng(channels), 128 if dtype == "uint8" else 0
    mean, between = (QParams(scale, zero + moved, dtype) for scale, zero in (MEAN, HIDDEN))
    made = []
    for n, k, x, y in ((hidden, channels, mean, between), (channels, hidden, between, mean)):
        w = rng.integers(-128, 128, (n, k, 1, 1), dtype=np.int8)
        options = {"w_zero_point": rng.integers(-9, 9, n)} if points else {}
        made.append(
            vkq.Conv2d(
                w, rng.uniform(1e-3, 2e-2, n).astype(np.float32), x_qparams=x, y_qparams=y, path=path,
                bias=rng.integers(-3000, 3000, n, dtype=np.int32), device=device, activation=(-0.5, 3.0),
                **options,
            )
        )  # fmt: skip
    made[1].finish(through_table(rng.permutation(256).astype(np.uint8).view(np.int8), mean))
    return made[0], made[1]


@pytest.mark.parametrize(
    ("channels", "hidden", "path", "layout", "dtype", "points"),
    [
        (20, 6, "dot_s8s8", BLOCKED, "int8", False),
        (70, 4, "dot_u8s8", IMAGE, "int8", True),
        (37, 9, "dot_u8u8", BLOCKED, "uint8", True),
        (33, 253, "portable", IMAGE, "int8", False),  # nearly the maximum of 256 hidden channels
        (1153, 5, "portable", BLOCKED, "int8", False),  # float32 cannot hold these sums exactly
        (300, 38, "dot_u8u8", BLOCKED, "int8", True),  # the last batch of weights is not full
    ],
)
def test_the_bytes_of_the_operators_apart(
    device: vkq.Device, channels: int, hidden: int, path: str, layout: str, dtype: Any, points: bool
) -> None:
    first, second = layers(device, channels, hidden, path, dtype, points)
    x = np.random.default_rng(3).integers(0, 256, (3, channels, 5, 6), np.uint8).view(dtype)
    check(device, first, second, x, QParams(0.02, 100 if dtype == "uint8" else 9, dtype), layout)


@pytest.mark.parametrize(("layout", "across"), [(IMAGE, 4), (BLOCKED, 1)])
def test_workgroups_of_large_images(device: vkq.Device, layout: str, across: int) -> None:
    """Workgroups have as many invocations as the kernel of means (here 512), unless the device lacks shared
    memory."""
    first, second = layers(device, 37, 9, "portable", "int8", True)
    x = np.random.default_rng(4).integers(-128, 128, (2, 37, 64, 63), np.int8)
    with preferred({"mean_invocations": 512}):
        plan = check(device, first, second, x, QParams(0.02, 9), layout)
    program = plan.steps[0].program
    assert program is not None
    constants = program.variant.constants(program.constants)
    taken = int(constants["LOCAL_X"])
    assert (constants["ACROSS"], constants["AT_ONCE"]) == (across, 4)
    assert taken >= 256
    more = {**constants, "LOCAL_X": 2 * taken}
    assert taken == 512 or refusals(program.variant, more, device.capabilities)


def check(
    device: vkq.Device, first: vkq.Conv2d, second: vkq.Conv2d, x: np.ndarray, q: QParams, layout: str
) -> Plan:
    mean = first.x_qparams
    means = Tensor.from_numpy(x, device, IMAGE, q)
    want = second(first(vkq.global_avg_pool2d(means, y_qparams=mean))).numpy()
    plan = planned(device, excite_of(device, first, second), Spec(x.shape, x.dtype.name, layout, q), mean)
    assert [name.partition(":")[0] for name in plan.variants] == [EXCITE]
    given, result = Tensor.from_numpy(x, device, layout, q), Tensor.of(device, plan.result)
    with device.record() as recording:
        recording.add(plan, [given.buffer], [result.buffer])
    for _ in range(3):  # repeat: a run must reset its counters to 0
        recording.run()
        np.testing.assert_array_equal(result.numpy(), want)
    return plan


def excite_of(device: vkq.Device, one: vkq.Conv2d, two: vkq.Conv2d) -> Excite:
    assert one.gemm is not None
    assert two.gemm is not None
    return Excite(device, one.gemm, two.gemm)


def planned(device: vkq.Device, excite: Excite, x: Spec, mean: QParams) -> Plan:
    assert excite.fits
    b = Builder(device)
    return b.plan(pool.globally_averaged(b, b.input(x), mean, None, excite=excite))


def test_what_does_not_fit(device: vkq.Device) -> None:
    one, two = layers(device, 20, 6, "portable", "int8", False)
    other, _ = layers(device, 24, 6, "portable", "int8", False)
    assert not excite_of(device, other, two).fits  # the layers have 20 and 24 channels
    wide, back = layers(device, 20, 260, "portable", "int8", False)
    assert not excite_of(device, wide, back).fits  # more than the kernel's 256 hidden channels
    assert excite_of(device, one, two).fits
