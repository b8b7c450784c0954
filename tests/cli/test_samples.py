"""Tests of samples on the command line: folders of arrays or pictures, for one or several inputs, and
functions that yield samples."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vkq
from vkq.cli.common import Parser
from vkq.cli.inputs import shape_argument
from vkq.cli.pixels import picture_arguments
from vkq.cli.samples import GivenSamples
from vkq.onnx.reader import Model
from vkq.onnx.tensors import Argument


def options(*words: str) -> argparse.Namespace:
    parser = Parser()
    picture_arguments(parser)
    shape_argument(parser)
    return parser.parse_args(words)


def model(**inputs: Any) -> Model:
    arguments = (Argument(name, dtype, tuple(shape)) for name, (dtype, *shape) in inputs.items())
    return Model(tuple(arguments), (), (), {}, 17)


ONE = model(x=("float32", "N", 3, "H", "W"))
TWO = model(ids=("int64", 1, "T"), mask=("float32", 1, "T"))


def read(wanted: Model, *given: str, words: tuple[str, ...] = ()) -> list[dict[str, np.ndarray]]:
    return list(GivenSamples(wanted, given, options(*words))("test"))


def test_arrays_of_one_input_in_natural_order(tmp_path: Path) -> None:
    for i in (1, 2, 10):
        np.save(tmp_path / f"{i}.npy", np.full((1, 3, 4, 4 + i), i, np.float32))
    found = read(ONE, str(tmp_path))
    assert [int(s["x"].flat[0]) for s in found] == [1, 2, 10]
    assert found[2]["x"].shape == (1, 3, 4, 14)


def test_several_inputs(tmp_path: Path) -> None:
    """Samples of several inputs come from .npz files with arrays by name, from a folder with a subfolder for
    each input, or from NAME=FOLDER for each input."""
    for i in range(3):
        feed = {"ids": np.full((1, 2 + i), i), "mask": np.ones((1, 2 + i), np.float32)}
        (tmp_path / "packed").mkdir(exist_ok=True)
        np.savez(tmp_path / "packed" / f"{i}.npz", **feed)
        for name, array in feed.items():
            (tmp_path / "apart" / name).mkdir(parents=True, exist_ok=True)
            np.save(tmp_path / "apart" / name / f"{i}.npy", array)
    apart = tmp_path / "apart"
    every = [
        read(TWO, str(tmp_path / "packed")),
        read(TWO, str(apart)),
        read(TWO, f"mask={apart / 'mask'}", f"ids={apart / 'ids'}"),
    ]
    for found in every:
        assert [s["ids"].tolist() for s in found] == [[[0, 0]], [[1, 1, 1]], [[2, 2, 2, 2]]]
        assert all(s["ids"].dtype == np.int64 and s["mask"].shape == s["ids"].shape for s in found)
    with pytest.raises(vkq.ArgumentError, match=r"given for the inputs \['ids'\]; the model takes"):
        read(TWO, f"ids={apart / 'ids'}")
    with pytest.raises(vkq.ArgumentError, match="and the model 2 inputs"):
        read(TWO, str(apart / "ids"))
    (apart / "ids" / "2.npy").unlink()
    with pytest.raises(
        vkq.ArgumentError, match="2 files for 'ids', 3 files for 'mask'; each input must have"
    ):
        read(TWO, str(apart))
    np.savez(tmp_path / "packed" / "0.npz", ids=np.zeros((1, 2), np.int64))
    with pytest.raises(vkq.ArgumentError, match=r"0\.npz has no arrays \['mask'\]"):
        read(TWO, str(tmp_path / "packed"))
    with pytest.raises(vkq.ArgumentError, match=r"nothing: there is no such folder"):
        read(TWO, str(tmp_path / "nothing"))


def test_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "few_samples.py").write_text(
        "import numpy as np\n"
        "def good():\n"
        "    for i in range(3):\n"
        "        yield {'ids': np.full((1, 4), i), 'mask': np.ones((1, 4), np.float32)}\n"
        "def bad():\n    yield {'ids': np.zeros((1, 4))}\n"
    )
    monkeypatch.chdir(tmp_path)
    found = read(TWO, "few_samples:good")
    assert [int(s["ids"][0, 0]) for s in found] == [0, 1, 2]
    assert found[0]["ids"].dtype == np.int64
    with pytest.raises(vkq.ArgumentError, match=r"given for \['ids'\]; the model takes"):
        read(TWO, "few_samples:bad")
    with pytest.raises(vkq.ArgumentError, match="there is no such function"):
        read(TWO, "few_samples:missing")


def test_open_sizes_are_those_of_the_pictures(tmp_path: Path) -> None:
    """Pictures of several sizes keep their sizes; --shape resizes all of them to one size."""
    for i in range(20):
        pixels = np.full((4 + i % 4, 9, 3), i, np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    found = read(ONE, str(tmp_path))
    assert [s["x"].shape for s in found] == [(1, 3, 4 + i % 4, 9) for i in range(20)]
    assert {s["x"].shape for s in read(ONE, str(tmp_path), words=("--shape", "x=1x3x8x8"))} == {(1, 3, 8, 8)}


def test_colours_layout_and_resizing(tmp_path: Path) -> None:
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[..., 0], pixels[:, 4:, 2] = 255, 128
    Image.fromarray(pixels).save(tmp_path / "a.png")
    square = model(x=("float32", 1, 3, 8, 8))

    def made(*words: str, wanted: Model = square) -> np.ndarray:
        return read(wanted, str(tmp_path), words=words)[0]["x"]

    rgb = made()
    np.testing.assert_array_equal(rgb[0, 0], np.ones((8, 8)))
    np.testing.assert_array_equal(made("--color", "bgr"), rgb[:, ::-1])
    np.testing.assert_array_equal(
        made("--layout", "nhwc", wanted=model(x=("float32", 1, 8, 8, 3))), rgb.transpose(0, 2, 3, 1)
    )
    padded = made("--resize", "pad")
    assert not padded[:, :, [0, 1, 6, 7]].any()
    np.testing.assert_array_equal(padded[0, 0, 2:6], np.ones((4, 8)))
    cropped = made("--resize", "crop")[0, 2]
    assert cropped[0, 0] < 0.1
    assert cropped[0, -1] > 0.4
    assert cropped[0, 3] < cropped[0, 4]  # the edge of the picture is in the middle
    normed = made("--mean", "0.5,0,0", "--std", "0.5,1,1")
    np.testing.assert_array_equal(normed[0, 0], np.ones((8, 8)))
    with pytest.raises(vkq.ArgumentError, match="a picture needs"):
        made("--layout", "nhwc")
    told = GivenSamples(square, [str(tmp_path)], options()).told()
    assert told.startswith("pictures: RGB, layout by the shape, stretch to the model's size; floats are (v")


def test_sixteen_bits_survive_resizing(tmp_path: Path) -> None:
    wide = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    Image.fromarray(wide).save(tmp_path / "a.png")
    (found,) = read(model(x=("float32", 1, 1, 4, 4)), str(tmp_path))
    assert len(np.unique(found["x"])) == 16
    assert np.abs(found["x"][0, 0] - wide.reshape(4, 2, 4, 2).mean((1, 3)) / 65535).max() < 0.04


@pytest.mark.parametrize("shape", ["y=1x3x8x8", "x=1x5x8x8"])
def test_wrong_shapes_are_refused_beside_arrays(tmp_path: Path, shape: str) -> None:
    np.save(tmp_path / "a.npy", np.zeros((1, 3, 8, 8), np.float32))
    with pytest.raises(vkq.ArgumentError, match=r"--shape names \['y'\]|input 'x' has shape \(1, 5, 8, 8\)"):
        read(ONE, str(tmp_path), words=("--shape", shape))
