"""Try the machine's Vulkan drivers in a child process before this process loads them.

The Vulkan loader loads every driver that has a manifest. So one driver that crashes or hangs stops the
whole process. Unknown drivers are therefore loaded and queried in a child process (trial.py) first: all at
once and, if that fails, one by one. If drivers fail, this process sets ``VK_DRIVER_FILES`` to the good
drivers, so that the loader does not load the others.

The verdict on a driver is stored if the driver passed or crashed twice. It is valid until the driver's
manifest, its library, the kernel or vkq changes. A driver that did not answer in time gets no verdict:
every process tries it again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import cache, files, spawn
from .._version import __version__

FORMAT = 1  # version of the stored verdicts; raise it if the trial changes
TIMEOUT_S = 20.0  # maximum number of seconds of a trial
MANIFEST_BYTES = 1 << 20  # maximum number of bytes of a manifest
# Environment variables with the paths of drivers. If one is set, the loader searches for no other drivers.
# VK_ICD_FILENAMES is the older name.
NAMED = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")


@dataclasses.dataclass(frozen=True)
class Refused:
    """A driver that is not loaded."""

    manifest: str  # the path of the driver's manifest
    reason: str  # how the driver failed in the child process, or what is wrong with its manifest

    def __str__(self) -> str:
        return f"the driver {self.manifest} is left out: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Tried:
    """The outcome of the trials."""

    environment: Mapping[str, str]  # the variables that keep the loader from loading refused drivers, if any
    refused: tuple[Refused, ...]  # the drivers that are not loaded


def tried() -> Tried:
    """Try each driver that has no stored verdict. Return the outcome for all drivers. A child process of
    vkq tries and refuses no driver: it loads all of them."""
    if spawn.in_child():
        return Tried({}, ())
    found = manifests()
    known = {path: _malformed(path) or _load(path) for path in found}
    unknown = [path for path in found if known[path] is None]
    reasons = {path: reason for path, reason in known.items() if reason}
    if unknown:
        reasons |= _try(unknown)
    if not reasons:
        return Tried({}, ())
    good = [str(path) for path in found if path not in reasons]
    text = os.pathsep.join(good) or os.devnull  # with an empty variable, the loader would load all drivers
    refused = tuple(Refused(str(path), reason) for path, reason in reasons.items())
    return Tried(dict.fromkeys(NAMED, text), refused)


@contextlib.contextmanager
def loader_environment(environment: Mapping[str, str]) -> Iterator[None]:
    """Context manager: set the environment variables *environment* inside the block."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def manifests() -> list[Path]:
    """Return the paths of the manifests that the loader would read, in the loader's order. The list is
    empty on systems where the loader finds drivers without manifest folders, such as Windows (registry)."""
    for name in NAMED:
        if os.environ.get(name):
            return _listed(os.environ[name])
    added = _listed(os.environ.get("VK_ADD_DRIVER_FILES", ""))
    home = Path.home() if os.environ.get("HOME") else None
    config = os.environ.get("XDG_CONFIG_HOME") or (str(home / ".config") if home else "")
    data = os.environ.get("XDG_DATA_HOME") or (str(home / ".local/share") if home else "")
    folders = [
        config, *(os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep), "/etc",
        "/usr/local/etc", data, *(os.environ.get("XDG_DATA_DIRS") or
        "/usr/local/share:/usr/share").split(os.pathsep),
    ]  # fmt: skip
    places = dict.fromkeys(Path(folder, "vulkan/icd.d") for folder in folders if folder)
    return list(dict.fromkeys([*added, *(path for place in places for path in sorted(place.glob("*.json")))]))


def _listed(text: str) -> list[Path]:
    """Return the manifests in the value of an environment variable, a list of files and folders of files."""
    found: list[Path] = []
    for name in filter(None, text.split(os.pathsep)):
        path = Path(name)
        found += sorted(path.glob("*.json")) if path.is_dir() else [path] if path.exists() else []
    return list(dict.fromkeys(found))


