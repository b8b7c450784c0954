"""Compare random cases on a device with ONNX Runtime, byte for byte: ``python -m tests.referees.corpus
--count 2000 --device 0``.

QLinearConv has one weight zero point; QLinearMatMul has a zero point for each channel, and no bias. The
cases have the dtypes that both operators accept. If this CPU's ONNX Runtime saturates int8 weights in
int16, the weights have 7 bits (`ort.exact_int8_weights`).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
import time
from collections.abc import Iterator

import numpy as np

from vkq.check.cases import SCHEMES
from vkq.check.catalogue import Check, random_checks
from vkq.check.compare import layer, usable_paths
from vkq.check.data import Data
from vkq.problem.linear import LinearProblem
from vkq.runtime.device import Device

from . import ort

EVERYWHERE = ("gemv", "tiled", "im2col", "direct")  # methods that can run every problem
TYPES = (("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8"))


def corpus(count: int, seed: int) -> Iterator[tuple[Check, Data]]:
    """Yield cases for which ONNX Runtime has an operator, with their data."""
    layers = (check for check in random_checks(2 * count, seed) if check.op != "conv_transpose2d")
    for number, check in enumerate(itertools.islice(layers, count)):
        linear = isinstance(check.problem, LinearProblem)
        x, w = TYPES[number % 3]
        zero_points = "none" if check.wz == "none" else "channel" if linear else "tensor"
        method = check.method if check.method in EVERYWHERE else "auto"
        check = dataclasses.replace(check, x=x, w=w, wz=zero_points, method=method, scheme=SCHEMES[0])
        check = dataclasses.replace(check, act="none", float_in=False)
        data = check.data(ort.exact_int8_weights() if w == "int8" else None)
        yield check, dataclasses.replace(data, bias=np.zeros_like(data.bias)) if linear else data


def compare(device: Device, count: int, seed: int) -> list[str]:
    """Return the names and paths of the cases in which a byte differs."""
    paths, _ = usable_paths(device)
    wrong = []
    for check, data in corpus(count, seed):
        want = ort.qlinear(data)
        results = [(path, layer(device, check, data, path)(data.x)) for path in paths]
        wrong += [
            f"{check.name} path={path}"
            for path, y in results
            if y.dtype != want.dtype or not np.array_equal(y, want)
        ]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="an index, or a part of a name")
    options = parser.parse_args()
    start = time.perf_counter()
    with Device(options.device) as device:
        wrong = compare(device, options.count, options.seed)
        paths, _ = usable_paths(device)
        print(*wrong, sep="\n", end="\n" if wrong else "")
        took = time.perf_counter() - start
        print(
            f"{device.name}: {options.count} cases x {', '.join(paths)}: {len(wrong)} differ from ONNX"
            f" Runtime, {took:.0f} s"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
