"""Choices of kernels, and the stored measurements of a device.

A choice is a dict {kind: name}. If the kind is a family of profiles.yaml, the name is one of its
``candidates``. Else the kind is a set of options that a kernel ranks (`ranked`), such as register tiles or
tiles of matrix units, and the name is one of these options.

Choices change the speed, never a result: a choice is stored only after its result was compared with the
reference on the device.

`vkq.check.tuning` makes all measurements: of families of kernels at the first use of an unknown device
(`vkq.device.first_sight`), and of single problems in `vkq tune`. There is one file for each combination of
device, driver and version of vkq.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar, cast

from .. import cache
from .._version import __version__
from ..errors import ArgumentError
from ..turns import Turns
from .capabilities import Capabilities
from .costs import FRESH, VARIABLE, in_seed_units, table_of
from .profiles import (
    PICKS,
    Family,
    families,
    picks,
    preference,
    preferred,
    profile,
    tuned_families,
)  # fmt: skip

MODES = ("auto", "always", FRESH, "off")
FORMAT = 3  # version of the store's file. Format 2 held costs of tiles that were timed at different clocks
TILES = "tiles of matrix units"  # the name of the family under which the costs of int8 tiles are stored

Choice = Mapping[str, str]  # {kind: name}
Rankings = dict[str, list[str]]  # {kind: names of its options, best first}
# The outcome
# - of a candidate: its time in microseconds, or the reason for its rejection
# - of a tile (`TILES`): the nanoseconds of a step along K, for a workgroup that runs alone on a core and for
#   one that shares the core
# - of a repack: the nanoseconds for a small image, and those for each further million bytes
Outcome = float | tuple[float, float] | str
T = TypeVar("T")

_rankings: contextvars.ContextVar[Rankings | None] = contextvars.ContextVar("vkq_rankings", default=None)


# ------------------------------------------------------------------------------------------------- a choice


def ranked(kind: str, options: Sequence[T], name: Callable[[T], str] = str) -> Sequence[T]:
    """Return the options of a kernel, which are given best first. If the active choice (`picks`) names one
    of them, move this option to the front. *name*: the function that returns an option's name."""
    seen, picked = _rankings.get(), picks().get(kind)
    if seen is not None:
        seen.setdefault(kind, [name(one) for one in options])
    if picked is None:
        return options
    return sorted(options, key=lambda one: name(one) != picked)


def is_asked(kind: str) -> bool:
    """Return True if a kernel must rank all options of this kind: rankings are recorded (`watched`), or the
    active choice names an option of this kind. Otherwise the kernel needs only the best option."""
    return _rankings.get() is not None or kind in picks()


@contextlib.contextmanager
def watched() -> Iterator[Rankings]:
    """Context manager: yield the `Rankings` that kernels make in the block."""
    found: Rankings = {}
    token = _rankings.set(found)
    try:
        yield found
    finally:
        _rankings.reset(token)


def legal(rankings: Rankings) -> Iterator[Choice]:
    """Yield every choice to try. The first is empty: the default. Each other choice has one entry: an
    option of a kind in *rankings*, or a candidate of a family. The order is the second-best option of every
    kind and the first candidate of every family, then the next of each, and so on."""
    yield {}
    kinds = [[{kind: name} for name in names[1:]] for kind, names in rankings.items()]
    kinds += [[{family.name: name} for name in family.candidates] for family in tuned_families()]
    for together in zip_longest(*kinds):
        yield from (choice for choice in together if choice)


def says(choice: Choice) -> dict[str, Any]:
    """Return the profile fields that a choice overrides: the fields of the candidates that it names, and
    `PICKS` with pairs (kind, option) for the options that it names. Unknown candidates are ignored."""
    found: dict[str, Any] = {}
    known = {family.name: family for family in tuned_families()}
    for kind, name in choice.items():
        if kind in known:
            found |= known[kind].candidates.get(name, {})
        else:
            found[PICKS] = (*found.get(PICKS, ()), (kind, name))
    return found


def current(family: Family, c: Capabilities) -> str:
    """Return the name of the candidate that the device's profile uses: the first candidate whose fields
    equal the profile's. Return the first candidate if none does."""
    known = profile(dataclasses.replace(c, choices=()))
    names = (
        name
        for name, fields in family.candidates.items()
        if all(getattr(known, field) == value for field, value in fields.items())
    )
    return next(names, next(iter(family.candidates)))


# ------------------------------------------------------------------------------------------------ the store


@dataclasses.dataclass(frozen=True)
class Measured:
    """The measurement of a family of kernels."""

    taken: str  # the name of the chosen candidate
    outcomes: Mapping[str, Outcome]  # {name of each tried candidate: outcome}

    def __str__(self) -> str:
        """Return a text such as ``64x64 through shared memory, 41.2 us (4x8 in registers 60.1 us; ...)``."""
        others = "; ".join(f"{name} {_shown(o)}" for name, o in self.outcomes.items() if name != self.taken)
        return f"{self.taken}, {_shown(self.outcomes[self.taken])}{f' ({others})' if others else ''}"

    @classmethod
    def parse(cls, value: Any) -> Measured:
        """Return the measurement from a parsed JSON value. Raises ValueError for wrong keys or types."""
        good = isinstance(value, dict) and value.keys() == {"taken", "outcomes"}
        if not good or not isinstance(value["outcomes"], dict):
            raise ValueError("it is not a measurement of a family of kernels")
        outcomes = {name: outcome_of(name, one) for name, one in value["outcomes"].items()}
        if isinstance(outcomes.get(value["taken"], ""), str):
            raise ValueError("it is not a measurement of a family of kernels: the chosen one has no time")
        return cls(value["taken"], outcomes)


