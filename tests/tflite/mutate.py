"""Read COUNT randomly damaged files: ``python -m tests.tflite.mutate COUNT``. Each file must be read, or
raise a ModelError."""

from __future__ import annotations

import struct
import sys
from collections import Counter

import numpy as np

EXTREME = (0, 1, 2, 3, 4, 127, 128, 255, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def mutated(data: bytes, seed: int) -> bytes:
    """Return the file with changed bytes, words set to extreme values, and parts removed, doubled or
    moved."""
    rng, out = np.random.default_rng(seed), bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        at = int(rng.integers(0, max(len(out) - 4, 1)))
        kind = int(rng.integers(0, 12))
        if kind < 5:
            out[at] = int(rng.integers(0, 256))
        elif kind < 9:
            word = at // 4 * 4
            struct.pack_into("<I", out, word, int(rng.choice(EXTREME)) if kind < 8 else word)
        elif kind == 9 and rng.integers(0, 4) == 0:
            del out[at:]
            out.extend(bytes(max(8 - len(out), 0)))
        else:
            size = int(rng.integers(1, 40))
            to = int(rng.integers(0, max(len(out) - size, 1)))
            out[to : to + size] = out[at : at + size]
    return bytes(out)


def main(count: int) -> None:
    from vkq.errors import ModelError
    from vkq.graph.executable import refusals
    from vkq.graph.passes import lower
    from vkq.onnx.inputs import trial_shapes
    from vkq.tflite import read

    from .all import OPERATORS, operator_case
    from .convert import FOLDER
    from .networks import NETWORKS

    sources = [operator_case(op, 1)[0] for op in OPERATORS] + [make() for make in NETWORKS.values()]
    sources += [path.read_bytes() for path in FOLDER.glob("*.tflite")]
    found: Counter[str] = Counter()
    for seed in range(count):
        try:
            model = read(mutated(sources[seed % len(sources)], seed))
            refusals(lower(model.at(trial_shapes(model))))
            found["read"] += 1
        except ModelError:
            found["refused"] += 1
    print(dict(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
