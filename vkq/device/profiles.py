"""Profiles of devices. A device's `Profile` merges the rules of ``profiles.yaml`` that match the device,
and keeps the reasons of these rules.

>>> known = profiles()
>>> known[0].name, all(rule.why and rule.source for rule in known)
('default', True)
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..yamlfile import load
from . import costs
from .capabilities import DEVICE_TYPES, Capabilities
from .cores import told_cores
from .profile_fields import FEW, Registers, value_of

FILE = Path(__file__).with_name("profiles.yaml")
PICKS = "picks"  # the key of a `preferred` block whose value `picks` returns


# eq=False: profiles are compared and hashed by identity; `_merged` returns one object for equal arguments.
@dataclasses.dataclass(frozen=True, eq=False)
class Profile(costs.Costs):
    """How a device computes: the kernels, tiles and limits that it uses. profiles.yaml explains each field,
    and `Costs` the cost tables."""

    staged: str | None
    staged_conv: str | None
    tile: str
    register_tile_percent: Mapping[str, int]
    register_width_percent: Mapping[int, int]
    tile_float: str
    float16_k: int
    float16_words: bool
    texels: bool
    lane_loads: bool
    registers: Registers
    form: str | None
    avoid_local: frozenset[tuple[int, int]]
    gemv_rows: int
    gemv_rows_float: int
    gemv_rows_grouped: int
    gemv_rows_shared: int
    gemv_invocations: int
    gemv_columns: int
    gemv_narrowest: int
    direct_blocks: int
    grouped_rows: int
    depthwise_lines: tuple[tuple[int, int], ...] | None
    unrolled_loops: bool
    mean_invocations: int
    macs_per_dispatch_log2: int
    wide_barriers: bool
    fill_workgroups: int
    busy_workgroups: int
    cache_bytes: int
    multiprocessors: int
    matrix_subgroup: int | None  # None: the subgroup size equals the number of rows of a matrix
    transform_element_macs: int
    matrix_pairs: bool
    matrix_literals: str | None
    expanded_bytes: int
    attention_in_steps: bool
    grouped_tiles: tuple[tuple[str, float], ...]
    names: tuple[str, ...]  # the names of the rules that match the device
    whys: tuple[str, ...]  # the reasons and sources of these rules
    timed: bool  # True if kernels were timed on a device of this model
    measured: bool  # True if measurements on this device override fields

    @property
    def macs_per_dispatch(self) -> int:
        return 1 << self.macs_per_dispatch_log2

    @property
    def gemv_unroll(self) -> int:
        """The number of blocks along K that an invocation of a GEMV kernel loads at once."""
        return 2 if self.registers == FEW else 4

    @property
    def reason(self) -> str:
        """A text with the last matching rule, the tile and the reason, such as ``Arm Mali: tiles of 4x4 in
        registers; <why> (<source>)``."""
        where = f"{self.staged} through shared memory" if self.staged else f"{self.tile} in registers"
        where += ", operands as texels" if self.texels else ""
        return (
            f"{self.names[-1]}{', measured here' if self.measured else ''}: tiles of {where}; {self.whys[-1]}"
        )

    def local(self, x: int, invocations: int, most_x: int) -> tuple[int, int]:
        """Return a workgroup size (x, y) with this number of invocations. If the size with the requested
        *x* is in `avoid_local`, return the first of the sizes with another x, at most *most_x*, that is
        not."""
        sizes = [x, *(wide for wide in (2 * x, 4 * x) if wide <= most_x), x // 2, x // 4, 1]
        return next(
            (wide, invocations // wide) for wide in sizes
            if wide and (wide, invocations // wide) not in self.avoid_local
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ProfileRule:
    """A rule of profiles.yaml. The fields from ``device_type`` to ``facts`` are its conditions on a device;
    None: any."""

    name: str
    device_type: str | None
    vendor_id: int | None
    device_ids: range | None
    facts: Mapping[str, int]
    says: Mapping[str, Any]  # the profile fields that the rule sets, with their values
    why: str
    source: str
    timed: bool

    def matches(
        self, device_type: str, vendor_id: int, device_id: int, facts: tuple[tuple[str, int], ...]
    ) -> bool:
        have = dict(facts)
        return (
            self.device_type in (None, device_type)
            and self.vendor_id in (None, vendor_id)
            and (self.device_ids is None or device_id in self.device_ids)
            and all(have[name] == value for name, value in self.facts.items())
        )


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of kernels."""

    name: str
    problem: str | None  # the problem on which the candidates are timed
    candidates: Mapping[str, Mapping[str, Any]]  # {name: profile fields that the candidate overrides}


def profile(c: Capabilities) -> Profile:
    """Return the profile of a device. Its fields are overridden by measurements on the device
    (`Capabilities.choices`), and then by an enclosing `preferred` block."""
    return _profile(c, tuple(one for one in _preferred.get() or () if one[0] != PICKS))


@functools.lru_cache(maxsize=256)  # cached, because every dispatch calls `profile`
def _profile(c: Capabilities, instead: tuple[tuple[str, Any], ...]) -> Profile:
    facts = tuple((name, int(c.properties.get(name, c.features.get(name, 0)))) for name in _facts())
    return _merged(c.device_type, c.vendor_id, c.device_id, facts, told_cores(c), c.choices + instead)


