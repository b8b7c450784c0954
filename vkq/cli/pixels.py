"""Converts pictures to inputs of a model: the size, the order of colours and axes, and the values."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from vkq.cli.common import counted
from vkq.cli.pictures import opened_picture
from vkq.errors import ArgumentError
from vkq.graph.graph import Array
from vkq.onnx.tensors import Argument

FLOATS = ("float32", "float16")
WHOLE = 65535  # the largest value of a 16-bit pixel


def picture_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for converting pictures to arrays."""
    parser.add_argument(
        "--mean", default="0,0,0", metavar="R,G,B",
        help="subtract this from the colours in [0, 1], in the order of --color (default: 0,0,0)",
    )  # fmt: skip
    parser.add_argument(
        "--std", default="1,1,1", metavar="R,G,B", help="then divide the colours by this (default: 1,1,1)"
    )
    parser.add_argument(
        "--layout",
        choices=["nchw", "nhwc"],
        help="the order of the axes (default: nchw if axis 1 has size 1 or 3)",
    )
    parser.add_argument(
        "--color", choices=["rgb", "bgr"], default="rgb", help="the order of the channels (default: rgb)"
    )
    parser.add_argument(
        "--resize", choices=["stretch", "crop", "pad"], default="stretch",
        help="how a picture gets the model's size: stretch it; crop its middle; or pad it with black"
        " (default: stretch)",
    )  # fmt: skip


def picture(path: Path, argument: Argument, shape: tuple[int, ...], options: argparse.Namespace) -> Array:
    """Return a picture as an input of a model, resized to the input's height and width. *shape*: the input's
    shape, (N, C, H, W) or (N, H, W, C); every image of the batch is this picture.

    For a float input, 8-bit and 16-bit pixels are scaled to [0, 1]; then ``--mean`` is subtracted, and the
    result is divided by ``--std``. For an 8-bit input, 16-bit pixels are rounded to 8 bits; int8 inputs get
    the pixels minus 128."""
    first, channels = channels_of(argument, shape, options)
    height, width = shape[2:] if first else shape[1:3]
    whole = argument.dtype in FLOATS
    with opened_picture(path) as image:
        pixels = _sized(image, path, (width, height), channels, options.resize, whole)
    if options.color == "bgr":
        pixels = pixels[..., ::-1]
    array: Array = pixels
    if whole:
        mean, std = (_three(text, channels) for text in (options.mean, options.std))
        if not std.all():
            raise ArgumentError(f"--std is {options.std!r}; pixels are divided by it, so none may be 0")
        array = ((pixels - mean) / std).astype(argument.dtype)
    elif argument.dtype == "int8":
        array = (pixels ^ np.uint8(0x80)).view(np.int8)
    given = array.transpose(2, 0, 1)[None] if first else array[None]
    return np.ascontiguousarray(np.broadcast_to(given, shape))


def channels_of(argument: Argument, shape: Any, options: argparse.Namespace) -> tuple[bool, int]:
    """Return (whether the channels are axis 1, number of channels). Raises ArgumentError if the shape is not
    that of pictures."""
    if len(shape) == 4 and 0 not in shape:
        for first, channels in ((True, shape[1]), (False, shape[3])):
            if channels in (1, 3) and options.layout in (None, "nchw" if first else "nhwc"):
                return first, int(channels)
    raise ArgumentError(
        f"input {argument.name!r} has shape {list(shape)}; a picture needs (N, C, H, W) or (N, H, W, C), with"
        " 1 or 3 channels C"
    )


def size_of(path: Path) -> tuple[int, int]:
    """Return (height, width) of a picture."""
    with opened_picture(path) as image:
        return image.size[1], image.size[0]


def _sized(image: Any, path: Path, size: tuple[int, int], channels: int, how: str, whole: bool) -> Any:
    """Return the pixels of a picture (H, W, channels), resized to *size*, which is (width, height). *whole*:
    return floats in [0, 1] instead of bytes. *how*: see `_fitted`."""
    from PIL import Image

    wide = _sixteen_bits(image, path)
    if wide is not None and whole:
        grey = Image.fromarray(wide.astype(np.float32) / np.float32(WHOLE))
        pixels = np.asarray(_fitted(Image, grey, size, how))[..., None]
        return np.repeat(pixels, channels, -1)
    if wide is not None:
        image = Image.fromarray(((wide + 128) // 257).astype(np.uint8))
    scaled = _fitted(Image, image.convert("L" if channels == 1 else "RGB"), size, how)
    found = np.asarray(scaled).reshape(size[1], size[0], channels)
    return found.astype(np.float32) / 255 if whole else found


def _fitted(pillow: Any, image: Any, size: tuple[int, int], how: str) -> Any:
    """Resize a picture to *size*, which is (width, height). *how*: "stretch" changes the picture's aspect
    ratio. The other values keep it: "crop" cuts off what exceeds the size, "pad" adds black borders."""
    bilinear = pillow.Resampling.BILINEAR
    if how == "stretch":
        return image.resize(size, bilinear)
    by = [new / old for new, old in zip(size, image.size, strict=True)]
    factor = max(by) if how == "crop" else min(by)
    near = [max(1, round(old * factor)) for old in image.size]
    scaled = image.resize(near, bilinear)
    whole = pillow.new(image.mode, size)
    whole.paste(scaled, tuple((new - old) // 2 for new, old in zip(size, near, strict=True)))
    return whole


def _sixteen_bits(image: Any, path: Path) -> Any:
    """Return the pixels (H, W) of a 16-bit grayscale picture; None for 8-bit pixels, which Pillow converts.
    Raise ArgumentError for pixels that are 32-bit integers or floats, because their range is not known."""
    # Pillow may open 16-bit PNG and PPM files in the mode "I" (32-bit integers).
    whole = image.mode == "I" and image.format in ("PNG", "PPM")
    if image.mode.startswith("I;16") or whole:
        return np.asarray(image).astype(np.uint32)
    if image.mode[0] in "IF":
        kind = "real numbers" if image.mode == "F" else "32-bit integers"
        raise ArgumentError(
            f"{path} has pixels of {kind}, whose range is not known; save them with 8 or 16 bits, or give the"
            " numbers that the model takes as an .npy file"
        )
    return None


def _three(text: str, channels: int) -> Any:
    try:
        values = [float(v) for v in text.split(",")]
    except ValueError:
        values = []
    if len(values) not in (1, channels, 3) or not np.isfinite(values).all():
        raise ArgumentError(f"{text[:60]!r} must be {counted(channels, 'number')} with commas between them")
    return np.asarray(values[:channels] if len(values) >= channels else values, np.float32)
