"""What a device computes, compared with what it must: asked once for each device, driver and version of vkq, and remembered.

A driver's flags are believed only for the forms that pass. The tests are the arithmetic that every int8 kernel shares: the
packed dot product in each form over all 65,536 pairs of bytes in each lane, and the requantization over extremes, accumulators
above 2^24 and ties. A device that rounds floats another way than to nearest even gets the integer form of the same steps
(SOFT_FLOAT).
"""

from __future__ import annotations

import dataclasses
import json
import threading
import weakref
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .. import cache, reference
from .._version import __version__
from ..qparams import QParams
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog

Words = npt.NDArray[np.int32]
DOT_FORMS = ("s8s8", "u8s8", "u8u8", "float")


@dataclasses.dataclass(frozen=True)
class Report:
    """``failures``: what was wrong, by test (a dot form, or ``requantize``). ``soft_float``: floats are rounded in integers."""

    failures: Mapping[str, str]
    soft_float: bool


_reports: weakref.WeakKeyDictionary[Device, Report] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def report(device: Device) -> Report:
    """The device's report: from this process, from the cache, or by running the tests (under a second)."""
    with _lock:
        found = _reports.get(device)
        if found is None:
            found = _reports[device] = _load(device) or _run_and_store(device)
        return found


def run(device: Device) -> Report:
    """Runs every test that the device has the features for."""
    failures = {}
    for form in DOT_FORMS:
        if form == "float" or device.capabilities.features["shaderIntegerDotProduct"]:
            failure = _test_dot(device, form)
            if failure:
                failures[form] = failure
    plain = _test_requantize(device, soft_float=False)
    soft = _test_requantize(device, soft_float=True) if plain else None
    if soft:
        failures["requantize"] = f"{soft} (and without SOFT_FLOAT: {plain})"
    return Report(failures, soft_float=plain is not None)


def _cache_path(device: Device) -> object:
    return cache.cache_dir() / "selftest" / f"{device.capabilities.key}-{__version__}.json"


def _load(device: Device) -> Report | None:
    data = cache.read(_cache_path(device))  # type: ignore[arg-type]
    if data is None:
        return None
    values = json.loads(data)
    return Report(values["failures"], values["soft_float"])


def _run_and_store(device: Device) -> Report:
    found = run(device)
    cache.write(_cache_path(device), json.dumps(dataclasses.asdict(found)).encode())  # type: ignore[arg-type]
    return found


def _test_dot(device: Device, form: str) -> str | None:
    x, w = dot_cases()
    got = _execute(device, f"dot_{form}", x, w)
    lanes_x, lanes_w = (v.view(np.int8).reshape(-1, 4).astype(np.int32) for v in (x, w))
    want = np.stack([(lanes_x * lanes_w).sum(1), lanes_x.sum(1)], axis=1)
    return _difference(got, want, lambda i: f"dot({lanes_x[i].tolist()}, {lanes_w[i].tolist()})")


def _test_requantize(device: Device, soft_float: bool) -> str | None:
    acc, multiplier = requantize_cases()
    got = _execute(device, "requantize", acc, multiplier.view(np.int32), soft_float)
    with np.errstate(over="ignore"):
        product = acc.astype(np.float32) * multiplier
    want = np.stack([reference.requantize(acc, multiplier, QParams(1.0)).astype(np.int32), product.view(np.int32)], axis=1)
    return _difference(got, want, lambda i: f"requantize({acc[i]}, {multiplier[i]!r})")


def dot_cases() -> tuple[Words, Words]:
    """Words (x, w): every pair of bytes in every lane, the other lanes at random, then extremes in all lanes."""
    rng = np.random.default_rng(2024)
    pairs = np.arange(65536)
    x = rng.integers(-128, 128, (4, 65536, 4)).astype(np.int8)
    w = rng.integers(-128, 128, (4, 65536, 4)).astype(np.int8)
    for lane in range(4):
        x[lane, :, lane], w[lane, :, lane] = (pairs >> 8).astype(np.uint8).view(np.int8), pairs.astype(np.uint8).view(np.int8)
    edges = np.array([-128, -127, -1, 0, 1, 127], np.int8)
    grid = np.stack(np.meshgrid(*[edges] * 4, indexing="ij"), axis=-1).reshape(-1, 4)
    x = np.concatenate([x.reshape(-1, 4), grid, grid])
    w = np.concatenate([w.reshape(-1, 4), grid, np.roll(grid, 1, axis=0)])
    return np.ascontiguousarray(x).view(np.int32)[:, 0], np.ascontiguousarray(w).view(np.int32)[:, 0]


def requantize_cases() -> tuple[Words, npt.NDArray[np.float32]]:
    """Accumulators and multipliers: extremes, every power of two and its neighbours, ties, random values over the whole range."""
    rng = np.random.default_rng(2025)
    powers = np.array([s * (2**e + d) for e in range(31) for d in (-1, 0, 1) for s in (-1, 1)])
    above = 2**24 + np.arange(-64, 64)  # where int-to-float begins to round
    many = rng.integers(-(2**31) + 1, 2**31, 4096)
    small = rng.integers(-(2**20), 2**20, 4096)
    acc = np.concatenate([powers, above, -above, above * 64 + 32, [2**31 - 1, -(2**31) + 1, 0], many, small])
    acc = np.clip(acc, -(2**31) + 1, 2**31 - 1).astype(np.int32)
    fixed = [np.float32(2.0**-e) for e in (1, 2, 8, 16, 24, 30)] + [np.float32(v) for v in (1.0, 0.1, 1 / 3, 3e-5, 1e-9, 1e30)]
    ties = np.concatenate([np.full(acc.size, m, np.float32) for m in fixed])
    random = np.exp(rng.uniform(np.log(1e-10), 0, 4 * acc.size)).astype(np.float32)
    return np.tile(acc, len(fixed) + 4), np.concatenate([ties, random])


def _execute(device: Device, test: str, x: Words, w: Words, soft_float: bool = False) -> npt.NDArray[np.int32]:
    variant = catalog().find("selftest__arithmetic", test=test)
    program = device.program(variant, {"SOFT_FLOAT": soft_float})
    tensors = [Tensor.from_numpy(v, device) for v in (x, w)]
    out = Tensor(device, (x.size, 2), "int32")
    with device.operation() as recording:
        recording.dispatch(program, [t.buffer for t in (*tensors, out)], {"count": x.size})
    result: npt.NDArray[np.int32] = out.numpy()
    return result


def _difference(got: npt.NDArray[np.int32], want: npt.NDArray[np.int32], case: object) -> str | None:
    wrong = np.flatnonzero((got != want).any(axis=1))
    if wrong.size == 0:
        return None
    first = int(wrong[0])
    return f"{wrong.size} of {len(want)} wrong; {case(first)} gave {got[first].tolist()}, must be {want[first].tolist()}"  # type: ignore[operator]
