"""Tests of the chosen path and the printed reason, on devices with every combination of reported features,
failed tests and measured rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import vkq
from tests.device.reported import profile_says
from vkq import QParams, reference
from vkq.device.profiles import profile
from vkq.probe import rates
from vkq.select import path as select

from ..ops.doctored import MIXED, SIGNED, SMALLEST_LIMITS, UNSIGNED, capabilities, report

Open = Callable[..., vkq.Device]
GPU_RATES = {"s8s8": 20.0, "u8s8": 97.1, "u8u8": 95.0, "float": 24.9}


@pytest.fixture(autouse=True)
def no_form_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    profile_says(monkeypatch, select, form=None)


@pytest.fixture
def doctor(any_device: vkq.Device) -> Iterator[Open]:
    """Return a function that opens a device with changed capabilities."""
    opened: list[vkq.Device] = []

    def open_device(**changes: object) -> vkq.Device:
        opened.append(vkq.Device(capabilities=capabilities(any_device, **changes)))
        return opened[-1]

    yield open_device
    for device in opened:
        device.close()


def test_the_fastest_measured_form_is_taken_and_the_reason_says_the_numbers(
    doctor: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(monkeypatch, GPU_RATES)
    choice = select.choose_path(doctor(**{MIXED: 1}))
    assert (choice.path, choice.form) == ("dot_u8s8", "u8s8")
    assert choice.reason == "97.1 TOPS measured, 3.9x portable"


@pytest.mark.parametrize("disturbed", ["six of seven", 1, 4, 8, 11, 12])
def test_disturbed_samples_of_rates_decide_nothing(
    disturbed: str | int, doctor: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each measurement, one run (number *disturbed*) or six of every seven runs take nine times as long,
    as if another program disturbed them. The measured rates and the path stay the same, and the number of
    runs is limited."""
    device, runs = doctor(), Counter[str]()
    costs = {"s8s8": 22.0, "u8s8": 18.0, "u8u8": 26.0, "float": 40.0, "fma": 5.0, "copy": 7.0}  # us of a loop

    def clock(work: rates._Work, loops: int) -> float:
        runs[work.op] += 1
        undisturbed = runs[work.op] % 7 == 0 if isinstance(disturbed, str) else runs[work.op] != disturbed
        return (60.0 + loops * costs[work.op]) * (1 if undisturbed else 9)

    monkeypatch.setattr(rates._Work, "time_us", clock)
    monkeypatch.setattr(rates._Work, "per_loop", lambda work: 1e6)
    found = rates.measure(device).per_second
    assert found == pytest.approx({op: 1e12 / cost for op, cost in costs.items()})
    assert max(runs.values()) <= 3 * 13 + 2 * rates.ATTEMPTS * rates.MOST_SAMPLES
    report(monkeypatch, {form: found[form] / 1e12 for form in GPU_RATES})
    assert select.choose_path(device).path == "dot_u8s8"


