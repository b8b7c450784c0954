"""Choose a GEMV kernel for products with few rows, whose time is mostly that of reading the weights. Divide
the sum over k among invocations.

The kernels are gemv_split.comp, for int8 rows and for float rows, and gemv_shared.comp.
"""

from __future__ import annotations

from ..device.capabilities import Capabilities
from ..device.profiles import profile
from ..shader.spec import Value

# A workgroup has at most MOST_OF_MANY invocations for more than FEW_ROWS rows. With few rows, more
# invocations keep more loads in flight.
FEW_ROWS, MOST_OF_MANY = 2, 256

# Pairs (minimum number of column blocks of the product, number of column blocks of a workgroup). For few
# columns, more invocations share the sum over k, so that workgroups fill the whole device. Two neighbouring
# blocks of weights are a memory sector of 32 bytes; eight are a cache line of 128 bytes.
COLUMNS = ((2048, 8), (1024, 4), (0, 2))
# The kernel that prefetches weights:
# - AHEAD_PARTS: number of parts of k in a workgroup
# - AHEAD_COLUMNS: pairs as in COLUMNS
# - LEAST_AHEAD: minimum number of blocks of k
AHEAD_PARTS, AHEAD_COLUMNS, LEAST_AHEAD = 64, ((1024, 8), (0, 4)), 256
BLOCKS_PER_PART = 4  # minimum number of blocks of k that an invocation sums


def max_rows(capabilities: Capabilities, int8: bool = True) -> int:
    """Return the largest number of rows for which a GEMV kernel is used.

    An invocation of a matrix kernel computes a tile of blocks of four rows, and sums all of k. For one
    block of rows, both kernels read each weight once. For more blocks, the rows of the tile share the
    weights that the invocation reads.
    """
    known = profile(capabilities)
    return known.gemv_rows if int8 else known.gemv_rows_float


def split(
    capabilities: Capabilities, n4: int, k4: int, rows: int, room: int = 1 << 30, share: bool = False
) -> dict[str, Value]:
    """Return the size of a workgroup for a product with n4 column blocks and k4 blocks of k: LOCAL_X column
    blocks and LOCAL_Y parts of k (a power of two). *room*: the maximum number of invocations whose sums fit
    into shared memory. *share*: use several parts even if the profile prefers one: the driver would abort a
    loop over all of k."""
    known = profile(capabilities)
    if known.gemv_columns and not share:
        return {"LOCAL_X": known.gemv_columns, "LOCAL_Y": 1}
    most = int(capabilities.properties["maxComputeWorkGroupInvocations"])
    wanted = known.gemv_invocations if rows <= FEW_ROWS else min(MOST_OF_MANY, known.gemv_invocations)
    return shared_split(min(wanted, most, room), n4, k4, known.gemv_narrowest)


def ahead(capabilities: Capabilities, n4: int) -> dict[str, Value]:
    """Return the workgroup size (see `split`) of gemv_shared.comp with int8 weights."""
    columns = next(width for least, width in AHEAD_COLUMNS if n4 >= least)
    most = int(capabilities.properties["maxComputeWorkGroupInvocations"])
    return {"LOCAL_X": columns, "LOCAL_Y": min(AHEAD_PARTS, most // columns)}


def shared_split(most: int, n4: int, k4: int, narrowest: int = 1) -> dict[str, Value]:
    """Return the workgroup size (see `split`) of a kernel that adds the parts' sums in shared memory: at
    most *most* invocations, and at least *narrowest* column blocks.

    A short k has few parts. The workgroup then has more columns, to fill a subgroup.

    >>> shared_split(256, 4096, 4096), shared_split(256, 16, 8)
    ({'LOCAL_X': 8, 'LOCAL_Y': 32}, {'LOCAL_X': 16, 'LOCAL_Y': 2})
    """
    columns = max(narrowest, next(width for least, width in COLUMNS if n4 >= least))
    parts = 1
    while 2 * parts * columns <= most and 2 * parts * BLOCKS_PER_PART <= k4:
        parts *= 2
    while columns < n4 and 2 * columns * parts <= 64:
        columns *= 2
    return {"LOCAL_X": columns, "LOCAL_Y": parts}
