"""Compare LiteRT and vkq on random models of one operator each: ``python -m tests.tflite.against [COUNT]
[OPERATOR...]``. The command prints the models whose results differ or that a library refuses, and the number
of models with equal results. ``--ties``: all scales are powers of two, so that many results are ties."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from vkq.errors import VkqError
from vkq.tflite import InferenceSession
from vkq.tflite.litert import Litert

from .all import OPERATORS, operator_case
from .writer import Writer


@contextlib.contextmanager
def powers() -> Iterator[None]:
    """Context manager: the scales of models that are written in the block are rounded to powers of two."""
    write = Writer.tensor

    def tensor(
        self: Writer, shape: Any, dtype: str = "int8", scale: Any = None, *more: Any, **named: Any
    ) -> int:
        if scale is not None:
            scale = np.exp2(np.rint(np.log2(np.asarray(scale, np.float64)))).astype(np.float32)
        return write(self, shape, dtype, scale, *more, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "tensor", tensor)
        yield


def compare(seeds: range, names: list[str], device: str) -> int:
    wrong = 0
    for op in names or OPERATORS:
        found: Counter[str] = Counter()
        for seed in seeds:
            data, arrays = operator_case(op, seed)
            try:
                session = InferenceSession(data, device)
                feed = dict(zip([a.name for a in session.model.inputs], arrays, strict=True))
                got = session.run(None, feed)
            except VkqError as error:
                found["refused"] += 1
                if found["refused"] < 3:
                    print(op, seed, "refused:", str(error).replace("\n", " ")[-300:])
                continue
            try:
                want = Litert(data, "this").run(None, feed)
            except VkqError as error:
                found[f"LiteRT: {str(error)[:150]}"] += 1
                continue
            different = sum(int((a != b).sum()) for a, b in zip(got, want, strict=True))
            found["equal" if not different else "different"] += 1
            if different:
                wrong += 1
                apart = max(int(np.abs(a.astype(int) - b).max()) for a, b in zip(got, want, strict=True))
                print(op, seed, got[0].dtype, f"{different} of {want[0].size} differ, by {apart}")
        print(op, dict(found))
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=20)
    parser.add_argument("operators", nargs="*", default=[])
    parser.add_argument("--first", type=int, default=0, help="the first model's number")
    parser.add_argument("--device", default="llvmpipe", help="a part of the device's name")
    parser.add_argument("--ties", action="store_true")
    asked = parser.parse_intermixed_args()
    with powers() if asked.ties else contextlib.nullcontext():
        return compare(range(asked.first, asked.first + asked.count), asked.operators, asked.device)


if __name__ == "__main__":
    sys.exit(main())