_preferred: contextvars.ContextVar[tuple[tuple[str, Any], ...] | None] = contextvars.ContextVar(
    "vkq_preferred", default=None
)


@contextlib.contextmanager
def preferred(says: Mapping[str, Any]) -> Iterator[None]:
    """Context manager: override the profile fields *says* inside the block, for example by values tuned for
    one problem."""
    token = _preferred.set(tuple(says.items()))
    try:
        yield
    finally:
        _preferred.reset(token)


def picks() -> Mapping[str, str]:
    """Return {type of kernel: name of the tuned option} of the enclosing `preferred` block, for the options
    that are not profile fields (see `vkq.device.tuner`)."""
    return dict(dict(_preferred.get() or ()).get(PICKS, ()))


def preference() -> tuple[tuple[str, Any], ...] | None:
    """Return the overrides of the enclosing `preferred` block (possibly empty), or None outside of any
    block."""
    return _preferred.get()


def _file() -> dict[str, Any]:
    return load(FILE).mapping({"default", "rules", "candidates", "tuned"}, set())


@functools.cache
def families() -> tuple[Family, ...]:
    """Return the families of kernels that are measured on a device, in the order of measurement."""
    found = []
    for name, node in _file()["candidates"].items():
        keys = node.mapping({"problem", "tries"}, set())
        found.append(Family(name, keys["problem"].str(), _tries(keys["tries"])))
    return tuple(found)


@functools.cache
def tuned_families() -> tuple[Family, ...]:
    """Return the `families`, followed by the families that only `vkq tune` measures."""
    more = (Family(name, None, _tries(node)) for name, node in _file()["tuned"].items())
    return (*families(), *more)


def _tries(node: Any) -> dict[str, Mapping[str, Any]]:
    return {
        candidate: {
            field: value_of(SETTINGS[field], value)
            for field, value in says.mapping(set(), set(SETTINGS)).items()
        }
        for candidate, says in node.items()
    }


@functools.cache
def profiles() -> tuple[ProfileRule, ...]:
    """Return every rule of the file, the default first. Raises SpecError with the line of the first invalid
    rule."""
    keys = _file()
    default = _rule(keys["default"], "default")
    missing = [field for field in SETTINGS if field not in default.says]
    if missing:
        raise keys["default"].error(f"the default must set every field; it lacks {', '.join(missing)}")
    return (default, *(_rule(node, None) for node in keys["rules"].sequence()))


SETTINGS = {  # {profile field that profiles.yaml may set: its type annotation}
    f.name: str(f.type)
    for f in dataclasses.fields(Profile)
    if f.name not in {"names", "whys", "timed", "measured", *costs.SEED}
}


@functools.cache
def _facts() -> tuple[str, ...]:
    """Return the names of the features and properties that any rule tests."""
    return tuple(dict.fromkeys(name for rule in profiles() for name in rule.facts))


@functools.cache  # for equal arguments, return the same object
def _merged(
    device_type: str,
    vendor_id: int,
    device_id: int,
    facts: tuple[tuple[str, int], ...],
    cores: int | None,
    choices: tuple[tuple[str, Any], ...],
) -> Profile:
    rules = [rule for rule in profiles() if rule.matches(device_type, vendor_id, device_id, facts)]
    says: dict[str, Any] = {**costs.SEED}
    for rule in rules:
        says |= rule.says
    if not says["matrix_pairs"]:  # kernels that load B from global memory were not timed
        says |= dict.fromkeys(costs.DIRECT, costs.CostTable())
    kind = costs.shipped().get(f"{vendor_id:04x}-{device_id:04x}")
    if kind:
        says |= {**kind.costs, "multiprocessors": kind.cores}
    if cores:
        says["multiprocessors"] = cores
    return Profile(
        **says | dict(choices),
        timed=rules[-1].timed or kind is not None,
        measured=bool(dict(choices).keys() - {"multiprocessors"}),
        names=tuple(rule.name for rule in rules),
        whys=tuple(f"{rule.why} ({rule.source})" for rule in rules),
    )


def _rule(node: Any, name: str | None) -> ProfileRule:
    required = {"why", "source"} if name else {"name", "why", "source"}
    keys = node.mapping(required, {"device_type", "vendor_id", "device_ids", "facts", "timed", *SETTINGS})
    kind = keys["device_type"].str() if "device_type" in keys else None
    if kind is not None and kind not in DEVICE_TYPES:
        raise keys["device_type"].error(
            f"there is no device type {kind}; there are {', '.join(DEVICE_TYPES)}"
        )
    facts = dict(keys["facts"].items()) if "facts" in keys else {}
    return ProfileRule(
        name or keys["name"].str(),
        kind,
        keys["vendor_id"].int() if "vendor_id" in keys else None,
        _device_ids(keys["device_ids"]) if "device_ids" in keys else None,
        {fact: value.int() for fact, value in facts.items()},
        {field: value_of(text, keys[field]) for field, text in SETTINGS.items() if field in keys},
        keys["why"].str(),
        keys["source"].str(),
        "timed" in keys and keys["timed"].bool(),
    )


def _device_ids(node: Any) -> range:
    numbers = [number.int() for number in node.sequence()]
    if len(numbers) != 2:
        raise node.error("there must be two device ids: the first and the last of a generation")
    return range(numbers[0], numbers[1] + 1)
