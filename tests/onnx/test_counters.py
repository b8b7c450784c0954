"""Tests of `InferenceSession.counters`: they count the work that was done."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import pytest

import vkq
import vkq.onnx


@pytest.fixture
def session(any_device: vkq.Device) -> vkq.onnx.InferenceSession:
    """Return a session of y = x + c and z = int32(y) for any number of rows of five floats."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 5] x) => (float[n, 5] y, int32[n, 5] z)
        <float[5] c = {1, 2, 3, 4, 5}> { y = Add(x, c) z = Cast<to = 6>(y) }"""
    )
    return vkq.onnx.InferenceSession(model, any_device)


def rows(count: int) -> np.ndarray:
    return np.ones((count, 5), np.float32)


def test_runs(session: vkq.onnx.InferenceSession) -> None:
    assert session.counters == {
        "runs": 0, "shapes_prepared": 0, "cache_hits": 0, "bytes_uploaded": 0, "bytes_downloaded": 0,
    }  # fmt: skip
    session.run(None, {"x": rows(3)})
    session.run(["y"], {"x": rows(3)})
    session.run(["z"], {"x": rows(7)})
    with pytest.raises(vkq.VkqError):
        session.run(None, {"x": rows(3)[:, :4]})
    assert session.counters == {
        "runs": 3, "shapes_prepared": 2, "cache_hits": 1,
        "bytes_uploaded": 13 * 20, "bytes_downloaded": 3 * 40 + 3 * 20 + 7 * 20,
    }  # fmt: skip


def test_what_stays_on_the_device_does_not_count(session: vkq.onnx.InferenceSession) -> None:
    x = vkq.Tensor.from_numpy(rows(3), device=session.device)
    _, z = session.run(None, {"x": x}, outputs="device")
    assert np.array_equal(z.numpy(), np.tile(np.arange(2, 7), (3, 1)))
    assert session.counters == {
        "runs": 1, "shapes_prepared": 1, "cache_hits": 0, "bytes_uploaded": 0, "bytes_downloaded": 0,
    }  # fmt: skip


def test_batches_of_map(session: vkq.onnx.InferenceSession) -> None:
    results = list(session.map((rows(1) for _ in range(7)), batch=3))
    assert len(results) == 7
    assert session.counters == {
        "runs": 3, "shapes_prepared": 2, "cache_hits": 1, "bytes_uploaded": 140, "bytes_downloaded": 140,
    }  # fmt: skip


def test_threads(session: vkq.onnx.InferenceSession) -> None:
    threads = [
        threading.Thread(target=lambda: [session.run(["y"], {"x": rows(2)}) for _ in range(25)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counted = session.counters
    assert counted["runs"] == 100
    assert counted["shapes_prepared"] == 1
    assert counted["cache_hits"] == 99
    assert counted["bytes_downloaded"] == 100 * 40


def test_those_of_a_fed_initializer_are_the_sessions(any_device: vkq.Device) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 5] x, float[5] c) => (float[n, 5] y)
        <float[5] c = {1, 2, 3, 4, 5}> { y = Add(x, c) }"""
    )
    session = vkq.onnx.InferenceSession(model, any_device)
    session.run(None, {"x": rows(1)})
    session.run(None, {"x": rows(1), "c": np.zeros(5, np.float32)})
    assert session.counters["runs"] == 2
    assert session.counters["shapes_prepared"] == 2
