"""Time PyTorch in fp16 on a CUDA GPU; print one line of JSON for each network of networks.py and each batch.

    python benchmarks/peers.py [NAME ...] [--batch 1 8 32] [--compile]

NAME is an architecture of torchvision. The weights are random, because times do not depend on them. The
networks run in fp16 and channels_last. Times are milliseconds between CUDA events: `eager`, `graph` (a CUDA
graph of the eager network) and, with --compile, `compiled` (torch.compile with max-autotune, in a CUDA
graph). Needs torch and torchvision. int8_peers.py measures ncnn and ONNX Runtime."""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torchvision

NETWORKS = ("mobilenet_v2", "resnet50", "efficientnet_b0", "mobilenet_v3_small", "squeezenet1_1", "resnet18")
RUNS = 30


def network(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    made: torch.nn.Module = getattr(torchvision.models, name)(weights=None)
    return made.eval()


def event_ms(run: Callable[[], Any]) -> float:
    """Return the median of the device's times after half a second of warm-up."""
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=NETWORKS, metavar="NAME")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    for name in options.names or NETWORKS:
        for batch in options.batch:
            row: dict[str, Any] = {"network": name, "batch": batch}
            row |= on_gpu(name, batch, options.compile)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
