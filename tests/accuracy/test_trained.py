"""Tests of trained networks: in int8 they keep their decisions and run entirely on a device."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import vkq
import vkq.onnx
from benchmarks.accuracy import MODELS, NETWORKS, feeds, measured
from vkq.accuracy import quantize
from vkq.accuracy.search import LEAST_GAIN
from vkq.accuracy.trial import Found, HeldOut
from vkq.onnx.cpu import cpu_session


@cache
def made(network: str) -> bytes:
    """Return the network, quantized with the search's first choices."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantize(MODELS / f"{network}.float.onnx", path, feeds(network, 6, True), seconds=0)
        return path.read_bytes()


@pytest.mark.parametrize("network", NETWORKS)
def test_decisions_stay(network: str, tmp_path: Path) -> None:
    """With every layer in int8, at least 99.5 % of a network's decisions equal those of the float network:
    classes, and the detector's boxes after non-maximum suppression."""
    (tmp_path / "int8.onnx").write_bytes(made(network))
    snr, same = measured(network, tmp_path / "int8.onnx", feeds(network, 60, False))
    assert same >= 0.995
    assert snr > 25


def test_codes_of_digits_are_those_of_onnxruntime(device: vkq.Device) -> None:
    assert_same_codes(device, "digits")


@pytest.mark.parametrize("network", NETWORKS[1:])
def test_codes_are_those_of_onnxruntime(software_device: vkq.Device, network: str) -> None:
    assert_same_codes(software_device, network)


def assert_same_codes(device: vkq.Device, network: str) -> None:
    """Check that every 8-bit value of the network equals ONNX Runtime's, also after float operators."""
    model = onnx.ModelProto.FromString(made(network))
    codes = [node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"]
    del model.graph.output[:]
    model.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT8, None) for name in codes
    )
    data = model.SerializeToString()
    (feed,) = feeds(network, 1, False)
    # raises an error if a node cannot run on the device
    got = vkq.onnx.InferenceSession(data, device).run(codes, feed)
    want = cpu_session(data, "test").run(codes, feed)
    assert len(codes) > 4
    for name, a, b in zip(codes, got, want, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


def test_the_best_plan_tried_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search returns the best plan that it tried, or a plan that is worse by at most the search's minimum
    gain."""
    tried: list[float] = []

    def measuring(*given: Any) -> Found:
        tried.append((found := plain(*given)).snr_db)
        return found

    plain = HeldOut.__call__
    monkeypatch.setattr(HeldOut, "__call__", measuring)
    given = feeds("digits", 6, True)
    report = quantize(MODELS / "digits.float.onnx", tmp_path / "int8.onnx", given, seconds=600)
    assert len(tried) > 12
    (row,) = report.outputs
    assert min(row.snr_db, row.even_db) >= max(tried) - LEAST_GAIN
    values, biases = report.steps[-2:]
    assert values.what.startswith("value by value")
    assert values.snr_db >= max(tried[:-1]) - LEAST_GAIN
    assert (biases.snr_db, biases.kept) == (tried[-1], True)
