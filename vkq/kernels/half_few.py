"""Few rows of float16 tensors on matrix units of float16, whose subgroups have parts of k to themselves: the
product of gemv_q8csw_coopmat.comp."""

from __future__ import annotations

from ..device.capabilities import Capabilities
from ..probe.matrices import Matrices, advertised_half
from ..runtime.program import Program, refusals
from ..shader.catalog import catalog
from ..shader.spec import Variant
from .floats import FloatGemm
from .half_operands import RUN

SHADER = "gemv_q8csw__coopmat"
ROWS = (8, 16)  # of a workgroup
LEAST_ROWS = 3  # with fewer, gemv that adds in registers is faster


def fitting(gemm: FloatGemm, rows: int, dtype: str) -> tuple[Variant, Matrices] | None:
    """The variant for so many rows in and out, and its matrices; None for other numbers or types of rows, for
    rows that are not whole runs of 8 k or of 4 results, and on a device without fitting matrices."""
    tall = next((tall for tall in ROWS if rows <= tall), None)
    whole = gemm.groups == 1 and gemm.k % RUN == 0 and gemm.channels % 4 == 0
    if tall is None or not whole or dtype != "float16":
        return None
    facts, variant = gemm.device.capabilities, catalog().find(SHADER, rows=str(tall))
    return next(((variant, one) for one in advertised_half(facts) if _fits(variant, one, facts)), None)


def program(gemm: FloatGemm, rows: int, dtype: str) -> Program | None:
    """The pipeline; None where nothing is `fitting`."""
    if found := fitting(gemm, rows, dtype):
        variant, matrices = found
        values = {**matrices.constants(variant), **gemm.affine.constants}
        return gemm.device.program(variant, values, matrices.subgroup)
    return None


def _fits(variant: Variant, matrices: Matrices, facts: Capabilities) -> bool:
    """Whether a workgroup's rows, outputs and steps are whole matrices, with an output for each invocation of
    a subgroup, and the device runs it."""
    rows, outputs, step = (int(variant.defines[name]) for name in ("BM", "BN", "BK"))
    whole = not (rows % matrices.n or outputs % matrices.m or step % matrices.k)
    able = not refusals(variant, variant.constants(matrices.constants(variant)), facts)
    return whole and matrices.subgroup == outputs and able
