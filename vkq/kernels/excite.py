"""Squeeze-and-excite in one dispatch: the means of an image's channels, then two 1x1 convolutions of the
means. The results are the gates of the channels.

One shader computes the means (global_avg_pool_q8.comp) and the convolutions (excite.glslh). Several
workgroups compute the means of an image. The last of them to finish also computes the convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..layout.extent import PIXELS
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.plan import Resident
from ..runtime.program import refusals
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from ..shader.spec import Variant
from .after import NOTHING, TABLE
from .gemm import Int8Gemm
from .weights import ceil4

EXCITE = "global_avg_pool_q8__excite"
# Limits of excite.glslh, in words of four: MOST_C4 of channels, MOST_HIDDEN4 of hidden units.
MOST_C4, MOST_HIDDEN4 = 512, 64
MOST_IMAGES = 1024  # maximum number of images: each image has a counter
INVOCATIONS = 128  # size of the smallest workgroup; excite.glslh needs at least MOST_HIDDEN4 invocations


class Excite:
    """Two successive matrix products on the channel means of images."""

    def __init__(self, device: Device, first: Int8Gemm, second: Int8Gemm):
        self.device, self.first, self.second = device, first, second
        self.arrivals = Resident(device, 4 * MOST_IMAGES, lambda: np.zeros(MOST_IMAGES, np.uint32))

    @property
    def fits(self) -> bool:
        """True if the shader supports the two products and can run on the device."""
        first, second = self.first, self.second
        return (
            first.groups == second.groups == 1 and (first.k, first.n) == (second.n, second.k)
            and {first.arithmetic.out, second.arithmetic.out} == {"q8to"}
            and {first.arithmetic.after.kind, second.arithmetic.after.kind} <= {NOTHING.kind, TABLE}
            and 0 < first.k4 <= MOST_C4 and 0 < first.n4 <= MOST_HIDDEN4
            and not any(self._refused(layout) for layout in PIXELS)
        )  # fmt: skip

    def build(
        self,
        b: Builder,
        x: Value,
        y: Value,
        pool: Mapping[str, int | float],
        workgroup: Mapping[str, Constant],
    ) -> None:
        """Add the gates y of images x to a plan. *pool*, *workgroup*: the push constants and the
        specialization constants of the kernel that computes the means."""
        n, c, _, _ = y.spec.shape
        tables = {f"TABLE{i}": gemm.arithmetic.after.kind == TABLE for i, gemm in self._products}
        invocations = self._invocations(x.spec.layout, int(workgroup["LOCAL_X"]))
        local: dict[str, Constant] = {"LOCAL_X": invocations, "LONG": True}
        program = self.device.program(self._variant(x.spec.layout), {**workgroup, **local, **tables})
        known = [b.constant(one) for _, gemm in self._products for one in (gemm.weights, gemm.parameters)]
        slots = [x, y, *known, b.words(n * ceil4(c)), b.constant(self.arrivals)]
        macs = x.spec.size + 32 * n * self.first.k4 * self.first.n4
        b.dispatch(program, slots, {**pool, **self._push}, macs)

    def _invocations(self, layout: str, most: int) -> int:
        """Return the number of invocations of a workgroup: *most*, the number in the kernel that computes the
        means. It is halved, down to INVOCATIONS, while the device refuses the variant (for example because
        shared memory is small)."""
        while most > INVOCATIONS and self._refused(layout, most):
            most //= 2
        return most

    def _refused(self, layout: str, invocations: int = INVOCATIONS) -> list[str]:
        variant = self._variant(layout)
        return refusals(variant, variant.constants({"LOCAL_X": invocations}), self.device.capabilities)

    def _variant(self, layout: str) -> Variant:
        return catalog().find(EXCITE, layout=PIXELS[layout], dot=self.first.form)

    @property
    def _products(self) -> tuple[tuple[int, Int8Gemm], ...]:
        return (1, self.first), (2, self.second)

    @property
    def _push(self) -> dict[str, Any]:
        push: dict[str, Any] = {"hidden4": self.first.n4}
        for i, gemm in self._products:
            end = gemm.arithmetic.epilogue
            push |= {f"zero{i}": end["y_zero_point"], f"min{i}": end["y_min"], f"max{i}": end["y_max"]}
        return push
