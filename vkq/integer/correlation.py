"""Exact integer correlation on a device: operands packed as digits, one dispatch per chunk, results of 32 or
64 bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..device.profiles import profile
from ..layout.extent import Spec
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.plan import Plan, Resident
from ..runtime.recording import Recording
from ..runtime.tensor import Tensor
from ..select.path import Choice
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from .digits import Digits
from .phases import Axis, pack_image, pack_taps, unpack_result
from .work import TEMPLATES, Arithmetic, Shape, Stored, Work

CHUNK_BYTES = 32 << 20  # of the packed image and of the result on the device; larger ones are made in parts


class Correlation:
    """Templates on a device, and the dispatches that correlate images with them.

    w is (OC, IC/groups, KH, KW), bias int64 (OC,). *columns* is the axis along the width; rows may differ
    from call to call.
    """

    def __init__(
        self, device: Device, w: npt.NDArray[Any], bias: npt.NDArray[np.int64], how: Arithmetic, groups: int,
        rows: Axis, columns: Axis
    ):  # fmt: skip
        self.device, self.how, self.columns = device, how, columns
        taps = pack_taps(w, rows, columns)
        oc, self.groups = len(w), groups
        taps = taps.reshape(groups, oc // groups, -1, *taps.shape[-2:])
        self._sizes = {
            "groups": groups, "templates": oc // groups, "channels": taps.shape[2], "kh": taps.shape[3],
            "kwords": -(-taps.shape[4] // how.word_taps), "ow": columns.plain_out,
        }  # fmt: skip
        shape = self.shape(1, rows)
        words = _template_words(taps, how, TEMPLATES[shape.block], shape)
        self._weights = Resident(device, words.nbytes, lambda: words)
        constants = how.constants(w, bias)
        self._constants = Resident(device, constants.nbytes, lambda: constants)
        self._plans: dict[tuple[Spec, Shape, Stored], Plan] = {}

    def shape(self, images: int, rows: Axis) -> Shape:
        """The plain correlation for so many images and these rows."""
        residues = rows.residues * self.columns.residues
        return Shape(images=images * residues, oh=rows.plain_out, **self._sizes)

    def load(self, x: npt.NDArray[Any], rows: Axis) -> Job:
        """The images x (N, IC, H, W) packed on the device, with room for their result."""
        how, columns = self.how, self.columns
        shape = self.shape(len(x), rows)
        first_row, last_row = rows.stored()
        first, last = columns.stored()
        first_word, last_word = first // how.lanes, -(-last // how.lanes)
        size = (max(last_row - first_row, 1), max(last_word - first_word, 1) * how.lanes)
        n, c = x.shape[0], x.shape[1]
        phases = (rows.phases, columns.phases)
        packed = np.empty((how.x.count, n, rows.residues, columns.residues, c, *phases, *size), how.x.dtype)
        packed[...] = np.array(how.x.of_zero(), how.x.dtype).reshape(-1, *[1] * 8)
        for image in range(n):  # one at a time: the digits of all would be a second copy
            pack_image(
                how.x.of(x[image]), packed[:, image], rows, columns, (first_row, first_word * how.lanes)
            )
        words = Tensor.from_numpy(np.ascontiguousarray(packed).view("<i4").reshape(-1), self.device)
        stored = Stored(size[0], size[1] // how.lanes, first_row, first_word)
        plan = self.plan(words.spec, shape, stored)
        return Job(self, shape, rows, plan, words, Tensor.of(self.device, plan.result))

    def plan(self, x: Spec, shape: Shape, stored: Stored) -> Plan:
        """The dispatch for packed images, and the clearing of the result where workgroups add to it; made
        once for each shape."""
        key = x, shape, stored
        if key not in self._plans:
            b = Builder(self.device)
            self._plans[key] = b.plan(self.build(b, b.input(x), shape, stored))
        return self._plans[key]

    def build(self, b: Builder, x: Value, s: Shape, stored: Stored) -> Value:
        """Adds the correlation to a plan."""
        how = self.how
        work = Work.of(s, how, profile(self.device.capabilities).busy_workgroups)
        y = b.words(s.images * s.groups * s.templates * s.oh * s.ow * (2 if how.wide else 1))
        offset = how.w_offset % 2**64
        push: dict[str, int | float] = {
            **work.push, "groups": s.groups, "images": s.images, "blocks": s.blocks, "oh": s.oh, "ow": s.ow,
            "group_templates": s.templates, "group_channels": s.channels, "kh": s.kh, "kwords": s.kwords,
            **dataclasses.asdict(stored), "x_digits": how.x.count, "w_digits": how.w.count,
            "fill": _fill(how.x), "flush_words": how.flush_words,
            "w_offset_low": _signed(offset & 0xFFFFFFFF), "w_offset_high": _signed(offset >> 32),
        }  # fmt: skip
        constants: dict[str, Constant] = {
            "LOCAL_X": s.local[0], "LOCAL_Y": s.local[1], "COLUMN": s.column, "WIDE": how.wide,
            "WINDOW_SUMS": how.w_offset != 0,
        }  # fmt: skip
        variant = catalog().find("integer_correlate__tiled", dot=how.form, templates=s.block)
        if work.splits > 1:
            b.fill(y, 0)
        slots = [x, b.constant(self._weights), b.constant(self._constants), y]
        b.dispatch(self.device.program(variant, constants), slots, push, work.macs)
        return y


@dataclasses.dataclass(frozen=True)
class Job:
    """Images on a device, to be correlated with the templates of a `Correlation`."""

    owner: Correlation
    shape: Shape
    rows: Axis
    plan: Plan
    x: Tensor
    y: Tensor

    def record(self, recording: Recording) -> None:
        """Asks for the result."""
        recording.add(self.plan, [self.x.buffer], [self.y.buffer])

    def read(self, out: npt.NDArray[Any]) -> None:
        """The result into out (N, OC, OH, OW), after everything recorded so far has run."""
        s, columns = self.shape, self.owner.columns
        raw = self.y.numpy().view("<i8" if self.owner.how.wide else "<i4")
        split = (-1, self.rows.residues, columns.residues, s.groups * s.templates, s.oh, s.ow)
        unpack_result(raw.reshape(split), self.rows, columns, out)


def _fill(x: Digits) -> int:
    digits = x.of_zero()
    if x.bits == 16:
        return digits[0]
    return _signed(sum((d & 255) << (8 * i) for i, d in enumerate(digits)))


def _signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word


def _template_words(
    taps: npt.NDArray[Any], how: Arithmetic, width: int, shape: Shape
) -> npt.NDArray[np.int32]:
    """taps (G, T, C, KH, KW) as words [group][block][digit][channel][ky][word][template of the block]."""
    g, t, c, kh, kw = taps.shape
    padded = np.zeros((g, shape.blocks * width, c, kh, shape.kwords * how.word_taps), taps.dtype)
    padded[:, :t, :, :, :kw] = taps  # zero beyond the edge, as a number: its digits follow from the offset
    digits = how.w.of(padded)
    words = digits.astype("<i4") if how.word_taps == 1 else np.ascontiguousarray(digits).view("<i4")
    split = words.reshape(how.w.count, g, shape.blocks, width, c, kh, shape.kwords)
    return np.ascontiguousarray(split.transpose(1, 2, 0, 4, 5, 6, 3))


def axes(p: Conv2dProblem) -> tuple[Axis, Axis]:
    """The problem's vertical and horizontal axis."""
    rows = Axis(p.h, p.kh, p.oh, p.stride[0], p.dilation[0], p.padding[0])
    return rows, Axis(p.w, p.kw, p.ow, p.stride[1], p.dilation[1], p.padding[1])


