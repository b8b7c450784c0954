"""Int8 matrix products of linear layers and convolutions: the weights, and the dispatches of a product."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from ..device.capabilities import Capabilities
from ..device.profiles import profile
from ..layout.pack import layout
from ..runtime.builder import Builder, Value, lets_loop
from ..runtime.device import Device
from ..runtime.packing import pack
from ..runtime.plan import Resident
from ..runtime.program import Program
from ..select import registers
from ..shader.catalog import catalog
from ..shader.spec import TEXEL_BYTES, Variant
from ..shader.spec import Value as Constant
from . import gemv
from .weights import PARAMETER_BYTES, WEIGHT_LAYOUT, Arithmetic, Int8, Int32, block_weights, ceil4

# Maximum number of words along k that a float32 accumulator sums exactly: WORDS_PER_FLUSH in
# shaders/common/dot4x8.glslh.
FLOAT_WORDS = 256
SHIFTS = {"s8s8": (0, 0), "u8s8": (128, 0), "u8u8": (128, 128)}  # offsets added to x and w, by dot form
INVOCATIONS = 64  # invocations of a workgroup; every device supports 64


@dataclasses.dataclass(frozen=True)
class Rows:
    """The positions of a product's rows in the result, a batch of images. A row of the product is one
    pixel. An image row is padded to ``ow_padded`` rows of the product. A linear layer has image rows of one
    pixel."""

    lines: int  # image rows of all images together
    oh: int = 1  # image rows of an image
    ow: int = 1  # pixels of an image row
    ow_padded: int = 1

    @property
    def count(self) -> int:
        return self.lines * self.ow_padded

    @property
    def blocks(self) -> int:
        return ceil4(self.count)

    @property
    def push(self) -> dict[str, int | float]:
        return {"lines": self.lines, "oh": self.oh, "ow": self.ow, "ow_padded": self.ow_padded}


class Int8Gemm:
    """The int8 product in one dot form (`vkq.select.path.TABLE`).

    - *weight*: a function that returns the int8 weights (G, N, K) of this *shape* when a kernel needs them.
    - *zero_point*: (G, N), in int8's range.
    - *channels*: the number of output channels without padding."""

    unit = 4  # rows of a block; kernels write whole blocks

    def __init__(
        self,
        device: Device,
        shape: tuple[int, int, int],
        weight: Callable[[], Int8],
        zero_point: Int32,
        arithmetic: Arithmetic,
        form: str,
        channels: int,
    ):
        self.device, self.arithmetic, self.form, self.channels = device, arithmetic, form, channels
        self.groups, self.n, self.k = shape
        self.n4, self.k4 = ceil4(self.n), ceil4(self.k)
        self.row_sums = bool(zero_point.any())
        self.kernel = "auto"  # "auto", or the kernel to use: "gemv", "tiled" or "staged"

        def blocked() -> Int8:
            return block_weights(weight(), zero_point)

        self._blocked = blocked
        self._packed: dict[str, Resident] = {}  # packed weights by layout name
        self.weights = self.weights_in(WEIGHT_LAYOUT)
        self.parameters = arithmetic.after.before(
            device,
            self.groups * self.n4 * PARAMETER_BYTES,
            lambda: arithmetic.channel_parameters(blocked(), form, zero_point),
        )

    def weights_in(self, name: str) -> Resident:
        """Return the weights packed in the layout *name*. They are packed once, for activations of all
        shapes."""
        if name not in self._packed:
            how, blocked = layout(name), self._blocked
            size = 4 * how.words((self.groups, 4 * self.n4, 4 * self.k4))
            self._packed[name] = Resident(self.device, size, lambda: pack(how, blocked()))
        return self._packed[name]

    def variant(self, kernel: str, **axes: str) -> Variant:
        """Return the variant of a kernel (such as ``gemm_{}__tiled``) for this product's scheme, dot form
        and output."""
        a = self.arithmetic
        return catalog().find(kernel.format(a.family), dot=self.form, **a.axes, **axes)

    def program(self, m4: int) -> Program:
        """Return the pipeline for m4 blocks of four rows, with tiles in shared memory or in registers."""
        staged = self.staged_tile(m4)
        if staged:
            return self.device.program(self.variant("gemm_{}__staged", tile=staged), self.constants())
        shape = registers.ProductShape(self.form, self.arithmetic.out, m4, self.n4, self.k4, self.groups)
        setting = registers.choose_setting(self.device, shape)
        known = profile(self.device.capabilities)
        constants = {**setting.local, **self.constants()}
        if not (known.texels and self._viewable(m4)):
            return self.device.program(self.variant("gemm_{}__tiled", tile=setting.tile), constants)
        constants["UNROLL"] = 2 if known.lane_loads else 1
        return self.device.program(self.variant("gemm_{}__texels", tile=setting.tile), constants)

    def _viewable(self, m4: int) -> bool:
        x_bytes = TEXEL_BYTES * self.groups * self.k4 * m4
        return viewable(self.device.capabilities, x_bytes, self.weights.bytes, self.parameters.bytes)

    def staged_tile(self, m4: int) -> str | None:
        """Return the tile in shared memory for m4 blocks of rows, or None if tiles in registers are
        preferred."""
        if self.kernel not in ("auto", "staged") or registers.is_picked():
            return None
        if f"gemm_{self.arithmetic.family}__staged" not in catalog().shaders:
            return None
        tile = staged_tile(self.device.capabilities, m4, self.n4)
        return tile or (SMALLEST_STAGED if self.kernel == "staged" else None)

    def gemv_program(self, rows: int, share: bool = False) -> Program:
        """Return the GEMV pipeline for *rows* rows. *share*: several invocations share the sum over k,
        because the driver would abort a loop over all of k."""
        c = self.device.capabilities
        known = profile(c)
        local = gemv.split(c, self.n4, self.k4, rows, share=share)
        constants = {**local, **self.constants(-(-self.k4 // int(local["LOCAL_Y"])))}
        constants["UNROLL"] = known.gemv_unroll
        texels = known.lane_loads and self._viewable(ceil4(rows))
        kernel = "gemv_{}__texels" if texels else "gemv_{}__split"
        return self.device.program(self.variant(kernel, rows=str(max(1, min(rows, 4)))), constants)

    def chosen(self, rows: Rows, m4: int) -> Program:
        """Return the pipeline for these rows: the one that ``kernel`` names, or the one for this number of
        rows. If the driver would abort its loop over k, return a pipeline that splits k."""
        most = gemv.max_rows(self.device.capabilities)
        # A narrow image: each image row of fewer than four pixels is padded to four rows of the product.
        if rows.ow < rows.ow_padded == 4:
            few, fits = rows.ow, rows.ow * m4 <= most * (4 // rows.ow)
        else:
            few = rows.count if rows.ow == rows.ow_padded else 4 * (m4 - 1) + min(rows.ow, 4)
            fits = few <= most
        on_gemv = self.kernel == "gemv" or (self.kernel == "auto" and fits)
        program = self.gemv_program(few) if on_gemv else self.program(m4)
        if (on_gemv or self.kernel == "auto") and not self._ends(program):
            return self.gemv_program(few, share=True)
        return program

    def _ends(self, program: Program) -> bool:
        """Return True if the driver does not abort the program's loops."""
        return lets_loop(self.device, program.rounds({"k4": self.k4}))

    def constants(self, words: int | None = None) -> dict[str, Constant]:
        """Return the specialization constants of all kernels. *words*: the number of words of k that one
        invocation sums; None: all."""
        words = self.k4 if words is None else words
        long_k = self.form == "float" and words > FLOAT_WORDS
        return {"ROW_SUMS": self.row_sums, "LONG_K": long_k, **self.arithmetic.after.constants}

    def build(
        self,
        b: Builder,
        x: Value,
        y: Value,
        rows: Rows,
        extra: Sequence[Value] = (),
        first: int = 0,
        count: int | None = None,
    ) -> None:
        """Add the product to a plan: the row blocks [first, first + count) of y, by default all. x has only
        the row blocks that are computed.

        *extra*: the scale and zero point of every row, if x is quantized by rows.
        """
        m4 = rows.blocks if count is None else count
        slots = [x, b.constant(self.weights), b.constant(self.parameters), y, *extra]
        push, macs = self.push(rows, first, m4), self.block_macs(m4)
        b.dispatch(self.chosen(rows, m4), slots, push, macs, self.arithmetic.after.in_place)

    def block_macs(self, m4: int) -> int:
        """Return the number of multiply-adds for m4 row blocks, padding included."""
        return int(64 * m4 * self.n4 * self.k4 * self.groups)

    def push(self, rows: Rows, first_m4: int, m4: int) -> dict[str, int | float]:
        """Return the push constants of an int8 product's kernels for m4 row blocks from *first_m4* on."""
        return {
            "m4": m4, "n4": self.n4, "k4": self.k4, "groups": self.groups, "first_m4": first_m4,
            "y_c4": ceil4(self.channels), "channels": self.channels, **rows.push, **self.arithmetic.epilogue,
        }  # fmt: skip

    # For `vkq.kernels.im2col`: a unit is four rows of the im2col matrix.

    def row_units(self, rows: Rows) -> int:
        return rows.blocks

    @property
    def unit_bytes(self) -> int:
        return self.groups * 16 * self.k4

    def gather(self, group_channels: int) -> Program:
        """Return the pipeline that writes the im2col matrix."""
        channels = "four" if group_channels % 4 == 0 else "any"
        return self.device.program(catalog().find("im2col_q8__gather", channels=channels))

    def gather_push(self, first: int, count: int) -> dict[str, int | float]:
        """Return the push constants of the im2col pipeline for *count* blocks of four rows, from block
        *first* on."""
        zero = self.arithmetic.x_zero_point
        return {"m4": count, "k4": self.k4, "first_m4": first, "x_zero_point": zero}


def viewable(capabilities: Capabilities, *sizes: int) -> bool:
    """Return True if texel buffers on the device can have each of these sizes in bytes; a texel buffer
    cannot be empty."""
    most = TEXEL_BYTES * capabilities.properties["maxTexelBufferElements"]
    return all(0 < size <= most for size in sizes)


SMALLEST_STAGED = "32x32"


def staged_tile(capabilities: Capabilities, m4: int, n4: int, conv: bool = False) -> str | None:
    """Return the tile in shared memory for a product of m4 x n4 blocks: the profile's tile if the product
    has at least one such tile for each core, else the smallest tile. For a convolution (*conv*), only the
    profile's tile is considered. Return None if the product fills less than half of the tile's rows or
    columns, or if tiles in registers are as fast."""
    known = profile(capabilities)
    largest = known.staged_conv if conv else known.staged
    if largest is None:
        return None
    for tile in (largest,) if conv else (largest, SMALLEST_STAGED):
        rows, columns = (int(size) // 4 for size in tile.split("x"))
        enough = (
            conv or tile == SMALLEST_STAGED or -(-m4 // rows) * -(-n4 // columns) >= known.multiprocessors
        )
        if enough and 2 * m4 >= rows and 2 * n4 >= columns:
            return tile
    return None
