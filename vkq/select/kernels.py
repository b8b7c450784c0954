"""The kernels that `vkq tune` found the fastest for a problem on this device: a candidate of each family
(``candidates`` and ``tuned`` of profiles.yaml), kept by the problem's name and scheme. What is measured for a
device as a whole is `vkq.device.measured`; choices change speed and never a result.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from .. import cache
from .._version import __version__
from ..device.capabilities import Capabilities
from ..device.profiles import preference, preferred, tuned_families
from . import tune

Candidates = Mapping[str, str]  # candidate by family
_tuned: dict[str, dict[str, Candidates]] = {}  # by device, then subject
_lock = threading.Lock()


def subject(problem: str, scheme: str) -> str:
    """What a choice is kept by: ``linear[M=1,K=64,N=32] q8csw``."""
    return f"{problem} {scheme}"


def asked() -> Hashable:
    """What is asked for in this context in place of a device's choices: plans and methods that are kept
    depend on it."""
    return tune.forced_setting(), preference()


def says(choice: Candidates) -> dict[str, Any]:
    """What candidates say in place of the profile's fields; one that is no more says nothing."""
    found: dict[str, Any] = {}
    for family in tuned_families():
        found |= family.candidates.get(choice.get(family.name, ""), {})
    return found


def tuned(capabilities: Capabilities, problem: str, scheme: str) -> contextlib.AbstractContextManager[None]:
    """In the block the profile says what was tuned for the problem, where it was; while a candidate is being
    measured, that one stays."""
    choice = stored(capabilities).get(subject(problem, scheme))
    return preferred(says(choice)) if choice and preference() is None else contextlib.nullcontext()


def stored(capabilities: Capabilities) -> Mapping[str, Candidates]:
    """The choices of a device by subject."""
    with _lock:
        found = _tuned.get(capabilities.key)
        if found is None:
            found = _tuned[capabilities.key] = cache.read_json(_path(capabilities), _parse) or {}
        return found


def store(capabilities: Capabilities, problem: str, scheme: str, choice: Candidates) -> None:
    """Keeps a choice for this device, driver and version of vkq, beside those tuned before, and meanwhile by
    other processes; an empty one, the default, forgets what was."""
    before, kept = stored(capabilities), cache.read_json(_path(capabilities), _parse) or {}
    found = {**before, **kept, subject(problem, scheme): dict(choice)}
    found = {name: one for name, one in found.items() if one}
    if found == before:
        return
    with _lock:
        _tuned[capabilities.key] = found
    cache.write(_path(capabilities), json.dumps(found, indent=1).encode())


def _path(capabilities: Capabilities) -> Path:
    return cache.cache_dir() / "tune" / f"{capabilities.key}-{__version__}-kernels.json"


def _parse(value: Any) -> dict[str, Candidates]:
    """From the value of a JSON text; ValueError for another form."""
    good = isinstance(value, dict) and all(
        isinstance(choice, dict) and all(isinstance(name, str) for name in choice.values())
        for choice in value.values()
    )
    if not good:
        raise ValueError("it is no mapping of choices")
    return dict(value)
