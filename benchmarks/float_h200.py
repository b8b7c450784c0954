"""Measure weight-only layers (q8csw) and PyTorch's layers on one GPU: float32 tensors with float32 and with
float16 arithmetic, and float16 tensors. Each result is first compared with float64, within the error bound
of the layer. Then the layer is timed: vkq by device timestamps, PyTorch in a CUDA graph over rotating data.
--tiles also times each tile by name. Usage: float_h200.py [--json FILE] [--tiles]"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

import vkq
from vkq.kernels import floats, half, half_configs, half_tiles
from vkq.layout.extent import Spec
from vkq.problem.names import parse
from vkq.shader.catalog import catalog

CASES = [f"linear[M={m},K=4096,N=4096]" for m in (1, 2, 4, 8, 16, 32, 64, 128, 512, 4096)] + [
    "conv2d[N=10,IC=128,H=72,W=120,OC=128,KH=3,KW=3,padding=1]",
    "conv2d[N=1,IC=64,H=56,W=56,OC=64,KH=3,KW=3,padding=1]",
    "conv2d[N=1,IC=256,H=56,W=56,OC=64,KH=1,KW=1]",
    "conv2d[N=1,IC=32,H=112,W=112,OC=32,KH=3,KW=3,padding=1,groups=32]",
]
COPIES = 4  # number of copies of a weight; together they are larger than the last-level cache
TENSORS = "float16 tensors"  # float16 inputs and outputs, with compute="float16"
ROUNDINGS = {"float32": 0.0, "float16": 2.0**-10, TENSORS: 1.5 * 2.0**-10}


def gpu_us(device: vkq.Device, layers: list[Any], x: np.ndarray, sets: int, passes: int) -> float:
    """Return the median microseconds of one pass; passes rotate over inputs and over copies of the layer."""
    xs = [vkq.Tensor.from_numpy(x, device) for _ in range(sets)]
    with device.record(marks=2) as recording:
        recording.mark()
        for i in range(passes):
            layers[i % len(layers)](xs[i % sets])
            recording.barrier()
        recording.mark()
    found, end = [], time.time() + 0.1
    while time.time() < end:  # keep the GPU busy until its clock is high
        recording.run()
    for _ in range(12):
        recording.run()
        found.append(recording.mark_times_us()[0] / passes)
    return statistics.median(found[2:])


def verified(layer: Any, p: Any, x: np.ndarray, w: np.ndarray, scale: float, compute: str) -> str:
    """Return the largest error among sampled outputs, as a share of the error bound."""
    rng, got = np.random.default_rng(3), layer(x)
    worst = 0.0
    for _ in range(300):
        place = tuple(int(rng.integers(size)) for size in got.shape)
        if p.name.startswith("linear"):
            terms = x[place[:-1]].astype(np.float64), w[place[-1]].astype(np.float64)
        else:
            n, c, oh, ow = place
            top, left, bottom, right = p.padding
            padded = np.pad(x[n], ((0, 0), (top, bottom), (left, right)))
            icg, first = p.ic // p.groups, c // (p.oc // p.groups) * (p.ic // p.groups)
            patch = padded[first : first + icg, oh * p.stride[0] :, ow * p.stride[1] :][:, : p.kh, : p.kw]
            terms = patch.astype(np.float64), w[c].astype(np.float64)
        want, size = (terms[0] * terms[1]).sum() * scale, np.abs(terms[0] * terms[1]).sum() * scale
        bound = ((p.gemm_k + 4) * 2.0**-23 + ROUNDINGS[compute]) * size + 1e-30
        worst = max(worst, abs(float(got[place]) - want) / bound)
    return f"{worst:.3f} of the bound" + ("" if worst <= 1 else " MISMATCH")


def torch_us(p: Any, dtype: Any) -> float:
    """Return the median microseconds of PyTorch's layer for the problem p, in the faster of two memory
    formats."""
    import torch

    torch.backends.cudnn.benchmark = True
    best = float("inf")
    formats = (torch.contiguous_format, torch.channels_last) if p.name.startswith("conv") else (None,)
    for memory in formats:
        sets = 8
        xs = [torch.randn(p.x_shape, device="cuda", dtype=dtype) for _ in range(sets)]
        ws = [torch.randn(p.weight_shape, device="cuda", dtype=dtype) for _ in range(sets)]
        if memory is not None:
            xs, ws = ([t.to(memory_format=memory) for t in ts] for ts in (xs, ws))

        def call(i: int, xs: Any = xs, ws: Any = ws) -> Any:
            if p.name.startswith("linear"):
                return torch.nn.functional.linear(xs[i % 8], ws[i % 8])
            return torch.nn.functional.conv2d(
                xs[i % 8], ws[i % 8], None, p.stride, p.padding[:2], p.dilation, p.groups
            )

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for i in range(3):
                call(i)
        side.synchronize()
        graph, calls = torch.cuda.CUDAGraph(), 16
        with torch.cuda.graph(graph):
            for i in range(calls):
                call(i)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        found = []
        for _ in range(12):
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) * 1e3 / calls)
        best = min(best, statistics.median(found[2:]))
    return best


def layers(device: vkq.Device, p: Any, w: np.ndarray, scale: float, compute: str, tiles: bool) -> Any:
    """Yield (name, layer) for the kernel that "auto" chooses and, with *tiles*, for every tile."""
    linear = p.name.startswith("linear")
    options = {} if linear else {n: getattr(p, n) for n in ("stride", "padding", "dilation", "groups")}
    kind = vkq.Linear if linear else vkq.Conv2d

    def made(**more: Any) -> Any:
        return kind(w, scale, compute=compute, device=device, **options, **more)

    yield "auto", made()
    if not tiles:
        return
    if compute == "float16":
        yield from half_layers(made, p)
        return
    chosen = floats.staged_tile
    every = catalog().shaders[floats.GEMM_STAGED if linear else floats.CONV_STAGED].axes["tile"]
    for tile in every if getattr(p, "groups", 1) == 1 and p.gemm_m > 16 else ():
        layer = made(method="staged" if linear else "implicit")
        floats.staged_tile = lambda *_, t=tile: t
        yield tile, layer
        floats.staged_tile = chosen
    if linear:
        if p.gemm_m <= 128:
            yield "gemv", made(method="gemv")
    else:
        yield "direct", made(method="direct")


def half_layers(made: Any, p: Any) -> Any:
    """Yield (name, layer) for every tile of the float16 kernels on matrix units."""
    if p.name.startswith("linear"):
        for tile in (
            catalog().shaders[half_configs.FLOAT16.product].axes["tile"]
            if p.gemm_m >= half.LEAST_ROWS["f16"]
            else ()
        ):
            for parts in (1, 2, 4) if p.gemm_m <= 512 else (1,):
                layer = made()
                layer._gemm.matrices.tile, layer._gemm.matrices.parts = tile, parts
                yield f"{tile} in {parts}", layer
    elif p.groups == 1:
        for shader in (half_tiles.TILES, half_configs.GATHERED["f16"].product):
            for tile in catalog().shaders[shader].axes["tile"]:
                layer = made(method="matrix")
                kernel = half_tiles.HalfConvolution(layer._convolution.gemm, layer._convolution.weight,
                    layer._convolution.zero_points, 1)  # fmt: skip
                kernel.tile = kernel.gathered.tile = tile
                layer._kernel = lambda m, q, k=kernel: k
                yield tile, layer


def guarded(found: Any) -> Any:
    """Yield the layers, and stop at the first layer that cannot be made."""
    try:
        yield from found
    except Exception:
        traceback.print_exc(file=sys.stdout)


def timed(
    device: vkq.Device, layer: Any, p: Any, x: np.ndarray, w: np.ndarray, compute: str, what: str
) -> dict[str, Any]:
    """Verify a layer's results, then time it. A Linear with few rows rotates over copies of its weight."""
    said = verified(layer, p, x, w, 0.01, compute)
    passes = max(2, min(64, int(200 / max(p.macs / 1e9, 0.1))))
    copies = COPIES if what == "auto" and p.name.startswith("linear") and p.gemm_m <= 64 else 1
    another = compute.split()[0]
    same = [layer, *(next(layers(device, p, w, 0.01, another, False))[1] for _ in range(1, copies))]
    us = gpu_us(device, same, x, 4, passes)
    return {"us": us, "said": said, "shader": layer.plan(Spec(x.shape, x.dtype.name)).variants}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiles", action="store_true")
    arguments = parser.parse_args()
    device, rng, rows, start = vkq.Device(), np.random.default_rng(1), [], time.time()
    print("device", device.name, flush=True)
    made: dict[Any, Any] = {}
    for name in CASES:
        p = parse(name)
        x = rng.standard_normal(p.x_shape, np.float32)
        if p.weight_shape not in made:
            made[p.weight_shape] = rng.integers(-127, 128, p.weight_shape, dtype=np.int8)
        w = made[p.weight_shape]
        row: dict[str, Any] = {"case": name}
        for compute in ("float32", "float16", TENSORS):
            given, tiles = x.astype(np.float16) if compute == TENSORS else x, arguments.tiles
            for what, layer in guarded(layers(device, p, w, 0.01, compute.split()[0], tiles)):
                try:
                    found = timed(device, layer, p, given, w, compute, what)
                    row[f"{compute} {what}"] = found
                    told = f"{found['us']:.1f} us, {found['said']}, {found['shader']}"
                    print(f"{name} {compute} {what}: {told} t={time.time() - start:.0f}", flush=True)
                except Exception as error:  # continue with the next variant
                    print(f"{name} {compute} {what}: {type(error).__name__} {error}", flush=True)
                    traceback.print_exc(file=sys.stdout)
        try:
            import torch

            row["torch fp16"], row["torch fp32"] = torch_us(p, torch.float16), torch_us(p, torch.float32)
            print(f"{name} torch fp16 {row['torch fp16']:.1f} fp32 {row['torch fp32']:.1f}", flush=True)
        except ImportError:
            pass
        rows.append(row)
        if arguments.json:
            facts = {"device": device.name, "driver": device.capabilities.driver, "rows": rows}
            arguments.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
