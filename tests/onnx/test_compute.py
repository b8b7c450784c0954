"""Sessions whose products of float activations are made of float16, on matrix units of the tests."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkq
from tests.kernels import emulated
from vkq.onnx import InferenceSession


def model() -> bytes:
    """An 8-bit weight in a Conv of floats, and in a Conv of bytes behind it."""
    rng = np.random.default_rng(5)
    constants = {
        "w": rng.integers(-127, 128, (24, 16, 1, 1), np.int8), "w_scale": np.float32(0.01),
        "s": np.float32(0.25), "z": np.int8(3),
        "v": rng.integers(-127, 128, (8, 24, 1, 1), np.int8),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("DequantizeLinear", ["w", "w_scale"], ["wf"]), node("Conv", ["x", "wf"], ["y"]),
        node("QuantizeLinear", ["y", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["qf"]),
        node("DequantizeLinear", ["v", "w_scale"], ["vf"]), node("Conv", ["qf", "vf"], ["r"]),
        node("QuantizeLinear", ["r", "s", "z"], ["rq"]),
    ]  # fmt: skip
    shapes = {"x": (1, 16, 8, 8), "y": (1, 24, 8, 8)}
    floats = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    codes = [helper.make_tensor_value_info("rq", TensorProto.INT8, (1, 8, 8, 8))]
    given = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", floats[:1], [floats[1], *codes], given)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return bytes(made.SerializeToString())


def test_floats_are_rounded_and_integers_stay_exact(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(1).normal(size=(1, 16, 8, 8)).astype(np.float32)
    plain = InferenceSession(model(), strict_device)
    y, _ = plain.run(None, {"x": x})
    emulated.emulate(strict_device, monkeypatch, "16x8x16", form="f16")
    half = InferenceSession(model(), strict_device, compute="float16")
    schemes = [row.shaders[0] for row in half.explain().rows if row.operator == "conv2d"]
    assert "coopmat" in schemes[0], schemes
    got, codes = half.run(None, {"x": x})
    weights = {
        one.name: numpy_helper.to_array(one) for one in onnx.load_from_string(model()).graph.initializer
    }
    terms = np.einsum("ock,nchw->nohw", 0.01 * np.abs(weights["w"][..., 0]).astype(np.float64), np.abs(x))
    assert not np.array_equal(got, y)
    assert (np.abs(got - y) <= 2.0**-10 * terms).all()
    # the Conv of bytes gives what its own bytes say, exactly
    q = np.clip(np.rint(got / np.float32(0.25)) + 3, -128, 127).astype(np.int32) - 3
    sums = np.einsum("oc,nchw->nohw", weights["v"][..., 0, 0].astype(np.int32), q)
    want = np.rint(sums.astype(np.float32) * np.float32(0.25 * 0.01 / 0.25)) + 3
    assert (np.abs(np.clip(want, -128, 127) - codes) <= 1).all()
    assert (np.clip(want, -128, 127) == codes).mean() > 0.99


def test_sessions_share_weights_only_with_their_like(any_device: vkq.Device) -> None:
    one, other, same = (
        InferenceSession(model(), any_device, compute=compute)
        for compute in ("float32", "float16", "float32")
    )
    assert one._executables.layers is same._executables.layers
    assert one._executables.layers is not other._executables.layers
    assert pickle.loads(pickle.dumps(other))._compute == "float16"


def test_another_word_is_refused(any_device: vkq.Device) -> None:
    with pytest.raises(vkq.ArgumentError, match="compute is 'int4'; it must be one of float32, float16"):
        InferenceSession(model(), any_device, compute="int4")
