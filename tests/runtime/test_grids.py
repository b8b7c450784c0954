"""Dispatches of any number of workgroups within any limits."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vkq
from tests.runtime import work
from vkq.device import verdict, watchdog
from vkq.device.profiles import profile
from vkq.device.watchdog import macs_in_time
from vkq.numerics.quantize import quantize
from vkq.runtime import plan as runtime_plan
from vkq.runtime.plan import grids


def covered(total: int, limits: tuple[int, int, int], most: int) -> list[tuple[int, int, int]]:
    """The dispatches, after checking that they cover exactly [0, total) in order and keep the limits."""
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
    """A device of unknown speed gets at most 2**33 multiply-adds in one dispatch."""
    c = work.doctored(any_device.capabilities)
    slow = vkq.Device(capabilities=dataclasses.replace(c, device_type="integrated"))
    monkeypatch.delitem(verdict._reports, c.key, raising=False)
    with slow:
        assert slow.groups_per_dispatch(1000, (1 << 33)) == 1000
        assert slow.groups_per_dispatch(1000, 4 * (1 << 33)) == 250
        assert slow.groups_per_dispatch(3, 1 << 60) == 1
        assert any_device.groups_per_dispatch(1000, 4 * (1 << 33)) == 1000


@pytest.mark.parametrize("limits", [(3, 5, 1), (1, 1, 1), (7, 1, 1)])
def test_folded_dispatches_give_the_same_bytes(
    device: vkq.Device, limits: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shaders that read their workgroup wrongly would leave rows out or write them twice."""
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
    """A driver that multiplies so slowly that a layer takes seconds: no dispatch is longer than 100 ms at an
    eighth of its rate, and the bytes are the same. Discrete devices, and ones that are not measured, are not
    held to it."""
    c = dataclasses.replace(device.capabilities, device_type="integrated")
    plain = dataclasses.replace(verdict.verdict({}, {}, isolated=True), failures={}, soft_float=False)
    macs = 67 * 33 * 190
    for rate, most in ((16e6, 100_000), (3.2e15, None)):
        report = dataclasses.replace(plain, rates={"float": 2 * rate, "s8s8": rate, "copy": 1.0})
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
    assert macs_in_time(c) is None
