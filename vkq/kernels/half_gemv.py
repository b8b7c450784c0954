"""Products of few rows on matrix units, with k split among the subgroups of a workgroup. The shaders:

- ROW: one float16 row and few outputs.
- RUNS: more than 16 float16 rows.
- WORDS: all other float16 rows.
- PARTS: float32 rows, which are split into bfloat16 parts.
- STEPS: float16 rows, if the other shaders do not support the device or the problem."""

from __future__ import annotations

from ..device.capabilities import Capabilities
from ..device.profiles import profile
from ..probe.matrices import BRAIN, HALF, Matrices, advertised_half
from ..runtime.device import Device
from ..runtime.program import refusals
from ..select.path import half_refusal, pairs_refusal, signs_refusal
from ..shader.catalog import catalog
from ..shader.expression import ceil_div
from ..shader.spec import Value, Variant
from .floats import FloatGemm
from .half_operands import RUN

STEPS, WORDS = "gemv_q8csw__coopmat", "gemv_q8csw__words_coopmat"
RUNS, PARTS = "gemv_q8csw__runs_coopmat", "gemv_q8csw__words_parts_coopmat"
ROW = "gemv_q8csw__row_coopmat"
ROWS = (8, 16, 32, 48, 64)  # the maximum number of rows of each variant
# Numbers of invocations of a workgroup, in order of preference. STEPS uses the first only if no
# multiprocessor has several workgroups.
INVOCATIONS = (512, 256, 128)
# Maximum invocations of a workgroup: (for up to 8 rows, for more rows). Each has three maxima: for at most
# one workgroup on each multiprocessor, for two, and for more. 0: the shader is not used.
WORDS_INVOCATIONS = {
    WORDS: ((512, 256, 128), (256, 0, 128)),
    PARTS: ((512, 256, 128), (256, 256, 128)),
    RUNS: ((0, 0, 0), (512, 256, 128)),
}
CHUNK = 128  # a subgroup processes whole chunks of this many elements along k
# For ROW: {number of chunks of a subgroup: largest k}.
ROW_K = {1: 2048, 2: 4096, 4: 8192}
# {element type: minimum number of rows for which the GEMM kernels on matrix units are faster than the
# kernels without}. With fewer rows, loading the weights takes all the time. The limit does not apply to the
# shaders of this module (see `worth` and `worth_parts`).
LEAST_ROWS = {HALF: 8, BRAIN: 9}
# Limits of PARTS.
# - SHORT_K: for more than 8 rows and k <= SHORT_K, two workgroups on a multiprocessor get as few invocations
#   as three or more.
# - GEMV_K: for few outputs and k between these two values, the GEMV kernel is faster.
# - MOST_K: for more than 32 rows, maximum of (workgroups on a multiprocessor) * max(k, LEAST_K).
SHORT_K, GEMV_K, LEAST_K, MOST_K = 4096, (1024, 4096), 2048, 12288
# Limits of RUNS for more than 32 rows. RUNS_MOST_K: maximum of (workgroups on a multiprocessor) * k.
# LONG_K: with more than two workgroups on a multiprocessor, a k of at least LONG_K is `long`.
RUNS_MOST_K, LONG_K = 16384, 4096


def worth(rows: int, workgroups: int, multiprocessors: int, k: int, shader: str = STEPS) -> bool:
    """Return True if *shader* is faster than the other kernels for *rows* float16 rows in *workgroups*
    workgroups:

    - ROW: if no multiprocessor has more than one workgroup.
    - WORDS or STEPS with 3 to 16 rows: always.
    - WORDS with one or two rows, or STEPS with two: if at least half of the multiprocessors have a workgroup.
    - STEPS or RUNS with 17 or more rows: if at least half of the multiprocessors have a workgroup and none
      has two, because every workgroup reads all of x.
    - RUNS with 17 to 32 rows: also with 2 to 16 workgroups on each multiprocessor.
    - RUNS with 33 or more rows: also with 2 to 8 workgroups on each multiprocessor, within RUNS_MOST_K.
    """
    if shader == ROW:
        return workgroups <= multiprocessors
    most = 2 * workgroups >= multiprocessors
    if rows <= 16:
        return shader != RUNS and (rows >= 3 or (most and (rows == 2 or shader == WORDS)))
    if shader == STEPS or workgroups <= multiprocessors:
        return most and workgroups <= multiprocessors
    if rows <= 32:
        return workgroups <= 16 * multiprocessors
    return workgroups <= 8 * multiprocessors and workgroups * k <= RUNS_MOST_K * multiprocessors


def worth_parts(rows: int, workgroups: int, multiprocessors: int, k: int, form: str) -> bool:
    """Return True if PARTS is faster than the other kernels for *rows* float32 rows in *workgroups*
    workgroups. *form*: the element type of the matrices of the other kernels. The rules:

    - Up to 2 rows: never.
    - 3 or 4 rows: if at least half of the multiprocessors have a workgroup.
    - 5 or more rows, but fewer than the other kernels need (LEAST_ROWS): always.
    - More rows, bfloat16: only if there are at least as many workgroups as chunks of k, because other
      kernels split k. Up to 16 rows, the GEMV kernel must not be faster (GEMV_K). From 33 rows on, each
      tile of rows loads the weights again, so there must be few workgroups (MOST_K).
    - More rows, float16: up to 8 rows, if there are at least twice as many workgroups as chunks of k.
    """
    if rows <= 4:
        return rows >= 3 and 2 * workgroups >= multiprocessors
    if rows < LEAST_ROWS[form]:
        return True
    if form == HALF:
        return rows <= ROWS[0] and CHUNK * workgroups >= 2 * k
    if CHUNK * workgroups < k:
        return False
    if rows <= 16:
        return 4 * workgroups > multiprocessors or not GEMV_K[0] < k < GEMV_K[1]
    return rows <= 32 or workgroups * max(k, LEAST_K) <= MOST_K * multiprocessors


