"""Reads the inputs that the command line gives for a model: pictures, .npy and .npz files, or random
values."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from vkq.cli.arrays import arrays_of
from vkq.cli.common import integer_option
from vkq.cli.pictures import PICTURES
from vkq.cli.pixels import picture, picture_arguments
from vkq.errors import ArgumentError, DTypeError
from vkq.graph.graph import Array
from vkq.onnx.inputs import check_shape, shapes_of
from vkq.onnx.reader import Model
from vkq.onnx.tensors import Argument

MOST_RANDOM_BYTES = 1 << 30  # maximum number of bytes of one random input


def input_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for a model's inputs."""
    parser.add_argument(
        "-i", "--input", action="append", default=[], metavar="[NAME=]FILE",
        help="the file of an input: a picture, .npy, or .npz with arrays by name; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=integer_option(0), default=0, help="the seed of the random numbers (default: 0)"
    )
    shape_argument(parser)
    picture_arguments(parser)


def shape_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME=1x3x224x224",
        help="the shape of an input with free sizes; may be repeated",
    )  # fmt: skip


def feed_of(model: Model, options: argparse.Namespace) -> dict[str, Array]:
    """Return an array for each input of the model: from the files of ``--input``, and, with ``--random``,
    random values for inputs without a file."""
    feed: dict[str, Array] = {}
    for text in options.input:
        argument, path = _named(model, text)
        if path.suffix == ".npz" and argument is None:
            feed.update(named_arrays(path, {one.name: one for one in model.inputs}))
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
            feed[argument.name] = array_of(path, argument)
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
    """Parse ``NAME=FILE`` or ``FILE``. Return (the model's input of this name, or None; the file)."""
    for argument in model.inputs:
        if text.startswith(f"{argument.name}="):
            return argument, _regular(Path(text[len(argument.name) + 1 :]))
    if "=" in text and not Path(text).exists():
        name = text.partition("=")[0]
        raise ArgumentError(f"-i names {name!r}; the model takes {_names(model)}")
    return None, _regular(Path(text))


def _regular(path: Path) -> Path:
    """Return the path. Raise ArgumentError if it is not a regular file, because reading a pipe might never
    end."""
    if path.exists() and not path.is_file():
        raise ArgumentError(f"{path} is not a regular file; an input must be one")
    return path


def array_of(path: Path, argument: Argument) -> Array:
    """Read the array for an input. From an .npz file, read the array with the input's name, or, if there is
    none, the file's only array."""
    name, names = argument.name, list[str]()

    def listed(known: str, dtype: str, shape: tuple[int, ...]) -> bool:
        names.append(known)
        return False

    arrays_of(path, listed, FORMS)
    if name not in names and len(names) != 1:
        raise ArgumentError(
            f"{path} has the arrays {sorted(names)[:20]}; one must be named {name!r}, or be the only"
            f" one: save it with numpy.savez(FILE, {name}=...)"
        )
    return next(iter(named_arrays(path, {name if name in names else names[0]: argument}).values()))


FORMS = f"a picture ({', '.join(PICTURES)})"


def named_arrays(path: Path, arguments: Mapping[str, Argument]) -> dict[str, Array]:
    """Read the arrays whose names are keys of *arguments*. Each array's dtype and shape are checked against
    its input before the array is read. With several *arguments*, the file must contain no other arrays."""
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
    """Return normally distributed floats, or random integers for an integer dtype."""
    dtype = np.dtype(argument.dtype)
    if (size := math.prod(shape) * dtype.itemsize) > MOST_RANDOM_BYTES:
        raise ArgumentError(
            f"input {argument.name!r} has shape {list(shape)}, {size} bytes; a random input may have at most"
            f" {MOST_RANDOM_BYTES}: give a smaller --shape"
        )
    if dtype.kind == "f":
        return random.normal(size=shape).astype(dtype)
    return random.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)
