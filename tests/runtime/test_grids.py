"""Tests that any number of workgroups is split into dispatches within a device's limits."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vkq
from tests.runtime import work
from vkq.device import verdict, watchdog
from vkq.device.profiles import profile
from vkq.device.verdict import Verdict
from vkq.device.watchdog import macs_in_time
from vkq.numerics.quantize import quantize
from vkq.player.kinds import AbsentDevice, PortableDevice
from vkq.problem.resize import Resize
from vkq.reference import resize
from vkq.runtime import plan as runtime_plan
from vkq.runtime.plan import grids


def covered(total: int, limits: tuple[int, int, int], most: int) -> list[tuple[int, int, int]]:
    """Return the dispatches (first, x, y), after checking that they cover [0, total) in order and keep the
    limits."""
    out = list(grids(total, limits, most))
    following = 0
    for first, x, y in out:
        assert first == following
        assert 1 <= x <= limits[0]
        assert 1 <= y <= limits[1]
        assert x * y <= max(1, most)
        following += x * y
    assert following == total
    return out


@given(st.integers(0, 3000), st.integers(1, 9), st.integers(1, 9), st.integers(0, 4000))
def test_exactly_the_total_runs_within_tiny_limits(total: int, x: int, y: int, most: int) -> None:
    covered(total, (x, y, 1), most)


@pytest.mark.parametrize(
    "total", [65535, 65536, 65537, 2 * 65535, 131071, 65535 * 65535, 65535 * 65535 + 1, 2**32 - 1]
)
def test_a_real_limit_takes_few_dispatches(total: int) -> None:
    dispatches = covered(total, (65535, 65535, 65535), total)
    assert len(dispatches) <= 3, "a whole part, the rest, and at most one row more"


def test_no_dispatch_where_there_is_nothing() -> None:
    assert list(grids(0, (65535, 65535, 65535), 1 << 30)) == []


def test_a_watchdog_splits_by_work(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device of unknown speed, a dispatch has at most the work that a slow phone does in 100 ms."""
    c = work.doctored(any_device.capabilities)
    slow = vkq.Device(capabilities=dataclasses.replace(c, device_type="integrated"))
    monkeypatch.delitem(verdict._reports, c.key, raising=False)
    with slow:
        assert slow.groups_per_dispatch(1000, 625_000_000) == 1000
        assert slow.groups_per_dispatch(1000, 2_500_000_000) == 250
        assert slow.groups_per_dispatch(3, 1 << 60) == 1
        assert slow.groups_per_dispatch(1000, 0, 125_000_000) == 1000
        assert slow.groups_per_dispatch(1000, 2_500_000_000, 1_000_000_000) == 125
        assert any_device.groups_per_dispatch(1000, 4 * (1 << 33), 1 << 40) == 1000
    fast = verdict.Verdict({}, soft_float=False, rates={"float": 1e15, "copy": 1e12}, isolated=True)
    monkeypatch.setitem(verdict._reports, c.key, fast)
    with vkq.Device(capabilities=dataclasses.replace(c, device_type="integrated")) as quick:
        assert quick.groups_per_dispatch(1000, (1 << 33)) == 1000  # here the profile's limit decides
        assert quick.groups_per_dispatch(1000, 4 * (1 << 33)) == 250


