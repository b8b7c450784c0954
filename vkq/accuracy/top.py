"""Counts how often a model ranks the true class first, or among the first five."""

from __future__ import annotations

import dataclasses

import numpy as np

from ..errors import ArgumentError
from ..graph.graph import Array

BEST = 5


@dataclasses.dataclass
class Top:
    """Counts over samples. Of two classes with equal scores, the class with the lower index ranks higher.

    >>> top = Top()
    >>> for label in (2, 1):
    ...     top.add(np.float32([[0.1, 0.2, 0.7]]), label)
    >>> (top.first, top.best, top.count)
    (1, 2, 2)
    """

    first: int = 0
    best: int = 0
    count: int = 0
    chosen: list[int] = dataclasses.field(default_factory=list)  # the class that ranks first in each sample

    def add(self, scores: Array, label: int) -> None:
        """Add one sample: its scores, one for each class, and the index of its true class. Raises
        ArgumentError for an index without a score."""
        flat = scores.reshape(-1)
        if not 0 <= label < flat.size:
            raise ArgumentError(
                f"a sample has label {label}; the output has {flat.size} scores, so labels must be below that"
            )
        order = np.argsort(-flat.astype(np.float64), kind="stable")[:BEST]
        self.chosen.append(int(order[0]))
        self.first += int(order[0]) == label
        self.best += label in order
        self.count += 1

    def same(self, other: Top) -> float:
        """Return the fraction of samples for which both models give the highest score to the same class."""
        return float(np.mean(np.equal(self.chosen, other.chosen)))
