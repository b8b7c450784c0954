"""Tests that ``vkq match`` finds templates of several sizes and pixel types at the positions from which they
were cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vkq
from vkq.cli import main

# name of a template -> (y, x, height, width)
CUTS = {"a": (3, 17, 9, 5), "b": (20, 2, 6, 6), "c": (11, 30, 9, 5)}


def pixels(dtype: str) -> np.ndarray:
    high = 256 if dtype == "uint8" else 65536
    return np.random.default_rng(3).integers(0, high, (33, 41)).astype(dtype)


def written(folder: Path, dtype: str) -> list[str]:
    """Write the picture and its parts, one of which is brighter; return the files' paths."""
    image = pixels(dtype)
    parts = {name: image[y : y + h, x : x + w] for name, (y, x, h, w) in CUTS.items()}
    parts["b"] = (parts["b"] // 2 + 20).astype(dtype)
    for name, part in {"photo": image, **parts}.items():
        Image.fromarray(part).save(folder / f"{name}.png")
    return [str(folder / f"{name}.png") for name in ("photo", *parts)]


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_found_where_they_were_cut(
    software_device: vkq.Device, tmp_path: Path, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "found.png"
    words = written(tmp_path, dtype)
    assert main(["match", *words, "--device", "llvmpipe", "-o", str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{words[0]}: 41 x 33, {dtype}, ccoeff_normed"
    for line, (name, (y, x, h, w)) in zip(lines[2:5], CUTS.items(), strict=True):
        assert line.split()[:5] == [str(x), str(y), str(w), "x", str(h)]
        assert float(line.split()[5]) > (0.99 if name == "b" else 0.999999)
        assert line.endswith(f"{name}.png")
    drawn = np.asarray(Image.open(target))
    frames = {(int(y), int(x)) for y, x in np.argwhere((drawn == (0, 200, 0)).all(-1))}
    for y, x, h, w in CUTS.values():
        assert {(y - 1, x - 1), (y + h, x + w)} <= frames
        assert (y, x) not in frames


def test_sums_of_squares(
    software_device: vkq.Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo, a, *_ = written(tmp_path, "uint8")
    assert main(["match", photo, a, "--method", "ssd", "--device", "llvmpipe"]) == 0
    assert capsys.readouterr().out.splitlines()[2].split()[:6] == ["17", "3", "5", "x", "9", "0"]


def test_refused(software_device: vkq.Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo, a, *_ = written(tmp_path, "uint8")
    Image.fromarray(pixels("uint16")[:4, :4]).save(tmp_path / "deep.png")
    assert main(["match", photo, str(tmp_path / "deep.png")]) == 2
    assert "has pixels of uint16" in capsys.readouterr().err
    assert main(["match", a, photo, "--device", "llvmpipe"]) == 2
    assert "they must fit in the image" in capsys.readouterr().err
