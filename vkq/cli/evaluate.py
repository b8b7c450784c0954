"""``vkq eval``: count how often a classifier is right on labelled samples, on the device and in ONNX Runtime
or LiteRT."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vkq.accuracy.top import Top
from vkq.cli.arrays import arrays_of
from vkq.cli.common import Parsers, add_command, counted, device_argument, folded, integer_option, progress
from vkq.cli.inputs import shape_argument
from vkq.cli.pixels import picture_arguments
from vkq.cli.samples import GivenSamples, Sample
from vkq.errors import ArgumentError
from vkq.graph.graph import Array
from vkq.onnx.cpu import unequal
from vkq.onnx.reader import Model
from vkq.runtime.device import Device

LABELS = "labels"
FORM = "a folder with a folder for each class, or an .npz file of the inputs with an array 'labels'"


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "eval",
        run,
        "top-1 and top-5 of a classifier on the device and in ONNX Runtime or LiteRT, and of its float model;"
        " exit code 1 if the device and that library choose different classes",
        [
            "vkq eval model.onnx -c photos/ --float float.onnx  # photos/cat/1.png, photos/dog/2.png, ...",
            "vkq eval model.onnx -c test.npz  # arrays by input name, and labels",
        ],
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("-c", "--classes", required=True, metavar="WHERE", help=FORM)
    parser.add_argument(
        "--float", dest="real", metavar="FLOAT.onnx", help="the model before quantization, to compare with"
    )
    parser.add_argument(
        "--output",
        metavar="NAME",
        help="the output with the scores of the classes (default: the first output)",
    )
    parser.add_argument(
        "--limit",
        type=integer_option(1),
        metavar="N",
        help="use only N samples, at equal distances (default: all)",
    )
    picture_arguments(parser)
    shape_argument(parser)
    device_argument(parser)


@dataclasses.dataclass
class Judged:
    """A model in one library. ``name``: its name in the table. ``call``: returns the scores of a sample.
    ``top``: counts the right classes. ``times_s``: the times of all calls."""

    name: str
    call: Callable[[Sample], Array]
    top: Top = dataclasses.field(default_factory=Top)
    times_s: list[float] = dataclasses.field(default_factory=list)

    def judge(self, sample: Sample, label: int) -> Array:
        """Run the model on a sample whose right class is *label*, count whether the model chose this class,
        and return the scores."""
        begin = time.perf_counter()
        scores = self.call(sample)
        self.times_s.append(time.perf_counter() - begin)
        self.top.add(scores, label)
        return scores

    def row(self) -> str:
        first, best = (100 * n / self.top.count for n in (self.top.first, self.top.best))
        return f"{first:8.2f} % {best:8.2f} % {1e3 * float(np.median(self.times_s)):9.3g}  {self.name}"


def run(options: argparse.Namespace) -> int:
    """Evaluate the models. Return exit code 1 if the device and the reference library (ONNX Runtime or
    LiteRT) choose different classes for any sample."""
    from vkq.tflite.either import read_model

    model = read_model(options.model)
    samples, classes = labelled(model, options)
    if options.limit and options.limit < len(samples):
        samples = [samples[i * len(samples) // options.limit] for i in range(options.limit)]
    with Device(options.device) as device:
        judges = _judges(options, model, device)
        print(f"{counted(len(samples), 'sample')} of {counted(classes, 'class', 'classes')}")
        wrong, size = 0, 0
        for make, label in progress(samples, len(samples), "sample"):
            sample = make()
            scores = [one.judge(sample, label) for one in judges]
            wrong += int(unequal(scores[0], scores[1]).sum())
            size += scores[0].size
    print(f"{'top-1':>10} {'top-5':>10} {'ms':>9}  model (ms: median of a call)")
    print(*(one.row() for one in judges), sep="\n")
    same = [f"{100 * judges[0].top.same(one.top):.2f} % as {one.name}" for one in judges[1:]]
    equal = f"all {size} scores equal" if not wrong else f"{wrong} of {size} scores differ from"
    print(folded(f"{equal} {judges[1].name}'s; the same class in {', '.join(same)}", 2))
    return 1 if judges[0].top.chosen != judges[1].top.chosen else 0


def _judges(options: argparse.Namespace, model: Model, device: Device) -> list[Judged]:
    """Return what to compare: the model on the device, the model in the reference library, and, with
    ``--float``, the float model."""
    from vkq.onnx.cpu import cpu_session
    from vkq.tflite.either import referee, session_of
    from vkq.tflite.file import is_tflite

    names = [argument.name for argument in model.outputs]
    output = options.output or names[0]
    if output not in names:
        raise ArgumentError(f"--output is {output!r}; it must be one of {names}")
    kind = session_of(options.model)
    session, other = kind(options.model, device, kind.FALLBACK), referee(options.model, "vkq eval")
    found = [
        Judged(f"vkq on {device.short_name}", lambda x: session.run([output], x)[0]),
        Judged("LiteRT" if is_tflite(options.model) else "ONNX Runtime", lambda x: _first(other, output, x)),
    ]
    if options.real:
        real = cpu_session(options.real, "--float")
        theirs = [one.name for one in real.get_outputs()]
        scores = output if output in theirs else theirs[0]
        found.append(Judged(Path(options.real).name, lambda x: _first(real, scores, x)))
    return found


def _first(session: Any, output: str, sample: Sample) -> Array:
    return np.asarray(session.run([output], sample)[0])


Labelled = tuple[Callable[[], Sample], int]


def labelled(model: Model, options: argparse.Namespace) -> tuple[list[Labelled], int]:
    """Return (labelled samples, number of classes). A labelled sample is (function that reads the sample, its
    class). Raises ArgumentError if the folder or file is missing or its content is wrong."""
    where = Path(options.classes)
    if not where.exists():
        raise ArgumentError(f"{where}: there is no such folder or file; name {FORM}")
    if where.is_dir():
        return _of_folders(model, where, options)
    return _of_arrays(model, where)


def _of_folders(model: Model, where: Path, options: argparse.Namespace) -> tuple[list[Labelled], int]:
    folders = sorted((one for one in where.iterdir() if one.is_dir()), key=lambda one: one.name)
    if not folders:
        raise ArgumentError(f"{where} has no folders; it must be {FORM}")
    # If all names are decimal numbers, they are the numbers of the classes, some of which may have no folder.
    # Else the classes are numbered in the order of the names.
    numbers = all(one.name.isdecimal() for one in folders)
    found: list[Labelled] = []
    for at, folder in enumerate(folders):
        label = int(folder.name) if numbers else at
        found += [(make, label) for make in GivenSamples(model, [str(folder)], options).makers]
    return found, len(folders)


def _of_arrays(model: Model, where: Path) -> tuple[list[Labelled], int]:
    inputs = {argument.name: argument for argument in model.inputs}

    def wanted(name: str, dtype: str, shape: tuple[int, ...]) -> bool:
        if name in inputs and dtype != inputs[name].dtype:
            raise ArgumentError(f"{where}: {name!r} is {dtype}; the model takes {inputs[name].dtype}")
        return name in inputs or name == LABELS

    arrays = arrays_of(where, wanted, FORM)
    labels = arrays.pop(LABELS, None)
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu" or set(arrays) != set(inputs):
        raise ArgumentError(
            f"{where} must hold an array for each input ({', '.join(inputs)}), and whole numbers (N,) named"
            f" {LABELS!r}; it has {sorted([*arrays, *([LABELS] if labels is not None else [])])}"
        )
    counts = {name: len(x) for name, x in arrays.items() if x.ndim}
    if set(counts.values()) != {len(labels)} or not len(labels):
        raise ArgumentError(
            f"{where}: {len(labels)} labels for {counts} samples; there must be one label for each sample"
        )
    return [(_row(arrays, inputs, i), int(label)) for i, label in enumerate(labels)], len(np.unique(labels))


def _row(arrays: Mapping[str, Array], inputs: Mapping[str, Any], at: int) -> Callable[[], Sample]:
    """Return a function that returns sample *at*. If the rows of an array lack the batch axis of the input,
    the function adds a batch axis of size 1."""

    def make() -> Sample:
        rows = {name: x[at] for name, x in arrays.items()}
        return {name: x[None] if x.ndim < len(inputs[name].shape) else x for name, x in rows.items()}

    return make
