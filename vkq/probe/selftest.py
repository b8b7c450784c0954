"""The self-test: compare a device's results with known correct results, once for each device, driver and
vkq version. The report is cached.

A driver's features are used only if their tests pass. Child processes (child.py) run the tests of

- the packed dot product in each form, over all 65,536 pairs of bytes in each lane
- matrix products of each listed shape
- requantization of extremes, accumulators above 2^24 and ties, and the quotient of quantize around every
  tie. A device that does not round floats to nearest even computes these in integers (SOFT_FLOAT).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..device import verdict
from ..device.capabilities import Capabilities
from ..device.profiles import profile
from ..device.verdict import FORMS, OPENING, Verdict
from ..errors import DeviceLostError, VkqError
from ..numerics.qparams import QParams
from ..numerics.requantize import requantize
from ..runtime import device as runtime_device
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog
from . import conversions, features, float16, loops, rates
from .matrices import BRAIN, HALF, Matrices, advertised, advertised_half, lacking, lacking_half

__all__ = ["OPENING", "Verdict", "probe_again", "report", "report_of", "run", "stages"]

Words = npt.NDArray[np.int32]
HALVES = {"matrices_half": HALF, "matrices_brain": BRAIN}  # {test of float matrices: their form}
# Tests with values below the smallest normal float16, which the bfloat16 test converts first.
SMALLS = {HALF: "matrix_small", BRAIN: "matrix_small_brain"}
ALIKE, PAIRED = "ALIKE", "PAIRED"  # constants of selftest__matrices_half: ways of loading matrices
SMALL = "SMALL"  # test with weights that are multiples of 2^-24, in float16 for both forms
WAYS = {"": "", ALIKE: ", loaded with a stride of 0", PAIRED: ", assembled from words of two elements",
        SMALL: ", with weights of 2^-24"}  # fmt: skip
PAIRS = {HALF: "matrix_pairs", BRAIN: "matrix_pairs_brain"}  # tests for profiles with `matrix_pairs`

runtime_device.probed = lambda device: report(device)


def report(device: Device) -> Verdict:
    """Return the device's report: from this process, the cache, or a probe (seconds, once per driver)."""
    if device.doctored:  # a test replaced its capabilities, which a child process would not see
        key = device.capabilities.key
        _doctored[key] = device.verdict or _doctored.get(key) or run(device)
        return _doctored[key]
    found = verdict.report_of(device.capabilities, lambda: run(device))
    assert found is not None
    return found


def report_of(capabilities: Capabilities) -> Verdict:
    """Return the report of a device that is not open in this process. So a device whose driver crashes is
    refused before it is opened."""
    found = verdict.report_of(capabilities, lambda: _run_alone(capabilities))
    assert found is not None
    return found


def probe_again(capabilities: Capabilities) -> Verdict:
    """Probe again and return the new report, which replaces the cached one."""
    return verdict.ask_again(capabilities, lambda: _run_alone(capabilities))


_doctored: dict[str, Verdict] = {}  # {key: report} of devices whose capabilities a test replaced


def _run_alone(capabilities: Capabilities) -> Verdict:
    with Device(capabilities.index) as own:
        return run(own)


