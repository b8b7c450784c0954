"""Measure the images per second of a model in several processes, each on its own device (VKQ_DEVICE by
rank).

    python benchmarks/workers.py MODEL.onnx ... [--workers 1 2] [--batch 8 32] [--seconds 5] [--json FILE]

A session is pickled once. Every worker is a spawned process that unpickles it, as with Dask and Ray. Each
worker first checks that its results have the same bytes as this process's, and waits for the others. Then
it runs batches through `InferenceSession.map` for the given seconds, with float32 NumPy arrays as inputs
and results; copies overlap with the computation. The printed rate is the sum of all workers' rates. If
there are fewer devices than workers, workers share devices, and the result names the devices.
"""

import argparse
import json
import multiprocessing
import os
import pickle
import time
from itertools import cycle, product, takewhile
from typing import Any

import numpy as np
from networks import at_batch

import vkq
import vkq.onnx

DIFFERENT = 64  # number of different images; batches repeat them in turn


def own_devices() -> list[vkq.Capabilities]:
    """Return the GPUs of this machine, or its CPU drivers if it has no GPU."""
    able = [c for c in vkq.devices() if c.refusal() is None]
    return [c for c in able if c.device_type != "cpu"] or able


def images(shape: list[Any]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((DIFFERENT, *shape[1:])).astype(np.float32)


def work(
    pickled: bytes, device: int, batch: int, seconds: float, want: np.ndarray, ready: Any, results: Any
) -> None:
    """Run one worker, and put (device, equal, images, seconds) into *results*."""
    os.environ["VKQ_DEVICE"] = str(device)
    session = pickle.loads(pickled)
    given = images(session.get_inputs()[0].shape)
    for _ in range(2):  # the first batches also prepare the model and warm up the device
        equal = all(np.array_equal(a, b) for a, b in zip(session.map(given, batch), want, strict=True))
    ready.wait()
    start = time.perf_counter()
    stream = takewhile(lambda _: time.perf_counter() - start < seconds, cycle(given))
    count = sum(1 for _ in session.map(stream, batch))
    results.put((device, equal, count, time.perf_counter() - start))


def measured(path: str, workers: int, batch: int, seconds: float) -> dict[str, Any]:
    """Measure one model with *workers* processes and return a row of the result."""
    found = own_devices()
    session = vkq.onnx.InferenceSession(at_batch(path, batch))
    want = np.stack(list(session.map(images(session.get_inputs()[0].shape), batch)))
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(workers), context.Queue()
    processes = [
        context.Process(
            target=work,
            args=(
                pickle.dumps(session),
                found[rank % len(found)].index,
                batch,
                seconds,
                want,
                ready,
                results,
            ),
        )
        for rank in range(workers)
    ]
    for process in processes:
        process.start()
    said = [results.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    return {
        "model": os.path.basename(path),
        "workers": workers,
        "devices": sorted({device for device, *_ in said}),
        "batch": batch,
        "equal": all(equal for _, equal, *_ in said),
        "images_per_s": sum(count / took for *_, count, took in said),
        "each": [count / took for *_, count, took in sorted(said)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="MODEL.onnx")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    for path, batch in product(options.models, options.batch):
        first = None
        for workers in options.workers:
            row = measured(path, workers, batch, options.seconds)
            first = first or row
            rows.append(row | {"times_first": row["images_per_s"] / first["images_per_s"]})
            print(json.dumps(rows[-1]), flush=True)
    if options.json:
        devices = [f"{c.index}: {c.name}, {c.driver}" for c in own_devices()]
        with open(options.json, "w") as file:
            json.dump({"devices": devices, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
