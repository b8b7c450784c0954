"""Compare random models of one operator in LiteRT and vkq: ``python -m tests.tflite.against [COUNT]
[OPERATOR...]``. It prints what differs, what either library refuses, and how many models were equal."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np

from vkq.errors import VkqError
from vkq.tflite import InferenceSession
from vkq.tflite.litert import Litert

from .all import OPERATORS, operator_case


def main(count: int, names: list[str], device: str) -> int:
    wrong = 0
    for op in names or OPERATORS:
        found: Counter[str] = Counter()
        for seed in range(count):
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


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, sys.argv[2:], "llvmpipe"))
