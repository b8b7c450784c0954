"""Tests of well-known networks, quantized by onnxruntime.quantization: every output equals ONNX Runtime's,
on both drivers."""

import numpy as np
import pytest

import vkq
import vkq.onnx
from tests.onnx.networks import FORMS, KINDS, Net, onnxruntime_results, quantized
from vkq.check import graph as oracle
from vkq.onnx.prepared import known
from vkq.runtime.offsets import lower_bound


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], bytes]:
    """Return an empty cache of quantized models, which the tests fill."""
    return {}


def model_of(models: dict[tuple[str, str], bytes], kind: str, form: str, folder) -> bytes:
    if (kind, form) not in models:
        net = Net(seed=len(kind))
        models[kind, form] = quantized(net.model(*KINDS[kind](net)), form, folder, net.shape)
    return models[kind, form]


def feed_of(shape: tuple[int, ...] = (1, 3, 16, 16), seed: int = 3) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).normal(0, 1.2, shape).astype(np.float32)}


SMOKE = pytest.mark.smoke


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [pytest.param(x, marks=SMOKE if x == "resnet" else ()) for x in KINDS])
def test_equal_to_onnxruntime(device: vkq.Device, models, tmp_path, kind: str, form: str) -> None:
    model = model_of(models, kind, form, tmp_path)
    session = vkq.onnx.InferenceSession(model, device)
    feed = feed_of()
    want = onnxruntime_results(model, feed)
    for got, expected in zip(session.run(None, feed), want, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_the_oracle_agrees(models, tmp_path, kind: str) -> None:
    """NumPy gives ONNX Runtime's bytes for the lowered graph. So a difference on a device is an error of
    the device code."""
    model = model_of(models, kind, "qdq_int8", tmp_path)
    graph, _ = known(vkq.onnx.read(model), {"x": (1, 3, 16, 16)}, fallback=False)
    feed = feed_of()
    want = onnxruntime_results(model, feed)
    for got, expected in zip(oracle.run(graph, feed).values(), want, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_shared(any_device: vkq.Device, models, tmp_path, kind: str) -> None:
    """Scratch memory is at most 1.3 times the bytes that one step needs at once. Its previous content does
    not change results."""
    session = vkq.onnx.InferenceSession(model_of(models, kind, "qdq_int8", tmp_path), any_device)
    feed = feed_of()
    want = session.run(None, feed)
    (executable,) = session._executables.kept.values()
    assert executable.plan.scratch_bytes <= 1.3 * lower_bound(executable.lifetimes)
    for poison in (0x00, 0x7F, 0xFF):
        for recorded in executable.recording.steps:
            if recorded.scratch is not None:
                any_device.upload(recorded.scratch, np.full(recorded.scratch.bytes, poison, np.uint8))
        for got, expected in zip(session.run(None, feed), want, strict=True):
            np.testing.assert_array_equal(got, expected)
