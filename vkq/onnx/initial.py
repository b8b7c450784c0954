"""Inputs that have an initializer, which stands for them unless they are fed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Sequence
from typing import Any, Generic, TypeVar

from .reader import Model, read
from .tensors import Argument

Session = TypeVar("Session")
Parse = Callable[[Any], Model]


class Initials(Generic[Session]):
    """The sessions of a model with initializers as inputs, one for each set of those that are fed. *reread*
    makes one: of the model as it is read then, and of inputs whose values count as constants, as weights may
    be among them."""

    def __init__(self, initial: Sequence[Argument], reread: Callable[[Parse, Sequence[str]], Session]):
        self._names, self._reread = [argument.name for argument in initial], reread
        self._sessions: dict[frozenset[str], Session] = {}

    def fed(self, feed: Container[str]) -> Session | None:
        """The session that takes the initializers that *feed* has; None where it has none."""
        names = frozenset(name for name in self._names if name in feed)
        if names and names not in self._sessions:
            self._sessions[names] = self._reread(functools.partial(read, fed=names), sorted(names))
        return self._sessions.get(names)