def _malformed(path: Path) -> str | None:
    """Return the error of a manifest; None if it is valid. An invalid manifest must be hidden from the
    loader, which would refuse all drivers because of it."""
    try:
        library = files.parse_json(files.read(path, MANIFEST_BYTES))["ICD"]["library_path"]
    except OSError as error:
        return f"its manifest cannot be read: {error.strerror or error}"
    except (ValueError, TypeError, LookupError) as error:
        return f"its manifest is malformed ({type(error).__name__}: {str(error)[:100]})"
    return None if isinstance(library, str) else "its manifest names no library"


def _try(unknown: Sequence[Path]) -> dict[Path, str]:
    """Try the drivers with these manifests, and store the verdicts. Return {manifest of a failed driver:
    reason}."""
    ended = _trial(unknown)
    if ended is None or not ended.started:
        return {}  # no child process could run, so nothing is known about the drivers
    if not _bad(ended):
        for path in unknown:
            _keep(path, None)
        return {}
    reasons: dict[Path, str] = {}
    for path in unknown:
        alone = _trial([path]) if len(unknown) > 1 or ended.kind == "crashed" else ended
        if alone is None or not _bad(alone):
            _keep(path, None)
            continue
        reasons[path] = f"{alone.reason} in {_stage(alone)}"
        if alone.kind == ended.kind == "crashed":  # the driver crashed twice
            _keep(path, reasons[path])
    if not reasons:  # each driver passes alone, but they fail together
        reasons = {path: f"{ended.reason} in {_stage(ended)}, loaded with others" for path in unknown[1:]}
    return reasons


def _trial(paths: Sequence[Path]) -> spawn.Ended | None:
    argv = spawn.command("vkq.device.trial")
    text = os.pathsep.join(map(str, paths))
    return spawn.run(argv, TIMEOUT_S, dict.fromkeys(NAMED, text)) if argv else None


def _bad(ended: spawn.Ended) -> bool:
    return ended.started and ended.kind in ("crashed", "late", "ended")


def _stage(ended: spawn.Ended) -> str:
    return str(ended.said[-1].get("begin", "loading")) if ended.said else "loading"


def _place(path: Path) -> Path:
    return cache.cache_dir() / "drivers" / f"{_fingerprint(path)}.json"


def _fingerprint(path: Path) -> str:
    """Return the key of a driver's stored verdict: a hash of the manifest, of facts about the library, and
    of the versions of the kernel and vkq. After a change of any of these, the driver is tried again."""
    try:
        text = files.read(path, MANIFEST_BYTES)
    except OSError as error:
        text = str(error).encode()
    facts = [str(path.absolute()), _library(path, text), platform.release(), __version__, FORMAT]
    return hashlib.sha256(json.dumps(facts).encode() + text).hexdigest()


def _library(path: Path, manifest: bytes) -> list[Any]:
    """Return [path, size, modification time] of the driver's library, [name] if the library is not found,
    or [] if the manifest names none. *path* is the manifest's path, *manifest* its content."""
    try:
        name = str(files.parse_json(manifest)["ICD"]["library_path"])
    except (ValueError, TypeError, LookupError):
        return []
    folders = [path.parent] if "/" in name else _library_folders()
    for folder in folders:
        with contextlib.suppress(OSError, ValueError):
            facts = (folder / name).stat()
            return [str(folder / name), facts.st_size, facts.st_mtime_ns]
    return [name]


def _library_folders() -> list[Path]:
    told = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    usual = [
        "/usr/local/lib",
        f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}",
        "/usr/lib64",
        "/usr/lib",
        "/lib",
    ]
    return [Path(folder) for folder in (*filter(None, told), *usual)]


def _load(path: Path) -> str | None:
    """Return the stored verdict on a driver: "" if it is good, the reason if it is refused, None if there is
    no verdict."""
    return cache.read_json(_place(path), _parse)


def _parse(value: Any) -> str:
    if not isinstance(value, dict) or value.keys() != {"manifest", "refused"}:
        raise ValueError("its keys are not manifest and refused")
    if not isinstance(value["refused"], (str, type(None))):
        raise ValueError("refused is neither text nor null")
    return value["refused"] or ""


def _keep(path: Path, reason: str | None) -> None:
    cache.write(_place(path), json.dumps({"manifest": str(path), "refused": reason}).encode())
