"""The inputs of models on the command line: pictures, .npy and .npz files, random numbers, shapes."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vkq.cli.arrays import arrays_of
from vkq.cli.common import counted, whole
from vkq.cli.pictures import PICTURES, opened_picture
from vkq.errors import ArgumentError, DTypeError
from vkq.graph.graph import Array
from vkq.onnx.feed import check_shape, shapes_of
from vkq.onnx.reader import Model
from vkq.onnx.tensors import Argument

MOST_RANDOM_BYTES = 1 << 30  # of one input


def input_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that say what a model is given."""
    parser.add_argument(
        "-i", "--input", action="append", default=[], metavar="[NAME=]FILE",
        help="an input: a picture, .npy, or .npz with arrays by name; may be repeated",
    )  # fmt: skip
    parser.add_argument("--seed", type=whole(0), default=0, help="of the random numbers (default: 0)")
    shape_argument(parser)
    parser.add_argument(
        "--mean", default="0,0,0", metavar="R,G,B", help="taken off a picture in [0, 1] (default: 0,0,0)"
    )
    parser.add_argument(
        "--std", default="1,1,1", metavar="R,G,B", help="then divided by this (default: 1,1,1)"
    )


def shape_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME=1x3x224x224",
        help="the shape of an input with open sizes; may be repeated",
    )  # fmt: skip


def feed_of(model: Model, options: argparse.Namespace) -> dict[str, Array]:
    """An array for each input: from the files given, random numbers for the others where they are asked
    for."""
    feed: dict[str, Array] = {}
    for text in options.input:
        argument, path = _named(model, text)
        if path.suffix == ".npz" and argument is None:
            feed.update(_arrays(path, {one.name: one for one in model.inputs}))
            continue
        argument = argument or next((a for a in model.inputs if a.name not in feed), None)
        if argument is None:
            raise ArgumentError(f"-i {path}: all inputs are given already; the model takes {_names(model)}")
        if argument.name in feed:
            raise ArgumentError(f"-i {text}: the input {argument.name!r} is given already")
        if path.suffix.lower() in PICTURES:
            shape = shapes_of(model, options.shape, feed)[argument.name]
            feed[argument.name] = picture(path, argument, shape, options)
        else:
            feed[argument.name] = _array(path, argument)
    if unknown := sorted(set(feed) - set(_names(model))):
        raise ArgumentError(f"inputs are given for {unknown}; the model takes {_names(model)}")
    missing = [argument for argument in model.inputs if argument.name not in feed]
    if missing and not options.random:
        names = [argument.name for argument in missing]
        raise ArgumentError(f"nothing is given for the inputs {names}: use -i NAME=FILE, or --random")
    shapes = shapes_of(model, options.shape, feed) if missing else {}
    random = np.random.default_rng(options.seed)
    for argument in missing:
        feed[argument.name] = numbers(random, argument, shapes[argument.name])
    return feed


def _names(model: Model) -> list[str]:
    return [argument.name for argument in model.inputs]


def _named(model: Model, text: str) -> tuple[Argument | None, Path]:
    """The input that ``NAME=FILE`` names, if it names one, and the file."""
    for argument in model.inputs:
        if text.startswith(f"{argument.name}="):
            return argument, _regular(Path(text[len(argument.name) + 1 :]))
    if "=" in text and not Path(text).exists():
        name = text.partition("=")[0]
        raise ArgumentError(f"-i names {name!r}; the model takes {_names(model)}")
    return None, _regular(Path(text))


def _regular(path: Path) -> Path:
    """A file that ends: a pipe would wait for ever."""
    if path.exists() and not path.is_file():
        raise ArgumentError(f"{path} is no regular file; an input is one")
    return path


def _array(path: Path, argument: Argument) -> Array:
    """The array of an .npy file, or that of an .npz file with the input's name, or alone in it."""
    name, names = argument.name, list[str]()

    def listed(known: str, dtype: str, shape: tuple[int, ...]) -> bool:
        names.append(known)
        return False

    arrays_of(path, listed, FORMS)
    if name not in names and len(names) != 1:
        raise ArgumentError(
            f"{path} has the arrays {sorted(names)[:20]}; one must be {name!r}, or the only one: save it so"
            f" with numpy.savez(FILE, {name}=...)"
        )
    return next(iter(_arrays(path, {name if name in names else names[0]: argument}).values()))