def stages(device: Device) -> dict[str, Callable[[], Any]]:
    """Return the stages of the self-test as {name: function that returns a JSON value}. A test returns an
    error text, or None if the device passes. Only features that the device has are tested. The stages
    "loops" and "rates" measure the loop limit and the speed of arithmetic."""
    has_dot = device.capabilities.features["shaderIntegerDotProduct"]
    forms = [form for form in FORMS if form == "float" or has_dot]
    tests: dict[str, Callable[[], Any]] = {form: partial(_test_dot, device, form) for form in forms}
    if lacking(device.capabilities) is None:
        tests["matrices"] = partial(_test_matrices, device)
    for name, form in HALVES.items():
        if lacking_half(device.capabilities, form) is None:
            ways = ("", ALIKE) if form == HALF else ("",)
            tests[name] = partial(_test_half_matrices, device, form, ways)
            if profile(device.capabilities).matrix_pairs:
                tests[PAIRS[form]] = partial(_test_half_matrices, device, form, (PAIRED,))
            tests[SMALLS[form]] = partial(_test_half_matrices, device, form, (SMALL,))
    if float16.lacking(device.capabilities) is None:
        tests[float16.FLOAT16] = partial(float16.test, device)
    tests["requantize"] = partial(_test_requantize, device, soft_float=False)
    tests["requantize_soft"] = partial(_test_requantize, device, soft_float=True)
    tests["quantize"] = partial(_test_quantize, device)
    tests[verdict.CONVERSIONS] = partial(conversions.test, device)
    tests |= features.stages(device)
    tests["loops"] = partial(loops.measure, device)
    tests["rates"] = lambda: dataclasses.asdict(rates.measure(device))
    return tests


def run(device: Device) -> Verdict:
    """Run every stage in this process."""
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name, stage in stages(device).items():
        try:
            results[name] = stage()
        except DeviceLostError:
            raise
        except VkqError as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return verdict.verdict(results, failed, isolated=False)


def _test_dot(device: Device, form: str) -> str | None:
    x, w = dot_cases()
    got = _execute(device, f"dot_{form}", x, w)
    lanes_x, lanes_w = (v.view(np.int8).reshape(-1, 4).astype(np.int32) for v in (x, w))
    want = np.stack([(lanes_x * lanes_w).sum(1), lanes_x.sum(1)], axis=1)
    return _difference(got, want, lambda i: f"dot({lanes_x[i].tolist()}, {lanes_w[i].tolist()})")


def _test_matrices(device: Device) -> str | None:
    return next((said for m in advertised(device.capabilities) if (said := _test_shape(device, m))), None)


def _test_shape(device: Device, matrices: Matrices) -> str | None:
    x, w = matrix_cases(matrices)
    cases, steps, rows, _ = x.shape
    variant = catalog().find("selftest__matrices", dot=matrices.form)
    program = device.program(variant, matrices.constants(variant), matrices.subgroup)
    tensors = [Tensor.from_numpy(np.ascontiguousarray(v).view(np.int32).reshape(-1), device) for v in (x, w)]
    out = Tensor(device, (cases, rows, w.shape[2]), "int32")
    with device.operation() as recording:
        recording.dispatch(program, [t.buffer for t in (*tensors, out)], {"count": cases, "steps": steps})
    want = np.einsum("csmk,csnk->cmn", x.astype(np.int32), w.astype(np.int32))
    said = _difference(out.numpy().reshape(-1, 1), want.reshape(-1, 1), lambda i: f"sum {i}")
    return said and f"matrices of {matrices}: {said}"


def _test_half_matrices(device: Device, form: str, ways: Sequence[str]) -> str | None:
    wrong = (
        _test_half_shape(device, matrices, way)
        for matrices in advertised_half(device.capabilities, form)
        for way in ways
    )
    return next((said for said in wrong if said), None)


