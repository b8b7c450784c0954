"""Tests of the measured ceilings, and of the ceiling that applies to each path."""

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest

import vkq
from tests.device.reported import profile_says, reported
from vkq.bench import ceilings
from vkq.device.capabilities import CooperativeMatrix
from vkq.probe.matrices import Matrices
from vkq.runtime.program import Program
from vkq.shader.catalog import catalog


def test_rates_are_measured_on_both_drivers(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    profile_says(monkeypatch, ceilings, cache_bytes=4 << 18)
    monkeypatch.setattr(ceilings, "LASTING_US", 500.0)
    seen: list[str] = []
    found = ceilings.measure(device, seen.append)
    matrices = ["coopmat"] * device.capabilities.features["cooperativeMatrix"]
    assert list(found) == seen == [*ceilings.DOTS, "fp32_fma", *matrices, "copy"]
    assert all(value is not None and 0.01 < value < 1e7 for value in found.values())


def test_a_longer_loop_takes_longer_in_proportion(device: vkq.Device) -> None:
    """64 times as many iterations take at least four times as long, even on a busy machine. So the compiler
    did not remove the loop."""
    for what in ceilings.OPERATIONS:
        program = ceilings._program(device, "ceiling__rate", what=what)
        assert program is not None
        kernel = ceilings.Rate.__new__(ceilings.Rate)
        kernel._device, kernel._program, kernel._groups, kernel._push = (
            device,
            program,
            4,
            {"a": 0.999, "b": 0.001},
        )
        kernel._y = device.allocate(4 * 4 * ceilings.INVOCATIONS)
        few = 256 if what == "fp32_fma" else 32
        times = [min(ceilings._time_us(kernel._record(loops)) for _ in range(3)) for loops in (few, 64 * few)]
        assert times[1] > 4 * times[0], what


def test_no_dot_product_gives_no_ceiling(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ceilings.refusals
    monkeypatch.setattr(
        ceilings,
        "refusals",
        lambda variant, *rest: ["no"] if "dot" in variant.axes.get("what", "") else real(variant, *rest),
    )
    profile_says(monkeypatch, ceilings, cache_bytes=1 << 18)
    found = ceilings.measure(any_device)
    assert [found[dot] for dot in ceilings.DOTS] == [None] * 3
    assert found["fp32_fma"]


@pytest.mark.parametrize(
    ("path", "ceiling"),
    [
        ("dot_u8s8", ("dot_u8s8", 4.0)),
        ("portable", ("fp32_fma", 2.0)),
        ("float", ("fp32_fma", 2.0)),
        ("dot_s8s8", None),
        ("x", None),
    ],
)
def test_what_a_path_is_held_against(path: str, ceiling: tuple[str, float] | None) -> None:
    assert (
        ceilings.of_path(path, {"dot_u8s8": 4.0, "dot_s8s8": None, "fp32_fma": 2.0, "copy": 1.0}) == ceiling
    )
    assert ceilings.of_path(path, {}) is None


def test_a_copy_that_does_not_copy_is_noticed(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile_says(monkeypatch, ceilings, cache_bytes=1 << 18)
    real, shift = ceilings.Tensor.write, itertools.count()
    monkeypatch.setattr(ceilings.Tensor, "write", lambda self, data: real(self, data + next(shift)))
    assert math.isfinite(ceilings._copy(any_device) or math.nan)
    # the fake returns a time, but runs no copy
    monkeypatch.setattr(ceilings, "_time_us", lambda recording: 1.0)
    with pytest.raises(vkq.DeviceError, match="did not copy"):
        ceilings._copy(any_device)


class MatrixDevice:
    """A fake device with matrix units: the attributes that `ceilings` reads."""

    capabilities = reported(
        "nvidia-h200",
        cooperative_matrices=(
            CooperativeMatrix(16, 16, 32, "s8", "s8", "s32", "s32", False, "subgroup"),
            CooperativeMatrix(16, 8, 32, "s8", "s8", "s32", "s32", False, "workgroup"),
            CooperativeMatrix(16, 16, 16, "u8", "u8", "s32", "s32", False, "subgroup"),
            CooperativeMatrix(64, 16, 32, "u8", "u8", "u32", "u32", False, "subgroup"),
        ),
    )


@pytest.mark.parametrize(("nothing", "rate"), [(False, 3.0), (True, None)])
def test_matrices_are_listed_shapes_and_must_compute_something(
    monkeypatch: pytest.MonkeyPatch, nothing: bool, rate: float | None
) -> None:
    """A shape that the device does not list, or whose pipeline computes nothing, has no rate."""
    tried: list[str] = []

    def find(device: MatrixDevice, matrices: Matrices) -> Program | None:
        tried.append(str(matrices))
        if matrices.m == 64:
            return None  # no result, as if the device could not run this shape
        return Program(catalog().find("ceiling__matrix_rate", dot=matrices.form), {}, None)

    class Fake:
        loops = 5

        def __init__(
            self, device: MatrixDevice, program: Program, operations: int, words: int, push: dict[str, int]
        ):
            # 2 operations for each multiply-add, 4 subgroups, 8 chains of 4 steps, and matrices of 16 x 16 x
            # 32
            assert operations == 2 * 4 * (8 * 4) * 16 * 16 * 32

        def run(self) -> float:
            return 3.0

        def words(self) -> npt.NDArray[np.uint32]:
            return np.full(8, 0 if nothing else 8 * 4 * 32 * 5, np.uint32)

    monkeypatch.setattr(ceilings, "_matrix_program", find)
    monkeypatch.setattr(ceilings, "Rate", Fake)
    assert ceilings._matrix_rate(MatrixDevice) == rate  # type: ignore[arg-type]
    assert tried == ["16x16x32", "64x16x32 u8u8"]
