"""Tests of tuning (`vkq.check.tuning`): only choices with exact results are timed. The fastest choice is
kept, or the default if the gain may be noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from tests.conftest import share
from vkq.check import tuning
from vkq.check.catalogue import check_of
from vkq.check.tuning import Subject, Trial, best, mean_regret, regret
from vkq.errors import MethodError, PathError
from vkq.layout.extent import Spec
from vkq.runtime.device import Device
from vkq.runtime.plan import Plan
from vkq.select import registers
from vkq.shader.catalog import catalog
from vkq.shader.spec import Value, Variant

NAME = "linear[M=33,K=40,N=20]"
OTHER = {"matrix product": "32x32 through shared memory"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "SAMPLE_S", 1e-6)


def trial(choice: Mapping[str, str], time_us: float | None, final: bool = True) -> Trial:
    return Trial(choice, ("v",), time_us, final=final)


def test_the_fastest_wins_if_it_is_worth_it() -> None:
    """`best` returns the fastest choice, but the default if the gain is below 3 %."""
    usual, other = trial({}, 10.0), trial(OTHER, 9.0)
    assert best([usual, other]) is other
    assert best([usual, trial(OTHER, 9.9)]) is usual  # the gain is noise
    assert best([usual, trial(OTHER, 1.0, final=False)]) is usual  # without times of the last round
    assert best([trial({}, None), other]) is other  # the default is wrong
    assert best([usual]) is usual


def test_regret_is_how_much_longer_than_the_best() -> None:
    """A choice of 12 us has a regret of 0.2 if the fastest correct choice takes 10 us."""
    usual, other = trial({}, 12.0), trial(OTHER, 10.0)
    assert regret([usual, other, trial({"a": "b"}, None)], usual) == pytest.approx(0.2)
    assert regret([usual, other], other) == 0
    assert mean_regret([0.0, 0.44]) == pytest.approx(0.2)


def test_every_setting_runs_a_program_of_its_own(
    software_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each setting of register tiles runs its own program. If two settings shared a plan, both would get the
    time of the same program."""
    made: set[object] = set()
    program = Device.program

    def noted(
        self: Device, variant: Variant, constants: Mapping[str, Value], subgroup_size: int = 0
    ) -> object:
        if "__texels" in variant.name:
            made.add((variant.name, *constants.items()))
        return program(self, variant, constants, subgroup_size)

    monkeypatch.setattr(Device, "program", noted)
    found = tuning.trials(software_device, check_of(NAME), "portable", most=None)
    settings = {each.choice[registers.KIND] for each in found if registers.KIND in each.choice}
    tiles = catalog().shaders[registers.SHADER].axes["tile"]
    count = len(registers.candidates(software_device.capabilities, list(tiles)))
    assert len(made) == count > 30
    assert len(settings) == count - 1, "the default is one of them"
    assert not [each.error for each in found if each.error]
    assert all(each.time_us and each.time_us > 0 for each in found)
    assert sum(each.final for each in found) in (tuning.FINALISTS, tuning.FINALISTS + 1)
    assert (found[0].choice, found[0].name) == ({}, "default")


def test_a_problem_that_is_tuned_has_six_choices(software_device: Device) -> None:
    """Tuning a problem times six different choices, the default included."""
    found = tuning.trials(software_device, check_of(NAME), "portable")
    assert len(found) == tuning.CANDIDATES
    assert len({(each.variants, *each.choice.items()) for each in found}) == tuning.CANDIDATES


def test_the_clock_is_raised_before_the_first_time(
    any_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`awake` is called once for a problem, after the choices were verified and before they are timed."""
    told: list[str] = []
    tried, sample = Subject.tried, Trial.sample
    monkeypatch.setattr(Subject, "tried", lambda *given: told.append("tried") or tried(*given))
    monkeypatch.setattr(Trial, "sample", lambda *given: told.append("sample") or sample(*given))
    tuning.trials(any_device, check_of(NAME), "portable", 2, lambda: told.append("awake"))
    assert told[:4] == ["tried", "tried", "awake", "sample"]
    assert told.count("awake") == 1


def test_without_timestamps_the_host_times(any_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device without timestamps, the host's clock times the trials. Trials on an integrated GPU are
    timed as well."""
    c = any_device.capabilities
    for changes in ({"timestamp_valid_bits": 0}, {"device_type": "integrated"}):
        monkeypatch.setattr(any_device, "capabilities", dataclasses.replace(c, **changes))
        assert all(each.time_us for each in tuning.trials(any_device, check_of(NAME), "portable", most=2))


def test_a_choice_that_is_not_exact_is_never_timed(
    software_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A choice with wrong results gets an error and no time; another choice is timed in its place."""
    true = tuning.compare

    def compare(check: object, path: str, got: np.ndarray, want: object) -> object:
        calls.append(1)
        return true(check, path, got ^ (len(calls) == 2), want)  # type: ignore[arg-type]

    calls: list[int] = []
    monkeypatch.setattr(tuning, "compare", compare)
    found = tuning.trials(software_device, check_of(NAME), "portable", most=3)
    (wrong,) = [each for each in found if each.error]
    assert (wrong.error, wrong.time_us, wrong.final) == ("660 of 660 elements differ", None, False)
    assert len(found) == 4, "three that are right, and the wrong one"


def test_a_choice_that_the_device_cannot_run_is_no_choice(
    any_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A choice that this device or this size does not support is left out. Any other error is reported."""
    plan = tuning.Chosen.plan

    def refused(self: tuning.Chosen, x: Spec) -> Plan:
        if "tile" in self.picks:
            raise PathError("needs 512 invocations")
        if not self.picks:
            raise MethodError("no such layout")
        return plan(self, x)

    few: list[Mapping[str, str]] = [{}, {"tile": "a"}, OTHER]
    monkeypatch.setattr(tuning, "legal", lambda rankings: iter(few))
    monkeypatch.setattr(tuning.Chosen, "plan", refused)
    found = tuning.trials(any_device, check_of(NAME), "portable")
    assert [(each.name, each.error) for each in found] == [
        ("default", "MethodError: no such layout"), ("matrix product: 32x32 through shared memory", "")
    ]  # fmt: skip


def test_every_kind_of_problem_has_choices(device: Device) -> None:
    """A product, a convolution and a product with a weight in groups have several choices with different
    plans, all with exact results. SwiftShader runs only the first product, because it takes seconds to
    compile each choice."""
    for name, kinds in share(
        (
            ("linear[M=40,K=32,N=48]/seed=1", {"gemm_q8ta_q8csw__staged"}),
            (
                "conv2d[N=1,IC=8,H=9,W=9,OC=32,KH=3,KW=3,padding=1]/seed=1",
                {"im2col_q8__gather", "conv2d_q8ta_q8csw__staged", "conv2d_q8ta_q8csw__direct"},
            ),
            ("linear[M=19,K=64,N=12]/scheme=q4gsw", {"gemv_q4gsw__split", "gemm_q4gsw__staged"}),
        ),
        device,
        3,
    ):
        check = check_of(name)
        found = tuning.trials(device, check, "auto" if "q4gsw" in name else "portable", most=8)
        assert not [each.error for each in found if each.error]
        assert {variant.partition(":")[0] for each in found for variant in each.variants} >= kinds