def correlate(
    device: Device, choice: Choice, how: Arithmetic, p: Conv2dProblem, x: npt.NDArray[Any],
    w: npt.NDArray[Any], bias: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:  # fmt: skip
    """The whole correlation in chunks that fit `CHUNK_BYTES`; int64 where *how* is wide, else int32."""
    y = np.empty(p.y_shape, np.int64 if how.wide else np.int32)
    rows, columns = axes(p)
    for first, last, groups in _template_chunks(p, how):
        one_group = p.oc // p.groups
        channels = slice(first // one_group * w.shape[1], (last - 1) // one_group * w.shape[1] + w.shape[1])
        owner = Correlation(device, w[first:last], bias[first:last], how, groups, rows, columns)
        images, lines = _image_chunk(p, how, last - first, channels.stop - channels.start)
        for n in range(0, p.n, images):
            for top in range(0, p.oh, lines):
                part, axis = rows.part(top, min(top + lines, p.oh))
                job = owner.load(x[n : n + images, channels, part], axis)
                with device.operation() as recording:
                    job.record(recording)
                job.read(y[n : n + images, first:last, top : top + lines])
    return y


def _template_chunks(p: Conv2dProblem, how: Arithmetic) -> Iterator[tuple[int, int, int]]:
    """(first, last, groups) of the templates that are worked on together: whole groups, or a part of the only
    one."""
    template = max(1, p.gemm_k // p.kw * (p.kw + 3) * how.w.count * (4 if how.form == "mul32" else 1))
    result = p.ow * min(p.oh, 64) * (8 if how.wide else 4)
    most = max(8, CHUNK_BYTES // max(template, result) // 8 * 8)
    unit = p.oc // p.groups if p.groups > 1 else 1
    step = max(unit, most // unit * unit)
    for first in range(0, p.oc, step):
        last = min(first + step, p.oc)
        yield first, last, (last - first) // unit if p.groups > 1 else 1


def _image_chunk(p: Conv2dProblem, how: Arithmetic, templates: int, channels: int) -> tuple[int, int]:
    """(images, result rows) that are worked on together."""
    images, lines = p.n, p.oh

    def fits() -> bool:
        reach = min(p.h, (lines - 1) * p.stride[0] + (p.kh - 1) * p.dilation[0] + 1)
        packed = (
            images
            * channels
            * (reach + p.dilation[0] * p.stride[0])
            * (p.w + 4 * p.dilation[1] * p.stride[1])
        )
        result = images * templates * lines * p.ow * (8 if how.wide else 4)
        return max(packed * how.x.count * how.x.bits // 8, result) <= CHUNK_BYTES

    while not fits() and images > 1:
        images = -(-images // 2)
    while not fits() and lines > 1:
        lines = -(-lines // 2)
    return images, lines
