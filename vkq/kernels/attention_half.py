"""Attention on float16 matrix units (shaders/matmul/attention_coopmat.comp).

Operands and weights are rounded to float16, and sums are float32. The error of a result is at most

    (2^-10 + 2 d + (keys + 4 tiles) 2^-23) A + keys 2^-24 V

If v is float32, 2^-9 replaces 2^-10.

- A: the sum of the magnitudes of the result's terms weight * v.
- V: the largest magnitude of v.
- d = ((depth + 8) 2^-23 + r 2^-11) P: a bound of the error of a score.
- P: the scale times the sum of the magnitudes of the products q * k.
- r: 0 if q is float16; 1 if q is float32; 2 if q and k are float32."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..device.profiles import profile
from ..layout.extent import Spec
from ..numerics.attention import Seen
from ..probe.matrices import Matrices, advertised_half
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.program import refusals
from ..select.path import half_refusal
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from .attention import AttentionSizes, Strides, numbers, rounds

SHADER = "attention__coopmat"
ROWS = (64, 32, 16)  # the possible numbers of rows (lines) of a workgroup
LEAST_LINES = 16  # with fewer rows, most of a matrix would be empty
INVOCATIONS, TILE, MOST_COLUMNS = 128, 64, 256
LOG2E = math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class HalfAttention:
    """Attention on float16 matrix units."""

    device: Device
    constants: dict[str, Constant]  # values of the shader's specialization constants, by name
    matrices: Matrices  # the shape of the matrices

    @classmethod
    def of(
        cls,
        device: Device,
        dtypes: tuple[str, str, str],
        strides: Sequence[Strides],
        sizes: AttentionSizes,
        rounds: bool = False,
    ) -> HalfAttention | str:
        """Return the attention, or the reason why matrix units do not compute it.

        - dtypes: those of q, k and v.
        - strides: those of q, k, v and y.
        - rounds: whether float32 keys and values may be rounded to float16."""
        half = dtypes[1:] == ("float16", "float16")
        if not half and not (rounds and dtypes[1] == dtypes[2]):
            return "keys and values are not float16"
        if sizes.lines < LEAST_LINES:
            return f"{sizes.lines} queries share keys; matrix units need {LEAST_LINES}"
        if sizes.depth % 16 or sizes.width % 16 or max(sizes.depth, sizes.width) > MOST_COLUMNS:
            given = f"a key has {sizes.depth} elements, a value {sizes.width}"
            return f"{given}; matrix units need multiples of 16 up to {MOST_COLUMNS}"
        steps = [n for one in strides[:3] for n in (one.batch, one.head, one.row)]
        if any(one.column != 1 for one in strides) or any(n % 8 for n in steps):
            return "columns are not contiguous, or strides of batch, head or row are not multiples of 8"
        if why := half_refusal(device):
            return why
        types: dict[str, Constant] = {"Q_HALF": dtypes[0] == "float16", "KV_HALF": half}
        able = [x for x in cls._all(device, sizes, types) if x._runs()]
        cores = profile(device.capabilities).multiprocessors
        full = (x for x in able if x.workgroups(sizes) >= cores)
        return next(full, able[-1] if able else "no tile fits the device's shared memory")

    @classmethod
    def _all(
        cls, device: Device, sizes: AttentionSizes, types: dict[str, Constant]
    ) -> Sequence[HalfAttention]:
        """Return a candidate for each tile that fits, the tiles with most rows first."""
        found = []
        for rows in ROWS:
            for one in advertised_half(device.capabilities):
                groups = INVOCATIONS // one.subgroup
                fits = rows % one.m == 0 and TILE % (groups * one.n) == 0 and 16 * groups <= TILE
                if fits and 16 % one.k == 0 and 16 % one.n == 0 and rows <= max(ROWS[-1], 2 * sizes.lines):
                    tile: dict[str, Constant] = {"LOCAL_X": INVOCATIONS, "ROWS": rows, "TILE": TILE}
                    tile |= {"DEPTH16": sizes.depth // 16, "WIDTH16": sizes.width // 16, **types}
                    found.append(cls(device, tile | one.shape_constants, one))
        return found

    def _runs(self) -> bool:
        variant = catalog().find(SHADER)
        return not refusals(variant, variant.constants(self.constants), self.device.capabilities)

    def workgroups(self, sizes: AttentionSizes) -> int:
        return sizes.batch * sizes.groups * -(-sizes.lines // int(self.constants["ROWS"]))

    def build(
        self,
        b: Builder,
        operands: tuple[Value, Value, Value],
        strides: Sequence[Strides],
        sizes: AttentionSizes,
        y: Spec,
        scale: float,
        seen: Seen,
        bias: tuple[Value, Strides] | None,
        guarded: bool,
        places: Value | None,
    ) -> Value:
        """Add the dispatch to a plan, and return the result. The arguments are those of
        `vkq.kernels.attention.attended`. If *y* is float16, the result is float32 on devices that may round
        wrongly to float16."""
        half = y.dtype == "float16" and self.device.converts
        result = b.new(y if half else Spec(y.shape, "float32"))
        how: dict[str, Constant] = {
            "BIASED": bias is not None, "CAUSAL": seen.causal, "PLACED": places is not None,
            "GUARDED": guarded, "Y_HALF": half,
        }  # fmt: skip
        program = self.device.program(catalog().find(SHADER), self.constants | how, self.matrices.subgroup)
        push = numbers(sizes, (*strides, bias[1] if bias else None), scale * LOG2E, seen, places)
        slots = [*operands, bias[0] if bias else operands[0], places or operands[0], result]
        b.why("path", f"float16 matrices, {self.matrices}, sums in float32")
        b.dispatch(program, slots, push, macs=rounds(sizes))
        return result
