"""``vkq inspect``: show where each node of a model would run, and why. No device is needed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vkq.cli.common import Parsers, add_command, folded
from vkq.cli.inputs import shape_argument

if TYPE_CHECKING:
    from vkq.player.file import Shaped


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "inspect",
        run,
        "show what each node of a model (ONNX or TFLite) becomes and which nodes cannot run on a device (then"
        " exit code 1), or the contents of a file of `vkq export`",
        ["vkq inspect model.onnx", "vkq inspect model.tflite", "vkq inspect model.onnx --shape x=8x1x8x8"],
    )
    parser.add_argument("model", metavar="MODEL")
    shape_argument(parser)


def run(options: argparse.Namespace) -> int:
    from vkq.onnx.inputs import shapes_of
    from vkq.onnx.report import CANNOT, ahead
    from vkq.player.reader import is_played
    from vkq.tflite.either import read_model

    if is_played(options.model):
        return _played(options.model)
    model = read_model(options.model)
    shapes = shapes_of(model, options.shape)
    for argument in model.inputs:
        here = f"{argument.dtype}{list(argument.shape)}, here {list(shapes[argument.name])}"
        print(folded(f"input   {argument.name}: {here}", 8))
    for argument in model.outputs:
        print(folded(f"output  {argument.name}: {argument.dtype}{list(argument.shape)}", 8))
    kind = f"opset {model.opset}" if model.opset else "TFLite"
    report = ahead(model, shapes, f"{kind}, {len(model.nodes)} nodes")
    for line in str(report).splitlines():
        print(folded(line, 10))
    return 1 if any(row.where == CANNOT for row in report.rows) else 0


def _played(path: str) -> int:
    """Print the contents of a file that `vkq export` wrote."""
    from vkq.player.reader import contents

    data = Path(path).read_bytes()
    found = contents(data)
    print(f"{path}: {len(data)} bytes by {found.producer}")
    for role, (count, stored, length) in found.parts.items():
        said = f"{stored} bytes" if stored == length else f"{length} bytes packed in {stored}"
        print(f"{role}: {count} parts, {said}")
    for one in found.sets:
        _shaped(one)
    return 0


def _shaped(of: Shaped) -> None:
    for kind, arrays in (("input", of.inputs), ("output", of.outputs)):
        for one in arrays:
            print(f"{kind:<7} {one.name}: {one.dtype}{list(one.shape)}")
    for plan in of.plans:
        print(f"plan    {plan.kind}: {plan.about}")
        same = [f"{name[1:]} {value:#x}" for name, value in plan.needs if name.startswith("=")]
        needs = [f"{name} {value}" for name, value in plan.needs if not name.startswith("=")]
        print(f"        for {'devices of ' + ', '.join(same) if same else 'any device'}")
        print(f"        that has {', '.join(needs) or 'nothing in particular'}")
        weights = sum(len(data) for _, data in plan.constants)
        print(f"        weights of {weights} bytes, scratch memory of {plan.scratch_bytes}")
