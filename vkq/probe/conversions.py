"""Test the conversions between float16 and float32 by a device's instructions.

Vulkan lets a device round to float16 in either direction and flush subnormal numbers, and some drivers
convert an infinity wrongly. A device whose conversions have the bits of IEEE 754 uses them in generated
kernels. Other devices convert with integer arithmetic (`vkq.numerics.elementary`). Kernels convert only
what they load and store: a compiler may remove a conversion to float16 and back."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..numerics.elementary import from_halves, to_halves
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..shader.assembler import KernelWriter
from ..shader.expression import Expression
from ..shader.spec import Binding, PushConstant, Written

LOCAL = 64
Words = npt.NDArray[np.uint32]


def test(device: Device) -> str | None:
    """Return an error text if a conversion gives wrong bits, else None. NaN must stay NaN: any NaN in
    float32, the bits 0x7E00 in float16."""
    halves, floats = half_cases(), float_cases()
    pairs = halves[0] | halves[1] << 16
    got = _execute(device, "widen", pairs, 2 * pairs.size).view(np.float32).reshape(-1, 2)
    want = halves.T.astype(np.uint16).view(np.float16).astype(np.float32)
    same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    if not same.all():
        i = int(np.argmin(same.all(1)))
        return f"the word {pairs[i]:#010x} gave the float16 values {got[i].tolist()}, not {want[i].tolist()}"
    bits = _execute(device, "narrow", floats.T.reshape(-1).view(np.uint32), floats.shape[1])
    right = bits == rounded(floats[0]) | rounded(floats[1]) << 16
    if not right.all():
        i = int(np.argmin(right))
        return f"rounding {floats[:, i].tolist()} to float16 gave the word {bits[i]:#010x}"
    return None


def rounded(x: npt.NDArray[np.float32]) -> Words:
    """Return the bits of float32 values rounded to float16; NaN has the bits 0x7E00."""
    with np.errstate(all="ignore"):
        found = x.astype(np.float16).view(np.uint16).astype(np.uint32)
    return np.where(np.isnan(x), np.uint32(0x7E00), found)


def half_cases() -> Words:
    """Return the bits of pairs of float16 values, (2, pairs). Both rows have all float16 values."""
    every = np.arange(65536, dtype=np.uint32)
    return np.stack([every, np.random.default_rng(2031).permutation(every)])


def float_cases() -> npt.NDArray[np.float32]:
    """Return pairs of float32 values to round, (2, pairs). Both rows have all float16 values, the midpoints
    between neighbouring values, the float32 values next to these midpoints, and extremes. All pairs of
    special values are included."""
    every = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (every + np.append(every[1:], np.float32(65536))) / 2
    near = [
        every,
        *(np.nextafter(x, np.float32(end)) for x in (every, middle) for end in (0, np.inf)),
        middle,
    ]
    tiny = [1e-45, 1e-39, 2.0**-126, 2.0**-25, 65519.996, 65520.0, 65536.0, 1e9, 3.4028235e38, np.inf]
    positive = np.concatenate([*near, np.array(tiny, np.float32)])
    first = np.where(np.arange(positive.size) % 2, positive, -positive)
    special = np.array([0.0, -0.0, 1.5, -3e-6, 7e4, -7e4, np.inf, -np.inf, np.nan], np.float32)
    pairs = np.stack(np.meshgrid(special, special)).reshape(2, -1)
    return np.concatenate([[first, np.random.default_rng(2032).permutation(-first)], pairs], axis=1)


def _execute(device: Device, name: str, x: Words, size: int) -> Words:
    """Run a conversion on the words *x*, and return the *size* words of its result."""
    given, out = Tensor.from_numpy(x.view(np.int32), device), Tensor(device, (size,), "int32")
    program = device.program(_written(name))
    with device.operation() as recording:
        buffers = [given.buffer, out.buffer]
        recording.dispatch(program, buffers, {"count": size if name == "narrow" else x.size})
    found: Words = out.numpy().view(np.uint32)
    return found


@functools.cache
def _written(name: str) -> Written:
    write: Callable[[KernelWriter], None] = {"widen": _widen, "narrow": _narrow}[name]

    def module() -> bytes:
        k = KernelWriter((False, True), 2, LOCAL, False, converts=True)
        write(k)
        return k.finish()

    return Written(
        "selftest__conversions", f"selftest__conversions:{name}", "conversions between float16 and float32",
        (Binding(0, "x", "read", "uint"), Binding(1, "y", "write", "uint")),
        (PushConstant("first_group", "uint", 0), PushConstant("count", "uint", 4)),
        LOCAL, Expression(f"(count + {LOCAL - 1}) // {LOCAL}"), 0, module,
    )  # fmt: skip


def _widen(k: KernelWriter) -> None:
    i = k.workgroup() * LOCAL + k.lane()
    with k.when(i < k.word(1)):
        for j, value in enumerate(from_halves(k.load(0, i))):
            k.store(1, (i << 1) + j, value)


def _narrow(k: KernelWriter) -> None:
    i = k.workgroup() * LOCAL + k.lane()
    with k.when(i < k.word(1)):
        k.store(1, i, to_halves(k.load(0, i << 1).f, k.load(0, (i << 1) + 1).f))
