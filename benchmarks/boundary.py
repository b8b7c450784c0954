"""Measure copies between host and device in vkq and in PyTorch, and calls of layers with NumPy arrays as
inputs and results.

    python benchmarks/boundary.py [--device NAME] [--json FILE] [--mib 256] [--copies]

Each number is the median of several runs after one warm-up run. The results of layers are compared once
with the reference; `--no-verify` skips this comparison, which is slow for the large layers. PyTorch is
measured in the same run if it is installed and finds CUDA."""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import vkq
from vkq import reference

RNG = np.random.default_rng(0)


def median_ms(run: Callable[[], Any], least: int = 5, seconds: float = 2.0) -> float:
    run()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < least or (time.perf_counter() - begin < seconds and len(times) < 200):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def copies(device: vkq.Device, size: int) -> dict[str, float]:
    """Return the rates in GB/s at which float32 arrays are copied to and from the device: from pageable host
    memory, and from pinned memory (`vkq.empty_pinned`)."""
    data = RNG.standard_normal(size // 4).astype(np.float32)
    tensor, out = vkq.Tensor.from_numpy(data, device), np.empty_like(data)
    pinned, back = (vkq.empty_pinned(data.shape, np.float32, device) for _ in range(2))
    pinned[:] = data
    # An upload ends when the device has the data. (`write` returns earlier, once the caller may change the
    # array.)
    work = {
        "upload pageable": lambda: (tensor.write(data), device.synchronize()),
        "download pageable": lambda: tensor.numpy(out=out),
        "download, new array": tensor.numpy,
        "upload pinned": lambda: (tensor.write(pinned), device.synchronize()),
        "download pinned": lambda: tensor.numpy(out=back),
        "memcpy": lambda: np.copyto(out, data),
    }
    found = {name: size / median_ms(run) / 1e6 for name, run in work.items()}
    tensor.write(data)
    assert np.array_equal(tensor.numpy(), data)
    assert np.array_equal(tensor.numpy(out=back), data)
    return found


def torch_copies(size: int) -> dict[str, float]:
    """Return the rates in GB/s at which PyTorch copies float32 arrays to and from the device; return
    nothing without PyTorch or CUDA."""
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    data = torch.from_numpy(RNG.standard_normal(size // 4).astype(np.float32))
    pinned, back = data.pin_memory(), torch.empty_like(data).pin_memory()
    there, out = data.cuda(), torch.empty_like(data)

    def synchronized(run: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: (run(), torch.cuda.synchronize())

    work = {
        "upload pageable": lambda: there.copy_(data),
        "download pageable": lambda: out.copy_(there),
        "download, new array": there.cpu,
        "upload pinned": lambda: there.copy_(pinned, non_blocking=True),
        "download pinned": lambda: back.copy_(there, non_blocking=True),
    }
    return {name: size / median_ms(synchronized(run)) / 1e6 for name, run in work.items()}


def calls(device: vkq.Device, verify: bool) -> dict[str, float]:
    """Return the times in ms of layer calls with int8 NumPy arrays as inputs and results."""
    q, y = vkq.QParams(0.02, -3), vkq.QParams(0.5, 7)

    def conv(x: tuple[int, ...], oc: int, k: int) -> tuple[Any, Any, Any]:
        w = RNG.integers(-127, 128, (oc, x[1], k, k), np.int8)
        layer = vkq.Conv2d(w, 0.001, padding=k // 2, x_qparams=q, y_qparams=y, device=device)
        data = RNG.integers(-128, 128, x, np.int8)
        return layer, data, lambda: reference.conv2d(data, w, x=q, w_scale=0.001, y=y, padding=k // 2)

    def linear(m: int, k: int, n: int) -> tuple[Any, Any, Any]:
        w = RNG.integers(-127, 128, (n, k), np.int8)
        layer = vkq.Linear(w, 0.001, x_qparams=q, y_qparams=y, device=device)
        data = RNG.integers(-128, 128, (m, k), np.int8)
        return layer, data, lambda: reference.linear(data, w, x=q, w_scale=0.001, y=y)

    cases = {
        "conv2d[N=10,IC=128,H=72,W=120,OC=128,KH=3,KW=3]": lambda: conv((10, 128, 72, 120), 128, 3),
        "conv2d[N=1,IC=128,H=216,W=360,OC=128,KH=1,KW=1]": lambda: conv((1, 128, 216, 360), 128, 1),
        "conv2d[N=1,IC=64,H=14,W=14,OC=64,KH=3,KW=3]": lambda: conv((1, 64, 14, 14), 64, 3),
        "linear[M=86400,K=1152,N=128]": lambda: linear(86400, 1152, 128),
        "linear[M=4096,K=4096,N=4096]": lambda: linear(4096, 4096, 4096),
    }
    found: dict[str, float] = {}
    for name, make in cases.items():
        layer, data, want = make()
        got = layer(data)
        if verify:
            assert np.array_equal(got, want()), name
        found[name] = median_ms(lambda layer=layer, data=data: layer(data))  # type: ignore[misc]
    return found


def host_us(device: vkq.Device) -> float:
    """Return the host time in microseconds of one eager operation, without the device's time. The measured
    chain alternates a convolution and an add."""
    q = vkq.QParams(0.05, 3)
    w = RNG.integers(-127, 128, (8, 8, 3, 3), np.int8)
    conv = vkq.Conv2d(w, 0.002, padding=1, x_qparams=q, y_qparams=q, device=device)
    x = vkq.Tensor.from_numpy(RNG.integers(-128, 128, (1, 8, 4, 4), np.int8), device, qparams=q)

    def chain() -> float:
        device.synchronize()
        start, t = time.perf_counter(), x
        for _ in range(50):
            t = vkq.add(conv(t), x, q)
        return (time.perf_counter() - start) / 100 * 1e6

    chain()
    return statistics.median(chain() for _ in range(30))


def made_ms(device: vkq.Device) -> float:
    """Return the time in ms to make a 4096x4096 Linear layer and call it with one row. The time does not
    include the compilation of pipelines."""
    w = RNG.integers(-127, 128, (4096, 4096), np.int8)
    x = RNG.integers(-128, 128, (1, 4096), np.int8)
    q = vkq.QParams(0.02, -3)

    def make() -> Any:
        return vkq.Linear(w, 0.001, x_qparams=q, y_qparams=q, device=device)(x)

    return median_ms(make, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description="what the way between host and device costs")
    parser.add_argument("--device")
    parser.add_argument("--json")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--copies", action="store_true", help="copies alone")
    parser.add_argument("--no-verify", action="store_true")
    options = parser.parse_args()
    with vkq.Device(options.device) as device:
        size = options.mib << 20
        found: dict[str, Any] = {
            "device": device.name, "driver": device.capabilities.driver_version, "host": platform.platform(),
            "date": time.strftime("%Y-%m-%d"), "vkq": vkq.__version__, "mib": options.mib,
            "copies_gb_s": copies(device, size), "torch_gb_s": torch_copies(size),
        }  # fmt: skip
        if not options.copies:
            found["host_us"], found["linear_4096_made_ms"] = host_us(device), made_ms(device)
            found["calls_ms"] = calls(device, not options.no_verify)
    print(json.dumps(found, indent=1))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
