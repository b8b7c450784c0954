"""Inputs with an initializer, which is the input's value unless a run feeds another value."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Sequence
from typing import Any, Generic, TypeVar

from .reader import Model, read
from .tensors import Argument

Session = TypeVar("Session")
Parse = Callable[[Any], Model]


class Initials(Generic[Session]):
    """The sessions of a model with initializers as inputs, one session for each set of fed initializers."""

    def __init__(self, initial: Sequence[Argument]):
        self._names = [argument.name for argument in initial]
        self._sessions: dict[frozenset[str], Session] = {}

    def fed(self, feed: Container[str], reread: Callable[[Parse, Sequence[str]], Session]) -> Session | None:
        """Return the session for the initializers that *feed* replaces; None if it replaces none. *reread*
        opens such a session: it reads the model with these initializers as inputs, whose values count as
        constants, because they may be weights."""
        names = frozenset(name for name in self._names if name in feed)
        if names and names not in self._sessions:
            self._sessions[names] = reread(functools.partial(read, fed=names), sorted(names))
        return self._sessions.get(names)

    def clear(self) -> None:
        """Drop all sessions."""
        self._sessions.clear()
