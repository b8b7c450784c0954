"""Compare whole networks on every path of a device with LiteRT: ``python -m tests.tflite.paths [DEVICE]
[FILE or FOLDER...]``. The default networks are those in ``models``. The command prints the networks whose
outputs differ, and the number of equal networks. It needs the package ai-edge-litert. ``--near 1e-5``:
outputs that LiteRT computes in floats may differ by this part of the largest value."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkq
from tests.kernels import emulated
from vkq.device.profiles import preferred
from vkq.errors import VkqError
from vkq.kernels.gemm import SMALLEST_STAGED
from vkq.probe.matrices import lacking
from vkq.select.path import FORMS, Choice
from vkq.tflite import InferenceSession
from vkq.tflite.file import parse
from vkq.tflite.litert import Litert

from .answers import inputs_of
from .convert import FOLDER
from .operators import Case

CHOSEN_BY = (
    "schemes.int8.choose_path",
    "ops.matmul.without_matrices",
    "kernels.attention_q8.without_matrices",
)
STAGED = {"staged": "64x64", "staged_conv": "64x64", "gemv_rows": 1, "attention_in_steps": False}
PLAIN = {
    "tile": "4x4",
    "texels": False,
    "lane_loads": False,
    "depthwise_lines": None,
    "registers": "few",
}
TEXELS = {"texels": True, "lane_loads": True, "depthwise_lines": (), "registers": "plenty"}
# path -> (form of the integer products, profile fields that are replaced). "coopmat" uses matrix units, real
# or emulated, and images in blocks of 16 channels.
PATHS: dict[str, tuple[str, Mapping[str, Any]]] = {
    **{path: (form, {}) for path, form in FORMS.items()}, "coopmat": ("s8s8", {}),
    "staged": ("s8s8", STAGED), "plain": ("u8s8", PLAIN), "texels": ("s8s8", TEXELS),
}  # fmt: skip


@contextlib.contextmanager
def forced(device: vkq.Device, path: str) -> Iterator[None]:
    """Context manager: int8 products use this path."""
    form, says = PATHS[path]
    units = path == "coopmat"
    choice = Choice("coopmat" if units else next(p for p, f in FORMS.items() if f == form), form, "forced")
    with pytest.MonkeyPatch.context() as patch, preferred(says):
        if units and lacking(device.capabilities) is not None:
            emulated.emulate(device, patch, "16x8x32")
        for name in CHOSEN_BY:
            patch.setattr(f"vkq.{name}", lambda device, path="auto": choice)
        if says is STAGED:  # use kernels with tiles in shared memory also for small products
            patch.setattr("vkq.kernels.gemm.staged_tile", lambda *given: SMALLEST_STAGED)
        patch.setattr("vkq.onnx.shared._known", [])  # do not reuse layers of open sessions
        yield


def run(case: Case, device: vkq.Device) -> list[np.ndarray]:
    """Return a network's outputs."""
    session = InferenceSession(case[0], device)
    return session.run(None, dict(zip([a.name for a in session.model.inputs], case[1], strict=True)))


def apart(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> float:
    """Return the largest difference, divided by the largest magnitude of that output in *want*. Return
    infinity if dtypes or shapes differ."""
    found = 0.0
    for a, b in zip(got, want, strict=True):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return np.inf
        if a.tobytes() != b.tobytes():
            difference = np.abs(a.astype(np.float64) - b.astype(np.float64)).max()
            found = max(found, float(difference / max(np.abs(b.astype(np.float64)).max(), 1e-30)))
    return found


def compare(name: str, data: bytes, device: vkq.Device, paths: Sequence[str], near: float) -> Counter[str]:
    """Compare a network on these paths with LiteRT. Return the numbers of equal, near, different and
    refused paths."""
    found: Counter[str] = Counter()
    try:
        case = data, inputs_of(data)
        litert = Litert(data, "this comparison")
        names = [litert.names[n] for n in parse(data).inputs]
        want = litert.run(None, dict(zip(names, case[1], strict=True)))
    except VkqError as error:
        print(f"{name}: LiteRT: {str(error)[:200]}", flush=True)
        return Counter({"refused by LiteRT": 1})
    for path in paths:
        try:
            with forced(device, path):
                difference = apart(run(case, device), want)
        except VkqError as error:
            found["refused"] += 1
            print(f"{name} {path}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        kind = "equal" if not difference else "near" if difference <= near else "different"
        found[kind] += 1
        if kind != "equal":
            print(f"{name} {path}: {kind}, {difference:.2g} of the largest number", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?", default="llvmpipe", help="a part of the device's name")
    parser.add_argument("files", nargs="*", type=Path, default=[FOLDER])
    parser.add_argument("--near", type=float, default=0.0)
    parser.add_argument("--paths", nargs="+", choices=list(PATHS), default=list(PATHS))
    asked = parser.parse_intermixed_args()
    device, total = vkq.Device(asked.device), Counter[str]()
    files = [f for p in asked.files for f in (sorted(p.glob("*.tflite")) if p.is_dir() else [p])]
    for file in files:
        found = compare(file.stem, file.read_bytes(), device, asked.paths, asked.near)
        total += found
        print(f"{file.stem}: {dict(found)}", flush=True)
    print(f"{len(files)} files, {len(asked.paths)} paths on {device.name}: {dict(total)}")
    return 1 if total["different"] or total["refused"] else 0


if __name__ == "__main__":
    sys.exit(main())
