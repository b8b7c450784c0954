"""Tests of caches: a value is computed once, and the number of cached values is bounded."""

import gc
import threading
import weakref

import numpy as np
import pytest

import vkq
from vkq.runtime import caches
from vkq.runtime.caches import LruCache
from vkq.runtime.plan import Plan


def test_the_least_recently_used_goes() -> None:
    kept: LruCache[int] = LruCache(2)
    made: list[int] = []

    def get(key: int) -> int:
        return kept.get(key, lambda: made.append(key) or 10 * key)  # type: ignore[func-returns-value]

    assert [get(1), get(2), get(1), get(3), get(1)] == [10, 20, 10, 30, 10]
    assert made == [1, 2, 3]
    assert get(2) == 20
    assert made == [1, 2, 3, 2], "2 went when 3 came"
    kept.clear()
    assert get(1) == 10
    assert made[-1] == 1


def test_a_failed_one_is_made_again() -> None:
    kept: LruCache[int] = LruCache(2)
    with pytest.raises(ZeroDivisionError):
        kept.get("key", lambda: 1 // 0)
    assert kept.get("key", lambda: 7) == 7


def test_of_two_threads_the_first_one_counts() -> None:
    """If two threads compute the same value at the same time, both use the value that is ready first, and
    neither waits for the other."""
    kept: LruCache[str] = LruCache(2)
    begun, go_on = threading.Event(), threading.Event()
    found: list[str] = []

    def slow() -> str:
        begun.set()
        go_on.wait(10)
        return "slow"

    thread = threading.Thread(target=lambda: found.append(kept.get("key", slow)))
    thread.start()
    assert begun.wait(10)
    assert kept.get("key", lambda: "fast") == "fast"
    go_on.set()
    thread.join(10)
    assert found == ["fast"]


def test_images_that_all_have_sizes_of_their_own(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images of many different sizes give the right results, although the caches of layers and templates
    keep only few plans: dropped plans are made again."""
    monkeypatch.setattr(caches, "PLANS_KEPT", 4)
    q = vkq.QParams(1.0)
    conv = vkq.Conv2d(np.ones((1, 1, 2, 2), np.int8), 1.0, x_qparams=q, y_qparams=q, device=any_device)
    templates = vkq.integer.Templates(np.ones((1, 1, 2, 2), np.int8), x_dtype="int8", device=any_device)
    plans: list[weakref.ref[Plan]] = []
    images = [np.ones((1, 1, 3, w), np.int8) for w in range(2, 12)]
    for x in [*images, *images]:
        want = np.full((1, 1, 2, x.shape[3] - 1), 4)
        assert np.array_equal(conv(x), want)
        assert np.array_equal(templates(x), want)
        assert templates.best(x).score == 4
        plans.append(weakref.ref(conv.plan(vkq.Tensor.from_numpy(x, any_device).spec)))
    any_device.synchronize()
    gc.collect()
    assert 0 < sum(plan() is not None for plan in plans) <= 4
    for values in (
        conv._plans,
        conv._problems,
        conv._methods,
        templates._owner._plans,
        templates._reductions,
    ):
        assert 0 < len(values) <= 4  # type: ignore[arg-type]
