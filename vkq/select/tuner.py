"""The kernels for one problem on a device: the possible choices, and the fastest choice, which `vkq tune`
finds and stores.

A choice maps a kind of kernel to a name: that of a candidate in a family of profiles.yaml (``candidates``,
``tuned``), or that of an option that kernels rank themselves (`ranked`: tiles in registers or of matrix
units). Choices change the speed and never a result: `vkq tune` stores only choices whose results it has
compared with the reference on that device. Measurements of a device as a whole are in `vkq.device.measured`.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from .. import cache
from .._version import __version__
from ..device.capabilities import Capabilities
from ..device.profiles import PICKS, picks, preference, preferred, tuned_families
from ..turns import Turns

Choice = Mapping[str, str]  # kind of kernel -> name
Rankings = dict[str, list[str]]
T = TypeVar("T")

_rankings: contextvars.ContextVar[Rankings | None] = contextvars.ContextVar("vkq_rankings", default=None)
_tuned: dict[str, dict[str, Choice]] = {}  # device -> problem and scheme -> choice
_lock = Turns("what was tuned", again=True)


def ranked(kind: str, options: Sequence[T], name: Callable[[T], str] = str) -> Sequence[T]:
    """Return a kernel's options, which are given best first. If an option is picked by name in this context,
    move it to the front; ignore unknown names."""
    seen, picked = _rankings.get(), picks().get(kind)
    if seen is not None:
        seen.setdefault(kind, [name(one) for one in options])
    if picked is None:
        return options
    return sorted(options, key=lambda one: name(one) != picked)


def is_asked(kind: str) -> bool:
    """Return True if rankings of this kind are recorded or picked in this context. Otherwise, only the best
    option is needed."""
    return _rankings.get() is not None or kind in picks()


@contextlib.contextmanager
def watched() -> Iterator[Rankings]:
    """Context manager: record the rankings of kernels in the block as kind -> names, the best first."""
    found: Rankings = {}
    token = _rankings.set(found)
    try:
        yield found
    finally:
        _rankings.reset(token)


def legal(rankings: Rankings) -> Iterator[Choice]:
    """Yield every choice: first the default, then choices with the next name of each kind and with the next
    candidate of each family, in turn."""
    yield {}
    kinds = [[{kind: name} for name in names[1:]] for kind, names in rankings.items()]
    kinds += [[{family.name: name} for name in family.candidates] for family in tuned_families()]
    for together in zip_longest(*kinds):
        yield from (choice for choice in together if choice)


def says(choice: Choice) -> dict[str, Any]:
    """Return the profile fields that a choice overrides: those of its candidates, and under PICKS its pairs
    (kind of option, option). Candidates that no family has are ignored."""
    found: dict[str, Any] = {}
    families = {family.name: family for family in tuned_families()}
    for kind, name in choice.items():
        if kind in families:
            found |= families[kind].candidates.get(name, {})
        else:
            found[PICKS] = (*found.get(PICKS, ()), (kind, name))
    return found


def tuned(capabilities: Capabilities, problem: str, scheme: str) -> contextlib.AbstractContextManager[None]:
    """Context manager: use the problem's tuned choice in the block, if there is one and no other choice is
    active (one is during a measurement)."""
    choice = stored(capabilities).get(subject(problem, scheme))
    return preferred(says(choice)) if choice and preference() is None else contextlib.nullcontext()


def subject(problem: str, scheme: str) -> str:
    """Return the key of a choice, like ``linear[M=1,K=64,N=32] q8csw``."""
    return f"{problem} {scheme}"


def stored(capabilities: Capabilities) -> Mapping[str, Choice]:
    """Return the stored choices of a device by key."""
    with _lock:
        found = _tuned.get(capabilities.key)
        if found is None:
            found = _tuned[capabilities.key] = cache.read_json(_path(capabilities), _parse) or {}
        return found


def store(capabilities: Capabilities, problem: str, scheme: str, choice: Choice) -> None:
    """Store a choice for this device, driver and version of vkq. Choices for other problems stay, also those
    stored by other processes in the meantime. An empty choice, the default, removes the stored choice."""
    before, kept = stored(capabilities), cache.read_json(_path(capabilities), _parse) or {}
    found = {**before, **kept, subject(problem, scheme): dict(choice)}
    found = {name: one for name, one in found.items() if one}
    if found == before:
        return
    with _lock:
        _tuned[capabilities.key] = found
    cache.write(_path(capabilities), json.dumps(found, indent=1).encode())


def _path(capabilities: Capabilities) -> Path:
    return cache.cache_dir() / "tune" / f"{capabilities.key}-{__version__}.json"


def _parse(value: Any) -> dict[str, Choice]:
    """Return the choices in a JSON value. Raises ValueError if its structure is wrong."""
    good = isinstance(value, dict) and all(
        isinstance(choice, dict) and all(isinstance(name, str) for name in choice.values())
        for choice in value.values()
    )
    if not good:
        raise ValueError("it is not a mapping of choices")
    return dict(value)
