"""Tests that opening and closing sessions repeatedly leaks no device memory, no Python threads and no open
files."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import vkq
import vkq.onnx
from tests.onnx.networks import Net

MANY = int(os.environ.get("VKQ_SESSIONS", "12"))  # number of sessions for each operator
WORKER = "vkq-session"  # name of the sessions' threads


def model(op: str) -> bytes:
    net = Net(seed=5, shape=(1, 3, 6, 7))
    options = {"kernel_shape": [1, 1]} if op == "LpPool" else {}
    data: bytes = net.model(net.head(net.op(op, net.conv("x", 4), **options))).SerializeToString()
    return data


def state(device: vkq.Device) -> tuple[int, int, int]:
    """Return (bytes on the device, number of threads, number of open files)."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith(WORKER):  # wait for threads that are ending
            thread.join(10)
    return device.memory_used_bytes, threading.active_count(), len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("op", ["Relu", "LpPool"])  # LpPool runs in the fallback
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="it counts files as Linux lists them")
def test_sessions_leave_nothing(op: str, any_device: vkq.Device) -> None:
    x = np.ones((1, 3, 6, 7), np.float32)

    def once(way: int) -> None:
        data = model(op)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
            if way % 3 == 0:
                session.run(None, {"x": x}, timeout=60)  # a run with a timeout uses a thread of the session
            elif way % 3 == 1:
                list(session.map([x] * 3))
            else:
                session.explain()
            if way % 2:
                session.close()  # the other sessions end with their last reference

    for way in range(6):
        once(way)
    before, objects = state(any_device), len(gc.get_objects())
    for way in range(MANY):
        once(way)
    assert state(any_device) == before
    assert len(gc.get_objects()) - objects < 10 * MANY, "each session leaves more than ten objects"
