"""Tests that sessions of one model share the weights on a device."""

from __future__ import annotations

import gc
import re
import threading

import numpy as np
import onnx
import pytest

import vkq
from tests.onnx.test_manners import images, model
from vkq.runtime.plan import Resident


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[Resident]:
    found: list[Resident] = []
    upload = Resident._upload
    monkeypatch.setattr(Resident, "_upload", lambda self: (found.append(self), upload(self))[1])
    return found


def stored(**changes: int) -> bytes:
    """Return the model's bytes. Keyword bI=V: byte I of the weight is changed by XOR with V."""
    proto = model()
    (weight,) = (t for t in proto.graph.initializer if t.name == "w")
    data = bytearray(weight.raw_data)
    for place, by in changes.items():
        data[int(place[1:])] ^= by
    weight.raw_data = bytes(data)
    return bytes(proto.SerializeToString())


def test_weights_are_uploaded_once(device: vkq.Device, uploads: list[Resident]) -> None:
    """Weights are uploaded once for all sessions and shapes, and stay on the device while one of the
    sessions is open."""
    feed, own = {"x": images(2)}, stored(b7=2)  # weights of this test alone
    first = vkq.onnx.InferenceSession(own, device)
    want = first.run(None, feed)
    assert len(uploads) >= 2
    assert "sessions share" not in str(first.explain())
    uploads.clear()
    second = vkq.onnx.InferenceSession(onnx.load_from_string(own), device)
    assert second.model.constants["w"] is first.model.constants["w"], "nor on the host"
    assert ", which 2 sessions share" in str(second.explain())
    assert ", which 2 sessions share" in str(first.explain())
    first.close()
    assert "sessions share" not in str(second.explain())
    for n in (2, 5):
        got = second.run(None, {"x": images(n)})
        assert len(got[0]) == n
    for a, b in zip(second.run(None, feed), want, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not uploads


def test_explain_says_the_bytes_of_the_weights(device: vkq.Device) -> None:
    """`explain` states the bytes of the weights. A session that shares its weights needs fewer device bytes
    by this number."""
    gc.collect()  # otherwise freed memory of earlier tests changes the differences
    taken, sessions = [], []
    for data in (stored(b11=2), stored(b11=2), stored(b12=2)):
        before = device.memory_used_bytes
        sessions.append(vkq.onnx.InferenceSession(data, device))
        sessions[-1].run(None, {"x": images(2)})
        taken.append(device.memory_used_bytes - before)
    unit = device.capabilities.buffer_alignment
    for session in sessions:
        (made,) = session._executables.kept.values()
        weights = [one.bytes for one in dict.fromkeys(made.plan.constants.values())]
        (said,) = re.findall(
            r"on the device: (\d+) bytes of weights", str(session.explain({"x": (2, 3, 5, 7)}))
        )
        assert int(said) == sum(weights) > 6 * 3 * 3 * 3
        assert taken[2] - taken[1] == sum(-(-size // unit) * unit for size in weights)


def test_other_weights_are_not_shared(any_device: vkq.Device, uploads: list[Resident]) -> None:
    """Weights that differ in one bit are not shared, nor are weights on different devices."""
    feed = {"x": images(1)}
    first = vkq.onnx.InferenceSession(stored(), any_device)
    want = first.run(None, feed)[0]
    for other in (stored(b161=1), stored(b0=64)):
        uploads.clear()
        session = vkq.onnx.InferenceSession(other, any_device)
        assert not np.array_equal(session.run(None, feed)[0], want)
        assert uploads
    np.testing.assert_array_equal(first.run(None, feed)[0], want)
    uploads.clear()
    with vkq.Device(any_device.name) as fresh, vkq.onnx.InferenceSession(stored(), fresh) as session:
        np.testing.assert_array_equal(session.run(None, feed)[0], want)
        assert uploads


def test_threads_open_and_run_together(any_device: vkq.Device, uploads: list[Resident]) -> None:
    feed, found = {"x": images(3)}, []
    with vkq.onnx.InferenceSession(stored(), any_device) as alone:
        want = alone.run(None, feed)[0]
    uploads.clear()
    start = threading.Barrier(4)

    def work() -> None:
        start.wait(60)
        with vkq.onnx.InferenceSession(stored(), any_device) as session:
            found.extend(session.run(None, feed)[0] for _ in range(3))
            start.wait(60)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 12
    for y in found:
        np.testing.assert_array_equal(y, want)
    assert len(uploads) == len({id(one) for one in uploads}), "each once"


def test_sessions_opened_and_closed_leave_nothing(any_device: vkq.Device) -> None:
    """Closing a session frees its memory without the garbage collector, after runs, runs with a timeout,
    `map` and `explain`."""
    data, x = stored(), images(4)
    gc.collect()
    gc.disable()
    try:
        used = []
        for _ in range(12):
            with vkq.onnx.InferenceSession(data, any_device) as session:
                session.run(None, {"x": x})
                session.run(None, {"x": x}, timeout=60)
                list(session.map(x, 2, []))
                session.explain()
            used.append(any_device.memory_used_bytes)
    finally:
        gc.enable()
    assert used[2:] == used[2:3] * 10
