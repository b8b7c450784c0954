"""Seeded random cases of the integer correlation, each on one path."""

from __future__ import annotations

import vkq
from vkq.check import integer

PATHS = ("dot_s8s8", "dot_u8s8", "dot_u8u8", "portable")


def check(device: vkq.Device, seed: int, path: str = "") -> str | None:
    """Return a text if the result of a seed's case differs from NumPy's, else None. *path* defaults to the
    path that the seed selects."""
    return integer.check(device, seed, path or PATHS[seed % len(PATHS)])
