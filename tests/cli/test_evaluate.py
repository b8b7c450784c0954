"""Tests of ``vkq eval``, with classes by folder or label, on the device, in ONNX Runtime, and in the float
model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image

import vkq
from vkq.accuracy.top import Top
from vkq.cli import main

MODELS = Path(__file__).resolve().parents[2] / "examples" / "models"
INT8, FLOAT = str(MODELS / "digits.onnx"), str(MODELS / "digits.float.onnx")


def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (pictures with values from 0 to 16, their classes)."""
    with np.load(MODELS / "digits.npz") as file:
        return file["images"][:count], file["labels"][:count]


def evaluated(where: Path, *words: str, model: str = INT8) -> int:
    return main(["eval", model, "-c", str(where), "--device", "llvmpipe", *words])


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    images, labels = digits(60)
    np.savez(tmp_path / "test.npz", x=images[:, None].astype(np.float32) / 16, labels=labels)
    return tmp_path / "test.npz"


def test_arrays(software_device: vkq.Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed accuracies equal the test's counts. Half of the labels are wrong, so that the float and the
    quantized model differ in top-1 and in top-5."""
    images, labels = digits(449)
    labels[::2] = (labels[::2] + 2) % 10
    feed = {"x": images[:, None].astype(np.float32) / 16}
    np.savez(tmp_path / "test.npz", x=feed["x"], labels=labels)
    assert evaluated(tmp_path / "test.npz", "--float", FLOAT) == 0
    lines = capsys.readouterr().out.splitlines()
    (scores,) = vkq.onnx.InferenceSession(INT8, software_device).run(None, feed)
    (real,) = onnxruntime.InferenceSession(FLOAT).run(None, feed)
    counted = {}
    for name, each in (("int8", scores), ("float", real)):
        order = np.argsort(-each, axis=1, kind="stable")[:, :5]
        hits = order == labels[:, None]
        counted[name] = f"{100 * hits[:, 0].mean():8.2f} % {100 * hits.any(1).mean():8.2f} %"
    assert not set(counted["int8"].split()) & set(counted["float"].split()) - {"%"}
    assert lines[0] == "449 samples of 10 classes"
    for line, name in zip(lines[2:5], ("vkq on llvmpipe", "ONNX Runtime", "digits.float.onnx"), strict=True):
        assert line.endswith(f"  {name}")
        assert line.startswith(counted["float" if name == "digits.float.onnx" else "int8"])
    assert lines[5].startswith("all 4490 scores equal ONNX Runtime's; the same class in 100.00 % as ONNX Run")


@pytest.mark.parametrize("named", [True, False], ids=["by number", "by name"])
def test_folders(
    software_device: vkq.Device, tmp_path: Path, named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """`vkq eval` reads a folder for each class. If the names of the folders are class numbers, some classes
    may have no folder."""
    images, labels = digits(60)
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        if named and label == 3:
            continue
        folder = tmp_path / (str(label) if named else f"{label} {words[label]}")
        folder.mkdir(exist_ok=True)
        Image.fromarray((image.astype(np.uint16) * 255 // 16).astype(np.uint8)).save(folder / f"{i}.png")
    assert evaluated(tmp_path) == 0
    out = capsys.readouterr().out
    count = sum(not (named and label == 3) for label in labels)
    assert out.startswith(f"{count} samples of {10 - named} classes")
    assert float(out.splitlines()[2].split()[0]) > 90
    assert evaluated(tmp_path, "--limit", "7") == 0
    assert capsys.readouterr().out.startswith("7 samples of ")


def test_another_class_is_told(
    software_device: vkq.Device, arrays: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run = vkq.onnx.InferenceSession.run

    def wrong(self: vkq.onnx.InferenceSession, *given: object) -> list[np.ndarray]:
        (scores,) = run(self, *given)  # type: ignore[arg-type]
        return [np.roll(scores, 1, -1)]

    monkeypatch.setattr(vkq.onnx.InferenceSession, "run", wrong)
    assert evaluated(arrays) == 1
    assert "scores differ from ONNX Runtime's; the same class in 0.00 %" in capsys.readouterr().out


def test_refused(
    software_device: vkq.Device, arrays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(where: Path, *words: str) -> str:
        assert evaluated(where, *words) == 2
        return capsys.readouterr().err

    assert "no such folder or file" in said(tmp_path / "nothing")
    assert "has no folders; it must be a folder with a folder for each class" in said(tmp_path)
    assert "--output is 'z'; it must be one of" in said(arrays, "--output", "z")
    with np.load(arrays) as file:
        x, labels = file["x"], file["labels"]
    np.savez(tmp_path / "a.npz", x=x)
    assert "whole numbers (N,) named 'labels'; it has ['x']" in said(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=x[:4], labels=labels)
    assert "60 labels for {'x': 4} samples" in said(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", x=x.astype(np.float64), labels=labels)
    assert "'x' is float64; the model takes float32" in said(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", x=x, labels=labels + 5)
    assert "the output has 10 scores, so labels must be below that" in said(tmp_path / "d.npz")


def test_ties_go_to_the_lower_class() -> None:
    top, other = Top(), Top()
    scores = np.zeros((1, 8), np.int8)
    for label in range(8):
        top.add(scores, label)
        other.add(np.eye(8, dtype=np.float32)[label % 2], label)
    assert (top.first, top.best, top.count) == (1, 5, 8)
    assert top.same(other) == 0.5
