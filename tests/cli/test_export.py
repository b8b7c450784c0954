"""Tests of `vkq export`, and of `vkq inspect` on its files."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkq
from vkq.cli import main

MODEL = str(Path(__file__).parents[2] / "examples/models/digits.onnx")


def test_a_file(any_device: vkq.Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "digits.vkq")
    assert main(["export", MODEL, "-o", path, "--shape", "x=2x1x8x8", "--device", any_device.name]) == 0
    said = capsys.readouterr().out
    assert f"  this: {any_device.name}, " in said
    assert "  portable: any Vulkan 1.1 device, " in said
    assert main(["inspect", path]) == 0
    said = capsys.readouterr().out
    assert "input   x: float32[2, 1, 8, 8]\n" in said
    sizes = {line.split(":")[0]: re.findall(r"\d+", line) for line in said.splitlines()[1:4]}
    assert sizes.keys() == {"shaders", "weights", "known answer"}
    stored = [int(numbers[-1]) for numbers in sizes.values()]
    assert 0.8 * Path(path).stat().st_size < sum(stored) < Path(path).stat().st_size
    assert "plan    portable: any Vulkan 1.1 device" in said
    with vkq.load(path, any_device.name) as model:
        assert model.run(None, {"x": np.zeros((2, 1, 8, 8), np.float32)})[0].shape == (2, 10)


def test_what_is_refused(any_device: vkq.Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, ir_version=8), tmp_path / "double.onnx")
    path = tmp_path / "double.vkq"
    assert main(["export", str(tmp_path / "double.onnx"), "-o", str(path), "--device", any_device.name]) == 2
    assert "export: inputs x (float64) have types that no device supports" in capsys.readouterr().err
    assert not path.exists()
