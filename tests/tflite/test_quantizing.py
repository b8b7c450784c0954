"""Tests of ``vkq quantize`` for .tflite files: its calls of ai-edge-quantizer, the written file and the
report. A fake of the package returns a stored result of the real package (``models/quantized.tflite``)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import vkq
from vkq.cli import main
from vkq.errors import ArgumentError, ModelError
from vkq.tflite import InferenceSession, quantize, quantizing
from vkq.tflite.file import parse

from .convert import FOLDER
from .writer import Writer

FLOAT, MADE = FOLDER / "floats.tflite", FOLDER / "quantized.tflite"


class Quantizer:
    """A fake ai-edge-quantizer that records its calls."""

    asked: ClassVar[list[Any]] = []

    def __init__(self, data: bytes, recipe: str):
        self.asked[:] = [(len(data), recipe)]

    def update_quantization_recipe(self, regex: str, op: str, algorithm_key: str) -> None:
        self.asked.append((regex, op, algorithm_key))

    def calibrate(self, samples: dict[str, list[Any]], before: Any) -> int:
        ((key, given),) = samples.items()
        self.asked.append((key, [set(one) for one in given], before))
        return len(given) + (before or 0)

    def quantize(self, ranges: Any) -> Any:
        if ranges == 1:
            raise ValueError("one sample is too few")
        self.asked.append(ranges)
        return SimpleNamespace(quantized_model=bytearray(MADE.read_bytes()))


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> type[Quantizer]:
    package: Any = type(sys)("ai_edge_quantizer")
    package.quantizer = SimpleNamespace(Quantizer=Quantizer)
    names = ("static_wi8_ai8", "weight_only_wi8_afp32", "weight_only_wi4_afp32")
    package.recipe = SimpleNamespace(**{name: lambda name=name: name for name in names})
    monkeypatch.setitem(sys.modules, "ai_edge_quantizer", package)
    monkeypatch.setattr(quantizing, "AT_ONCE", 2)
    return Quantizer


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    folder = tmp_path / "samples"
    folder.mkdir()
    for i in range(3):
        x = np.random.default_rng(i).normal(size=(1, 17, 23, 3)).astype(np.float32)
        np.save(folder / f"{i}.npy", x)
    return folder


class Real:
    """A fake LiteRT, which runs the float model in vkq."""

    def __init__(self, model: str, needed: str):
        self.session = InferenceSession(model)

    def run(self, names: None, feed: dict[str, Any]) -> Any:
        return self.session.run(names, feed)


def test_command_line(
    software_device: vkq.Device, tool: type[Quantizer], samples: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The command writes the quantized file, which runs entirely on the device, and reports its distance
    from the float model."""
    monkeypatch.setattr("vkq.runtime.opened._default", software_device)
    monkeypatch.setattr("vkq.tflite.litert.Litert", Real)
    monkeypatch.setenv("VKQ_DEVICE", software_device.name)
    made = tmp_path / "made.tflite"
    assert main(["quantize", str(FLOAT), "-c", str(samples), "-o", str(made)]) == 0
    assert made.read_bytes() == MADE.read_bytes()
    (key,) = parse(FLOAT).signatures
    each = [{"keras_tensor_197"}]
    ends = [(".*", end, "no_quantize") for end in ("INPUT", "OUTPUT")]
    calls = [(key, each * 2, None), (key, each, 2), 3]
    assert tool.asked == [(FLOAT.stat().st_size, "static_wi8_ai8"), *ends, *calls]
    said = capsys.readouterr().out
    assert f"written {made}: 14272 bytes (float: 29724)" in said
    assert "against the float model on 3 samples" in said
    assert "3" < said.partition("_dequant: ")[2] < "5"  # about 40 dB
    for given in (["--target-db", "30"], ["--fast"], ["--seconds", "5"], ["--block", "16"]):
        assert main(["quantize", str(FLOAT), "-c", str(samples), *given]) == 2
        assert f"{given[0]} is for ONNX models" in capsys.readouterr().err
    assert main(["quantize", str(FLOAT)]) == 2
    assert "name a folder with -c" in capsys.readouterr().err
    assert main(["quantize", str(FLOAT), "--weights-only", "-o", str(FLOAT)]) == 2
    assert "is an input of this command, too" in capsys.readouterr().err


def test_weights_only(tool: type[Quantizer], tmp_path: Path) -> None:
    quantize(FLOAT, tmp_path / "made.tflite", weights_only=True, bits=4)
    assert tool.asked == [(FLOAT.stat().st_size, "weight_only_wi4_afp32"), None]


def test_refusals(tool: type[Quantizer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "made.tflite"
    with pytest.raises(ArgumentError, match=r"quantized\.tflite is quantized already"):
        quantize(MADE, target, [])
    with pytest.raises(ArgumentError, match="give some, or weights_only"):
        quantize(FLOAT, target)
    with pytest.raises(ArgumentError, match="bits is 4; it must be 8"):
        quantize(FLOAT, target, [], bits=4)
    name = parse(FLOAT).tensors[parse(FLOAT).inputs[0]].name
    with pytest.raises(ModelError, match="refuses the model: one sample is too few"):
        quantize(FLOAT, target, [{name: np.zeros(1)}])
    w = Writer()
    x, y = w.tensor((1, 3), "float32"), w.tensor((1, 3), "float32")
    w.operator("RELU", [x], [y])
    (tmp_path / "plain.tflite").write_bytes(w.file([x], [y]))
    with pytest.raises(ModelError, match="has 0 signatures"):
        quantize(tmp_path / "plain.tflite", target, [{}])
    monkeypatch.setitem(sys.modules, "ai_edge_quantizer", None)
    with pytest.raises(ModelError, match="pip install ai-edge-quantizer"):
        quantize(FLOAT, target, [])
    assert not target.exists()
