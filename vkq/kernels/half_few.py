"""Few rows of float16 tensors on matrix units of float16, whose subgroups have parts of k to themselves: the
product of gemv_q8csw_words_coopmat.comp, and with more of them of gemv_q8csw_coopmat.comp."""

from __future__ import annotations

from ..device.capabilities import Capabilities
from ..device.profiles import profile
from ..probe.matrices import Matrices, advertised_half
from ..runtime.program import refusals
from ..select.path import half_refusal, pairs_refusal
from ..shader.catalog import catalog
from ..shader.spec import Value, Variant
from .floats import FloatGemm
from .half_operands import RUN

STEPS, WORDS = "gemv_q8csw__coopmat", "gemv_q8csw__words_coopmat"
ROWS = (8, 16, 32, 64)  # at most
# Of a workgroup: many where each multiprocessor has one at most, fewer where it has several at once.
INVOCATIONS = (512, 256, 128)
# Of WORDS, by the rows: where a multiprocessor has one workgroup at most, where two, and more. 0: never.
WORDS_INVOCATIONS = {8: (512, 256, 128), 16: (256, 0, 128)}
CHUNK = 128  # k that its subgroups take at once


def worth(rows: int, workgroups: int, multiprocessors: int, words: bool = False) -> bool:
    """Whether so many rows should be made by so many workgroups: 3 to 16 are, whatever there is; two, which
    gemv adds up in registers, and one by WORDS, where most multiprocessors have a workgroup; more, whose x
    every workgroup reads, where also none has two."""
    most = 2 * workgroups >= multiprocessors
    one = rows == 2 or (rows == 1 and words)
    return 3 <= rows <= 16 or (most and (one or (rows > 16 and workgroups <= multiprocessors)))


def fitting(gemm: FloatGemm, rows: int, dtype: str) -> tuple[Variant, dict[str, Value], int] | None:
    """The variant for so many rows in and out, its constants, and the size of its subgroups; None for other
    numbers or types of rows, for rows that are not whole runs of 8 k or of 4 results, and on a device without
    fitting matrices."""
    tall = next((tall for tall in ROWS if rows <= tall), None)
    whole = gemm.groups == 1 and gemm.k % RUN == 0 and gemm.channels % 4 == 0
    if tall is None or not whole or dtype != "float16" or half_refusal(gemm.device):
        return None
    facts = gemm.device.capabilities
    words = tall in WORDS_INVOCATIONS and not pairs_refusal(gemm.device)
    for shader in (WORDS, STEPS) if words else (STEPS,):
        variant = catalog().find(shader, rows=str(tall))
        workgroups = variant.workgroups({"n4": gemm.n4})
        sizes = invocations(facts, shader, tall, workgroups, gemm.k)
        if not worth(rows, workgroups, profile(facts).multiprocessors, shader == WORDS):
            continue
        narrow = sorted(advertised_half(facts), key=lambda one: one.n)
        for matrices in narrow if shader == WORDS else narrow[::-1]:  # wide ones are fewer instructions
            for size in sizes:
                values = {**matrices.shape_constants, "LOCAL_X": size}
                if _fits(variant, matrices) and not refusals(variant, variant.constants(values), facts):
                    return variant, values, matrices.subgroup
    return None


def invocations(facts: Capabilities, shader: str, tall: int, workgroups: int, k: int) -> tuple[int, ...]:
    """Of a workgroup of the shader, the best first. WORDS is for whole chunks, of which each subgroup has one
    at least, and for devices that are known to hold matrices as it takes them."""
    known = profile(facts)
    if shader == STEPS:
        return INVOCATIONS[workgroups > known.multiprocessors :]
    if k % CHUNK or not known.matrix_pairs:
        return ()
    several = min(workgroups // (known.multiprocessors + 1), 2)
    most = min(WORDS_INVOCATIONS[tall][several], max(32 * (k // CHUNK), INVOCATIONS[-1]))
    return tuple(size for size in INVOCATIONS if size <= most)


def _fits(variant: Variant, matrices: Matrices) -> bool:
    """Whether weights lie in memory as the matrices have them, and rows are whole matrices."""
    return (matrices.m, matrices.k) == (16, 16) and matrices.n <= min(int(variant.defines["BM"]), 16)
