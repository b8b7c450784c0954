"""Exact integer correlation on a device: operands packed as digits, one dispatch per chunk, results of 32 or
64 bits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..problem.conv2d import Conv2dProblem
from ..runtime.device import Device
from ..runtime.program import Program
from ..runtime.recording import Recording
from ..select.path import Choice
from ..shader.catalog import catalog
from ..shader.spec import Value
from .digits import Digits, digits_for
from .phases import Axis, pack_image, pack_taps, unpack_result

INVOCATIONS = 64
CHUNK_BYTES = 32 << 20  # of the packed image and of the result on the device; larger ones are made in parts
TILE_WORDS = 2048  # of the image tile, and of the template tile, in shared memory
STEP_WORDS = 256  # of a window in one step: no float lane sum beyond 2**24
# Workgroups that keep a device busy: the reduction is split until there are so many.
BUSY_WORKGROUPS = {"discrete": 1024, "virtual": 1024, "cpu": 8}
BUSY_WORKGROUPS_DEFAULT = 256
FLUSH_WIDE, FLUSH_FLOAT, NEVER = (
    4096,
    256,
    2**32 - 1,
)  # words: 4096 * 4 * 255**2 < 2**31, 256 * 4 * 2**14 = 2**24
LOCAL_SIZES = ((16, 4), (4, 16), (64, 1), (1, 64))  # few, as each is a pipeline of its own
TEMPLATES = {"one": 1, "four": 4, "eight": 8}


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """How the sums are formed: the shader's form (a dot form or ``mul32``), the digits of x and w, and 64
    bits or 32."""

    form: str
    x: Digits
    w: Digits
    wide: bool

    @property
    def lanes(self) -> int:
        """Image elements in a word of device memory."""
        return 32 // self.x.bits

    @property
    def word_taps(self) -> int:
        """Taps in a word of a template."""
        return 1 if self.form == "mul32" else 4

    @property
    def x_shift(self) -> int:
        """What the form adds to x: 128 to each digit of its unsigned operand."""
        return 128 * self.x.ones if self.form in ("u8s8", "u8u8") else 0

    @property
    def w_offset(self) -> int:
        """What the window sums of the shifted x are multiplied by."""
        return self.w.offset - (128 * self.w.ones if self.form == "u8u8" else 0)

    @property
    def flush_words(self) -> int:
        return FLUSH_FLOAT if self.form == "float" else FLUSH_WIDE if self.wide else NEVER

    def constants(self, w: npt.NDArray[Any], bias: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Per template: bias + (x_offset - x_shift) * sum w, as (low, high) words of the number modulo
        2**64."""
        sums = w.reshape(len(w), -1).sum(axis=1, dtype=np.int64)
        factor = np.uint64((self.x.offset - self.x_shift) % 2**64)
        return np.asarray(
            (bias.astype(np.uint64) + sums.astype(np.uint64) * factor)
            .astype("<u8")
            .view("<i4")
            .reshape(-1, 2)
        )


def arithmetic(x_range: tuple[int, int], w_range: tuple[int, int], wide: bool, form: str) -> Arithmetic:
    """The cheapest exact arithmetic for numbers of these ranges.

    Without a dot product, four float products for the digits of two 16-bit numbers cost more than one 32-bit
    multiply, which is exact modulo 2**32 but not in 64 bits.
    """
    x, w = digits_for(*x_range), digits_for(*w_range)
    if form == "float" and not wide and x.count * w.count > 1 and max(x.count, w.count) <= 2:
        return Arithmetic("mul32", digits_for(*x_range, bits=16), digits_for(*w_range, bits=16), wide)
    return Arithmetic(form, x, w, wide)


