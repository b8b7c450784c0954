"""Tests of two features: texel reads of data that was just stored, and subgroup shuffles. Kernels do not
use a feature whose test fails. Each test runs several times with different values, because the first run is
correct on known faulty drivers (google-ai-edge/LiteRT#8065, Tencent/ncnn#6778)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..device.refused import SHUFFLE, SHUFFLES, TEXELS
from ..runtime.device import Device
from ..runtime.recording import Recording
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog

RUNS = 3
VECTORS = 1000  # vectors of four words; not a multiple of the workgroup size
GROUPS = 37

Array = npt.NDArray[Any]


def stages(device: Device) -> dict[str, Callable[[], str | None]]:
    """Return {name: test} of the features that the device reports."""
    facts = device.capabilities.facts
    found: dict[str, Callable[[], str | None]] = {}
    if facts.get("maxTexelBufferElements"):
        found[TEXELS] = partial(_texels, device)
    shuffles = facts["subgroupSizeControl"] and facts["computeFullSubgroups"]
    if shuffles and int(facts["supportedOperations"]) & SHUFFLE:
        found[SHUFFLES] = partial(_shuffles, device)
    return found


def _texels(device: Device) -> str | None:
    """Copy x to y, then y to z. The second dispatch reads as texels what the first has stored."""
    program = device.program(catalog().find("selftest__texels"))
    x, y, z = (Tensor(device, (4 * VECTORS,), "int32") for _ in range(3))
    with device.record() as recording:
        for source, target, add in ((x, y, 5), (y, z, 7)):
            recording.dispatch(program, [source.buffer, target.buffer], {"count": VECTORS, "add": add})
    rng = np.random.default_rng(2030)
    given = [rng.integers(-(2**30), 2**30, 4 * VECTORS).astype(np.int32) for _ in range(RUNS)]
    return _replayed(recording, x, z, [(values, values + 12) for values in given])


def _shuffles(device: Device) -> str | None:
    """Compare the vectors that each lane reads from other lanes at each step (shuffles.comp)."""
    lanes = int(device.capabilities.properties["subgroupSize"])
    program = device.program(catalog().find("selftest__shuffles"), {"LANES": lanes}, lanes)
    x = Tensor(device, (GROUPS, lanes, 4), "float32")
    y = Tensor(device, (GROUPS, lanes, lanes, 2, 4), "float32")
    with device.record() as recording:
        recording.dispatch(program, [x.buffer, y.buffer], {"count": GROUPS})
    one, step = np.arange(lanes)[:, None], np.arange(lanes)
    # (lane, step, 2): the lanes that each lane reads
    read = np.stack([one * 0 + step, (one + step) % lanes], axis=2)
    rng = np.random.default_rng(2031)
    given = [rng.integers(-9999, 9999, x.shape).astype(np.float32) for _ in range(RUNS)]
    return _replayed(recording, x, y, [(values, values[:, read]) for values in given])


def _replayed(recording: Recording, x: Tensor, y: Tensor, cases: list[tuple[Array, Array]]) -> str | None:
    """Return the error of the first run with a wrong result, or None. y is overwritten between runs."""
    for run, (values, want) in enumerate(cases, 1):
        x.write(values)
        y.write(np.full(y.shape, -1, want.dtype))
        recording.run()
        got = y.numpy()
        wrong = np.flatnonzero(got != want)
        if wrong.size:
            at = int(wrong[0])
            return (
                f"{wrong.size} of {want.size} numbers wrong in run {run} of {len(cases)}; number {at} is"
                f" {got.flat[at]}, must be {want.flat[at]}"
            )
    return None
