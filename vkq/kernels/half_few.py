"""Few rows on matrix units, whose subgroups have parts of k to themselves: of float16 tensors the product of
gemv_q8csw_words_coopmat.comp, and with more rows of gemv_q8csw_coopmat.comp, of float32 tensors that of
gemv_q8csw_words_parts_coopmat.comp."""

from __future__ import annotations

from ..device.capabilities import Capabilities
from ..device.profiles import profile
from ..probe.matrices import BRAIN, HALF, Matrices, advertised_half
from ..runtime.device import Device
from ..runtime.program import refusals
from ..select.path import half_refusal, pairs_refusal, signs_refusal
from ..shader.catalog import catalog
from ..shader.spec import Value, Variant
from .floats import FloatGemm
from .half_operands import RUN

STEPS, WORDS = "gemv_q8csw__coopmat", "gemv_q8csw__words_coopmat"
PARTS = "gemv_q8csw__words_parts_coopmat"
ROWS = (8, 16, 32, 64)  # at most
# Of a workgroup: many where each multiprocessor has one at most, fewer where it has several at once.
INVOCATIONS = (512, 256, 128)
# Of others, by the rows: where a multiprocessor has one workgroup at most, where two, and more. 0: never.
WORDS_INVOCATIONS = {
    WORDS: {8: (512, 256, 128), 16: (256, 0, 128)},
    PARTS: {8: (512, 256, 128), 16: (256, 256, 128), 32: (256, 256, 128)},
}
CHUNK = 128  # k that their subgroups take at once


def worth(rows: int, workgroups: int, multiprocessors: int, words: bool = False) -> bool:
    """Whether so many rows of float16 should be made by so many workgroups: 3 to 16 are, whatever there is;
    two, which gemv adds up in registers, and one by WORDS, where most multiprocessors have a workgroup; more,
    whose x every workgroup reads, where also none has two."""
    most = 2 * workgroups >= multiprocessors
    one = rows == 2 or (rows == 1 and words)
    return 3 <= rows <= 16 or (most and (one or (rows > 16 and workgroups <= multiprocessors)))


def worth_parts(rows: int, workgroups: int, multiprocessors: int, k: int) -> bool:
    """Whether so many rows of float32 should be made by so many workgroups of PARTS: 3 and 4, which gemv adds
    up in registers, where most multiprocessors have a workgroup; 5 to 8 are, whatever there is; 9 to 32,
    whose k workgroups could share, where there are as many of them as chunks."""
    if rows <= 4:
        return rows >= 3 and 2 * workgroups >= multiprocessors
    return rows <= 8 or (rows <= 32 and CHUNK * workgroups >= k)


def fitting(
    gemm: FloatGemm, rows: int, dtype: str, form: str = HALF
) -> tuple[Variant, dict[str, Value], int] | None:
    """The variant for so many rows in and out, its constants, and the size of its subgroups; None for other
    numbers or types of rows, for rows that are not whole runs of 8 k or of 4 results, and on a device without
    fitting matrices. form: of the elements that layers are made of."""
    tall = next((tall for tall in ROWS if rows <= tall), None)
    if tall is None or gemm.groups > 1 or gemm.k % RUN or gemm.channels % 4:
        return None
    facts = gemm.device.capabilities
    for shader in _shaders(gemm.device, dtype, form):
        if not catalog().shaders[shader].having(rows=str(tall)):
            continue
        variant = catalog().find(shader, rows=str(tall))
        workgroups = variant.workgroups({"n4": gemm.n4})
        multiprocessors = profile(facts).multiprocessors
        if shader == PARTS:
            taken = worth_parts(rows, workgroups, multiprocessors, gemm.k)
        else:
            taken = worth(rows, workgroups, multiprocessors, shader == WORDS)
        if not taken:
            continue
        sizes = invocations(facts, shader, tall, workgroups, gemm.k)
        for matrices in _matrices(facts, shader):
            for size in sizes:
                values = {**matrices.shape_constants, "LOCAL_X": size}
                if _fits(variant, matrices) and not refusals(variant, variant.constants(values), facts):
                    return variant, values, matrices.subgroup
    return None


def _shaders(device: Device, dtype: str, form: str) -> tuple[str, ...]:
    """Those for rows of a type that the device multiplies, the best first."""
    if dtype == "float32":
        wrong = pairs_refusal(device, BRAIN) or signs_refusal(device, BRAIN)
        return (PARTS,) if form == BRAIN and not wrong else ()
    if half_refusal(device):
        return ()
    return (STEPS,) if pairs_refusal(device) else (WORDS, STEPS)


def invocations(facts: Capabilities, shader: str, tall: int, workgroups: int, k: int) -> tuple[int, ...]:
    """Of a workgroup of the shader, the best first. All but STEPS are for whole chunks, of which each
    subgroup has one at least, and for devices that are known to hold matrices as they take them."""
    known = profile(facts)
    if shader == STEPS:
        return INVOCATIONS[workgroups > known.multiprocessors :]
    if k % CHUNK or not known.matrix_pairs:
        return ()
    several = min(workgroups // (known.multiprocessors + 1), 2)
    most = min(WORDS_INVOCATIONS[shader][tall][several], max(32 * (k // CHUNK), INVOCATIONS[-1]))
    return tuple(size for size in INVOCATIONS if size <= most)


def _matrices(facts: Capabilities, shader: str) -> list[Matrices]:
    """The matrices that the device lists, for STEPS wide ones first: they are fewer instructions."""
    found = sorted(advertised_half(facts, BRAIN if shader == PARTS else HALF), key=lambda one: one.n)
    return found[::-1] if shader == STEPS else found


def _fits(variant: Variant, matrices: Matrices) -> bool:
    """Whether weights lie in memory as the matrices have them, and rows are whole matrices; PARTS is for
    those of 16 alone."""
    whole = matrices.n == 16 if variant.shader == PARTS else matrices.n <= int(variant.defines["BM"])
    return (matrices.m, matrices.k) == (16, 16) and whole
