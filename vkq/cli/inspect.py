"""``vkq inspect``: what of a model would run where, and why; needs no device."""

from __future__ import annotations

import argparse

from vkq.cli.common import Parsers, add_command
from vkq.cli.inputs import shape_argument


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "inspect",
        run,
        "what each node of a model (ONNX or TFLite) becomes, and what cannot run on a device; exit code 1 if"
        " anything cannot",
        ["vkq inspect model.onnx", "vkq inspect model.tflite", "vkq inspect model.onnx --shape x=8x1x8x8"],
    )
    parser.add_argument("model", metavar="MODEL")
    shape_argument(parser)


def run(options: argparse.Namespace) -> int:
    from vkq.onnx.feed import shapes_of
    from vkq.onnx.report import ahead
    from vkq.tflite.either import read_model

    model = read_model(options.model)
    shapes = shapes_of(model, options.shape)
    for argument in model.inputs:
        print(
            f"input   {argument.name}: {argument.dtype}{list(argument.shape)}, here"
            f" {list(shapes[argument.name])}"
        )
    for argument in model.outputs:
        print(f"output  {argument.name}: {argument.dtype}{list(argument.shape)}")
    kind = f"opset {model.opset}" if model.opset else "TFLite"
    report = ahead(model, shapes, f"{kind}, {len(model.nodes)} nodes")
    print(report)
    return 1 if any(row.where == "nowhere" for row in report.rows) else 0
