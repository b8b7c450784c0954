"""``vkq quantize``: quantize a float ONNX model to 8 bits, or only its weights to 8 or 4 bits, and report how
well the outputs agree with those of the float model."""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from pathlib import Path

from vkq.cli.common import (
    Parsers,
    add_command,
    counted,
    device_argument,
    folded,
    number,
    output_file,
    status_line,
)
from vkq.cli.inputs import shape_argument
from vkq.cli.pixels import picture_arguments
from vkq.cli.samples import GivenSamples
from vkq.errors import ArgumentError
from vkq.graph.graph import Array
from vkq.onnx.reader import read
from vkq.runtime.device import Device

EVERY = slice(None)


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "quantize",
        run,
        "quantize a float ONNX or TFLite model, so that it runs completely on a device, and report its"
        " accuracy; exit code 1 if a target is not reached",
        [
            "vkq quantize float.onnx -c pictures/",
            "vkq quantize float.onnx -c pictures/ -o int8.onnx --mean 0.485,0.456,0.406 --std"
            " 0.229,0.224,0.225",
            "vkq quantize float.onnx -c samples/ --target-db 30",
            "vkq quantize float.onnx -c samples/ --target my_accuracy.py",
            "vkq quantize float.onnx --weights-only --bits 4",
        ],
    )
    parser.add_argument(
        "model", metavar="FLOAT.onnx", help="or FLOAT.tflite, which ai-edge-quantizer quantizes"
    )
    parser.add_argument(
        "-c", "--calibrate", action="append", default=[], metavar="[NAME=]WHERE",
        help="typical samples: a folder of pictures, .npy or .npz files (arrays by input name), with a folder"
        " for each input, or a Python function module:function that yields them; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=output_file, metavar="FILE",
        help="the file to write (default: the model's name with .int8.onnx, .w8.onnx or .w4.onnx (.tflite))",
    )  # fmt: skip
    parser.add_argument(
        "--exclude", action="append", default=[], metavar="NODE",
        help="keep this node float, or all nodes of the module with this name; may be repeated",
    )  # fmt: skip
    parser.add_argument("--activations", choices=["int8", "uint8"], default="int8")
    parser.add_argument("--per-tensor", action="store_true", help="use one scale for a whole weight")
    picture_arguments(parser)
    shape_argument(parser)
    device_argument(parser)
    search_arguments(parser)
    weight_arguments(parser)


def search_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the search for the quantization with the best accuracy."""
    parser.add_argument(
        "--fast",
        action="store_true",
        help="use the smallest and the largest value as each range, without a search",
    )
    parser.add_argument(
        "--seconds", type=number(0), default=60.0, metavar="S",
        help="try no further change after this time (default: 60)",
    )  # fmt: skip
    parser.add_argument(
        "--only-weights", action="append", default=[], metavar="NODE",
        help="quantize only the weights of this node, or of all nodes of a module; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--target-db", type=number(-1000, 1000), metavar="DB",
        help="keep layers float, those with few multiply-adds first, until every output has this SNR",
    )  # fmt: skip
    parser.add_argument(
        "--target-agreement", type=percent, metavar="PERCENT",
        help="keep layers float until this share of rows (99%%) has its largest element at the same index as"
        " in the float model",
    )  # fmt: skip
    parser.add_argument(
        "--target", metavar="SCRIPT",
        help="keep layers float until this program accepts the model: it gets a model's path, and prints"
        " a number or exits with 0",
    )  # fmt: skip
    parser.add_argument(
        "--least", type=number(-1e30, 1e30), metavar="X",
        help="the minimum number that SCRIPT must print (default: 99.5 %% of that for the float model)",
    )  # fmt: skip


def percent(text: str) -> float:
    """Convert a percentage to a share from 0 to 1 (an argparse type)."""
    return number(0, 100)(text.removesuffix("%").strip()) / 100


def weight_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of weight-only quantization."""
    parser.add_argument(
        "--weights-only",
        action="store_true",
        help="quantize the weights to --bits, and keep activations float; needs no pictures",
    )
    parser.add_argument(
        "--bits",
        type=int,
        choices=[4, 8],
        default=8,
        help="bits for --weights-only: 8, with a scale for each channel; or 4, for each block (default: 8)",
    )
    parser.add_argument(
        "--block",
        type=int,
        choices=[16, 32, 64, 128],
        default=32,
        help="number of 4-bit weights that share a scale (default: 32)",
    )


