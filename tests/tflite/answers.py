"""LiteRT's results for the tests' models. They are stored in answers.npz, so that the tests need no LiteRT.
``python -m tests.tflite.answers`` makes this file again, and needs the package ai-edge-litert."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vkq.tflite.file import parse
from vkq.tflite.litert import Litert

from .all import OPERATORS, operator_case
from .convert import CONVERTED, FOLDER
from .networks import NETWORKS
from .operators import Case

FILE = Path(__file__).with_name("answers.npz")
TAKEN = "XNNPACK"  # key of the array with the digests of the models that XNNPACK runs
WHOLE = 1 << 10  # maximum elements of an 8-bit result that is stored; of larger results, the digest is stored
SEEDS = 3  # number of models of each operator; the last one is uint8 if possible


def network_case(name: str) -> Case:
    """Return (the bytes of a network's file, arrays for its inputs)."""
    data = NETWORKS[name]() if name in NETWORKS else (FOLDER / f"{name}.tflite").read_bytes()
    return data, inputs_of(data)


def inputs_of(data: bytes) -> list[np.ndarray]:
    """Return random arrays for a model's inputs: 8-bit values of the whole range, floats around 0, and ids
    below 64."""
    file, rng, found = parse(data), np.random.default_rng(7), list[np.ndarray]()
    for tensor in (file.tensors[n] for n in file.inputs):
        if tensor.dtype in ("int8", "uint8"):
            found.append(rng.integers(0, 256, tensor.shape).astype(np.uint8).view(tensor.dtype))
        elif tensor.dtype.startswith("float"):
            found.append(rng.normal(size=tensor.shape).astype(tensor.dtype))
        else:
            found.append(rng.integers(0, 64, tensor.shape).astype(tensor.dtype))
    return found


def cases() -> Iterator[tuple[str, Case]]:
    """Yield (name, case) of all models with stored answers."""
    for op in OPERATORS:
        for seed in range(SEEDS):
            yield f"{op}-{seed}", operator_case(op, seed)
    for name in (*NETWORKS, *CONVERTED):
        yield name, network_case(name)


def digest(case: Case) -> str:
    """Return the digest of a model and its inputs, which is the key of its stored results."""
    parts = [case[0], *(array.tobytes() for array in case[1])]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def answer(case: Case) -> tuple[list[np.ndarray], bool]:
    """Return (LiteRT's results, whether XNNPACK computes any operator of the model)."""
    session = Litert(case[0], "this test")
    names = [session.names[n] for n in session.file.inputs]
    found = session.run(None, dict(zip(names, case[1], strict=True)))
    return found, "DELEGATE" in {row["op_name"] for row in session.interpreter._get_ops_details()}


def short(array: np.ndarray) -> np.ndarray:
    """Return a result in the form in which it is stored: the array itself, or the digest of a large 8-bit
    array."""
    if array.size <= WHOLE or array.itemsize > 1:
        return array
    return np.frombuffer(hashlib.sha256(array.dtype.str.encode() + array.tobytes()).digest(), np.uint8)


def kept() -> dict[str, np.ndarray]:
    """Return the stored results: "digest of the case/number of the output" -> array."""
    with np.load(FILE) as file:
        return {name: file[name] for name in file.files}


def main() -> None:
    found, taken = {}, []
    for name, case in cases():
        arrays, by_xnnpack = answer(case)
        found |= {f"{digest(case)}/{i}": short(array) for i, array in enumerate(arrays)}
        taken += [digest(case)] if by_xnnpack and name not in (*NETWORKS, *CONVERTED) else []
        print(name)
    found[TAKEN] = np.array(taken)
    np.savez_compressed(FILE, **found)
    print(f"{FILE}: {len(found)} answers, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
