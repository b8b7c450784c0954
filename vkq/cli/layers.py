"""``vkq compare-layers``: find the layers at which a quantized model deviates from its float model."""

from __future__ import annotations

import argparse
import json

from vkq import files
from vkq.cli.common import Parsers, add_command, columns, counted, folded, output, output_file
from vkq.cli.inputs import shape_argument
from vkq.cli.pixels import picture_arguments
from vkq.cli.samples import GivenSamples


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "compare-layers",
        run,
        "compare each layer of a quantized model with the float model that it was made from",
        [
            "vkq compare-layers float.onnx int8.onnx -i pictures/",
            "vkq compare-layers float.onnx int8.onnx -i samples/ --json layers.json --plot layers.svg",
        ],
    )
    parser.add_argument("model", metavar="FLOAT.onnx")
    parser.add_argument("quantized", metavar="INT8.onnx")
    parser.add_argument(
        "-i",
        "--input",
        action="append",
        required=True,
        metavar="[NAME=]WHERE",
        help="samples: a file or folder of pictures, .npy or .npz, or module:function; may be repeated",
    )
    parser.add_argument(
        "--json", type=output, metavar="FILE", help="write the rows as JSON (- for standard output)"
    )
    parser.add_argument("--plot", type=output_file, metavar="FILE.svg", help="draw a bar for each layer")
    picture_arguments(parser)
    shape_argument(parser)


def run(options: argparse.Namespace) -> int:
    from vkq.accuracy import compare_layers
    from vkq.onnx.reader import read

    samples = GivenSamples(read(options.model), options.input, options)
    report = compare_layers(options.model, options.quantized, samples("layers"))
    if options.plot:
        with files.output(options.plot) as beside:
            beside.write_text(report.svg(), encoding="utf-8")
    if options.json:
        text = json.dumps(report.as_dict(), indent=1) + "\n"
        if str(options.json) == "-":
            print(text, end="")
            return 0
        with files.output(options.json) as beside:
            beside.write_text(text, encoding="utf-8")
    print(report.table(columns()))
    print(folded(f"over {counted(report.samples, 'sample')}; look first at:", 2))
    for row in report.worst():
        print(folded(f"  {row.op} {row.layer}: {row.why()}", 4))
    return 0