@dataclasses.dataclass(frozen=True)
class Store:
    """All measurements of a device."""

    families: Mapping[str, Measured] | None = None  # {name: measurement}; None: not measured
    problems: Mapping[str, Choice] = dataclasses.field(default_factory=dict)  # {`subject`: stored choice}

    @classmethod
    def parse(cls, value: Any) -> Store:
        """Return the store from a parsed JSON value. Raises ValueError for wrong keys or types."""
        good = isinstance(value, dict) and value.keys() == {"families", "problems"}
        if not good or not isinstance(value["families"], dict | None) or not _are_choices(value["problems"]):
            raise ValueError("it is not a store of measurements")
        known = value["families"]
        found = None if known is None else {name: Measured.parse(one) for name, one in known.items()}
        return cls(found, value["problems"])


def _are_choices(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(choice, dict) and all(isinstance(name, str) for name in choice.values())
        for choice in value.values()
    )


_stores: dict[str, Store] = {}  # the store of each device, by `Capabilities.key`
_lock = Turns("the stored measurements", again=True)


def stored(c: Capabilities) -> Store:
    """Return the stored measurements of a device. The first call reads the file."""
    with _lock:
        if c.key not in _stores:
            _stores[c.key] = cache.read_json(_path(c), Store.parse) or Store()
        return _stores[c.key]


def store(c: Capabilities, problem: str, scheme: str, choice: Choice) -> None:
    """Store the choice for a problem. An empty choice (the default) removes the stored choice."""
    _write(c, None, {subject(problem, scheme): dict(choice)})


def store_families(c: Capabilities, found: Mapping[str, Measured]) -> None:
    """Store the measurements of families of kernels."""
    _write(c, found, {})


def _write(c: Capabilities, found: Mapping[str, Measured] | None, changes: Mapping[str, Choice]) -> None:
    """Write the families *found* (None: no change) and the choices *changes* to the store. Keep all other
    choices, including those that other processes stored since this process read the file."""
    before, kept = stored(c), cache.read_json(_path(c), Store.parse) or Store()
    problems = {**before.problems, **kept.problems, **changes}
    newest = next((one for one in (found, kept.families, before.families) if one is not None), None)
    new = Store(newest, {name: one for name, one in problems.items() if one})
    if new == before:
        return
    with _lock:
        _stores[c.key] = new
    cache.write(_path(c), json.dumps(dataclasses.asdict(new), indent=1).encode())


def _path(c: Capabilities) -> Path:
    return cache.cache_dir() / "tune" / f"{c.key}-{__version__}-{FORMAT}.json"


def subject(problem: str, scheme: str) -> str:
    """Return the key of a problem in the store, such as ``linear[M=1,K=64,N=32] q8csw``."""
    return f"{problem} {scheme}"


# ------------------------------------------------------------------------------------- the use of the store


def mode() -> str:
    """Return the value of VKQ_TUNE.

    - "auto" (the default): measure a device that neither a rule of profiles.yaml nor a file in ``tuned``
      covers.
    - "always": measure every device.
    - "fresh": as "auto", but ignore the files in ``tuned``.
    - "off": measure nothing, and ignore the stored measurements of families.

    Raises ArgumentError for other values."""
    found = os.environ.get(VARIABLE) or "auto"
    if found not in MODES:
        raise ArgumentError(f"{VARIABLE} is {found!r}; it must be one of {', '.join(MODES)}")
    return found


def wanted(c: Capabilities) -> bool:
    """Return True if this device should be measured, according to VKQ_TUNE."""
    return mode() == "always" or (mode() in ("auto", FRESH) and not profile(c).timed)


def choices(found: Mapping[str, Measured] | None) -> tuple[tuple[str, Any], ...]:
    """Return the profile fields that the measurements *found* override, as pairs (field, value) for
    `Capabilities.choices`."""
    if mode() == "off":
        return ()
    fields: dict[str, Any] = {}
    for family in families():
        one = (found or {}).get(family.name)
        fields |= family.candidates.get(one.taken, {}) if one else {}
    if tiles := (found or {}).get(TILES):
        costs: dict[str, dict[str, tuple[float, float]]] = {}
        for name, cost in tiles.outcomes.items():
            if isinstance(cost, tuple) and (table := table_of(name)):
                costs.setdefault(table, {})[name] = cost
        fields |= in_seed_units(costs)
    return tuple(sorted(fields.items()))


def tuned(c: Capabilities, problem: str, scheme: str) -> contextlib.AbstractContextManager[None]:
    """Return a context manager that activates the stored choice for a problem. It does nothing if no choice
    is stored, or if a choice is already active (during a measurement)."""
    choice = stored(c).problems.get(subject(problem, scheme))
    return preferred(says(choice)) if choice and preference() is None else contextlib.nullcontext()


def outcome_of(name: str, value: Any) -> Outcome:
    """Return the outcome of the candidate *name* from a parsed JSON value. Raises ValueError for a wrong
    type."""
    if isinstance(value, str) or _is_time(value):
        return cast(Outcome, value)
    if table_of(name) and isinstance(value, list) and len(value) == 2 and all(map(_is_time, value)):
        return value[0], value[1]
    raise ValueError(f"{name}: {value!r} is not a measurement")


def _is_time(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value > 0


def _shown(outcome: Outcome) -> str:
    us = outcome[1] / 1e3 if isinstance(outcome, tuple) else outcome
    return us if isinstance(us, str) else f"{us:.1f} us"
