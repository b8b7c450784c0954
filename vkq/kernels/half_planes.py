"""1x1 convolutions of float activations on matrix units that read NCHW images directly (`Planes`), and
convolutions of float32 images on bfloat16 matrix units (`PartsConvolution`)."""

from __future__ import annotations

import math

from ..device.profiles import profile
from ..probe.matrices import BRAIN, HALF
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..shader.catalog import catalog
from .cast import converted
from .floats import FloatGemm
from .half import HalfMatrices
from .half_configs import PARTS_OF_FLOAT32, PLANES, GemmConfig
from .pixels import window_constants
from .weights import Int8

VECTOR = 4  # number of pixels that are loaded at once
# Minimum number of multiply-adds: with fewer, the overhead exceeds the time that matrix units save.
LEAST_MACS = {HALF: 0, BRAIN: 1 << 20}


def are_rows(p: Conv2dProblem) -> bool:
    """Return True if the image is the im2col matrix of the convolution, and a channel has a multiple of
    VECTOR pixels."""
    one = (p.kh, p.kw) == (1, 1) == p.stride and not any(p.padding)
    return one and p.h * p.w % VECTOR == 0 and p.ic > 0


class Planes:
    """A 1x1 convolution for which `are_rows` is True: the product of *gathered*, without a dispatch that
    packs x."""

    def __init__(self, gathered: HalfMatrices):
        self.gathered = gathered
        self.tile: str | None = None  # tests and measurements set it to force a tile

    def config(self, p: Conv2dProblem, dtype: str) -> GemmConfig | None:
        """Return the tile with the lowest estimated time for images of this dtype, or None if the device
        can run no tile."""
        facts, of = self.gathered.gemm.device.capabilities, PLANES[self.gathered.elements.form, dtype]
        found = of.able(facts, self.tile)
        return min(found, key=lambda config: self._cycles(config, p), default=None)

    def cycles(self, p: Conv2dProblem, dtype: str) -> float:
        """Return the estimated cycles of a convolution: infinite if `are_rows` is False or no tile fits."""
        config = self.config(p, dtype) if are_rows(p) else None
        return self._cycles(config, p) if config else math.inf

    def _cycles(self, config: GemmConfig, p: Conv2dProblem) -> float:
        gemm = self.gathered.gemm
        known = profile(gemm.device.capabilities)
        return config.cycles(known, p.gemm_m, 4 * gemm.n4, self.gathered.k, gemm.groups)

    def convolve(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        gemm, config = self.gathered.gemm, self.config(p, y.spec.dtype)
        assert config
        variant = config.variant
        if config.of.form == HALF:
            whole = "half" if y.spec.dtype == "float16" else "any"
            variant = catalog().find(config.of.product, tile=variant.axes["tile"], y=whole)
        push = gemm.push(p.gemm_m, p.oh * p.ow) | window_constants(p) | {
            "k": self.gathered.k, "group_channels": self.gathered.channels,
        }  # fmt: skip
        slots = [converted(b, x, y.spec.dtype), *self.gathered.constants(b), y]
        b.dispatch(self.gathered.program(variant, config.matrices), slots, push, gemm.macs(p.gemm_m))


class PartsConvolution:
    """A convolution of float32 images with a weight (OC, IC/groups, KH, KW) on bfloat16 matrix units, as a
    `Kernel`. *gemm*: the product of its im2col matrix."""

    def __init__(self, gemm: FloatGemm, weight: Int8):
        self.gathered = HalfMatrices(gemm, weight.shape[1], elements=PARTS_OF_FLOAT32)
        self.planes = Planes(self.gathered)

    def writes(self, x: Value) -> str:
        return "float32"

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        self.chosen(p).convolve(b, p, x, y)

    def chosen(self, p: Conv2dProblem) -> Planes | HalfMatrices:
        """Return the kernel with the lower estimated time."""
        planes, gathered = self.planes.cycles(p, "float32"), self.gathered.gathered_cycles(p)
        return self.planes if planes < gathered else self.gathered