def _test_half_shape(device: Device, matrices: Matrices, way: str) -> str | None:
    """Test one shape of float matrices with integers whose sums are exact in float32 in any order: every
    bit must be correct. bfloat16 elements are the upper 16 bits of float32 numbers. *way*: a key of `WAYS`.
    With ALIKE, the first row of x is read for every row, and output n is multiplied by 2^n."""
    x, w = (v.astype(np.int32) for v in matrix_cases(matrices))
    if matrices.form == BRAIN:
        x[:, 0] *= 32
    cases, steps, rows, _ = x.shape
    element = matrices.form + "_small" * (way == SMALL and matrices.form == BRAIN)
    variant = catalog().find("selftest__matrices_half", element=element)
    constants = matrices.shape_constants | ({way: True} if way in (ALIKE, PAIRED) else {})
    w = np.ldexp(w, -24) if way == SMALL else w
    program = device.program(variant, constants, matrices.subgroup)
    halves = [  # elements of `matrix_cases` are 8-bit integers, which are exact in both forms
        v.astype("<f2") if half else (v.astype("<f4").view("<u4") >> 16).astype("<u2")
        for v, half in ((x, matrices.form == HALF), (w, matrices.form == HALF or way == SMALL))
    ]
    tensors = [Tensor.from_numpy(v.view(np.int32).reshape(-1), device) for v in halves]
    out = Tensor(device, (cases, rows, w.shape[2]), "float32")
    with device.operation() as recording:
        recording.dispatch(program, [t.buffer for t in (*tensors, out)], {"count": cases, "steps": steps})
    want = np.einsum("csmk,csnk->cmn", x[:, :, :1] if way == ALIKE else x, w).astype(np.float32)
    if way == ALIKE:
        want = np.ldexp(want, np.arange(matrices.m)).repeat(rows, axis=1)
    got = out.numpy().view(np.int32).reshape(-1, 1)
    said = _difference(got, want.view(np.int32).reshape(-1, 1), lambda i: f"sum {i} (bits of float32)")
    return said and f"matrices of {matrices}{WAYS[way]}: {said}"


def _test_requantize(device: Device, soft_float: bool) -> str | None:
    acc, multiplier = requantize_cases()
    got = _execute(device, "requantize", acc, multiplier.view(np.int32), soft_float)
    with np.errstate(over="ignore"):
        product = acc.astype(np.float32) * multiplier
    want = np.stack(
        [requantize(acc, multiplier, QParams(1.0)).astype(np.int32), product.view(np.int32)], axis=1
    )
    return _difference(got, want, lambda i: f"requantize({acc[i]}, {multiplier[i]!r})")


def _test_quantize(device: Device) -> str | None:
    x, scale = quotient_cases()
    got = _execute(device, "quotient", x.view(np.int32), scale.view(np.int32))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded = np.clip(np.rint(x / scale), -512, 512)
    want = np.where(np.isnan(x), -512, rounded).astype(np.int32)
    return _difference(
        got, np.stack([want, np.zeros_like(want)], axis=1), lambda i: f"quotient({x[i]!r}, {scale[i]!r})"
    )


def dot_cases() -> tuple[Words, Words]:
    """Return words (x, w): for each lane, all pairs of bytes in this lane; then extremes in all lanes."""
    rng = np.random.default_rng(2024)
    pairs = np.arange(65536)
    x = rng.integers(-128, 128, (4, 65536, 4)).astype(np.int8)
    w = rng.integers(-128, 128, (4, 65536, 4)).astype(np.int8)
    for lane in range(4):
        x[lane, :, lane], w[lane, :, lane] = (
            (pairs >> 8).astype(np.uint8).view(np.int8),
            pairs.astype(np.uint8).view(np.int8),
        )
    edges = np.array([-128, -127, -1, 0, 1, 127], np.int8)
    grid = np.stack(np.meshgrid(*[edges] * 4, indexing="ij"), axis=-1).reshape(-1, 4)
    x = np.concatenate([x.reshape(-1, 4), grid, grid])
    w = np.concatenate([w.reshape(-1, 4), grid, np.roll(grid, 1, axis=0)])
    return np.ascontiguousarray(x).view(np.int32)[:, 0], np.ascontiguousarray(w).view(np.int32)[:, 0]


