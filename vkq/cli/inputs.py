"""The inputs of models on the command line: pictures, .npy and .npz files, random numbers, shapes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vkq.errors import ArgumentError
from vkq.graph.graph import Array
from vkq.onnx.feed import trial_shapes
from vkq.onnx.reader import Model
from vkq.onnx.tensors import Argument

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff")


def input_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that say what a model is given."""
    parser.add_argument(
        "-i", "--input", action="append", default=[], metavar="[NAME=]FILE",
        help="an input: a picture, .npy, or .npz with arrays by name; may be repeated",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (default: 0)")
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


def shapes_of(model: Model, given: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The inputs' shapes: those given, others as the model has them or likely ones."""
    shapes = {} if len(given) == len(model.inputs) else trial_shapes(model)
    for text in given:
        name, _, sizes = text.rpartition("=")
        name = name or model.inputs[0].name
        try:
            shapes[name] = tuple(int(size) for size in sizes.split("x"))
        except ValueError:
            raise ArgumentError(f"--shape is {text!r}; write it as NAME=1x3x224x224") from None
    unknown = sorted(set(shapes) - {a.name for a in model.inputs})
    if unknown:
        raise ArgumentError(f"--shape names {unknown}; the model takes {[a.name for a in model.inputs]}")
    return shapes


def feed_of(model: Model, options: argparse.Namespace) -> dict[str, Array]:
    """An array for each input: from the files given, random numbers for the others."""
    shapes, feed = shapes_of(model, options.shape), {}
    for text in options.input:
        name, _, file = text.rpartition("=")
        path = Path(file)
        if path.suffix == ".npz":
            feed.update(_arrays(path))
            continue
        argument = next((a for a in model.inputs if a.name == name), model.inputs[0])
        if path.suffix.lower() in PICTURES:
            feed[argument.name] = picture(path, argument, shapes[argument.name], options)
        else:
            feed[argument.name] = _arrays(path)[""]
    random = np.random.default_rng(options.seed)
    for argument in model.inputs:
        if argument.name not in feed:
            feed[argument.name] = numbers(random, argument, shapes[argument.name])
    return feed


def _arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name, or that of an .npy file by no name; nothing in them is executed."""
    try:
        found = np.load(path, allow_pickle=False)
        return {name: found[name] for name in found} if path.suffix == ".npz" else {"": np.asarray(found)}
    except ValueError as error:
        raise ArgumentError(f"{path}: {error}") from error


def numbers(random: np.random.Generator, argument: Argument, shape: tuple[int, ...]) -> Array:
    """Normal numbers, or any of an integer type."""
    dtype = np.dtype(argument.dtype)
    if dtype.kind == "f":
        return random.normal(size=shape).astype(dtype)
    return random.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)


def picture(path: Path, argument: Argument, shape: tuple[int, ...], options: argparse.Namespace) -> Array:
    """A picture as the model takes it: scaled to its size, (N, C, H, W) or (N, H, W, C), in [0, 1] less the
    mean by the standard deviation, or as bytes for an 8-bit input."""
    try:
        from PIL import Image
    except ImportError:
        raise ArgumentError("reading pictures needs the package pillow: pip install pillow") from None
    if len(shape) != 4 or not {1, 3} & {shape[1], shape[3]}:
        raise ArgumentError(f"input {argument.name!r} has shape {list(shape)}; a picture needs (N, 3, H, W)")
    first = shape[1] in (1, 3)
    channels, (height, width) = (shape[1], shape[2:]) if first else (shape[3], shape[1:3])
    with Image.open(path) as image:
        scaled = image.convert("L" if channels == 1 else "RGB").resize(
            (width, height), Image.Resampling.BILINEAR
        )
    pixels = np.asarray(scaled).reshape(height, width, channels)
    array: Array = pixels
    if argument.dtype == "float32":
        mean, std = (_three(text, channels) for text in (options.mean, options.std))
        array = ((pixels.astype(np.float32) / 255 - mean) / std).astype(np.float32)
    elif argument.dtype == "int8":
        array = (pixels ^ np.uint8(0x80)).view(np.int8)
    whole = array.transpose(2, 0, 1)[None] if first else array[None]
    return np.ascontiguousarray(np.broadcast_to(whole, shape))


def _three(text: str, channels: int) -> Any:
    try:
        values = [float(v) for v in text.split(",")]
    except ValueError:
        values = []
    if len(values) not in (1, channels, 3):
        raise ArgumentError(f"{text!r} must be {channels} numbers with commas between them")
    return np.asarray(values[:channels] if len(values) >= channels else values, np.float32)
