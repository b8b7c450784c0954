"""Tests of the statistics against known distributions and an independent implementation."""

import math

import numpy as np
import pytest
import scipy.stats

from vkq.bench import stats


def test_summary_of_a_known_sample() -> None:
    found = stats.summarize(list(range(101)))
    assert (found.median, found.p20, found.p80, found.count) == (50, 20, 80, 101)


@pytest.mark.parametrize("n", [8, 10, 25, 60, 61, 200])
def test_the_interval_is_that_of_the_signed_rank_test(n: int) -> None:
    """The interval agrees with the signed-rank test: the test accepts a shift just inside the interval and
    rejects a shift just outside."""
    logs = np.random.default_rng(n).normal(0.05, 0.1, n)
    found = stats.paired_ratio(np.exp(logs).tolist(), [1.0] * n)
    for edge, inward in ((found.low, 1), (found.high, -1)):
        method = "exact" if n <= 60 else "approx"
        inside, outside = (
            scipy.stats.wilcoxon(
                logs - math.log(edge) - s * inward * 1e-6, method=method, correction=False
            ).pvalue
            for s in (1, -1)
        )
        slack = 0 if n <= 60 else 1e-3
        assert inside >= 0.01 - slack
        assert outside < 0.01 + slack


def test_few_pairs_give_the_whole_range() -> None:
    found = stats.paired_ratio([1.0, 2.0, 4.0], [1.0, 1.0, 1.0])
    assert (found.value, found.low, found.high, found.pairs) == (2.0, 1.0, 4.0, 3)


def test_equal_arms_are_called_equal_under_heavy_tails_and_drift() -> None:
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(400):
        drift = np.exp(np.cumsum(rng.normal(0, 0.02, 30)))  # both times of a pair have the same drift
        a, b = (drift * np.exp(0.05 * rng.standard_t(1.5, 30)) for _ in range(2))
        wrong += stats.paired_ratio(a.tolist(), b.tolist()).verdict != "equal"
    assert wrong <= 10  # 1 % of 400 is expected; 10 is four standard deviations above


def test_ten_percent_are_found_under_heavy_tails_and_drift() -> None:
    rng = np.random.default_rng(2)
    found = []
    for _ in range(200):
        drift = np.exp(np.cumsum(rng.normal(0, 0.02, 30)))
        a, b = (drift * np.exp(0.03 * rng.standard_t(2, 30)) for _ in range(2))
        found.append(stats.paired_ratio((1.1 * a).tolist(), b.tolist()))
    assert sum(r.verdict == "slower" for r in found) >= 195
    assert np.median([r.value for r in found]) == pytest.approx(1.1, rel=0.01)
    assert stats.Ratio(0.9, 0.85, 0.95, 30).verdict == "faster"
    # the interval excludes 1, but the difference is below FLOOR
    assert stats.Ratio(1.015, 1.012, 1.018, 30).verdict == "equal"


def test_median_ratio_is_repeatable_and_covers_the_truth() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(110, 5, 40).tolist(), rng.normal(100, 5, 40).tolist()
    found = stats.median_ratio(a, b)
    assert found == stats.median_ratio(a, b)
    assert found.low < 1.1 < found.high
    assert found.low > 1.03


def test_drift_outliers_and_settling() -> None:
    assert stats.drift([1.0] * 9) is None
    assert stats.drift([1.0] * 8 + [1.2, 1.2]) == pytest.approx(0.2)
    assert stats.outliers([10.0, 10.1] * 10) == 0
    assert stats.outliers([10.0, 10.1] * 9 + [30.0, 40.0]) == pytest.approx(0.1)
    assert not stats.settled([1.0] * 4)
    assert stats.settled([9.0, 1.0, 1.02, 1.0, 1.01, 1.0])
    assert not stats.settled([1.0, 1.0, 1.0, 1.0, 1.05])
