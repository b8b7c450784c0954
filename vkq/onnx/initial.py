"""Inputs with an initializer. The initializer is the default value of the input; a run may replace it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Sequence
from typing import Any, Generic, TypeVar

from .reader import Model, read
from .tensors import Argument

Session = TypeVar("Session")
Parse = Callable[[Any], Model]


class Initials(Generic[Session]):
    """The sessions that were opened because runs replaced initializers: one for each set of replaced
    names."""

    def __init__(self, initial: Sequence[Argument]):
        self._names = [argument.name for argument in initial]
        self._sessions: dict[frozenset[str], Session] = {}

    def fed(self, feed: Container[str], reread: Callable[[Parse, Sequence[str]], Session]) -> Session | None:
        """Return the session for the initializers that *feed* replaces; None if *feed* replaces no
        initializer.

        ``reread(parse, names)`` opens this session. *parse* reads the model with the initializers *names*
        as inputs. The session treats the values of these inputs as constants, because they may be
        weights."""
        names = frozenset(name for name in self._names if name in feed)
        if names and names not in self._sessions:
            self._sessions[names] = reread(functools.partial(read, fed=names), sorted(names))
        return self._sessions.get(names)

    def clear(self) -> None:
        """Drop all cached sessions."""
        self._sessions.clear()
