"""Tests of sessions with compute='float16': products of float activations run on matrix units, real or
emulated."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkq
from tests.kernels import emulated
from vkq import reference
from vkq.cli import main
from vkq.onnx import InferenceSession


def model() -> bytes:
    """Return a model of a float Conv with an 8-bit weight, and an 8-bit Conv after it."""
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
    scale = vkq.QParams(0.25, 3)
    q = np.clip(np.rint(got / np.float32(0.25)) + 3, -128, 127).astype(np.int8)  # the 8-bit Conv's input
    want = reference.conv2d(q, weights["v"], x=scale, w_scale=0.01, y=scale)
    np.testing.assert_array_equal(codes, want)


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


def test_the_command_line_asks_for_it(
    software_device: vkq.Device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The option --compute float16 requests float16. On a CPU device, which has no float16 arithmetic, the
    report says that float32 is used."""
    (tmp_path / "m.onnx").write_bytes(model())
    monkeypatch.setattr("vkq.runtime.opened._default", software_device)
    monkeypatch.delenv("VKQ_DEVICE", raising=False)
    for options, told in (([], False), (["--compute", "float16"], True)):
        assert main(["run", str(tmp_path / "m.onnx"), "--random", "--explain", *options]) == 0
        assert ("compute='float16' uses float32 on this device" in capsys.readouterr().out) == told


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_float_weights_run_on_matrix_units(
    strict_device: vkq.Device, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Convolutions with float32 weights, and convolutions of a float16 model, run on matrix units;
    `explain` says so."""
    rng = np.random.default_rng(2)
    w, x = rng.normal(size=(24, 16, 1, 1)).astype(dtype), rng.normal(size=(1, 16, 4, 8)).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs, outputs = (
        [helper.make_tensor_value_info(name, kind, (1, channels, 4, 8))]
        for name, channels in (("x", 16), ("y", 24))
    )
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])], "g", inputs, outputs, [numpy_helper.from_array(w, "w")]
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    emulated.emulate(strict_device, monkeypatch, "16x8x16", form="f16")
    session = InferenceSession(made.SerializeToString(), strict_device, compute="float16")
    (row,) = (row for row in session.explain().rows if row.operator == "conv2d")
    assert "coopmat" in row.shaders[-1]
    (got,) = session.run(None, {"x": x})
    size = np.einsum("oc,nchw->nohw", *(np.abs(one).astype(np.float64) for one in (w[..., 0, 0], x)))
    want = np.einsum("oc,nchw->nohw", w[..., 0, 0].astype(np.float64), x.astype(np.float64))
    assert got.dtype == dtype
    assert (np.abs(got - want) <= 2.0**-10 * (size + np.abs(want)) + 2.0**-20).all()
