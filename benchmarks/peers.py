"""Time PyTorch in fp16 on a CUDA GPU; print one line of JSON for each network and each batch.

    python benchmarks/peers.py [NAME ...] [--batch 1 8 32] [--compile [MODE]]

NAME is a model of quantized_models.py, or an architecture of torchvision. The weights are random, because
times do not depend on them. Networks run in fp16; networks of images use the memory format channels_last.
Times are milliseconds between CUDA events: `eager`, `graph` (a CUDA graph of the eager network) and, with
--compile, `compiled` (torch.compile, MODE "default" or "max-autotune-no-cudagraphs", in a CUDA graph) and
`setup_s`, the seconds that compilation took. Needs torch, torchvision and transformers. int8_peers.py
measures ncnn and ONNX Runtime."""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import quantized_models
import torch
import torchvision

NETWORKS = ("mobilenet_v2", "resnet50", "efficientnet_b0", "bert", "vit")
RUNS = 30


def network(name: str, batch: int) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """Return a network in fp16 and its inputs, on the GPU."""
    torch.manual_seed(0)
    if name in ("bert", "vit"):
        model, feed, _ = quantized_models.MODELS[name](np.random.default_rng(0))
        model.model.config._attn_implementation = "sdpa"
        inputs = [torch.from_numpy(np.repeat(array, batch, 0)).cuda() for array in feed.values()]
        return model.half().cuda(), [x.half() if x.is_floating_point() else x for x in inputs]
    made: torch.nn.Module = getattr(torchvision.models, name)(weights=None)
    x = torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.float16)
    channels_last = {"memory_format": torch.channels_last}
    return made.eval().half().cuda().to(**channels_last), [x.to(**channels_last)]


def event_ms(run: Callable[[], Any]) -> float:
    """Return the median time of *run* on the device, after half a second of warm-up."""
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


def in_graph(net: Any, inputs: list[torch.Tensor]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            net(*inputs)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        net(*inputs)
    return graph.replay


@torch.no_grad()
def on_gpu(name: str, batch: int, mode: str | None) -> dict[str, float]:
    net, inputs = network(name, batch)
    found = {"eager": event_ms(lambda: net(*inputs)), "graph": event_ms(in_graph(net, inputs))}
    if mode:
        start = time.perf_counter()
        replay = in_graph(torch.compile(net, mode=mode, dynamic=False), inputs)
        found |= {"setup_s": time.perf_counter() - start, "compiled": event_ms(replay)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=NETWORKS, metavar="NAME")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--compile", nargs="?", const="default", metavar="MODE")
    options = parser.parse_args()
    for name in options.names or NETWORKS:
        for batch in options.batch:
            row: dict[str, Any] = {"network": name, "batch": batch}
            row |= on_gpu(name, batch, options.compile)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
