"""Tests of `quantize_torch`, which makes an int8 session of a PyTorch module (tested if PyTorch is installed)
and refuses other objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkq
import vkq.onnx
from vkq.accuracy import quantize_torch

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch itself warns


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not a dependency of the tests")


def test_what_is_none_of_it_is_refused() -> None:
    """An object that is not a module is refused, also if PyTorch is not installed."""
    tensor = type("Tensor", (), {"__module__": "torch.fake"})()
    for samples in ([], {"x": tensor}, 3):
        with pytest.raises(vkq.ArgumentError, match="at least one sample"):
            quantize_torch(None, samples)  # type: ignore[arg-type]
    with pytest.raises(vkq.DTypeError, match="must be a torch tensor"):
        quantize_torch(None, [np.zeros(3)])
    with pytest.raises(vkq.DTypeError, match=r"must be a torch\.nn\.Module"):
        quantize_torch(lambda x: x, [tensor])


def network(torch: Any) -> Any:
    """Return a network of two inputs, with one BatchNorm in training mode and one in evaluation mode."""
    torch.manual_seed(1)

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.nn.Sequential(
                torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
            )
            self.two = torch.nn.Conv2d(2, 8, 1)
            self.head = torch.nn.Linear(8, 5)

        def forward(self, x: Any, y: Any) -> Any:
            return self.head((self.one(x) + self.two(y)).mean((2, 3)))

    net = Net().train()
    net.two.eval()
    return net


def test_modules_and_programs(any_device: vkq.Device, torch: Any, tmp_path: Path) -> None:
    """Modules and exported programs can be quantized: with two inputs, a variable batch, and BatchNorm in
    evaluation or training mode."""
    net = network(torch)
    samples = [(torch.randn(2, 3, 9, 7), torch.randn(2, 2, 9, 7)) for _ in range(4)]
    batch = torch.export.Dim("batch", min=1, max=8)
    session, report = quantize_torch(
        net,
        samples,
        tmp_path / "int8.onnx",
        dynamic_shapes=({0: batch}, {0: batch}),
        device=any_device,
        seconds=0,
    )
    assert (net.training, net.one[1].training, net.two.training) == (True, True, False)
    assert {row.where for row in session.explain().rows} == {"device"}
    assert {"conv2d", "quantize"} <= {row.operator for row in session.explain().rows}
    assert "conv2d" not in str(report.kept)
    given = torch.randn(3, 3, 9, 7), torch.randn(3, 2, 9, 7)
    want = net.eval()(*given).detach()
    assert (vkq.onnx.as_torch(session)(*given) - want).norm() < 0.2 * want.norm()
    kept = vkq.onnx.InferenceSession(tmp_path / "int8.onnx", any_device)
    names = [argument.name for argument in kept.get_inputs()]
    feed = dict(zip(names, given, strict=True))
    np.testing.assert_array_equal(kept.run(None, feed)[0], session.run(None, feed)[0])
    program = torch.export.export(net, samples[0])
    again, _ = quantize_torch(program, samples, device=any_device, seconds=0)
    assert again.run(None, dict(zip(names, samples[0], strict=True)))[0].shape == (2, 5)
    with pytest.raises(vkq.ArgumentError, match="1 tensors; the program takes"):
        quantize_torch(program, [samples[0][0]])


def test_what_cannot_be_exported_is_told(torch: Any) -> None:
    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(vkq.ModelError, match=r"torch\.export\.export cannot export this Net"):
        quantize_torch(Net(), [torch.ones(2)])
