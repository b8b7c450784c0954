"""``vkq quantize``: a float ONNX model to 8 bits through onnxruntime.quantization, and how near it stays."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from vkq.cli.common import Parsers, add_command, device_argument, output_file, progress
from vkq.cli.inputs import picture, shape_argument
from vkq.cli.pictures import PICTURES
from vkq.errors import ArgumentError
from vkq.graph.graph import Array
from vkq.runtime.device import Device


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "quantize",
        run,
        "quantize a float ONNX model with pictures, so that it runs whole on a device, and tell its accuracy",
        [
            "vkq quantize float.onnx -c pictures/",
            "vkq quantize float.onnx -c pictures/ -o int8.onnx --mean 0.485,0.456,0.406 --std"
            " 0.229,0.224,0.225",
        ],
    )
    parser.add_argument("model", metavar="FLOAT.onnx")
    parser.add_argument("-c", "--calibrate", required=True, metavar="FOLDER", help="pictures, typical ones")
    parser.add_argument(
        "-o",
        "--output",
        type=output_file,
        metavar="FILE.onnx",
        help="default: the model's name with .int8.onnx",
    )
    parser.add_argument("--activations", choices=["int8", "uint8"], default="int8")
    parser.add_argument("--per-tensor", action="store_true", help="one scale for a whole weight")
    parser.add_argument("--mean", default="0,0,0", metavar="R,G,B", help="taken off a picture in [0, 1]")
    parser.add_argument("--std", default="1,1,1", metavar="R,G,B", help="then divided by this")
    shape_argument(parser)
    device_argument(parser)


def run(options: argparse.Namespace) -> int:
    from vkq.onnx import InferenceSession
    from vkq.onnx.quantize import agreement, quantize, run_float, stored_bytes
    from vkq.onnx.reader import read

    model = read(options.model)
    if done := [node for node in model.nodes if "QuantizeLinear" in node.op or node.op.endswith("Integer")]:
        raise ArgumentError(f"{options.model} is quantized already ({done[0]}); give the float model")
    folder = Path(options.calibrate)
    if not folder.is_dir():
        raise ArgumentError(f"-c {folder}: there is no such folder; name one with typical pictures")
    files = sorted(f for f in folder.iterdir() if f.suffix.lower() in PICTURES and f.is_file())
    if not files or len(model.inputs) != 1:
        raise ArgumentError(
            f"{folder} has {len(files)} pictures ({', '.join(PICTURES)}) and the model {len(model.inputs)}"
            " inputs; there must be pictures, and one input (vkq.onnx.quantize.quantize takes any)"
        )
    from vkq.onnx.feed import shapes_of

    argument, shape = model.inputs[0], shapes_of(model, options.shape)[model.inputs[0].name]
    target = options.output or output_file(str(Path(options.model).with_suffix(".int8.onnx")))
    if target.exists() and target.samefile(options.model):
        raise ArgumentError(f"-o {target} is the float model itself; name another file")

    def samples(what: str) -> Iterator[dict[str, Array]]:
        for file in progress(files, len(files), f"{what}: picture"):
            yield {argument.name: picture(file, argument, shape, options)}

    with Device(options.device) as device:
        quantize(options.model, target, samples("ranges"), options.activations, not options.per_tensor)
        session = InferenceSession(target, device, "onnxruntime")  # with a warning, where it is needed
        real = run_float(options.model, samples("the float model"))
        found = agreement(real, [session.run(None, feed)[0] for feed in samples("the int8 model")])
        name = device.name
    sizes = [stored_bytes(file) for file in (options.model, target)]
    print(f"written {target}: {sizes[1]} bytes (float: {sizes[0]}), on {name}")
    print(f"against the float model on {len(files)} pictures: {found['snr_db']:.1f} dB signal to noise,")
    print(f"the same largest element in {100 * found['top1']:.1f} %")
    return 0
