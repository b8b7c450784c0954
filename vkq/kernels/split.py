"""Products whose k is split among workgroups (shaders/common/coopmat_split.glslh)."""

from __future__ import annotations

import numpy as np

from ..runtime.device import Device
from ..runtime.plan import Resident

MOST_TILES = 1024  # maximum number of tiles of a product with split-K; each tile has a counter


def counters(device: Device) -> Resident:
    """Return a buffer of zeros, the counters of one layer. Layers with separate counters need not wait for
    each other."""
    return Resident(device, 4 * MOST_TILES, lambda: np.zeros(MOST_TILES, np.uint32))
