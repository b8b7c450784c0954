"""Measure the ceilings of the roofline in the same run as the cases: the device's peak rate for each kind
of arithmetic, and the rate of a copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from vkq.bench.result import Row
from vkq.bench.stats import THROTTLED
from vkq.device.profiles import profile
from vkq.errors import DeviceError
from vkq.probe.matrices import Matrices, advertised
from vkq.runtime.device import Device
from vkq.runtime.program import Program, refusals
from vkq.runtime.recording import Recording
from vkq.runtime.tensor import Tensor
from vkq.shader.catalog import catalog

DOTS = ("dot_s8s8", "dot_u8s8", "dot_u8u8")
OPERATIONS = {
    **dict.fromkeys(DOTS, 2 * 4 * 16),
    "fp32_fma": 2 * 4 * 4,
}  # operations of one invocation in one loop iteration, on all of its independent accumulators
INVOCATIONS = 64  # invocations of a workgroup
MATRIX_CHAINS = 8  # independent accumulators of a subgroup
MATRIX_SUBGROUPS = 4  # subgroups of a workgroup
# Size of the copy's buffer divided by the size of the last-level cache; the buffer's size is halved until the
# device allows it.
COPY_CACHES = 4
LASTING_US = 4000.0  # minimum duration of a run of an arithmetic kernel, in microseconds
RUNS = 10


def measure(device: Device, progress: Callable[[str], None] = lambda what: None) -> dict[str, float | None]:
    """Return {name: rate}: the rate of each kind of arithmetic in GOP/s, and of a copy (``copy``) in GB/s
    (bytes read + bytes written). The kinds are the packed dot products, float32 multiply-adds (two
    operations each) and int8 matrix units (``coopmat``).

    Each rate is the best of several runs. It is None if the device lacks the instruction.
    """
    found: dict[str, float | None] = {}
    for what in OPERATIONS:
        progress(what)
        found[what] = _rate(device, what)
    if device.capabilities.features.get("cooperativeMatrix"):
        progress("coopmat")
        found["coopmat"] = _matrix_rate(device)
    progress("copy")
    found["copy"] = _copy(device)
    return found


def of_path(path: str, ceilings: Mapping[str, float | None]) -> tuple[str, float] | None:
    """Return (name, rate) of the arithmetic ceiling of a path: the ceiling of the path's instruction, or of
    float32 multiply-adds for the paths ``portable`` and ``float``. Return None if the path has no ceiling,
    or if the ceiling was not measured."""
    name = path if path in ceilings else "fp32_fma" if path in ("portable", "float") else None
    value = ceilings.get(name) if name else None
    return (name, value) if name and value else None


def set_shares(row: Row, ceilings: Mapping[str, float | None]) -> None:
    """Set in a row its rates divided by the ceilings: GOP/s by the path's ceiling, GB/s by the copy rate.

    Rows of the clock ``host`` are not changed, because this clock does not measure the device.
    """
    if row.clock == "host":
        return
    ceiling, copy = of_path(row.path, ceilings), ceilings.get("copy")
    if ceiling:
        row.compute_ceiling, row.compute_share = ceiling[0], row.gops / ceiling[1]
    row.copy_share = row.gbps / copy if copy else None


def _rate(device: Device, what: str) -> float | None:
    program = _program(device, "ceiling__rate", what=what)
    if program is None:
        return None
    kernel = _scalar_kernel(device, program, what)
    return max(kernel.run() for _ in range(RUNS))


def _scalar_kernel(device: Device, program: Program, what: str) -> Rate:
    per_loop = OPERATIONS[what] * int(program.variant.defines["PER_LOOP"]) * INVOCATIONS
    return Rate(device, program, per_loop, INVOCATIONS, {"a": 0.999, "b": 0.001})


def _matrix_rate(device: Device) -> float | None:
    """Return the rate of the fastest int8 matrix shape of subgroup scope. Return None if the device has no
    such shape, or if every shape gives wrong results."""
    rates = []
    for matrices in advertised(device.capabilities):
        program = _matrix_program(device, matrices)
        if program is None:
            continue
        words = MATRIX_SUBGROUPS * matrices.m * matrices.n
        steps = MATRIX_CHAINS * int(program.variant.defines["PER_LOOP"])
        kernel = Rate(device, program, 2 * steps * words * matrices.k, words, {"a": 1, "b": 1})
        rate = max(kernel.run() for _ in range(RUNS))
        if (kernel.words() == (steps * matrices.k * kernel.loops) % 2**32).all():
            rates.append(rate)
    return max(rates, default=None)


def _matrix_program(device: Device, matrices: Matrices) -> Program | None:
    variant = catalog().find("ceiling__matrix_rate", dot=matrices.form)
    constants = {**matrices.constants(variant), "LOCAL_X": MATRIX_SUBGROUPS * matrices.subgroup}
    if refusals(variant, variant.constants(constants), device.capabilities):
        return None
    return device.program(variant, constants, matrices.subgroup)


def _program(device: Device, shader: str, **axes: str) -> Program | None:
    variant = catalog().find(shader, **axes)
    constants = {"LOCAL_X": INVOCATIONS}
    if refusals(variant, variant.constants(constants), device.capabilities):
        return None
    return device.program(variant, constants)


class Rate:
    """An arithmetic kernel without memory traffic. A run has enough loop iterations to last `LASTING_US`."""

    def __init__(
        self, device: Device, program: Program, operations: int, words: int, push: Mapping[str, int | float]
    ):
        """*operations*: the number of operations of one workgroup in one loop iteration. *words*: the number
        of 32-bit words that one workgroup writes."""
        groups = profile(device.capabilities).fill_workgroups
        self._device, self._program, self._groups, self._push = device, program, groups, push
        self._y = device.allocate(4 * groups * words)
        self._bytes = 4 * groups * words
        loops = 1
        self._recording = self._record(loops)
        while (lasted := _time_us(self._recording)) < LASTING_US and loops < 1 << 20:
            loops = max(2 * loops, min(16 * loops, int(1.2 * loops * LASTING_US / lasted)))
            self._recording = self._record(loops)
        self.loops = loops
        self._operations = operations * groups * loops

    def _record(self, loops: int) -> Recording:
        with self._device.record(timestamps=1) as recording:
            recording.dispatch(
                self._program, [self._y], {"groups": self._groups, "loops": loops, **self._push}
            )
        return recording

    def run(self) -> float:
        """Run the kernel once and return its GOP/s."""
        return self._operations / _time_us(self._recording) / 1e3

    def words(self) -> npt.NDArray[np.uint32]:
        """Return the words that the last run wrote."""
        return self._device.download(self._y, self._bytes).view(np.uint32)


def _copy(device: Device) -> float | None:
    program = _program(device, "ceiling__copy")
    size = COPY_CACHES * profile(device.capabilities).cache_bytes
    while size > device.capabilities.properties["maxStorageBufferRange"]:
        size //= 2
    if program is None:
        return None
    try:
        buffers = [device.allocate(size) for _ in range(2)]
    except DeviceError:  # the device has no memory for a copy of this size
        return None
    with device.record(timestamps=1) as recording:
        recording.dispatch(program, buffers, {"count": size // 16})
    Tensor(device, (size // 4,), "int32", buffer=buffers[0]).write(np.arange(size // 4, dtype=np.int32))
    best = min(_time_us(recording) for _ in range(2 * RUNS))
    if not np.array_equal(device.download(buffers[1], 4096), device.download(buffers[0], 4096)):
        raise DeviceError(
            f"{device.name}: the copy kernel of the benchmarks did not copy; the times cannot be trusted"
        )
    return 2 * size / best / 1e3


def _time_us(recording: Recording) -> float:
    """Run the recording. Return its time in microseconds, by the device's timestamps or else by the host's
    clock."""
    if recording.device.capabilities.timestamp_valid_bits:
        recording.run()
        return max(recording.gpu_times_us()[0], 1e-3)
    begin = time.perf_counter()
    recording.run()
    return (time.perf_counter() - begin) * 1e6


class Sentinel:
    """A kernel with constant work that runs between the cases. If it becomes slower, the device is throttled
    or is in use by another program."""

    def __init__(self, device: Device):
        program = _program(device, "ceiling__rate", what="fp32_fma")
        assert program is not None  # not None, because this variant has no requirements
        self._kernel = _scalar_kernel(device, program, "fp32_fma")
        self._rates = [self._kernel.run() for _ in range(RUNS)]

    def share(self) -> float:
        """Run the kernel twice, and return the higher rate divided by the median of all rates so far."""
        rate = max(self._kernel.run() for _ in range(2))
        self._rates.append(rate)
        return float(rate / np.median(self._rates))

    def throttled(self) -> float | None:
        """Measure `share`, and return it if it is below `stats.THROTTLED`, else None."""
        share = self.share()
        return share if share < THROTTLED else None
