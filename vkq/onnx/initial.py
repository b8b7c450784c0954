"""Inputs with an initializer: the default value of an input, which a run may replace."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Sequence
from typing import Any, Generic, TypeVar

from .reader import Model, read
from .tensors import Argument

Session = TypeVar("Session")
Parse = Callable[[Any], Model]


class Initials(Generic[Session]):
    """The sessions of a model whose inputs have initializers: one session for each set of replaced
    initializers."""

    def __init__(self, initial: Sequence[Argument]):
        self._names = [argument.name for argument in initial]
        self._sessions: dict[frozenset[str], Session] = {}

    def fed(self, feed: Container[str], reread: Callable[[Parse, Sequence[str]], Session]) -> Session | None:
        """Return the session in which *feed* may replace its initializers; None if *feed* contains none.
        *reread* opens such a session: it reads the model with these initializers as inputs. Their values
        count as constants, because they may be weights."""
        names = frozenset(name for name in self._names if name in feed)
        if names and names not in self._sessions:
            self._sessions[names] = reread(functools.partial(read, fed=names), sorted(names))
        return self._sessions.get(names)

    def clear(self) -> None:
        """Drop all sessions."""
        self._sessions.clear()
