"""The invocations (lanes) of a workgroup that share a row: their order, and reductions over them."""

from __future__ import annotations

from collections.abc import Callable

from ..numerics.rows import JOIN, MOST_LANES
from ..numerics.steps import Number
from ..shader.assembler import KernelWriter

JOINED = 8  # maximum number of values that a lane reduces between two barriers


class RowLanes:
    """The position of an invocation in a workgroup that computes several rows.

    - *lanes*: the number of invocations that share a row.
    - ``own``: the index of the invocation in its row.
    - ``row``: the index of its row in the workgroup.

    Invocations are in the order [own / near][row][own % near], where *near* is 1, 2 or 4."""

    def __init__(self, k: KernelWriter, lanes: int, near: int):
        self._k, self._lanes, self._near, self._half = k, lanes, near, 0
        self._lane, self.rows = k.lane(), MOST_LANES // lanes
        low, high = near.bit_length() - 1, (near * self.rows).bit_length() - 1
        self.own = (self._lane & (near - 1)) | ((self._lane >> high) << low)
        self.row = (self._lane >> low) & (self.rows - 1)

    def joined(self, op: str, value: Number, then: Callable[[Number], Number]) -> Number:
        """Reduce the values of all lanes of each row with the reduction *op*. Return *then* of the reduced
        value, in every lane."""
        k, lanes = self._k, self._lanes
        if lanes == 1:
            return then(value)
        while lanes > JOINED:
            lanes //= JOINED
            self._send(value)
            value = self._join(op, lanes, JOINED)
        self._send(value)
        with k.when(self.own.equals(0)):
            last = then(self._join(op, 1, lanes))
            self._half ^= 1
            k.keep(self._shared(1), last)
        k.barrier()
        return k.exchange(self._shared(1))

    def _send(self, value: Number) -> None:
        """Store each lane's value in shared memory, alternately in two halves: slower invocations may still
        read the half that was used before."""
        self._half ^= 1
        self._k.keep(self._lane + MOST_LANES * self._half, value)
        self._k.barrier()

    def _join(self, op: str, lanes: int, count: int) -> Number:
        """Reduce the values of *count* lanes of the row: lane ``own`` % *lanes* and every *lanes*-th lane
        after it. Combine the lower half of the values with the upper half until one value is left."""
        values = [self._k.exchange(self._shared(lanes, j * lanes)) for j in range(count)]
        while len(values) > 1:
            half = len(values) // 2
            values = [JOIN[op](a, b) for a, b in zip(values[:half], values[half:], strict=True)]
        return values[0]

    def _shared(self, lanes: int, more: int = 0) -> Number:
        """Return the index in shared memory of the value of lane ``own`` % *lanes* + *more* of this row."""
        near, rows = self._near, self.rows
        kept = lanes * rows - 1 if lanes >= near else (lanes - 1) | (rows - 1) * near
        skipped = more % near + more // near * near * rows
        return (self._lane & kept) + (skipped + MOST_LANES * self._half)
