"""Reads the samples of a model's inputs from what the command line names: files or folders of pictures and
arrays, or a Python function."""

from __future__ import annotations

import argparse
import importlib
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vkq.cli.common import counted, progress
from vkq.cli.inputs import array_of, named_arrays
from vkq.cli.pictures import PICTURES
from vkq.cli.pixels import channels_of, picture, size_of
from vkq.errors import ArgumentError
from vkq.graph.graph import Array
from vkq.onnx.inputs import check_shape, checked_feed, shapes_of
from vkq.onnx.reader import Model
from vkq.onnx.tensors import Argument

Sample = dict[str, Array]
ARRAYS = (".npy", ".npz")
FORMS = f"pictures ({', '.join(PICTURES)}), .npy or .npz"


class GivenSamples:
    """Samples that the command line gives. *given*: names of files and folders, or of one Python function.
    Calling the object yields the samples, and reads the files again each time. A sample is a dict from the
    names of inputs to arrays."""

    def __init__(self, model: Model, given: Sequence[str], options: argparse.Namespace):
        self.model, self.options = model, options
        if options.shape:
            shapes_of(model, options.shape)  # refuses a wrong --shape; arrays would not need it
        self.pictures = False
        self.makers: list[Callable[[], Sample]] = []
        if len(given) == 1 and (function := _function(given[0])):
            made = [self._checked(sample, given[0]) for sample in _called(function, given[0])]
            self.makers = [lambda sample=sample: sample for sample in made]  # type: ignore[misc]
        else:
            self.makers = self._of_files(given)
        if not self.makers:
            raise ArgumentError(f"{', '.join(given)}: there are no samples; there must be at least one")

    def __len__(self) -> int:
        return len(self.makers)

    def __call__(self, what: str, chosen: slice = slice(None)) -> Iterator[Sample]:
        """Yield the samples in the slice *chosen*. *what*: the purpose of the samples, shown in the progress
        line."""
        makers = self.makers[chosen]
        for make in progress(makers, len(makers), f"{what}: sample"):
            yield make()

    def _checked(self, sample: Any, source: str) -> Sample:
        """Check a sample that a user's function returned, and return it as a dict from the names of inputs to
        arrays. *sample*: such a mapping, or the array of the model's only input."""
        if not isinstance(sample, Mapping):
            sample = {self.model.inputs[0].name: sample}
        return checked_feed(self.model.inputs, sample, [a.name for a in self.model.inputs])

    def _of_files(self, given: Sequence[str]) -> list[Callable[[], Sample]]:
        columns = [column for text in given for column in self._columns(text)]
        names = [name for name, _ in columns]
        wanted = [a.name for a in self.model.inputs]
        if names == [""]:
            return columns[0][1]
        if sorted(names) != sorted(wanted):
            raise ArgumentError(
                f"samples are given for the inputs {sorted(names)}; the model takes {sorted(wanted)}: give"
                " each by NAME=FOLDER, .npz files with arrays of these names, or a Python function"
            )
        if len({len(makers) for _, makers in columns}) != 1:
            counts = ", ".join(f"{counted(len(makers), 'file')} for {name!r}" for name, makers in columns)
            raise ArgumentError(f"there are {counts}; each input must have the same number")

        def joined(makers: Iterable[Callable[[], Sample]]) -> Sample:
            return {name: array for make in makers for name, array in make().items()}

        rows = zip(*(makers for _, makers in columns), strict=True)
        return [lambda row=row: joined(row) for row in rows]  # type: ignore[misc]

    def _columns(self, text: str) -> list[tuple[str, list[Callable[[], Sample]]]]:
        """Return (name of an input, functions that read its arrays) for each input that *text* gives samples
        for. The name is "" if each function reads all inputs. The functions are in the order of the files'
        names."""
        argument = next((a for a in self.model.inputs if text.startswith(f"{a.name}=")), None)
        path = Path(text[len(argument.name) + 1 :] if argument else text)
        if not path.exists():
            raise ArgumentError(f"{path}: there is no such folder or file; name one with {FORMS}")
        inner = {a.name: path / a.name for a in self.model.inputs if (path / a.name).is_dir()}
        if argument is None and inner:
            return [column for name, folder in inner.items() for column in self._columns(f"{name}={folder}")]
        files = [path]
        if path.is_dir():
            found = (f for f in path.iterdir() if f.suffix.lower() in (*PICTURES, *ARRAYS) and f.is_file())
            files = sorted(found, key=lambda f: _natural(f.name))
        self.pictures |= any(f.suffix.lower() in PICTURES for f in files)
        if argument is None and files and all(f.suffix == ".npz" for f in files):
            every = {a.name: a for a in self.model.inputs}
            return [("", [lambda f=f: self._whole(f, every) for f in files])]  # type: ignore[misc]
        if argument is None and len(self.model.inputs) != 1:
            raise ArgumentError(
                f"{path} has {counted(len(files), 'sample')} and the model {len(self.model.inputs)} inputs"
                f" ({', '.join(a.name for a in self.model.inputs)}): give NAME=FOLDER for each, a folder in"
                " it for each, or .npz files with arrays of these names"
            )
        one = argument or self.model.inputs[0]
        if not files:
            raise ArgumentError(f"{path} has 0 samples; there must be {FORMS}")
        return [(one.name, [lambda f=f: {one.name: self._one(f, one)} for f in files])]  # type: ignore[misc]

    def _whole(self, file: Path, arguments: Mapping[str, Argument]) -> Sample:
        found = named_arrays(file, arguments)
        if missing := sorted(set(arguments) - set(found)):
            raise ArgumentError(f"{file} has no arrays {missing}; it must have {sorted(arguments)}")
        return found

    def _one(self, file: Path, argument: Argument) -> Array:
        if file.suffix.lower() not in PICTURES:
            array = array_of(file, argument)
            check_shape(argument, array.shape)
            return array
        return picture(file, argument, self._picture_shape(file, argument), self.options)

    def _picture_shape(self, file: Path, argument: Argument) -> tuple[int, ...]:
        """Return the input's shape. Without --shape, a free height or width is that of the picture."""
        given = any("=" not in t or t.startswith(f"{argument.name}=") for t in self.options.shape)
        open_ = len(argument.shape) == 4 and any(isinstance(d, str) for d in argument.shape[1:])
        if given or not open_:
            return shapes_of(self.model, self.options.shape)[argument.name]
        first, channels = channels_of(argument, argument.shape, self.options)
        dims = argument.shape[2:] if first else argument.shape[1:3]
        height, width = (d if isinstance(d, int) else s for d, s in zip(dims, size_of(file), strict=True))
        batch = argument.shape[0] if isinstance(argument.shape[0], int) else 1
        return (batch, channels, height, width) if first else (batch, height, width, channels)

    def told(self) -> str:
        """Return a line that says how pictures are converted; "" if no sample is a picture."""
        if not self.pictures:
            return ""
        o = self.options
        return (
            f"pictures: {o.color.upper()}, layout {o.layout or 'by the shape'}, {o.resize} to the model's"
            f" size; floats are (v - {o.mean}) / {o.std} of v in [0, 1]"
        )


def _natural(name: str) -> list[Any]:
    """Return a key that sorts 2.png before 10.png."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split("([0-9]+)", name)]


def _function(text: str) -> tuple[str, str] | None:
    """Split a text ``module:function`` into (module, function). Return None for the name of a file."""
    found = re.fullmatch(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", text)
    return (found[1], found[2]) if found and not Path(text).exists() else None


def _called(function: tuple[str, str], text: str) -> Iterator[Any]:
    """Import and call a user's function, and return an iterator over the first 10,000 samples that it yields.
    The function's module may be in the current folder."""
    sys.path.insert(0, "")
    importlib.invalidate_caches()  # Python may have listed the folder before the module was written
    try:
        made = getattr(importlib.import_module(function[0]), function[1])
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"{text}: there is no such function ({error}); write MODULE:FUNCTION") from error
    finally:
        sys.path.remove("")
    return itertools.islice(iter(made()), 10_000)
