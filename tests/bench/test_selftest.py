"""Tests of the benchmark's self-test: it passes with real times, and fails if times are only noise."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import vkq
from vkq import cli
from vkq.bench import selftest, stats, timer


@pytest.mark.alone
def test_a_few_trials_pass(any_device: vkq.Device) -> None:
    """A few trials of the benchmark's self-test pass. The command runs 20 trials; three suffice to test the
    timed work, the clock and the verdicts together."""
    found = selftest.run(any_device, trials=3)
    right = found.right
    assert right[0] >= 2, found.lines()
    assert right[1] >= 2, found.lines()
    assert np.median([r.value for r in found.slower]) == pytest.approx(1 + selftest.INJECTED, rel=0.04)
    assert np.median([r.value for r in found.equal]) == pytest.approx(1, rel=0.03)


def test_noise_and_deaf_comparisons_fail(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)

    def noise(arms: Sequence[Any], clock: str, settings: timer.Settings) -> timer.Samples:
        return timer.Samples([(1 + 0.5 * rng.random(10)).tolist() for _ in arms], [True, True])

    monkeypatch.setattr(timer, "measure", noise)
    found = selftest.run(any_device)
    assert not found.passed
    assert found.right[0] >= 19  # two equal sides with noise are called equal
    assert found.right[1] < 19
    assert found.lines()[-1].startswith("FAILED")
    assert cli.main(["bench", "--self-test", "--device", any_device.name]) == 1
    assert "called slower in" in capsys.readouterr().out


def test_verdicts_are_counted() -> None:
    same, worse = stats.Ratio(1.0, 0.99, 1.01, 60), stats.Ratio(1.1, 1.08, 1.12, 60)
    assert selftest.Trials([same] * 19 + [worse], [worse] * 20).passed
    assert not selftest.Trials([same] * 18 + [worse] * 2, [worse] * 20).passed
    assert not selftest.Trials([same] * 20, [worse] * 18 + [same] * 2).passed