def test_a_form_that_the_profile_names_is_taken_where_it_can_run(
    doctor: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(monkeypatch, {"s8s8": 9.0, "u8s8": 4.0, "u8u8": 4.0, "float": 10.0})
    profile_says(monkeypatch, select, form="u8s8")
    device = doctor()
    choice = select.choose_path(device)
    assert (choice.path, choice.form) == ("dot_u8s8", "u8s8")
    assert choice.reason == f"the fastest form on such devices ({profile(device.capabilities).names[-1]})"
    assert select.choose_path(device, "dot").path == "dot_s8s8"
    assert select.choose_path(doctor(shaderIntegerDotProduct=0)).path == "portable"


def test_a_form_whose_flag_is_false_but_which_is_fast_is_taken(
    doctor: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(monkeypatch, {"s8s8": 9.0, "u8s8": 4.0, "u8u8": 4.0, "float": 3.0})
    choice = select.choose_path(doctor(**{SIGNED: 0, MIXED: 1, UNSIGNED: 1}))
    assert choice.path == "dot_s8s8"
    assert choice.reason == f"9 TOPS measured, 3x portable ({SIGNED} is false)"


def test_a_form_that_is_claimed_and_slow_gives_way_to_portable(
    doctor: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(monkeypatch, {"s8s8": 1.0, "u8s8": 0.9, "u8u8": 0.8, "float": 2.0})
    choice = select.choose_path(doctor(**{SIGNED: 1}))
    assert choice.path == "portable"
    assert choice.reason == (
        f"the fastest other is dot_s8s8: 1 TOPS measured, 0.5x portable, although {SIGNED}; 1.1x is needed"
    )


def test_a_form_that_is_claimed_and_wrong_is_passed_over(
    doctor: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(monkeypatch, {"s8s8": 50.0, "u8s8": 40.0, "u8u8": 4.0, "float": 5.0}, s8s8="3 of 262144 wrong")
    device = doctor(**{SIGNED: 1, MIXED: 1})
    assert select.choose_path(device).path == "dot_u8s8"
    with pytest.raises(vkq.PathError, match=r"dot_s8s8 cannot run on .*: 3 of 262144 wrong; path='auto'"):
        select.choose_path(device, "dot_s8s8")


def test_equal_rates_fall_to_the_form_that_needs_no_shift(
    doctor: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(monkeypatch, {"s8s8": 95.0, "u8s8": 97.0, "u8u8": 99.0, "float": 20.0})
    assert select.choose_path(doctor()).path == "dot_s8s8"


def test_without_rates_the_flags_decide(doctor: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    report(monkeypatch)
    assert select.choose_path(doctor(**{SIGNED: 0, MIXED: 0, UNSIGNED: 1})).path == "dot_u8u8"
    choice = select.choose_path(doctor(**{SIGNED: 0, MIXED: 0, UNSIGNED: 0}))
    assert (choice.path, choice.reason) == (
        "portable",
        "no packed dot product is accelerated, and no rate is measured",
    )


def test_without_the_feature_every_dot_path_is_refused_by_its_name(
    doctor: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(monkeypatch, GPU_RATES)
    device = doctor(shaderIntegerDotProduct=False)
    choice = select.choose_path(device)
    assert (choice.path, choice.reason) == ("portable", "shaderIntegerDotProduct is false")
    for path in ("dot", "dot_s8s8", "dot_u8s8", "dot_u8u8"):
        with pytest.raises(vkq.PathError, match="shaderIntegerDotProduct is false"):
            select.choose_path(device, path)


def test_dot_by_name_takes_the_fastest_dot_even_below_portable(
    doctor: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(monkeypatch, {"s8s8": 1.0, "u8s8": 2.0, "u8u8": 1.5, "float": 4.0})
    choice = select.choose_path(doctor(), "dot")
    assert (choice.path, choice.reason) == ("dot_u8s8", "asked for; 2 TOPS measured, 0.5x portable")


@pytest.mark.parametrize("test", ["open", "requantize", "quantize"])
def test_a_device_that_fails_what_every_path_needs_is_refused(
    test: str, doctor: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(monkeypatch, GPU_RATES, **{test: "the driver crashed (SIGSEGV)"})
    with pytest.raises(vkq.PathError, match=r"no int8 path can run on .*the driver crashed \(SIGSEGV\)"):
        select.choose_path(doctor())


def test_where_the_portable_form_is_wrong_a_slow_dot_is_taken(
    doctor: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(monkeypatch, {"s8s8": 1.0, "u8s8": 1.0, "u8u8": 1.0, "float": 9.0}, float="1 of 5 wrong")
    assert select.choose_path(doctor()).path == "dot_s8s8"


def test_the_choice_is_the_same_every_time(any_device: vkq.Device) -> None:
    assert len({select.choose_path(any_device) for _ in range(3)}) == 1


def test_an_unknown_path_is_refused_with_the_known_ones(any_device: vkq.Device) -> None:
    with pytest.raises(vkq.ArgumentError, match="path is 'fast'; it must be one of auto, dot, dot_s8s8"):
        select.choose_path(any_device, "fast")


@pytest.mark.parametrize("path", list(select.FORMS))
def test_everything_runs_within_the_smallest_limits(path: str, doctor: Open) -> None:
    device = doctor(**SMALLEST_LIMITS)
    rng = np.random.default_rng(4)
    x, w = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((2, 5, 9, 11), (6, 5, 3, 3)))
    q, y = QParams(0.1, 3), QParams(3.0, -5)
    got = vkq.conv2d(x, w, 0.2, padding=1, x_qparams=q, y_qparams=y, path=path, device=device)
    assert np.array_equal(got, reference.conv2d(x, w, x=q, w_scale=0.2, y=y, padding=1))
    rows, weight = x.reshape(-1, 11), rng.integers(-128, 128, (33, 11)).astype(np.int8)
    got = vkq.linear(rows, weight, 0.2, x_qparams=q, y_qparams=y, path=path, device=device)
    assert np.array_equal(got, reference.linear(rows, weight, x=q, w_scale=0.2, y=y))


def test_more_workgroups_than_a_dimension_holds_are_folded(doctor: Open) -> None:
    device = doctor(maxComputeWorkGroupCount_x=7, maxComputeWorkGroupCount_y=5)
    rng = np.random.default_rng(5)
    x, w = (
        rng.integers(-128, 128, (1500, 13)).astype(np.int8),
        rng.integers(-128, 128, (70, 13)).astype(np.int8),
    )
    q = QParams(0.1, 3)
    got = vkq.linear(x, w, 0.2, x_qparams=q, y_qparams=q, device=device)
    assert np.array_equal(got, reference.linear(x, w, x=q, w_scale=0.2, y=q))


def test_a_buffer_above_the_limit_is_refused_before_anything_runs(doctor: Open) -> None:
    device = doctor(maxStorageBufferRange=4096)
    with pytest.raises(vkq.ArgumentError, match="maxStorageBufferRange of 4096"):
        vkq.linear(
            np.zeros((512, 64), np.int8),
            np.ones((4, 64), np.int8),
            1.0,
            x_qparams=QParams(1.0),
            device=device,
        )


def test_a_path_is_added_by_one_row(doctor: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    report(monkeypatch, GPU_RATES)
    shapes: list[str] = []
    row = select.Path(
        "imagined",
        "imagined",
        "pipelineExecutableInfo",
        "pipelineExecutableInfo",
        lambda device: None if shapes else "no int8 matrix shape",
    )
    monkeypatch.setattr(select, "TABLE", (row, *select.TABLE))
    able = doctor(pipelineExecutableInfo=False)
    # the driver reports this feature, but it was not enabled
    monkeypatch.setattr(able, "capabilities", capabilities(able, pipelineExecutableInfo=True))
    assert (
        select.refusal(doctor(pipelineExecutableInfo=False), "imagined") == "pipelineExecutableInfo is false"
    )
    assert select.refusal(able, "imagined") == "no int8 matrix shape"
    assert select.choose_path(able).path == "dot_u8s8"
    shapes.append("16x16x32")
    choice = select.choose_path(able)
    assert (choice.path, choice.reason) == (
        "imagined",
        "pipelineExecutableInfo, and the self-test passed; its rate is not measured",
    )
