"""``vkq quantize`` for a .tflite file, which the package ai-edge-quantizer quantizes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vkq.cli.common import counted, folded, output_file
from vkq.cli.samples import GivenSamples
from vkq.errors import ArgumentError
from vkq.runtime.device import Device

# The options of ``vkq quantize`` that only ONNX models allow, with their defaults.
OWN: dict[str, Any] = {
    "exclude": [], "activations": "int8", "per_tensor": False, "only_weights": [], "target_db": None,
    "target_agreement": None, "target": None, "least": None, "fast": False, "seconds": 60.0, "block": 32,
}  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Quantize the model, and print how well its outputs agree with those of the float model."""
    from vkq.tflite.quantizing import quantize
    from vkq.tflite.reader import read

    if given := [name for name, value in OWN.items() if getattr(options, name) != value]:
        raise ArgumentError(
            f"--{given[0].replace('_', '-')} is for ONNX models; leave it out. .tflite files are"
            " quantized by ai-edge-quantizer, which uses the least and the largest value of each activation"
            " as its range"
        )
    suffix = f".w{options.bits}.tflite" if options.weights_only else ".int8.tflite"
    target = options.output or output_file(str(Path(options.model).with_suffix(suffix)))
    samples = GivenSamples(read(options.model), options.calibrate, options) if options.calibrate else None
    if samples is None and not options.weights_only:
        raise ArgumentError(
            "samples are needed to find the ranges of activations: name a folder with -c, or use"
            " --weights-only, which needs none"
        )
    if samples and samples.told():
        print(samples.told())
    quantize(
        options.model, target, samples("ranges") if samples else None, options.weights_only,
        options.bits if options.weights_only else 8,
    )  # fmt: skip
    sizes = [Path(file).stat().st_size for file in (options.model, target)]
    print(folded(f"written {target}: {sizes[1]} bytes (float: {sizes[0]})", 2))
    for line in measured(options, target, samples) if samples else []:
        print(folded(line, 4))
    return 0


def measured(options: argparse.Namespace, target: Path, samples: GivenSamples) -> list[str]:
    """Return lines that compare the outputs of the quantized model *target* on a device with those of the
    float model in LiteRT."""
    from vkq.accuracy import Agreement
    from vkq.tflite import InferenceSession
    from vkq.tflite.litert import Litert

    real = Litert(options.model, "quantizing")
    with Device(options.device) as device:
        session = InferenceSession(target, device, "litert")  # warns if nodes must run in LiteRT
        inputs = [value.name for value in session.get_inputs()]
        found = Agreement([value.name for value in session.get_outputs()])
        for feed in samples("measuring"):
            got = session.run(None, dict(zip(inputs, feed.values(), strict=True)))
            found.add(real.run(None, feed), got)
        first = f"against the float model on {counted(len(samples), 'sample')}, on {device.name}:"
    return [first] + [f"  {row}" for row in found.rows()]
