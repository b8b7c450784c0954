"""Tests of pictures on the command line with 8 and 16 bits a channel."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vkq
from vkq.cli.pixels import picture
from vkq.onnx.tensors import Argument

OPTIONS = argparse.Namespace(mean="0", std="1", layout=None, color="rgb", resize="stretch")
GREY = np.arange(256, dtype=np.uint8).reshape(16, 16)


def given(path: Path, channels: int, dtype: str = "uint8") -> np.ndarray:
    shape = (1, channels, 16, 16)
    return picture(path, Argument("x", dtype, shape), shape, OPTIONS)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("ending", ["png", "tiff", "ppm"])
def test_sixteen_bits_are_rounded_to_eight(tmp_path: Path, ending: str, channels: int) -> None:
    """A 16-bit pixel is divided by 257 and rounded to the nearest integer, so 65535 becomes 255."""
    for name, pixels in (("8", GREY), ("16", GREY.astype(np.uint16) * 257)):
        Image.fromarray(pixels).save(tmp_path / f"{name}.{ending}")
    np.testing.assert_array_equal(
        given(tmp_path / f"16.{ending}", channels), given(tmp_path / f"8.{ending}", channels)
    )
    near = np.minimum(GREY.astype(np.int64) * 257 + 128, 65535).astype(np.uint16)
    Image.fromarray(near).save(tmp_path / f"near.{ending}")
    np.testing.assert_array_equal(given(tmp_path / f"near.{ending}", 1)[0, 0], GREY)
    np.testing.assert_array_equal(  # a float input keeps all 16 bits
        given(tmp_path / f"near.{ending}", channels, "float32")[0, -1],
        near.astype(np.float32) / np.float32(65535),
    )


@pytest.mark.parametrize(("dtype", "kind"), [(np.int32, "32-bit integers"), (np.float32, "real numbers")])
def test_pixels_without_a_range_are_refused(tmp_path: Path, dtype: type, kind: str) -> None:
    path = tmp_path / "wide.tiff"
    Image.fromarray(GREY.astype(dtype)).save(path)
    with pytest.raises(vkq.ArgumentError, match=rf"wide\.tiff has pixels of {kind}, whose range"):
        given(path, 3)
