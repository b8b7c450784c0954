"""Tests of layers made from PyTorch modules, with PyTorch tensors as inputs and results, if PyTorch is
installed; otherwise tests of the errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkq
import vkq.onnx
from tests.onnx.networks import Net
from vkq import reference
from vkq.ops.torch_modules import is_torch

rng = np.random.default_rng(43)


def module(name: str, **attributes: Any) -> Any:
    """Return an object that is no PyTorch module but has the class name of one."""
    return type(name, (), {"__module__": "torch.nn.fake", **attributes})()


def test_what_is_refused(any_device: vkq.Device) -> None:
    for value in (module("Conv2d"), np.zeros((3, 2)), None):
        with pytest.raises(vkq.ArgumentError, match=r"the module is a \w+, not a torch.nn.Linear"):
            vkq.Linear.from_torch(value, device=any_device)
    layer = vkq.Linear(np.ones((3, 5), np.float32), device=any_device)
    with pytest.raises(vkq.ArgumentError, match="linear: output is 'tensor'; it must be 'numpy' or 'torch'"):
        layer(np.ones((1, 5), np.float32), output="tensor")


def test_names() -> None:
    assert is_torch(module("Linear"), "Linear", "Conv2d")
    assert not is_torch(module("Linear"), "Conv2d")
    assert not is_torch(np.zeros(3), "ndarray")


# ------------------------------------------------------------------------------ where PyTorch is installed


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not a dependency of the tests")


@pytest.mark.parametrize("bias", [True, False])
def test_a_float_linear(torch: Any, bias: bool, device: vkq.Device) -> None:
    net = torch.nn.Linear(13, 7, bias=bias)
    x = torch.randn(5, 13, requires_grad=True)
    layer = vkq.Linear.from_torch(net, device=device)
    y = layer(x, output="torch")
    assert isinstance(y, torch.Tensor)
    assert layer.scheme == "f32"
    torch.testing.assert_close(y, net(x).detach(), rtol=1e-5, atol=1e-5)
    assert np.array_equal(y.numpy(), layer(x))
    with torch.no_grad():
        net.weight.zero_()
    assert np.array_equal(y.numpy(), layer(x)), "weights are copies"


def test_a_linear_of_8_bits(torch: Any, device: vkq.Device) -> None:
    net, x = torch.nn.Linear(13, 7), torch.randint(-128, 128, (5, 13), dtype=torch.int8)
    q = vkq.QParams(0.05, 3)
    layer = vkq.Linear.from_torch(net, x_qparams=q, device=device)
    weight, scale = vkq.quantize_weight(net.weight.detach().numpy())
    bias = net.bias.detach().numpy()
    want = reference.linear(x.numpy(), weight, x=q, w_scale=scale, bias=bias, y=None)
    assert np.array_equal(layer(x), want)
    assert vkq.Linear.from_torch(net, quantized=True, device=device).scheme == "q8csw"
    assert vkq.Linear.from_torch(net, x_qparams="dynamic", device=device).scheme == "dq8ca_q8csw"
    with pytest.raises(vkq.ArgumentError, match="leave quantized out"):
        vkq.Linear.from_torch(net, x_qparams=q, quantized=False, device=device)


@pytest.mark.parametrize("padding", [(1, 2), "same", "valid"])
def test_a_convolution(torch: Any, padding: Any, device: vkq.Device) -> None:
    stride = (1, 1) if padding == "same" else (2, 1)
    net = torch.nn.Conv2d(6, 4, (3, 2), stride=stride, padding=padding, dilation=(1, 2), groups=2)
    x = torch.randn(2, 6, 9, 11)
    y = vkq.Conv2d.from_torch(net, device=device)(x, output="torch")
    torch.testing.assert_close(y, net(x).detach(), rtol=1e-5, atol=1e-5)
    weight_only = vkq.Conv2d.from_torch(net, quantized=True, device=device)
    assert weight_only.scheme == "q8csw"
    torch.testing.assert_close(weight_only(x, output="torch"), net(x).detach(), rtol=0.1, atol=0.1)


def test_a_convolution_with_other_padding(torch: Any, any_device: vkq.Device) -> None:
    net = torch.nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")
    with pytest.raises(vkq.ArgumentError, match="padding_mode is 'reflect'; it must be 'zeros'"):
        vkq.Conv2d.from_torch(net, device=any_device)


@pytest.mark.parametrize(("kind", "scheme"), [("float16", "f16"), ("bfloat16", "f32"), ("float64", "f32")])
def test_other_floats(torch: Any, kind: str, scheme: str, any_device: vkq.Device) -> None:
    net = torch.nn.Linear(8, 3).to(getattr(torch, kind))
    assert vkq.Linear.from_torch(net, device=any_device).scheme == scheme


def test_parameters_are_detached(torch: Any, any_device: vkq.Device) -> None:
    parameter = torch.nn.Parameter(torch.randn(3, 5))
    assert np.array_equal(vkq.Tensor.from_numpy(parameter, device=any_device).numpy(), parameter.detach())
    layer = vkq.Linear(np.ones((2, 5), np.float32), device=any_device)
    assert np.array_equal(layer(parameter), layer(parameter.detach().numpy()))


def test_a_session_gives_tensors(torch: Any, any_device: vkq.Device) -> None:
    net = Net(seed=5, shape=(1, 3, 6, 7))
    model = net.model(net.head(net.conv("x", 4))).SerializeToString()
    session = vkq.onnx.InferenceSession(model, any_device)
    x = torch.nn.Parameter(torch.randn(1, 3, 6, 7))
    results = session.run(None, {"x": x}, outputs="torch", timeout=60)
    assert all(isinstance(y, torch.Tensor) for y in results)
    for y, want in zip(results, session.run(None, {"x": x.detach().numpy()}), strict=True):
        assert np.array_equal(y.numpy(), want)
