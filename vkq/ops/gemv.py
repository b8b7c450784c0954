"""When a product has so few rows that reading its weights is all the work, and how threads share that work.

The kernels are gemv_q8ta_q8csw_split.comp, its form for activations quantized by rows, and gemv_q8csw_split.comp.
"""

from __future__ import annotations

from ..runtime.device import Device
from ..shader.spec import Value

# A tile of the matrix kernels is four rows high: with one such block of rows it reads each weight once as well, but one thread
# walks all of k. From two blocks on there are rows enough to share the weights among.
MAX_ROWS = 4
INVOCATIONS = 256  # of a workgroup, where the device has so many

# (column blocks of the product, column blocks of a workgroup): the fewer columns, the more threads share the sum over k, so that
# there are enough workgroups for the whole device. Two neighbouring blocks are a sector of 32 bytes, eight a line of 128.
COLUMNS = ((2048, 8), (1024, 4), (0, 2))
BLOCKS_PER_PART = 4  # of k at least, that a thread sums


def fits(rows: int) -> bool:
    """Whether a product with so many rows is a matter of reading the weights."""
    return 0 < rows <= MAX_ROWS


def split(device: Device, n4: int, k4: int) -> dict[str, Value]:
    """LOCAL_X column blocks and LOCAL_Y parts of k (a power of two) of a workgroup, for a product with (n4, k4) weight blocks.

    A short k has few parts; the workgroup then takes more columns, so that it still fills a subgroup.
    """
    most = min(INVOCATIONS, int(device.capabilities.properties["maxComputeWorkGroupInvocations"]))
    columns = next(width for least, width in COLUMNS if n4 >= least)
    parts = 1
    while 2 * parts * columns <= most and 2 * parts * BLOCKS_PER_PART <= k4:
        parts *= 2
    while columns < n4 and 2 * columns * parts <= 64:
        columns *= 2
    return {"LOCAL_X": columns, "LOCAL_Y": parts}
