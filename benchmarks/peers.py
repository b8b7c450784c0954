"""Other libraries on the networks of networks.py, each by itself, one JSON line a network and batch.

    python benchmarks/peers.py [NAME ...] [--batch 1 8 32] [--compile]     PyTorch fp16 on a CUDA GPU
    python benchmarks/peers.py [NAME ...] --cpu [--int8 FOLDER]            ncnn and ONNX Runtime on the CPU

NAME is an architecture of torchvision; weights are random, since times do not depend on them. On a GPU: fp16,
channels_last, milliseconds by events: `eager`, `graph` (a CUDA graph of the eager network) and, with
--compile, `compiled` (torch.compile, max-autotune, in a CUDA graph). On the CPU, batch 1, two threads: `ncnn`
(float, converted by pnnx) and, of FOLDER/NAME.qdq_s8.onnx, `onnxruntime` (int8): the least of 30 runs. Needs
torch and torchvision, and ncnn, pnnx and onnxruntime with --cpu.
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
import torch
import torchvision

NETWORKS = ("mobilenet_v2", "resnet50", "efficientnet_b0", "mobilenet_v3_small", "squeezenet1_1", "resnet18")
RUNS, THREADS = 30, 2


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


def least_ms(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


def ncnn_ms(name: str) -> float:
    import ncnn
    import pnnx

    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # pnnx writes beside its input
        try:
            pnnx.export(network(name), "net.pt", torch.zeros(1, 3, 224, 224))
        finally:
            os.chdir(before)
        net = ncnn.Net()
        net.opt.num_threads = THREADS
        net.load_param(f"{folder}/net.ncnn.param")
        net.load_model(f"{folder}/net.ncnn.bin")
    x = ncnn.Mat(np.random.default_rng(0).standard_normal((3, 224, 224)).astype(np.float32))

    def run() -> None:
        extractor = net.create_extractor()
        extractor.input("in0", x)
        extractor.extract("out0")

    return least_ms(run)


def onnxruntime_ms(model: Path) -> float:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    return least_ms(lambda: session.run(None, {session.get_inputs()[0].name: x}))


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
                row["ncnn"] = ncnn_ms(name)
                if options.int8:
                    row["onnxruntime"] = onnxruntime_ms(options.int8 / f"{name}.qdq_s8.onnx")
            else:
                row |= on_gpu(name, batch, options.compile)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