@pytest.mark.parametrize("limits", [(3, 5, 1), (1, 1, 1), (7, 1, 1)])
def test_folded_dispatches_give_the_same_bytes(
    device: vkq.Device, limits: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Splitting a dispatch by small limits does not change the bytes: a shader with a wrong workgroup index
    would skip rows or write rows twice."""
    c = work.doctored(
        device.capabilities,
        **{f"maxComputeWorkGroupCount_{axis}": n for axis, n in zip("xyz", limits, strict=True)},
    )
    with vkq.Device(capabilities=c) as folded:
        assert folded.capabilities.max_workgroups == limits
        counts: list[int] = []
        seen = lambda *a: counts.append(len(out := list(grids(*a)))) or out  # noqa: E731
        monkeypatch.setattr(runtime_plan, "grids", seen)
        for one in (work.linear(folded, 67, 33, 190), work.conv2d(folded)):
            one.check()
        x = np.linspace(-80, 80, 5003, dtype=np.float32)
        q = vkq.QParams(0.37, -3)
        np.testing.assert_array_equal(vkq.quantize(x, q, device=folded), quantize(x, q))
        assert max(counts) > 1, "the sizes above need more than one dispatch"


def test_a_watchdog_split_gives_the_same_bytes(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    one = work.linear(device, 67, 33, 190)
    known = profile(device.capabilities)
    for log2 in (0, 10, 17):
        few = dataclasses.replace(known, macs_per_dispatch_log2=log2)
        monkeypatch.setattr(watchdog, "profile", lambda capabilities, few=few: few)
        one.check()


def test_slow_drivers_get_short_dispatches(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow driver, a layer that takes seconds is split into dispatches of at most 100 ms (at an eighth
    of the measured rate), with the same bytes. On discrete GPUs nothing is split. Devices without measured
    rates count as slow."""
    c = dataclasses.replace(device.capabilities, device_type="integrated")
    plain = dataclasses.replace(verdict.verdict({}, {}, isolated=True), failures={}, soft_float=False)
    macs = 67 * 33 * 190
    for rate, most in ((16e6, 100_000), (3.2e15, None)):
        report = dataclasses.replace(plain, rates={"float": 2 * rate, "s8s8": rate, "copy": 1e12})
        monkeypatch.setitem(verdict._reports, c.key, report)
        dispatches: list[tuple[int, int]] = []

        def seen(total: int, limits: Any, groups: int, into: list[Any] = dispatches) -> Any:
            into.append((total, groups))
            return grids(total, limits, groups)

        with monkeypatch.context() as patch, vkq.Device(capabilities=c) as slow:
            patch.setattr(runtime_plan, "grids", seen)
            work.linear(slow, 67, 33, 190).check()
            assert macs_in_time(c) == (most or int(rate / 160))
            assert any(groups < total for total, groups in dispatches) == (most is not None)
            for total in (7, 1000):
                part = slow.groups_per_dispatch(total, macs)
                assert part == (total if most is None else max(1, total * most // macs))
    for other in (device.capabilities, dataclasses.replace(c, device_type="discrete")):
        assert macs_in_time(other) is None
    monkeypatch.delitem(verdict._reports, c.key)
    assert macs_in_time(c) == int(watchdog.ASSUMED / 160)


MOVERS: dict[str, Callable[[Any, vkq.Device], Any]] = {
    "transpose": lambda x, device: vkq.transpose(x, (0, 2, 3, 1), device=device),
    "slice": lambda x, device: vkq.slice(x, [slice(0, 1), slice(2, 7), slice(1, 40, 2)], device=device),
    "resize": lambda x, device: vkq.resize(x, scale=2, device=device),
    "quantize": lambda x, device: vkq.quantize(x.astype(np.float32), vkq.QParams(0.9), device=device),
}


@pytest.mark.parametrize(("copy", "splits"), [(1e5, True), (1e12, False)])
def test_slow_memory_gets_short_dispatches(
    device: vkq.Device, monkeypatch: pytest.MonkeyPatch, copy: float, splits: bool
) -> None:
    """On slow memory, operators that only copy bytes are split by the measured rate of copies, without a
    change of their bytes."""
    c = dataclasses.replace(device.capabilities, device_type="integrated")
    report = Verdict({}, soft_float=False, rates={"float": 1e15, "copy": copy}, isolated=True)
    monkeypatch.setitem(verdict._reports, c.key, report)
    x = np.random.default_rng(5).integers(-128, 128, (1, 8, 40, 30), np.int8)
    want = {
        "transpose": x.transpose(0, 2, 3, 1),
        "slice": x[:, 2:7, 1:40:2],
        "resize": resize(x, Resize.of(x.shape, scale=2)),
        "quantize": quantize(x.astype(np.float32), vkq.QParams(0.9)),
    }
    parts: list[int] = []

    def seen(*given: Any) -> Any:
        found = list(grids(*given))
        parts.append(len(found))
        return found

    monkeypatch.setattr(runtime_plan, "grids", seen)
    with vkq.Device(capabilities=c) as slow:
        for name, call in MOVERS.items():
            parts.clear()
            np.testing.assert_array_equal(call(x, slow), want[name], err_msg=name)
            assert (max(parts) > 1) == splits, name


def test_rates_of_a_device_that_is_not_here(any_device: vkq.Device) -> None:
    """Plans for an absent device are split by the rates in its report (operations and bytes per second), or
    by low assumed rates if the report has none."""
    c = dataclasses.replace(any_device.capabilities, device_type="integrated")
    for rates, most, size in (
        ({"float": 3.2e9, "s8s8": 1.6e9, "copy": 8e8}, 10_000_000, 10_000_000),
        ({}, 625_000_000, 125_000_000),
    ):
        with AbsentDevice(any_device.capabilities, c, Verdict({}, soft_float=False, rates=rates)) as phone:
            assert phone.groups_per_dispatch(100, 4 * most) == 25
            assert phone.groups_per_dispatch(100, 0, 4 * size) == 25
            assert phone.seconds_of(4 * most, size) == pytest.approx(0.4)
    with PortableDevice(any_device.capabilities) as portable:
        assert portable.groups_per_dispatch(100, 2_500_000_000) == 25
        assert portable.seconds_of(0, 250_000_000) == pytest.approx(0.2)