def run(options: argparse.Namespace) -> int:
    from vkq.cli import quantize_tflite
    from vkq.onnx.quantize import stored_bytes
    from vkq.tflite.file import is_tflite

    if is_tflite(options.model):
        return quantize_tflite.run(options)
    model = read(options.model)
    if done := [node for node in model.nodes if "QuantizeLinear" in node.op or node.op.endswith("Integer")]:
        raise ArgumentError(f"{options.model} is quantized already ({done[0]}); give the float model")
    suffix = f".w{options.bits}.onnx" if options.weights_only else ".int8.onnx"
    target = options.output or output_file(str(Path(options.model).with_suffix(suffix)))
    samples = GivenSamples(model, options.calibrate, options) if options.calibrate else None
    if samples and samples.told():
        print(samples.told())
    reached = True
    if options.weights_only:
        lines = weights_only(options, target, samples)
    else:
        lines, reached = quantize_activations(options, target, samples)
    sizes = [stored_bytes(file) for file in (options.model, target)]
    print(folded(f"written {target}: {sizes[1]} bytes (float: {sizes[0]})", 2))
    for line in lines:
        print(folded(line, 4))
    return 0 if reached else 1


def quantize_activations(
    options: argparse.Namespace, target: Path, samples: GivenSamples | None
) -> tuple[list[str], bool]:
    """Quantize weights and activations. Return (lines that describe the agreement with the float model,
    whether all targets were reached)."""
    from vkq.accuracy import search
    from vkq.accuracy.goal import script
    from vkq.onnx.quantize import quantize

    if samples is None:
        raise ArgumentError(
            "samples are needed to find the ranges of activations: name a folder with -c, or use"
            " --weights-only, which needs none"
        )
    judge = script(options.target) if options.target else None
    _check_targets(options)
    with Device(options.device) as device:
        if options.fast:
            quantize(
                options.model, target, samples("ranges"), options.activations, not options.per_tensor,
                options.exclude,
            )  # fmt: skip
            return measured(options, target, samples, device), True
        with status_line() as show:
            report = search.quantize(
                options.model, target, lambda: samples("samples"), seconds=options.seconds,
                activations=options.activations, per_channel=not options.per_tensor, exclude=options.exclude,
                only_weights=options.only_weights, target_db=options.target_db,
                target_agreement=options.target_agreement, target_judge=judge, least=options.least,
                progress=show,
            )  # fmt: skip
        lines = [*str(report).splitlines()]
        lines += measured(options, target, samples, device, search.held_out(len(samples)))
        if report.before:
            feed = next(samples("timing"))
            now, whole = (median_ms(model, device, feed) for model in (target, report.before))
            lines.append(f"a run takes {now:.2f} ms there, {whole:.2f} ms all in int8")
    return lines, report.reached is not False


def _check_targets(options: argparse.Namespace) -> None:
    """Raise ArgumentError if --least is given without --target, or a target together with --fast."""
    if options.least is not None and options.target is None:
        raise ArgumentError("--least is the number that a script must print; name the script with --target")
    targets = options.target_db, options.target_agreement, options.target
    if options.fast and any(target is not None for target in targets):
        raise ArgumentError("--fast measures no target; leave one of them out")


def median_ms(model: Path | bytes, device: Device, feed: dict[str, Array]) -> float:
    """Run the model once, then seven times. Return the median time of the seven runs in milliseconds."""
    from vkq.onnx import InferenceSession

    session = InferenceSession(model, device, "onnxruntime")
    session.run(None, feed)
    times = []
    for _ in range(7):
        start = time.perf_counter()
        session.run(None, feed)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def weights_only(options: argparse.Namespace, target: Path, samples: GivenSamples | None) -> list[str]:
    """Quantize only the weights. Return lines that describe the result."""
    from vkq.accuracy import quantize_weights

    rows = quantize_weights(options.model, target, options.bits, options.block, options.exclude)
    done = [row for row in rows if not row.why]
    kinds = Counter(
        f"int{row.bits} in blocks of {row.block}" if row.block else "int8 by channel" for row in done
    )
    lines = [f"{counted(count, 'weight')}: {kind}" for kind, count in kinds.items()]
    if done:
        worst = min(done, key=lambda row: row.snr_db)
        lines.append(
            f"least exact: {worst.op} {worst.node}, {worst.snr_db:.1f} dB signal to noise in its weight"
        )
    lines += [f"stays float: {row.op} {row.node}: {row.why}" for row in rows if row.why]
    if samples:
        with Device(options.device) as device:
            lines += measured(options, target, samples, device)
    return lines


def measured(
    options: argparse.Namespace, target: Path, samples: GivenSamples, device: Device, which: slice = EVERY
) -> list[str]:
    """Return lines that compare the outputs of the quantized model *target* on a device with those of the
    float model. *which*: the slice of the samples to use."""
    from vkq.accuracy import Agreement
    from vkq.onnx import InferenceSession
    from vkq.onnx.cpu import cpu_session

    session = InferenceSession(target, device, "onnxruntime")  # warns if nodes must run in ONNX Runtime
    real = cpu_session(options.model, "quantizing")
    found = Agreement([value.name for value in session.get_outputs()])
    for feed in samples("measuring", which):
        found.add(real.run(found.names, feed), session.run(found.names, feed))
    count = len(range(len(samples))[which])
    unseen = "" if which == EVERY else " not used to find ranges" * (count < len(samples))
    lines = [f"against the float model on {counted(count, 'sample')}{unseen}, on {device.name}:"]
    return lines + [f"  {row}" for row in found.rows()]
