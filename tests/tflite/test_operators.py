"""Tests of every operator with random attributes, and of whole networks: the device gives LiteRT's bytes."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import vkq
import vkq.onnx
import vkq.tflite
from vkq.tflite import InferenceSession, read

from .all import OPERATORS, operator_case
from .answers import SEEDS, digest, kept, network_case, short
from .convert import CONVERTED
from .convert import NEAR as CONVERTED_NEAR
from .digits import MODELS, digits
from .networks import NETWORKS
from .operators import Case

answers = functools.cache(kept)


def check(case: Case, device: vkq.Device, near: float = 0) -> InferenceSession:
    """Check that all outputs equal LiteRT's, or are within *near*."""
    session = InferenceSession(case[0], device)
    feed = dict(zip([a.name for a in session.model.inputs], case[1], strict=True))
    for i, got in enumerate(session.run(None, feed)):
        want = answers()[
            f"{digest(case)}/{i}"
        ]  # KeyError: the case has changed; run python -m tests.tflite.answers
        got = short(got)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=0, atol=near)
    return session


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("op", OPERATORS)
def test_operator(op: str, seed: int, device: vkq.Device) -> None:
    check(operator_case(op, seed), device)


def test_sums_need_no_table() -> None:
    """vkq reads a SUB as one `sub` node without a lookup table, because the formula of `sub` with slightly
    changed scales gives XNNPACK's bytes. So a convolution can compute the SUB in its epilogue."""
    found = [{node.op for node in read(operator_case("SUB", seed)[0]).nodes} for seed in range(20)]
    assert all("lookup2" not in ops for ops in found)
    assert sum("sub" in ops for ops in found) == len(found)


@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, any_device: vkq.Device) -> None:
    """A network gives LiteRT's bytes, and it runs on the device with only the expected number of
    transposes."""
    case = network_case(name)
    session = check(case, any_device)
    rows = session.explain().rows
    assert {row.where for row in rows} == {"device"}
    assert sum(row.operator == "Transpose" for row in rows) == NETWORKS[name].transposes


@pytest.mark.parametrize("name", CONVERTED)
def test_converted_network(name: str, any_device: vkq.Device) -> None:
    """A network of TensorFlow's converter runs on the device. It gives LiteRT's bytes, or results within
    the network's bound in CONVERTED_NEAR."""
    session = check(network_case(name), any_device, CONVERTED_NEAR.get(name, 0))
    assert {row.where for row in session.explain().rows} == {"device"}


def test_other_shapes(any_device: vkq.Device) -> None:
    """After a change of the batch size the interpreter reads the network's file again, and gives LiteRT's
    results."""
    data, (x,) = network_case("residual")
    interpreter = vkq.tflite.Interpreter(model_content=data, device=any_device)
    interpreter.resize_tensor_input(0, (2, *x.shape[1:]))
    interpreter.set_tensor(0, np.concatenate([x, x[:, ::-1]]))
    interpreter.invoke()
    (detail,) = interpreter.get_output_details()
    got = interpreter.get_tensor(detail["index"])
    want = answers()[f"{digest((data, [x]))}/0"]
    assert got.shape == (2, 10)
    np.testing.assert_array_equal(got[:1], want)


def test_example(device: vkq.Device) -> None:
    """`tests.tflite.digits` writes the file of the example. The file gives the scores of the ONNX model from
    which it is made."""
    data = (MODELS / "digits.tflite").read_bytes()
    assert data == digits()
    images = np.load(MODELS / "digits.npz")["images"][:40].astype(np.float32) / 16
    interpreter = vkq.tflite.Interpreter(model_content=data, device=device)
    got = interpreter.get_signature_runner()(image=images[..., None])["scores"]
    want = vkq.onnx.InferenceSession(str(MODELS / "digits.onnx"), device).run(None, {"x": images[:, None]})[0]
    np.testing.assert_array_equal(got, want)


def test_open_batch(device: vkq.Device) -> None:
    """Batches of one, of three (by `map`) and of seven images give equal results, with one copy of the
    weights."""
    images = np.load(MODELS / "digits.npz")["images"][:7, ..., None].astype(np.float32) / 16
    session = InferenceSession(str(MODELS / "digits.tflite"), device)
    assert session.get_inputs()[0].shape == [None, 8, 8, 1]
    assert session.get_outputs()[0].shape == [None, 10]
    (want,) = session.run(None, {"image": images})
    each = [session.run(None, {"image": image[None]})[0][0] for image in images]
    np.testing.assert_array_equal(each, want)
    np.testing.assert_array_equal(list(session.map(images, batch=3)), want)
    layers = [key for key in session._executables.layers if isinstance(key, tuple) and key[0] != "of"]
    assert len(layers) == 4  # three convolutions and a linear layer
    with pytest.raises(vkq.ArgumentError, match="must be"):
        session.run(None, {"image": images[:, :7]})