def long(gemm: FloatGemm, variant: Variant, rows: int) -> bool:
    """Return True if k is so long that this variant (the result of `fitting`) is slower for *rows* rows
    than the product that assembles matrices in registers (`half_configs.WORDS`)."""
    several = variant.workgroups({"n4": gemm.n4}) > 2 * profile(gemm.device.capabilities).multiprocessors
    return variant.shader == RUNS and rows > 32 and several and gemm.k >= LONG_K


def fitting(
    gemm: FloatGemm, rows: int, dtype: str, form: str = HALF
) -> tuple[Variant, dict[str, Value], Matrices] | None:
    """Return the variant for *rows* rows of this dtype, its constants and its matrix shape. Return None if
    other kernels are faster, the device has no matrix shape that fits, k is not a multiple of 8, or the
    number of outputs is not a multiple of 4. *form*: the element type of the matrices of the other kernels.
    """
    if gemm.groups > 1 or gemm.k % RUN or gemm.channels % 4:
        return None
    facts = gemm.device.capabilities
    for shader in _shaders(gemm.device, dtype, form):
        if (variant := _variant(shader, rows, gemm.k)) is None:
            continue
        workgroups = variant.workgroups({"n4": gemm.n4})
        multiprocessors = profile(facts).multiprocessors
        if shader == PARTS:
            taken = worth_parts(rows, workgroups, multiprocessors, gemm.k, form)
        else:
            taken = worth(rows, workgroups, multiprocessors, gemm.k, shader)
        if not taken:
            continue
        tall = int(variant.axes.get("rows", 1))
        sizes = invocations(facts, shader, tall, workgroups, gemm.k)
        for matrices in _matrices(facts, shader):
            for size in sizes:
                values = {**matrices.shape_constants, "LOCAL_X": size}
                if _fits(variant, matrices) and not refusals(variant, variant.constants(values), facts):
                    return variant, values, matrices
    return None


def _variant(shader: str, rows: int, k: int) -> Variant | None:
    """Return the shader's variant for *rows* rows; None if there is none."""
    if shader == ROW:
        chunks = _row_chunks(k)
        return catalog().find(ROW, chunks=str(chunks)) if rows == 1 and chunks else None
    able = (tall for tall in ROWS if rows <= tall and catalog().shaders[shader].having(rows=str(tall)))
    return catalog().find(shader, rows=str(tall)) if (tall := next(able, None)) else None


def _row_chunks(k: int) -> int:
    """Return the number of chunks of a subgroup of ROW; 0 if k is too large."""
    return next((chunks for chunks, most in ROW_K.items() if k <= most), 0)


def _shaders(device: Device, dtype: str, form: str) -> tuple[str, ...]:
    """Return the shaders that compute rows of this dtype correctly on the device, the best first."""
    if dtype == "float32":
        wrong = half_refusal(device, BRAIN) or pairs_refusal(device, BRAIN) or signs_refusal(device, BRAIN)
        return () if wrong else (PARTS,)
    if half_refusal(device):
        return ()
    return (STEPS,) if pairs_refusal(device) else (ROW, WORDS, RUNS, STEPS)


def invocations(facts: Capabilities, shader: str, tall: int, workgroups: int, k: int) -> tuple[int, ...]:
    """Return the possible numbers of invocations of a workgroup, the best first. All shaders but STEPS need
    a k of whole chunks, at least one for each subgroup. They also need matrices in which an invocation
    holds pairs of elements along k (``matrix_pairs``)."""
    known = profile(facts)
    if shader == STEPS:
        return INVOCATIONS[workgroups > known.multiprocessors :]
    if k % CHUNK or not known.matrix_pairs:
        return ()
    if shader == ROW and _row_chunks(k):
        return (32 * ceil_div(k // CHUNK, _row_chunks(k)),)
    several = min(workgroups // (known.multiprocessors + 1), 2)
    if shader == PARTS and tall > 8 and several and k <= SHORT_K:
        several = 2
    most = min(WORDS_INVOCATIONS[shader][tall > 8][several], max(32 * (k // CHUNK), INVOCATIONS[-1]))
    return tuple(size for size in INVOCATIONS if size <= most)


def _matrices(facts: Capabilities, shader: str) -> list[Matrices]:
    """Return the device's matrix shapes, those with the fewest rows first. For STEPS, those with most rows
    come first: they need fewer instructions."""
    found = sorted(advertised_half(facts, BRAIN if shader == PARTS else HALF), key=lambda one: one.n)
    return found[::-1] if shader == STEPS else found


def _fits(variant: Variant, matrices: Matrices) -> bool:
    """Return True if the matrices have the shape of the packed weights (16 x 16) and the variant's rows are
    whole matrices. PARTS needs matrices of 16 rows."""
    whole = matrices.n == 16 if variant.shader == PARTS else matrices.n <= int(variant.sizes["BM"])
    return (matrices.m, matrices.k) == (16, 16) and whole
