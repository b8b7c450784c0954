"""Tests of the device self-test: it passes on correct devices, and finds each kind of wrong arithmetic."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.device.reported import reported
from vkq.device.profiles import preferred
from vkq.device.verdict import FORMAT, FORMS, verdict
from vkq.errors import PathError
from vkq.probe import rates, selftest
from vkq.probe.matrices import Matrices, lacking, lacking_half
from vkq.runtime.builder import lets_loop
from vkq.runtime.device import Device
from vkq.select import path as select


def test_every_stage_passes_under_the_validation_layer(device: Device) -> None:
    stages = selftest.stages(device)
    forms, matrices = ["s8s8", "u8s8", "u8u8", "float"], [] if lacking(device.capabilities) else ["matrices"]
    matrices += [
        name for name, form in selftest.HALVES.items() if not lacking_half(device.capabilities, form)
    ]
    features = ["texels", "shuffles"]
    rest = ["requantize", "requantize_soft", "quantize", "conversions", *features, "loops", "rates"]
    # tests that depend on more of a GPU than its matrices
    others = {*selftest.PAIRS.values(), *selftest.SMALLS.values(), "float16"} & {*stages}
    assert [name for name in stages if name not in others] == [*forms, *matrices, *rest]
    assert not (others and device.shares_processor)
    tests = [name for name in stages if name not in ("conversions", "loops", "rates")]  # test_conversions.py
    assert {name: stages[name]() for name in tests} == dict.fromkeys(tests)


def test_the_rounds_after_which_loops_end_are_counted(device: Device) -> None:
    """The self-test finds the number of iterations after which a driver ends loops: 65,535 in Mesa's
    llvmpipe, no limit in other known drivers."""
    limit = 65_535 if "llvmpipe" in device.name else None
    assert selftest.loops.measure(device) == limit
    assert selftest.report(device).loop_limit == limit == device.loop_limit
    assert (lets_loop(device, 65_535), lets_loop(device, 65_536)) == (True, limit is None)


def test_kept_reports_are_of_these_tests(any_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stored report of an earlier version may lack a new test. So this test fails after any change of the
    list of tests, until FORMAT is raised."""
    h200 = reported("nvidia-h200")
    whole = dataclasses.replace(h200, properties={**h200.properties, "maxTexelBufferElements": 1 << 27})
    monkeypatch.setattr(any_device, "capabilities", whole)
    # as if the device had matrices of float16 and bfloat16
    monkeypatch.setattr(selftest, "lacking_half", lambda *_: None)
    assert (FORMAT, list(selftest.stages(any_device))) == (23, [
        "s8s8", "u8s8", "u8u8", "float", "matrices", "matrices_half", "matrix_pairs", "matrix_small",
        "matrices_brain", "matrix_pairs_brain", "matrix_small_brain", "float16", "requantize",
        "requantize_soft", "quantize", "conversions", "texels", "shuffles", "loops", "rates",
    ])  # fmt: skip


def test_dot_cases_hold_every_pair_of_bytes_in_each_lane() -> None:
    x, w = (words.view(np.uint8).reshape(-1, 4).astype(np.int64) for words in selftest.dot_cases())
    for lane in range(4):
        assert np.unique(256 * x[:, lane] + w[:, lane]).size == 65536


def test_quotient_cases_hold_every_tie_of_the_range() -> None:
    x, scale = selftest.quotient_cases()
    k = x[scale == 1.0] - 0.5
    assert set(range(-300, 300)) <= set(k[np.isfinite(k)].tolist())


