"""`InferenceSession.map`: runs a stream of inputs in batches. The host fills a batch while the device
computes the previous batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..graph.executable import Executable
from ..graph.graph import Array
from .batch import BatchCheck
from .counters import Counters, host_bytes
from .inputs import alike, columns, groups
from .prepared import Prepared
from .reader import Model

AHEAD = 1  # maximum number of batches on the device while the host fills the next one
Finish = Callable[[], Sequence[Array]]


class Mapped:
    """Callable that yields the model's outputs *names* for a stream of inputs.

    Args:
        constant: names of inputs whose values count as constants.
        checked: ``checked(inputs)`` returns inputs in the types that a device stores, or raises an error.
        executable: ``executable(inputs)`` returns the model prepared for the shapes of the inputs.
        declared: ``declared(name, result)`` converts a result to the type that the model declares.
        counters: counters of the session; a batch counts as a run.
    """

    def __init__(
        self,
        model: Model,
        names: Sequence[str],
        constant: Container[str],
        checked: Callable[[Mapping[str, Any]], dict[str, Array]],
        executable: Callable[[Mapping[str, Array]], Prepared],
        declared: Callable[[str, Array], Array],
        counters: Counters,
    ):
        self.model, self.names, self._constant = model, tuple(names), constant
        self._checked, self._executable, self._declared = checked, executable, declared
        self._counters = counters
        self._checks = [BatchCheck(model, name, constant) for name in self.names]

    def __call__(self, inputs: Iterable[Any], batch: int) -> Iterator[list[Array]]:
        """For each input, in order, yield a list with one row of each output: the row that belongs to the
        input."""
        waiting: deque[Finish] = deque()
        for group in groups(inputs, batch):
            rows = columns(group, self.model.inputs)
            for check in self._checks:
                check(rows)
            waiting.append(self._counted(self._begun(rows), rows))
            if len(waiting) > AHEAD:
                yield from self._rows(waiting.popleft())
        for finish in waiting:
            yield from self._rows(finish)

    def _rows(self, finish: Finish) -> Iterator[list[Array]]:
        results = [self._declared(name, x) for name, x in zip(self.names, finish(), strict=True)]
        return map(list, zip(*results, strict=True))

    def _counted(self, finish: Finish, rows: Mapping[str, list[Array]]) -> Finish:
        uploaded = sum(host_bytes(arrays) for arrays in rows.values())

        def counted() -> Sequence[Array]:
            results = finish()
            self._counters.ran(uploaded, host_bytes(results))
            return results

        return counted

    def _begun(self, rows: Mapping[str, list[Array]]) -> Finish:
        """Start a batch, and return a function that waits for its results and returns them. If the batch
        cannot run in parallel with other batches, its results are complete when this method returns."""
        if not self._constant:
            shapes = {name: np.broadcast_to(x[0], (len(x), *x[0].shape)) for name, x in rows.items()}
            executable = self._executable(self._checked(shapes))
            if isinstance(executable, Executable) and (lane := executable.lane(self.names)):
                lane.start([alike(name, rows[name]) for name in executable.graph.inputs])
                return lane.finish
        arrays = self._checked({name: np.stack(alike(name, x)) for name, x in rows.items()})
        results = self._executable(arrays).run(arrays)
        return lambda: [results[name] for name in self.names]
