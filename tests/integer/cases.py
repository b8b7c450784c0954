"""Seeded random cases, each on a path of its own."""

from __future__ import annotations

import vkq
from vkq.check import integer

PATHS = ("dot_s8s8", "dot_u8s8", "dot_u8u8", "portable")


def check(device: vkq.Device, seed: int, path: str = "") -> str | None:
    """What differs from NumPy for a seed, on this path or the one that the seed says; None: nothing."""
    return integer.check(device, seed, path or PATHS[seed % len(PATHS)])
