"""``vkq export``: write a model as one file, which `vkq.load` and the C library libvkq (without Python)
run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vkq.cli.common import Parsers, add_command, device_argument, integer_option, output
from vkq.cli.inputs import shape_argument
from vkq.device.reported import NAMES, description
from vkq.errors import ArgumentError
from vkq.files import output as written_file

if TYPE_CHECKING:
    from vkq.onnx.reader import Model


class _Kinds(argparse.Action):
    """The action of ``--for``: append a kind of device to the option's list. The value "list" prints all
    kinds and ends the command."""

    def __call__(self, parser: Any, options: argparse.Namespace, value: Any, option: Any = None) -> None:
        if value == "list":
            width = max(map(len, NAMES))
            print("this".ljust(width), " the device at hand")
            for name in NAMES:
                print(name.ljust(width), "", description(name))
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
            "vkq export model.onnx -o model.vkq --batch 1 8",
            "vkq export model.onnx -o model.vkq --for adreno-740 --for mali-g610",
        ],
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("-o", "--output", type=output, required=True, metavar="FILE.vkq")
    shape_argument(parser)
    parser.add_argument(
        "--batch", type=integer_option(1), nargs="+", default=[], metavar="N",
        help="the batch size: the first size of every input. With several sizes (or several --shape of an"
        " input), the file has plans for each, and the weights once; the input shapes of a run select a plan",
    )  # fmt: skip
    parser.add_argument(
        "--for", dest="kinds", action=_Kinds, metavar="KIND",
        help="a device to plan for: this (the device here, the default), a kind that `--for list` names, or a"
        " file of `vkq devices --json` from another machine. The output also has a portable plan for any"
        " device; may be repeated",
    )  # fmt: skip
    device_argument(parser)


def run(options: argparse.Namespace) -> int:
    from vkq.onnx.constant import ON_DEVICE
    from vkq.onnx.prepared import known
    from vkq.player.export import exported
    from vkq.runtime.device import Device
    from vkq.tflite.either import read_model

    model = read_model(options.model)
    if others := [f"{a.name} ({a.dtype})" for a in model.inputs if a.dtype not in ON_DEVICE]:
        raise ArgumentError(f"export: inputs {', '.join(others)} have types that no device supports")
    graphs = []
    for shapes in _sets(model, options.shape, options.batch):
        graph, rest = known(model, shapes, fallback=False)
        if rest.nodes:
            raise ArgumentError(f"export: the model runs in stages, so it has no single plan: {rest.why}")
        graphs.append(graph)
    with Device(options.device) as device:
        data, sets = exported(graphs, device, options.kinds or ["this"])
    with written_file(options.output) as path:
        path.write_bytes(data)
    print(f"{options.output}: {len(data)} bytes")
    for one in sets:
        if len(sets) > 1:
            print("  " + ", ".join(f"{a.name} {list(a.shape)}" for a in one.inputs))
        for plan in one.plans:
            print(f"  {plan.kind}: {plan.about}")
    return 0


def _sets(model: Model, given: Sequence[str], batches: Sequence[int]) -> list[dict[str, tuple[int, ...]]]:
    """Return the requested sets of shapes, each a dict from the names of the inputs to shapes. Set i has the
    i-th --shape of each input; an input with only one --shape has this shape in all sets. With *batches*,
    each set is repeated for each batch size."""
    from vkq.onnx.inputs import checked_shapes, shapes_of

    of_inputs: dict[str, list[str]] = {}
    for text in given:
        of_inputs.setdefault(text.rpartition("=")[0] or model.inputs[0].name, []).append(text)
    count = max(map(len, of_inputs.values()), default=1)
    if uneven := [name for name, some in of_inputs.items() if len(some) not in (1, count)]:
        raise ArgumentError(f"--shape is given {count} times for one input, but not as often for {uneven}")
    found = []
    for i in range(count):
        shapes = shapes_of(model, [some[i if len(some) > 1 else 0] for some in of_inputs.values()])
        found += [{name: (n, *shape[1:]) for name, shape in shapes.items()} for n in batches] or [shapes]
    if len({tuple(shapes.items()) for shapes in found}) < len(found):
        raise ArgumentError(f"the same shapes are asked for twice: {found}")
    return [checked_shapes(model.inputs, shapes) for shapes in found]
