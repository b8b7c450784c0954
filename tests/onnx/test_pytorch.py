"""Tests of PyTorch programs and tensors as models and inputs, if PyTorch is installed, and of the errors
for other values."""

from typing import Any

import numpy as np
import pytest

import vkq
import vkq.onnx
from vkq.onnx.pytorch import model_of, plain_array

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's own warnings


class _Fake:
    """A class with the module and name of a PyTorch class."""


def fake(name: str, **methods: Any) -> Any:
    return type(name, (_Fake,), {"__module__": "torch.fake", **methods})()


def test_what_is_none_of_it_stays_as_it_is() -> None:
    for value in (b"model", "path.onnx", np.zeros(3)):
        assert model_of(value) is value
        assert plain_array(value) is value


def test_programs_and_tensors_by_their_names() -> None:
    """Programs and tensors are recognized by the names of their classes, so that PyTorch need not be
    imported."""
    assert model_of(fake("ONNXProgram", model_proto=b"model")) == b"model"
    with pytest.raises(vkq.ModelError, match=r"a torch Module; give torch\.export\.export"):
        model_of(fake("Module"))
    array = np.zeros(2)
    kept = fake("Tensor", detach=lambda self: self, cpu=lambda self: self, numpy=lambda self: array)
    assert plain_array(kept) is array


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not a dependency of the tests")


def network(torch: Any) -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.BatchNorm2d(8), torch.nn.SiLU(),
        torch.nn.Conv2d(8, 8, 3, groups=8, padding=1), torch.nn.Hardswish(), torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(), torch.nn.Linear(8, 5), torch.nn.Softmax(-1),
    ).eval()  # fmt: skip


def test_programs(any_device: vkq.Device, torch: Any) -> None:
    """An ExportedProgram and an ONNXProgram run entirely on the device. Inputs may be tensors or arrays,
    and results tensors."""
    net, x = network(torch), torch.randn(2, 3, 17, 13)
    program = torch.export.export(net, (x,))
    for model in (program, torch.onnx.export(program, dynamo=True)):
        session = vkq.onnx.InferenceSession(model, any_device)
        assert {row.where for row in session.explain().rows} <= {"device"}
        run = vkq.onnx.as_torch(session)
        got = run(x.requires_grad_())
        assert isinstance(got, torch.Tensor)
        torch.testing.assert_close(got, net(x).detach(), rtol=1e-4, atol=1e-5)
        (array,) = session.run(None, {session.get_inputs()[0].name: x})
        np.testing.assert_array_equal(array, got.numpy())
    with pytest.raises(vkq.ArgumentError, match="2 inputs are given"):
        run(x, x)
    with pytest.raises(vkq.ModelError, match=r"give torch\.export\.export"):
        vkq.onnx.InferenceSession(net, any_device)


def test_pt2e(any_device: vkq.Device, torch: Any) -> None:
    """A network quantized by torchao (PT2E) runs entirely on the device, with 8-bit convolutions and linear
    layers. Its error is below 10 % of the float result."""
    pytest.importorskip("torchao", reason="torchao is not a dependency of the tests")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    net, x = network(torch)[:-1], torch.randn(2, 3, 17, 13)
    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(net, (x,)).module(), quantizer)
    prepared(x)
    program = torch.export.export(convert_pt2e(prepared), (x,))
    session = vkq.onnx.InferenceSession(program, any_device)
    ops = {row.operator for row in session.explain().rows}
    assert {row.where for row in session.explain().rows} <= {"device"}
    assert {"conv2d", "linear", "quantize"} <= ops
    error = (vkq.onnx.as_torch(session)(x) - net(x)).norm() / net(x).norm()
    assert error < 0.1