def matrix_cases(matrices: Matrices) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return x (case, step, row, k) and w (case, step, output, k), int8 or uint8. In case i < k, only
    elements at index i along k are nonzero. Cases of extreme values and of random values follow."""
    k, dtype = matrices.k, np.uint8 if matrices.form == "u8u8" else np.int8
    rng, steps, low, high = np.random.default_rng(2027), 4, np.iinfo(dtype).min, np.iinfo(dtype).max
    x, w = (
        rng.integers(low, high + 1, (k + 12, steps, size, k)).astype(dtype)
        for size in (matrices.n, matrices.m)
    )
    x[:k], w[:k] = 0, 0
    for place in range(k):  # y[m, n] = (m + 1) (n + 1), because both operands are nonzero only at one k
        x[place, place % steps, :, place] = np.arange(1, matrices.n + 1)
        w[place, place % steps, :, place] = np.arange(1, matrices.m + 1)
    for case, (a, b) in enumerate(((low, low), (low, high), (high, high), (high // 2, 1)), k):
        x[case], w[case] = a, b
    return x, w


def requantize_cases() -> tuple[Words, npt.NDArray[np.float32]]:
    """Return accumulators and multipliers: extremes, every power of two and its neighbours, ties, and random
    values over the whole range."""
    rng = np.random.default_rng(2025)
    powers = np.array([s * (2**e + d) for e in range(31) for d in (-1, 0, 1) for s in (-1, 1)])
    above = 2**24 + np.arange(-64, 64)  # above 2^24, the conversion from int to float rounds
    many = rng.integers(-(2**31) + 1, 2**31, 4096)
    small = rng.integers(-(2**20), 2**20, 4096)
    acc = np.concatenate([powers, above, -above, above * 64 + 32, [2**31 - 1, -(2**31) + 1, 0], many, small])
    acc = np.clip(acc, -(2**31) + 1, 2**31 - 1).astype(np.int32)
    fixed = [np.float32(2.0**-e) for e in (1, 2, 8, 16, 24, 30)] + [
        np.float32(v) for v in (1.0, 0.1, 1 / 3, 3e-5, 1e-9, 1e30)
    ]
    ties = np.concatenate([np.full(acc.size, m, np.float32) for m in fixed])
    random = np.exp(rng.uniform(np.log(1e-10), 0, 4 * acc.size)).astype(np.float32)
    return np.tile(acc, len(fixed) + 4), np.concatenate([ties, random])


def quotient_cases() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return values and scales: ties (k + 1/2) * scale, their neighbours, limits, subnormals, Inf, NaN."""
    rng = np.random.default_rng(2026)
    fixed = [2.0**-126, 2.0**-100, 1e-30, 2.0**-7, 0.1, 1 / 3, 1.0, 255 / 256, 3.0, 1e6, 2.0**120, 3.4e38]
    scales = np.concatenate([fixed, np.exp(rng.uniform(np.log(1e-6), np.log(1e3), 52))]).astype(np.float32)
    ties = np.arange(-300, 301) + 0.5
    with np.errstate(over="ignore", under="ignore"):
        near = (ties * scales[:, None].astype(np.float64)).astype(np.float32).reshape(-1)
        below, above = (np.nextafter(near, np.float32(end)) for end in (-np.inf, np.inf))
    special = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-39, 2.0**-126, 3.4028235e38], np.float32
    )
    x = np.concatenate([near, below, above, np.tile(special, scales.size)])
    return x, np.concatenate([np.tile(np.repeat(scales, ties.size), 3), np.repeat(scales, special.size)])


def _execute(device: Device, test: str, x: Words, w: Words, soft_float: bool = False) -> Words:
    variant = catalog().find("selftest__arithmetic", test=test)
    program = device.program(variant, {"SOFT_FLOAT": soft_float})
    tensors = [Tensor.from_numpy(v, device) for v in (x, w)]
    out = Tensor(device, (x.size, 2), "int32")
    with device.operation() as recording:
        recording.dispatch(program, [t.buffer for t in (*tensors, out)], {"count": x.size})
    result: Words = out.numpy()
    return result


def _difference(got: Words, want: Words, case: Callable[[int], str]) -> str | None:
    wrong = np.flatnonzero((got != want).any(axis=1))
    if wrong.size == 0:
        return None
    first = int(wrong[0])
    said = f"{case(first)} gave {got[first].tolist()}, must be {want[first].tolist()}"
    return f"{wrong.size} of {len(want)} wrong; {said}"
