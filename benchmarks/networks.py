"""Time whole ONNX models, and compare their outputs with ONNX Runtime's.

    python benchmarks/networks.py MODEL.onnx ... [--batch 1 8 32] [--device NAME] [--json FILE] [--says F=N]

The first axis of all inputs is the batch, whose size may vary. float32 inputs are normally distributed,
integer inputs (token ids, masks) are zeros and ones. A row gives the number of elements of the first output
that are equal to ONNX Runtime's (on the CPU, with int8 kernels), and these times: "gpu ms", on the device
between two timestamps around the network; "replay ms", the wall time of one run of the recorded network; "run
ms", the wall time of `InferenceSession.run` with NumPy arrays as inputs and results; loading the model; and
the first run. All times but the last two are medians after 0.8 s of warm-up."""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime

import vkq
import vkq.onnx
from vkq.graph.executable import Executable

WARMING_S = 0.8
RUNS = 100


def milliseconds(run: Callable[[], Any]) -> float:
    """Return the time of one call in milliseconds."""
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def at_batch(path: str, batch: int) -> bytes:
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    del model.graph.value_info[:]  # the shapes in these entries have the old batch size
    return bytes(model.SerializeToString())


def expected(model: bytes, feed: dict[str, Any]) -> Any:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)[0]


def fed(session: vkq.onnx.InferenceSession, random: np.random.Generator) -> dict[str, Any]:
    """Return random inputs."""
    feed: dict[str, Any] = {}
    for given in session.get_inputs():
        shape, kind = [int(n) for n in given.shape], given.type.removeprefix("tensor(").removesuffix(")")
        real = kind == "float"
        feed[given.name] = (
            random.standard_normal(shape).astype(np.float32) if real else random.integers(0, 2, shape, kind)
        )
    return feed


def replay(session: vkq.onnx.InferenceSession, feed: dict[str, Any]) -> tuple[float, float | None]:
    """Return (wall milliseconds, device milliseconds) of the recorded network with inputs on the device. The
    second number is None without device timestamps."""
    graph = session.lowered({name: array.shape for name, array in feed.items()})
    network = Executable(graph, session.device, {})
    network.run({name: array.astype(graph.specs[name].dtype) for name, array in feed.items()})
    inputs, outputs = ([x.buffer for x in some.values()] for some in (network.inputs, network.outputs))
    marks = 2 if session.device.capabilities.timestamp_valid_bits else 0
    with session.device.record(marks=marks) as recording:
        if marks:
            recording.mark()
        recording.barrier()
        recording.add(network.plan, inputs, outputs)
        recording.barrier()
        if marks:
            recording.mark()
    warm = time.perf_counter() + WARMING_S
    while time.perf_counter() < warm:
        recording.run()
    wall, gpu = [], []
    for _ in range(RUNS):
        wall.append(milliseconds(recording.run))
        gpu += [us / 1e3 for us in recording.mark_times_us()] if marks else []
    return statistics.median(wall), statistics.median(gpu) if gpu else None


def measured(path: str, batch: int, device: vkq.Device) -> dict[str, Any]:
    model = at_batch(path, batch)
    start = time.perf_counter()
    session = vkq.onnx.InferenceSession(model, device=device)
    load_s = time.perf_counter() - start
    feed = fed(session, np.random.default_rng(batch))
    first_s = milliseconds(lambda: session.run(None, feed)) / 1e3
    run_ms = statistics.median(milliseconds(lambda: session.run(None, feed)) for _ in range(RUNS // 4))
    wall, gpu = replay(session, feed)
    # ONNX Runtime comes last: its threads wait busily for more work, which would slow the copies of a run.
    result, wanted = session.run(None, feed)[0], expected(model, feed)
    return {
        "model": path,
        "batch": batch,
        "equal": f"{int(np.sum(result == wanted))} of {wanted.size}",
        "gpu_ms": gpu,
        "replay_ms": wall,
        "run_ms": run_ms,
        "load_s": load_s,
        "first_s": first_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="MODEL.onnx")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--device")
    parser.add_argument("--json")
    parser.add_argument(
        "--says", nargs="+", default=[], metavar="FIELD=NUMBER",
        help="replace whole numbers of the device's profile (vkq/device/profiles.yaml): expanded_bytes=0",
    )  # fmt: skip
    options = parser.parse_args()
    device = vkq.Device(options.device)
    pairs = (one.split("=") for one in options.says)
    says = {**dict(device.capabilities.choices), **{field: int(number) for field, number in pairs}}
    device.capabilities = dataclasses.replace(device.capabilities, choices=tuple(sorted(says.items())))
    rows = []
    for path in options.models:
        for batch in options.batch:
            rows.append(measured(path, batch, device))
            print(json.dumps(rows[-1]), flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": device.name, "networks": rows}, file, indent=1)


if __name__ == "__main__":
    main()
