"""Tests of the logger ``vkq``: its messages, and that it is silent by default."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import vkq
import vkq.onnx
from tests.onnx.networks import Net
from vkq.onnx.fallback import FallbackWarning
from vkq.select import path

SAID = pytest.LogCaptureFixture


def small(op: str = "Relu") -> bytes:
    net = Net(seed=5, shape=(1, 3, 6, 7))
    attributes: dict[str, Any] = {"kernel_shape": [1, 1]} if op == "LpPool" else {}
    data: bytes = net.model(net.head(net.op(op, net.conv("x", 4), **attributes))).SerializeToString()
    return data


X = np.random.default_rng(1).normal(size=(1, 3, 6, 7)).astype(np.float32)


def test_what_is_prepared_and_compiled(software_device: vkq.Device, caplog: SAID) -> None:
    device = vkq.Device(software_device.capabilities.index)  # a new device has no pipelines yet
    caplog.set_level(logging.DEBUG, "vkq")
    session = vkq.onnx.InferenceSession(small(), device)
    for _ in range(2):
        session.run(None, {"x": X})
    said = [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "vkq"]
    shapes = [text for level, text in said if level == logging.INFO and "prepared for x [1, 3, 6, 7]" in text]
    assert len(shapes) == 1
    compiled = [text for level, text in said if level == logging.DEBUG and text.startswith("pipeline ")]
    assert compiled
    (total,) = [text for level, text in said if level == logging.INFO and "pipelines compiled in" in text]
    assert total.startswith(f"{len(compiled)} pipelines compiled in 0")
    device.close()


def test_the_fallback_is_a_warning(software_device: vkq.Device, caplog: SAID) -> None:
    session = vkq.onnx.InferenceSession(small("LpPool"), software_device, fallback="onnxruntime")
    with pytest.warns(FallbackWarning) as told:
        session.run(None, {"x": X})
    said = [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "vkq"]
    assert said == [(logging.WARNING, str(told[0].message))]


def test_refused_paths_are_told_once(
    software_device: vkq.Device, caplog: SAID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path, "_logged", set())
    why = {"coopmat": "cooperativeMatrix is false", "dot_u8u8": "its self-test failed"}
    monkeypatch.setattr(path, "refusal", lambda device, name: why.get(name))
    caplog.set_level(logging.INFO, "vkq")
    for _ in range(2):
        path.choose_path(software_device, "portable")
    name = software_device.name
    assert [record.getMessage() for record in caplog.records if record.name == "vkq"] == [
        f"{name}: path dot_u8u8 is refused: its self-test failed",
        f"{name}: path coopmat is refused: cooperativeMatrix is false",
    ]


def test_silent_by_default() -> None:
    code = "import vkq, vkq.log; vkq.log.LOG.warning('nobody asked')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"", b"")
