"""Other libraries on the networks of networks.py, each by itself, one JSON line a network and batch.

    python benchmarks/peers.py [NAME ...] [--batch 1 8 32] [--compile]     PyTorch fp16 on a CUDA GPU
    python benchmarks/peers.py [NAME ...] --cpu [--int8 FOLDER]            ncnn, and int8 models, on the CPU

NAME is an architecture of torchvision; weights are random, since times do not depend on them. On a GPU: fp16,
channels_last, milliseconds by events: `eager`, `graph` (a CUDA graph of the eager network) and, with
--compile, `compiled` (torch.compile, max-autotune, in a CUDA graph).

On the CPU, batch 1, in turn: `ncnn_vulkan`, ncnn on the first Vulkan device (a software driver where there is
no GPU: there it is what Vulkan compute can be compared with), its fp16 options off; and `ncnn_cpu`, its own
CPU kernels on one thread, which use vector instructions that no Vulkan driver does. Both are float, converted
by pnnx; `error` is how far they are from PyTorch, as a part of the largest output: on lavapipe ncnn's results
are noise where fp16 is on. Of FOLDER/NAME.qdq_s8.onnx, int8: `vkq` on the first Vulkan device, and
`onnxruntime` on one thread. Of each the least of the runs: `ms` of wall time, and `cpu_ms` of all threads'
process time, which other work on the machine changes little. Needs torch and torchvision, and with --cpu
ncnn, pnnx, onnxruntime and vkq.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torchvision

Array = npt.NDArray[np.float32]
NETWORKS = ("mobilenet_v2", "resnet50", "efficientnet_b0", "mobilenet_v3_small", "squeezenet1_1", "resnet18")
RUNS = 30


def network(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    made: torch.nn.Module = getattr(torchvision.models, name)(weights=None)
    return made.eval()


def event_ms(run: Callable[[], Any]) -> float:
    """The median of the device's times, after half a second of warming up."""
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        run()
        torch.cuda.synchronize()
    times = []
    for _ in range(RUNS):
        one, two = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        one.record()
        run()
        two.record()
        two.synchronize()
        times.append(one.elapsed_time(two))
    return statistics.median(times)


def in_graph(net: Any, x: torch.Tensor) -> Callable[[], None]:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            net(x)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        net(x)
    return graph.replay


@torch.no_grad()
def on_gpu(name: str, batch: int, compiled: bool) -> dict[str, float]:
    net = network(name).half().cuda().to(memory_format=torch.channels_last)
    x = torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.float16)
    x = x.to(memory_format=torch.channels_last)
    found = {"eager": event_ms(lambda: net(x)), "graph": event_ms(in_graph(net, x))}
    if compiled:
        fast = torch.compile(net, mode="max-autotune-no-cudagraphs")
        found["compiled"] = event_ms(in_graph(fast, x))
    return found


def pnnx_model(net: torch.nn.Module, x: torch.Tensor, folder: str) -> tuple[str, str]:
    import pnnx

    before = os.getcwd()
    os.chdir(folder)  # pnnx writes beside its input
    try:
        pnnx.export(net, "net.pt", x)
    finally:
        os.chdir(before)
    return f"{folder}/net.ncnn.param", f"{folder}/net.ncnn.bin"


def ncnn_run(param: str, weights: str, x: Array, vulkan: bool) -> Callable[[], Array]:
    import ncnn

    net = ncnn.Net()
    net.opt.num_threads = 1
    net.opt.use_vulkan_compute = vulkan
    for option in ("fp16_packed", "fp16_storage", "fp16_arithmetic") if vulkan else ():
        setattr(net.opt, f"use_{option}", False)
    net.load_param(param)
    net.load_model(weights)
    image = ncnn.Mat(x[0])

    def run() -> Array:
        extractor = net.create_extractor()
        extractor.input("in0", image)
        return np.array(extractor.extract("out0")[1])

    return run


def int8_runs(model: Path, x: Array) -> dict[str, Callable[[], Array]]:
    import onnxruntime

    import vkq.onnx

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    theirs = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    ours = vkq.onnx.InferenceSession(str(model))
    feed = {theirs.get_inputs()[0].name: x}
    return {"vkq": lambda: ours.run(None, feed)[0], "onnxruntime": lambda: theirs.run(None, feed)[0]}


def in_turn(runs: dict[str, Callable[[], Array]]) -> dict[str, dict[str, float]]:
    """The least wall and process time of each, in milliseconds."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(RUNS):
        for name, run in runs.items():
            start, cpu = time.perf_counter(), time.process_time()
            run()
            found[name].append((time.perf_counter() - start, time.process_time() - cpu))
    return {
        name: {"ms": 1e3 * min(wall for wall, _ in times), "cpu_ms": 1e3 * min(cpu for _, cpu in times)}
        for name, times in found.items()
    }


@torch.no_grad()
def on_cpu(name: str, int8: Path | None) -> dict[str, dict[str, float]]:
    net = network(name)
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        files = pnnx_model(net, torch.from_numpy(x), folder)
        runs = {kind: ncnn_run(*files, x, kind == "ncnn_vulkan") for kind in ("ncnn_vulkan", "ncnn_cpu")}
    wanted = net(torch.from_numpy(x)).numpy()[0]
    errors = {kind: float(np.abs(run() - wanted).max() / np.abs(wanted).max()) for kind, run in runs.items()}
    if int8:
        runs |= int8_runs(int8 / f"{name}.qdq_s8.onnx", x)
    found = in_turn(runs)
    return {
        kind: times | ({"error": errors[kind]} if kind in errors else {}) for kind, times in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=NETWORKS, metavar="NAME")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--int8", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    for name in options.names or NETWORKS:
        for batch in [1] if options.cpu else options.batch:
            row: dict[str, Any] = {"network": name, "batch": batch}
            if options.cpu:
                row |= on_cpu(name, options.int8)
            else:
                row |= on_gpu(name, batch, options.compile)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
