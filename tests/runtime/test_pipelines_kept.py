"""Tests of the number of pipelines that a device keeps. Pipelines that no layer, recording or pending work
uses are released beyond a bound, the least recently used first. The validation layer watches every test."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

import vkq
from tests.runtime import work
from tests.runtime.work import counted, failing
from vkq.runtime.caches import WeakLruCache
from vkq.shader.catalog import catalog
from vkq.shader.spec import Variant

MOST = 3


@pytest.fixture
def fresh(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[vkq.Device]:
    """Yield a device that keeps MOST unused pipelines."""
    monkeypatch.setattr("vkq.runtime.programs.MOST_UNUSED", MOST)
    with vkq.Device(device.name) as one:
        yield one


def variants() -> list[Variant]:
    """Return eight small shaders."""
    names = [name for name in sorted(catalog().shaders) if "quantize" in name]
    found = [variant for name in names for variant in catalog().shaders[name].variants]
    return [one for one in found if not one.texels][: MOST + 5]


def use_others(device: vkq.Device) -> None:
    """Compile more pipelines than the device keeps."""
    for one in variants():
        assert device.program(one).native is not None
    gc.collect()


def test_unused_pipelines_are_released(fresh: vkq.Device) -> None:
    """The device keeps at most MOST unused pipelines: those that were requested last. A second request of a
    pipeline counts, too."""
    first, second, *others = variants()
    native = weakref.ref(fresh.program(first))
    for one in (second, others[0], first, others[1]):
        assert fresh.program(one).native is not None
    assert native() is fresh.program(first)
    assert fresh.programs.count == MOST
    with failing("vkCreateComputePipelines", 0):
        assert fresh.program(first).native is not None
        assert counted() == 0
    use_others(fresh)
    assert fresh.programs.count == MOST
    assert native() is None or first in variants()[-MOST:]
    assert not fresh.programs._turns


def test_a_layer_keeps_its_pipelines(fresh: vkq.Device) -> None:
    one = work.conv2d(fresh)
    one.check()
    own = fresh.programs.count
    use_others(fresh)
    assert fresh.programs.count == own + MOST
    with failing("vkCreateComputePipelines", 0):
        one.check()
        assert counted() == 0
    del one
    gc.collect()
    assert fresh.programs.count == MOST
    work.conv2d(fresh).check()  # compiled again


def test_a_recording_keeps_its_pipelines(fresh: vkq.Device) -> None:
    """A recording whose layer is gone keeps its pipelines, and its runs give the expected bytes."""
    one = work.conv2d(fresh)
    x, want = vkq.Tensor.from_numpy(one.x, fresh), one.want
    with fresh.record() as recording:
        y = one.layer(x)
    recording.run()
    own = fresh.programs.count
    del one
    use_others(fresh)
    for _ in range(3):
        recording.run()
        np.testing.assert_array_equal(y.numpy(), want)
    assert fresh.programs.count == own + MOST
    del recording, y
    gc.collect()
    assert fresh.programs.count == MOST


def test_pending_work_keeps_its_pipelines(fresh: vkq.Device) -> None:
    """A layer is dropped, and more pipelines are made than the device keeps, before the layer's work is
    submitted. The work still gives the right bytes."""
    one = work.conv2d(fresh)
    y, want = one.layer(vkq.Tensor.from_numpy(one.x, fresh)), one.want
    del one
    use_others(fresh)
    np.testing.assert_array_equal(y.numpy(), want)
    y = None
    fresh.synchronize()
    gc.collect()
    assert fresh.programs.count == MOST


def test_a_pipeline_that_fails_is_not_kept(fresh: vkq.Device) -> None:
    with (
        failing("vkCreateComputePipelines", 1),
        pytest.raises(vkq.OutOfMemoryError),
        fresh.programs.together(),
    ):
        fresh.program(variants()[0])
    assert fresh.programs.count == 0
    use_others(fresh)


class Value:
    pass


def test_the_cache() -> None:
    """An older value stays while something refers to it; `pop` and `clear` drop values in use, too."""
    cache: WeakLruCache[Value] = WeakLruCache(2)
    held = cache.put("a", Value())
    for key in "bcd":
        cache.put(key, Value())
    assert (cache.get("a"), cache.get("b"), len(cache)) == (
        held,
        None,
        2,
    )  # "a" was used last, so "c" was dropped
    assert cache.get("c") is None
    cache.pop("a")
    assert cache.get("a") is None
    kept = cache.get("d")
    cache.clear()
    assert kept is not None
    assert (cache.get("d"), len(cache)) == (None, 0)
