"""The measured ceilings, and what a path is held against."""

import itertools
import math

import pytest

import vkq
from vkq.bench import ceilings


def test_rates_are_measured_on_both_drivers(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "COPY_BYTES_DEFAULT", 4 << 20)
    monkeypatch.setattr(ceilings, "LASTING_US", 500.0)
    seen: list[str] = []
    found = ceilings.measure(device, seen.append)
    assert list(found) == seen == [*ceilings.DOTS, "fp32_fma", "copy"]
    assert all(value is not None and 0.01 < value < 1e6 for value in found.values())


def test_a_longer_loop_takes_longer_in_proportion(device: vkq.Device) -> None:
    """The loop is not optimized away: 64 times the work takes at least four times as long, on a busy machine too."""
    for what in ceilings.OPERATIONS:
        program = ceilings._program(device, "ceiling__rate", what=what)
        assert program is not None
        kernel = ceilings.Rate.__new__(ceilings.Rate)
        kernel._device, kernel._program, kernel._groups = device, program, 4
        kernel._y = device.allocate(4 * 4 * ceilings.INVOCATIONS)
        few = 256 if what == "fp32_fma" else 32
        times = [min(ceilings._time_us(kernel._record(loops)) for _ in range(3)) for loops in (few, 64 * few)]
        assert times[1] > 4 * times[0], what


def test_no_dot_product_gives_no_ceiling(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ceilings.refusals
    monkeypatch.setattr(
        ceilings, "refusals", lambda variant, *rest: ["no"] if "dot" in variant.axes.get("what", "") else real(variant, *rest)
    )
    monkeypatch.setattr(ceilings, "COPY_BYTES_DEFAULT", 1 << 20)
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
    assert ceilings.of_path(path, {"dot_u8s8": 4.0, "dot_s8s8": None, "fp32_fma": 2.0, "copy": 1.0}) == ceiling
    assert ceilings.of_path(path, {}) is None


def test_a_copy_that_does_not_copy_is_noticed(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "COPY_BYTES_DEFAULT", 1 << 20)
    real, shift = ceilings.Tensor.write, itertools.count()
    monkeypatch.setattr(ceilings.Tensor, "write", lambda self, data: real(self, data + next(shift)))
    assert math.isfinite(ceilings._copy(any_device) or math.nan)
    monkeypatch.setattr(ceilings, "_time_us", lambda recording: 1.0)  # nothing runs
    with pytest.raises(vkq.DeviceError, match="did not copy"):
        ceilings._copy(any_device)
