"""When a product has so few rows that reading its weights is all the work, and how threads share that work.

The kernels are gemv_q8ta_q8csw_split.comp, its form for activations quantized by rows, and
gemv_q8csw_split.comp.
"""

from __future__ import annotations

from ..runtime.device import Device
from ..shader.spec import Value

# A tile of the matrix kernels is four rows high: with one such block of rows it reads each weight once as
# well, but one thread walks all of k. From two blocks on there are rows enough to share the weights among. On
# a CPU device the wider tile wins sooner, but for float activations, whose kernel has no wider one. On an
# H200 (2026-11-21, K = N = 8192) 16 rows take 64 us here and 932 us tiled, 32 rows 118 and 904 us; from 29
# rows on cooperative matrices take over where there are any.
MAX_ROWS = {"discrete": 28, "cpu": 2}
MAX_ROWS_DEFAULT = 4
INVOCATIONS = 256  # of a workgroup, where the device has so many
# More loads in flight for one or two rows: 8192^2 takes an H200 21.1 us with 512, 24.9 us with 256; 16 rows
# of 4096^2 36 and 23.
INVOCATIONS_FEW_ROWS = {"discrete": 512}
FEW_ROWS = 2

# (column blocks of the product, column blocks of a workgroup): the fewer columns, the more threads share the
# sum over k, so that there are enough workgroups for the whole device. Two neighbouring blocks are a sector
# of 32 bytes, eight a line of 128.
COLUMNS = ((2048, 8), (1024, 4), (0, 2))
BLOCKS_PER_PART = 4  # of k at least, that a thread sums
# of a workgroup on a CPU device: few cores, and a barrier costs more than a thread's sum over all of k
CPU_COLUMNS = 16


def max_rows(device: Device, int8: bool = True) -> int:
    """Up to how many rows a product on the device is a matter of reading the weights."""
    kind = device.capabilities.device_type
    return MAX_ROWS_DEFAULT if kind == "cpu" and not int8 else MAX_ROWS.get(kind, MAX_ROWS_DEFAULT)


def split(device: Device, n4: int, k4: int, rows: int) -> dict[str, Value]:
    """LOCAL_X column blocks and LOCAL_Y parts of k (a power of two) of a workgroup, for a product with (n4,
    k4) weight blocks."""
    kind = device.capabilities.device_type
    if kind == "cpu":
        return {"LOCAL_X": CPU_COLUMNS, "LOCAL_Y": 1}
    most = int(device.capabilities.properties["maxComputeWorkGroupInvocations"])
    wanted = INVOCATIONS_FEW_ROWS.get(kind, INVOCATIONS) if rows <= FEW_ROWS else INVOCATIONS
    return shared_split(min(wanted, most), n4, k4)


def shared_split(most: int, n4: int, k4: int) -> dict[str, Value]:
    """`split` where parts are summed in shared memory, by at most so many invocations.

    A short k has few parts; the workgroup then takes more columns, so that it still fills a subgroup.

    >>> shared_split(256, 4096, 4096), shared_split(256, 16, 8)
    ({'LOCAL_X': 8, 'LOCAL_Y': 32}, {'LOCAL_X': 16, 'LOCAL_Y': 2})
    """
    columns = next(width for least, width in COLUMNS if n4 >= least)
    parts = 1
    while 2 * parts * columns <= most and 2 * parts * BLOCKS_PER_PART <= k4:
        parts *= 2
    while columns < n4 and 2 * columns * parts <= 64:
        columns *= 2
    return {"LOCAL_X": columns, "LOCAL_Y": parts}
