"""Transposed convolutions, computed as an ordinary convolution for each phase of the stride. With integer
activations, one dispatch computes all phases."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import cast

import numpy as np

from ..problem.options import Pair
from ..problem.transposed import TransposedConv2dProblem, TransposedOptions
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.plan import Resident
from ..shader.spec import Value as Constant
from .direct import Direct, Sweep
from .float_direct import FloatDirect
from .weights import Int8

HEADER = 48  # bytes of the description of a phase; all descriptions precede all weights (conv_block.glslh)


@dataclasses.dataclass(frozen=True)
class Taps:
    """The kernel's taps along one axis for the output pixels ``first``, ``first + stride``, ...

    Output pixel ``o = first + stride * i`` reads input pixel ``i + offset + j * step`` through tap
    ``kernel[j]``. A tap reads a pixel only if ``o + padding - dilation * tap`` is a multiple of the stride.
    """

    first: int
    kernel: tuple[int, ...]
    offset: int
    step: int

    @classmethod
    def of(cls, first: int, size: int, stride: int, dilation: int, padding: int) -> Taps:
        """Return the taps of one phase, in the order of the input pixels.

        >>> Taps.of(1, 3, 2, 1, 1)
        Taps(first=1, kernel=(2, 0), offset=0, step=1)
        """
        hits = [(first + padding - dilation * tap, tap) for tap in reversed(range(size))]
        found = [(at // stride, tap) for at, tap in hits if at % stride == 0]
        step = found[1][0] - found[0][0] if len(found) > 1 else 1
        return cls(first, tuple(tap for _, tap in found), found[0][0] if found else 0, step)


class Phases:
    """A transposed convolution. *weight* is (OC, IC/groups, KH, KW). *make*: a function that returns the
    convolution for one phase. Its argument is the weight with the taps of this phase."""

    def __init__(
        self,
        device: Device,
        weight: Int8,
        options: TransposedOptions,
        make: Callable[[Int8], Direct | FloatDirect],
    ):
        rows, columns = (
            [
                Taps.of(first, options.kernel[i], options.stride[i], options.dilation[i], options.padding[i])
                for first in range(options.stride[i])
            ]
            for i in (0, 1)
        )
        self.taps = list(itertools.product(rows, columns))
        parts = (weight[:, :, v.kernel, :][:, :, :, h.kernel] for v, h in self.taps)
        self.kernels = [make(np.ascontiguousarray(part)) for part in parts]
        self._together: _Together | None = None
        if len(self.kernels) > 1 and isinstance(self.kernels[0], Direct):
            self._together = _Together(device, self.taps, cast(list[Direct], self.kernels))

    def build(self, b: Builder, p: TransposedConv2dProblem, x: Value, y: Value) -> None:
        """Add the convolution to a plan: one dispatch with integer activations, one for each phase with
        float activations."""
        if self._together:
            self._together.build(b, p, x, y)
            return
        for (v, h), kernel in zip(self.taps, self.kernels, strict=True):
            if v.first < p.oh and h.first < p.ow:
                kernel.sweep(b, _sweep(p, v, h), x, y)


def _sweep(p: TransposedConv2dProblem, v: Taps, h: Taps) -> Sweep:
    size: Pair = (-(-(p.oh - v.first) // p.stride[0]), -(-(p.ow - h.first) // p.stride[1]))
    return Sweep(
        p.n, p.ic, p.h, p.w, *size, stride=(1, 1), before=(-v.offset, -h.offset), dilation=(v.step, h.step),
        out=(p.oh, p.ow), out_stride=p.stride, out_first=(v.first, h.first),
    )  # fmt: skip


class _Together:
    """The phases of a transposed convolution in one dispatch: each workgroup computes one phase
    (conv_block.glslh)."""

    def __init__(self, device: Device, taps: list[tuple[Taps, Taps]], kernels: list[Direct]):
        self.taps, self.kernels = taps, kernels
        size = HEADER * len(taps) + sum(kernel.weights.bytes for kernel in kernels)
        self.weights = Resident(device, size, self._packed)
        self.parameters = Resident(
            device, sum(kernel.parameters.bytes for kernel in kernels),
            lambda: np.concatenate([kernel.packed_parameters().reshape(-1) for kernel in kernels]),
        )  # fmt: skip

    def _packed(self) -> Int8:
        head: list[int] = []
        first = HEADER * len(self.taps)
        for (v, h), kernel in zip(self.taps, self.kernels, strict=True):
            head += [len(v.kernel), len(h.kernel), -v.offset, -h.offset, v.step, h.step, v.first, h.first]
            head += [first // 16, 0, 0, 0]
            first += kernel.weights.bytes
        parts = [kernel.packed().reshape(-1) for kernel in self.kernels]
        return np.concatenate([np.array(head, np.int32).view(np.int8), *parts])

    def build(self, b: Builder, p: TransposedConv2dProblem, x: Value, y: Value) -> None:
        widest = max(self.kernels, key=lambda kernel: kernel.kh * kernel.kw)
        sweep = _sweep(p, *self.taps[0])  # the first phase has the most pixels
        constants: dict[str, Constant] = {
            "PHASES": len(self.taps), "SLIDE": all(h.step == 1 for _, h in self.taps),
        }  # fmt: skip
        if len({kernel.kw for kernel in self.kernels}) > 1:
            constants["KW"] = 0
        program = widest.program(sweep, x.spec.layout, constants)
        slots = [x, b.constant(self.weights), b.constant(self.parameters), y]
        b.dispatch(program, slots, widest.push(sweep), len(self.taps) * widest.macs(sweep))