@dataclasses.dataclass(frozen=True)
class Shape:
    """A plain correlation as the shader does it, after `integer_phases`: sizes by group, result and tile."""

    images: int
    groups: int
    templates: int  # of a group
    channels: int  # of a group
    kh: int
    kwords: int
    oh: int
    ow: int

    @property
    def column(self) -> bool:
        """Results one pixel wide: an invocation's four pixels lie below each other."""
        return self.ow == 1

    @property
    def block(self) -> str:
        """How many templates an invocation has: the cheapest, an image word counting like two templates."""
        return min(
            TEMPLATES,
            key=lambda name: (
                -(-self.templates // TEMPLATES[name]) * (TEMPLATES[name] + 2),
                -TEMPLATES[name],
            ),
        )

    @property
    def blocks(self) -> int:
        return -(-self.templates // TEMPLATES[self.block])

    @property
    def local(self) -> tuple[int, int]:
        """Invocations across and down: as few surplus pixels as can be."""
        if self.column:
            return 1, INVOCATIONS
        return min(LOCAL_SIZES, key=lambda size: math.prod(self.tiles(size)))

    def tiles(self, local: tuple[int, int]) -> tuple[int, int]:
        """Workgroups across and down."""
        width, height = (1, 4 * local[1]) if self.column else (4 * local[0], local[1])
        return -(-self.ow // width), -(-self.oh // height)


def step_size(shape: Shape, form: str, most_words: int) -> tuple[int, int, int]:
    """(channels, rows, words) of the windows that a step takes: as many as the shared memory and *most_words*
    allow."""
    local = shape.local
    rows = 4 * local[1] if shape.column else local[1]
    across = local[0] * (4 if form == "mul32" else 1)
    words_max = min(most_words, TILE_WORDS // (TEMPLATES[shape.block] * (4 if form == "float" else 1)))

    def fits(channels: int, kh: int, words: int) -> bool:
        line = words | 1 if shape.column else across + words
        return channels * kh * words <= words_max and channels * (rows + kh - 1) * line <= TILE_WORDS

    words = _even(
        shape.kwords, next(n for n in range(min(shape.kwords, STEP_WORDS), 0, -1) if n == 1 or fits(1, 1, n))
    )
    kh = _even(
        shape.kh, next(n for n in range(min(shape.kh, STEP_WORDS), 0, -1) if n == 1 or fits(1, n, words))
    )
    if (kh, words) != (shape.kh, shape.kwords):
        return 1, kh, words
    most = next(n for n in range(min(shape.channels, STEP_WORDS), 0, -1) if n == 1 or fits(n, kh, words))
    return _even(shape.channels, most), kh, words


def _even(total: int, most: int) -> int:
    """Parts of at most *most*, as equal as can be."""
    return -(-total // -(-total // most))


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
        self._weights = _upload(device, _template_words(taps, how, TEMPLATES[shape.block], shape))
        self._constants = _upload(device, how.constants(w, bias))

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
        buffer = _upload(self.device, packed)
        y = self.device.allocate(
            shape.images * shape.groups * shape.templates * shape.oh * shape.ow * (8 if how.wide else 4)
        )
        stored = {
            "x_rows": size[0],
            "x_words": size[1] // how.lanes,
            "x_first_row": first_row,
            "x_first_word": first_word,
        }
        return Job(self, shape, rows, buffer, y, stored)


@dataclasses.dataclass(frozen=True)
class Job:
    """Images on a device, to be correlated with the templates of a `Correlation`."""

    owner: Correlation
    shape: Shape
    rows: Axis
    x: Any
    y: Any
    stored: dict[str, int]

    def record(self, recording: Recording) -> None:
        """Records the dispatch, and the clearing of the result where workgroups add to it."""
        how, s, device = self.owner.how, self.shape, self.owner.device
        local = s.local
        tiles = s.tiles(local)
        alone = tiles[0] * tiles[1] * s.blocks * s.groups * s.images
        busy = BUSY_WORKGROUPS.get(device.capabilities.device_type, BUSY_WORKGROUPS_DEFAULT)
        pairs = how.x.count * how.w.count
        words = s.channels * s.kh * s.kwords
        wanted = max(1, busy // alone)
        block = step_size(s, how.form, max(8, min(STEP_WORDS, pairs * words // wanted)))
        steps = pairs * -(-s.channels // block[0]) * -(-s.kh // block[1]) * -(-s.kwords // block[2])
        per_split = max(1, steps // wanted)
        splits = -(-steps // per_split)
        offset = how.w_offset % 2**64
        push: dict[str, int | float] = {
            "tiles_x": tiles[0], "tiles_y": tiles[1], "blocks": s.blocks, "groups": s.groups,
            "images": s.images, "splits": splits, "steps": steps, "steps_per_split": per_split, "oh": s.oh,
            "ow": s.ow, "group_templates": s.templates, "group_channels": s.channels, "kh": s.kh,
            "kwords": s.kwords, "channel_block": block[0], "row_block": block[1], "word_block": block[2],
            **self.stored, "x_digits": how.x.count, "w_digits": how.w.count, "fill": _fill(how.x),
            "flush_words": how.flush_words, "w_offset_low": _signed(offset & 0xFFFFFFFF),
            "w_offset_high": _signed(offset >> 32),
        }  # fmt: skip
        constants: dict[str, Value] = {"LOCAL_X": local[0], "LOCAL_Y": local[1], "COLUMN": s.column}
        program = self._program(constants)
        if splits > 1:
            recording.fill(self.y, 0)
        buffers = [self.x, self.owner._weights, self.owner._constants, self.y]
        macs = pairs * words * how.word_taps * alone * INVOCATIONS * 4 * TEMPLATES[s.block]
        recording.dispatch(program, buffers, push, macs)

    def _program(self, constants: dict[str, Value]) -> Program:
        how = self.owner.how
        variant = catalog().find("integer_correlate__tiled", dot=how.form, templates=self.shape.block)
        return self.owner.device.program(
            variant, {**constants, "WIDE": how.wide, "WINDOW_SUMS": how.w_offset != 0}
        )

    def read(self, out: npt.NDArray[Any]) -> None:
        """The result into out (N, OC, OH, OW), after everything recorded so far has run."""
        s, columns = self.shape, self.owner.columns
        dtype = "<i8" if self.owner.how.wide else "<i4"
        count = s.images * s.groups * s.templates * s.oh * s.ow
        raw = self.owner.device.download(self.y, count * np.dtype(dtype).itemsize).view(dtype)
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


def _upload(device: Device, data: npt.NDArray[Any]) -> Any:
    buffer = device.allocate(data.nbytes)
    device.upload(buffer, np.ascontiguousarray(data))
    return buffer


def axes(p: Conv2dProblem) -> tuple[Axis, Axis]:
    """The problem's vertical and horizontal axis."""
    rows = Axis(p.h, p.kh, p.oh, p.stride[0], p.dilation[0], p.padding[0])
    return rows, Axis(p.w, p.kw, p.ow, p.stride[1], p.dilation[1], p.padding[1])


def run(
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
