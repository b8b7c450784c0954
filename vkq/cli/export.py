"""``vkq export``: a model as one file for `vkq.load` and libvkq, which needs no Python."""

from __future__ import annotations

import argparse
from typing import Any

from vkq.cli.common import Parsers, add_command, device_argument, output
from vkq.cli.inputs import shape_argument
from vkq.device.reported import NAMES, told
from vkq.errors import ArgumentError
from vkq.files import output as written_file


class _Kinds(argparse.Action):
    """Appends a kind; "list" shows all and ends, as --help does."""

    def __call__(self, parser: Any, options: argparse.Namespace, value: Any, option: Any = None) -> None:
        if value == "list":
            width = max(map(len, NAMES))
            print("this".ljust(width), " the device at hand")
            for name in NAMES:
                print(name.ljust(width), "", told(name))
            parser.exit()
        setattr(options, self.dest, [*(getattr(options, self.dest) or ()), value])


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "export",
        run,
        "write a model as one file (plans, shaders, weights, a known answer) that runs without Python",
        [
            "vkq export model.onnx -o model.vkq",
            "vkq export model.onnx -o model.vkq --shape x=8x1x8x8 --for portable",
            "vkq export model.onnx -o model.vkq --for adreno-740 --for mali-g610",
        ],
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("-o", "--output", type=output, required=True, metavar="FILE.vkq")
    shape_argument(parser)
    parser.add_argument(
        "--for", dest="kinds", action=_Kinds, metavar="KIND",
        help="a device to plan for: this (the one at hand, the default), a kind that `--for list` names, or a"
        " file of `vkq devices --json` from another device; every file also has a portable plan, for any"
        " device; may be repeated",
    )  # fmt: skip
    device_argument(parser)


def run(options: argparse.Namespace) -> int:
    from vkq.onnx.feed import shapes_of
    from vkq.onnx.prepared import ON_DEVICE, known
    from vkq.player.export import exported
    from vkq.runtime.device import Device
    from vkq.tflite.either import read_model

    model = read_model(options.model)
    if others := [f"{a.name} ({a.dtype})" for a in model.inputs if a.dtype not in ON_DEVICE]:
        raise ArgumentError(f"export: inputs {', '.join(others)} are of types that no device has")
    graph, rest = known(model, shapes_of(model, options.shape), fallback=False)
    if rest.nodes:
        raise ArgumentError(f"export: the model runs in stages, which no one plan shows: {rest.why}")
    with Device(options.device) as device:
        data, plans = exported(graph, device, options.kinds or ["this"])
    with written_file(options.output) as path:
        path.write_bytes(data)
    print(f"{options.output}: {len(data)} bytes")
    for plan in plans:
        print(f"  {plan.kind}: {plan.about}")
    return 0