@pytest.mark.parametrize("form", FORMS)
def test_one_wrong_bit_of_one_product_is_seen(
    form: str, any_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = selftest._execute

    def wrong(*arguments: object, **options: object) -> object:
        result = true(*arguments, **options)  # type: ignore[arg-type]
        result[77777, 0] ^= 1
        return result

    monkeypatch.setattr(selftest, "_execute", wrong)
    said = selftest.stages(any_device)[form]()
    assert said.startswith("1 of 264736 wrong; dot([")


def test_a_device_that_rounds_toward_zero_gets_the_soft_float_form(any_device: Device) -> None:
    said = "9 of 9 wrong"
    assert verdict({"requantize": said, "requantize_soft": None}, {}, False).soft_float
    both = verdict({"requantize": said, "requantize_soft": said}, {}, False)
    assert both.failures == {"requantize": "9 of 9 wrong (and without SOFT_FLOAT: 9 of 9 wrong)"}
    assert not verdict({"requantize": None, "requantize_soft": None}, {}, False).failures
    assert verdict({}, {}, False).failures["requantize"].startswith("the probe gave no result for it")


def test_where_loops_were_not_counted_the_least_known_limit_holds() -> None:
    good = {"requantize": None, "requantize_soft": None}
    assert verdict({**good, "loops": None}, {}, False).loop_limit is None
    assert verdict({**good, "loops": 1000}, {}, False).loop_limit == 1000
    missing = verdict(good, {"loops": "the probe gave no result for it"}, False)
    assert (missing.loop_limit, list(missing.failures)) == (65_535, ["loops"])
    assert missing.refusal is None


def test_rates_are_measured_with_each_clock(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timestamps, the host's clock and, for devices that run on the CPU, the processor time of this process
    give similar rates."""
    facts, found = device.capabilities, []
    clocks = [("gpu", "virtual", 64), ("host", "virtual", 0)]
    for clock, kind, bits in [*clocks, *[("cpu", "cpu", 64)] * device.shares_processor]:
        told = dataclasses.replace(facts, device_type=kind, timestamp_valid_bits=bits)
        monkeypatch.setattr(device, "capabilities", told)
        monkeypatch.setattr(rates, "told_cores", lambda c: 2)
        with preferred({"fill_workgroups": 64}):
            found.append(rates.measure(device))
        assert found[-1].clock == clock
    gpu, *others = (one.per_second for one in found)
    for op in ("s8s8", "u8s8", "u8u8", "float", "fma", "copy"):
        assert 1e8 < gpu[op] < 1e15
        assert all(0.1 < one[op] / gpu[op] < 10 for one in others)


def test_cores_are_counted_by_what_many_workgroups_do_more_than_one(
    any_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core count is the rate of many workgroups divided by the rate of one workgroup. The test measures
    it on this device, and on a simulated device with 24 cores."""
    x, y = (any_device.allocate(1 << 22) for _ in range(2))
    found = rates.measured_cores(any_device, "gpu", (x, y))
    assert found is not None
    assert 1 <= found <= 1024
    c = dataclasses.replace(any_device.capabilities, device_type="discrete")
    monkeypatch.setattr(any_device, "capabilities", c)
    monkeypatch.setattr(rates._Work, "time_us", lambda work, loops: 20.0 + loops * max(1.0, work.groups / 24))
    assert rates.measured_cores(any_device, "gpu", (x, y)) == 24


def test_rates_without_the_dot_product_are_those_of_the_rest(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = {**device.capabilities.features, "shaderIntegerDotProduct": False}
    monkeypatch.setattr(device, "capabilities", dataclasses.replace(device.capabilities, features=features))
    assert set(rates.measure(device).per_second) == {"float", "fma", "copy"}


@pytest.mark.parametrize("shape", [(16, 16, 32), (16, 8, 32, "u8u8"), (64, 16, 32), (4, 16, 16)])
def test_every_place_of_a_matrix_shows(shape):
    """In the first k cases together, a swap of any two elements of x, or of any two of w, changes a sum."""
    x, w = selftest.matrix_cases(Matrices(*shape))
    outputs, rows, k = shape[:3]
    assert x.shape[2:] == (rows, k)
    assert w.shape[2:] == (outputs, k)
    sums = np.einsum("csmk,csnk->cmn", x[:k].astype(int), w[:k].astype(int))
    assert (sums == np.outer(np.arange(1, rows + 1), np.arange(1, outputs + 1))).all()
    for operand in (x, w):
        places = operand[:k].sum(axis=1).reshape(k, -1).T  # row: one element's values in all cases
        assert len(np.unique(places, axis=0)) == len(places)


def test_wrong_matrices_refuse_the_path(any_device, monkeypatch):
    monkeypatch.setattr(select, "lacking", lambda capabilities: None)
    monkeypatch.setattr(
        selftest, "report", lambda device: selftest.Verdict({"matrices": "sum 3 is 0"}, soft_float=False)
    )
    with pytest.raises(PathError, match=r"path coopmat cannot run on .*: sum 3 is 0"):
        select.choose_path(any_device, "coopmat")
