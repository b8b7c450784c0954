"""Run the networks of int8_networks.py in vkq and in other libraries. The libraries run in turn in one
process.

    python benchmarks/int8_peers.py [NAME ...] [--json FILE]

`vkq` and `ncnn` run int8 on the first Vulkan device. `ncnn_float` runs the float form of the network on this
device, so its results differ. `ncnn_cpu` and `onnxruntime` run int8 with their own CPU kernels on one
thread. The batch size is 1; inputs and results are NumPy arrays. `ms` is the minimum wall time of the runs.
`cpu_ms` is the minimum process time of all threads, which other work on the machine changes little. `apart`
is the largest difference from vkq's results, divided by vkq's largest result. Needs onnx, onnxruntime and
ncnn 1.0.20260701 or later."""

import argparse
import datetime
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from int8_networks import NETWORKS, write

import vkq
import vkq.onnx
from vkq.bench.ncnn_peer import model_call

Array = npt.NDArray[Any]
Call = Callable[[], Array]
RUNS = 5


def sides(name: str, folder: Path, device: vkq.Device) -> tuple[dict[str, Call], dict[str, str]]:
    """Return two dicts: a function that runs the network for each library, and a description of ncnn's
    kernels."""
    import ncnn
    import onnxruntime

    feed, file = {"x": write(name, folder, float_too=True)}, str(folder / f"{name}.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    theirs = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    ours = vkq.onnx.InferenceSession(file, device)
    int8, ran = model_call(ncnn, file, feed, device)
    real, _ = model_call(ncnn, str(folder / f"{name}.float.onnx"), feed, device)
    return {
        "vkq": lambda: ours.run(None, feed)[0],
        "ncnn": lambda: int8()[0],
        "ncnn_float": lambda: real()[0],
        "ncnn_cpu": on_cpu(ncnn, folder / f"{name}.ncnn", feed["x"]),
        "onnxruntime": lambda: theirs.run(None, feed)[0],
    }, {"ncnn": ran}


def on_cpu(ncnn: Any, stem: Path, x: Array) -> Call:
    """Return a function that runs ncnn's CPU kernels."""
    net = ncnn.Net()
    net.opt.num_threads = 1
    if net.load_param(f"{stem}.param") != 0 or net.load_model(f"{stem}.bin") != 0:
        raise NotImplementedError(f"ncnn refused {stem.name}.param")

    def run() -> Array:
        extractor = net.create_extractor()
        extractor.input(net.input_names()[0], ncnn.Mat(x[0]))
        return np.array(extractor.extract(net.output_names()[0])[1])

    return run


def measured(name: str, device: vkq.Device) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        runs, ran = sides(name, Path(folder), device)
    results = {side: run().reshape(-1) for side, run in runs.items()}
    largest = float(np.abs(results["vkq"]).max())
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in runs}
    for _ in range(RUNS):
        for side, run in runs.items():
            start, cpu = time.perf_counter(), time.process_time()
            run()
            found[side].append((time.perf_counter() - start, time.process_time() - cpu))
    row: dict[str, Any] = {"network": name, "ran": ran}
    for side, times in found.items():
        row[side] = {
            "ms": 1e3 * min(wall for wall, _ in times),
            "cpu_ms": 1e3 * min(cpu for _, cpu in times),
            "apart": float(np.abs(results[side] - results["vkq"]).max()) / largest,
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    device = vkq.default_device()
    import ncnn

    found: dict[str, Any] = {
        "device": device.name,
        "driver": device.capabilities.driver,
        "date": datetime.date.today().isoformat(),
        "command": "python benchmarks/int8_peers.py",
        "ncnn": ncnn.__version__,
        "rows": [],
    }
    for name in options.names or NETWORKS:
        found["rows"].append(measured(name, device))
        print(json.dumps(found["rows"][-1]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