FORMS = f"a picture ({', '.join(PICTURES)})"


def _arrays(path: Path, arguments: Mapping[str, Argument]) -> dict[str, Array]:
    """The arrays of these names, each held against its input before it is read. An .npz file may have no
    others."""
    unknown = []

    def wanted(name: str, dtype: str, shape: tuple[int, ...]) -> bool:
        argument = arguments.get(name)
        if argument is None:
            unknown.append(name)
            return False
        if dtype != argument.dtype:
            raise DTypeError(f"input {argument.name!r} is {dtype}; it must be {argument.dtype}")
        check_shape(argument, shape)
        return True

    found = arrays_of(path, wanted, FORMS)
    if unknown and len(arguments) > 1:
        raise ArgumentError(
            f"inputs are given for {sorted(unknown)[:20]}; the model takes {sorted(arguments)} ({path})"
        )
    return found


def numbers(random: np.random.Generator, argument: Argument, shape: tuple[int, ...]) -> Array:
    """Normal numbers, or any of an integer type."""
    dtype = np.dtype(argument.dtype)
    if (size := math.prod(shape) * dtype.itemsize) > MOST_RANDOM_BYTES:
        raise ArgumentError(
            f"input {argument.name!r} has shape {list(shape)}, {size} bytes; at most {MOST_RANDOM_BYTES}"
            " random ones are made: give a smaller --shape"
        )
    if dtype.kind == "f":
        return random.normal(size=shape).astype(dtype)
    return random.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)


def picture(path: Path, argument: Argument, shape: tuple[int, ...], options: argparse.Namespace) -> Array:
    """A picture as the model takes it: scaled to its size, (N, C, H, W) or (N, H, W, C), in [0, 1] less the
    mean by the standard deviation, or as bytes for an 8-bit input. Pixels of 16 bits are rounded to 8."""
    if len(shape) != 4 or 0 in shape or not {1, 3} & {shape[1], shape[3]}:
        raise ArgumentError(f"input {argument.name!r} has shape {list(shape)}; a picture needs (N, 3, H, W)")
    first = shape[1] in (1, 3)
    channels, (height, width) = (shape[1], shape[2:]) if first else (shape[3], shape[1:3])
    with opened_picture(path) as image:
        from PIL import Image

        scaled = (
            _eight_bits(Image, image, path)
            .convert("L" if channels == 1 else "RGB")
            .resize((width, height), Image.Resampling.BILINEAR)
        )
    pixels = np.asarray(scaled).reshape(height, width, channels)
    array: Array = pixels
    if argument.dtype == "float32":
        mean, std = (_three(text, channels) for text in (options.mean, options.std))
        if not std.all():
            raise ArgumentError(f"--std is {options.std!r}; pixels are divided by it, so none may be 0")
        array = ((pixels.astype(np.float32) / 255 - mean) / std).astype(np.float32)
    elif argument.dtype == "int8":
        array = (pixels ^ np.uint8(0x80)).view(np.int8)
    whole = array.transpose(2, 0, 1)[None] if first else array[None]
    return np.ascontiguousarray(np.broadcast_to(whole, shape))


def _eight_bits(pillow: Any, image: Any, path: Path) -> Any:
    """A picture whose pixels have 8 bits. Those of 16 become round(v / 257), so that 65535 is 255, where
    Pillow would cut them off at 255. Numbers of 32 bits and real ones have no range that is known."""
    whole = image.mode == "I" and image.format in ("PNG", "PPM")  # of 16 bits, in a wider type
    if image.mode.startswith("I;16") or whole:
        pixels = np.asarray(image).astype(np.uint32)
        return pillow.fromarray(((pixels + 128) // 257).astype(np.uint8))
    if image.mode[0] in "IF":
        kind = "real numbers" if image.mode == "F" else "32-bit integers"
        raise ArgumentError(
            f"{path} has pixels of {kind}, whose range is not known; save them with 8 or 16 bits, or give the"
            " numbers that the model takes as an .npy file"
        )
    return image


def _three(text: str, channels: int) -> Any:
    try:
        values = [float(v) for v in text.split(",")]
    except ValueError:
        values = []
    if len(values) not in (1, channels, 3) or not np.isfinite(values).all():
        raise ArgumentError(f"{text[:60]!r} must be {counted(channels, 'number')} with commas between them")
    return np.asarray(values[:channels] if len(values) >= channels else values, np.float32)
