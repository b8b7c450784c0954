"""The result of a benchmark run: its rows and ratios, and the JSON file that stores them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vkq import files
from vkq.bench.stats import Ratio
from vkq.errors import ArgumentError

SCHEMA = 1
INTERRUPTED = "interrupted"  # the reason of cases that were not timed because the user ended the run
MOST_BYTES = 8 << 20  # maximum bytes of a result file
MOST_SAMPLES = 5000  # maximum number of samples of one row


@dataclasses.dataclass
class Row:
    """The times of one arm (a path of vkq, or another library) on one case by one clock.

    Times are those of one pass, in microseconds. Shares are fractions of the ceilings, which were measured in
    the same run.
    """

    case: str
    scheme: str
    scale: str
    method: str | None
    path: str  # vkq's path, or the name of the other library
    arm: str  # "vkq", or "peer" for another library
    variant: str  # the shader variants in order of dispatch, or a text about a peer's kernels
    clock: str
    verified: str  # how the results were compared with the reference
    median_us: float
    p20_us: float
    p80_us: float
    samples_us: list[float]
    dispatches: int  # dispatches of one pass
    passes: int  # passes of one sample
    sets: int  # number of copies of the buffers; consecutive passes use different copies
    operations: int
    bytes: int
    compute_ceiling: str | None
    compute_share: float | None
    copy_share: float | None
    overhead_us: float | None  # for the clock submit: the median of (host time - device time)
    warnings: list[str]
    command: str

    @property
    def key(self) -> tuple[str, ...]:
        """The fields that identify a measurement. `vkq.bench.compare` compares two rows if their keys are
        equal."""
        return (self.case, self.scheme, self.scale, self.method or "", self.path, self.clock)

    @property
    def gops(self) -> float:
        """10**9 operations a second; a multiply-add counts as two operations."""
        return self.operations / self.median_us / 1e3

    @property
    def gbps(self) -> float:
        """10**9 bytes a second, with x, weight and y counted once each."""
        return self.bytes / self.median_us / 1e3


@dataclasses.dataclass
class Comparison:
    """The ratio of the times of two arms (paths of vkq, or other libraries) on one case. The two arms were
    sampled in alternation."""

    case: str
    scheme: str
    scale: str
    method: str | None
    path: str
    base: str
    clock: str
    ratio: float
    low: float
    high: float
    pairs: int
    verdict: str

    @classmethod
    def of(cls, row: Row, base: Row, ratio: Ratio) -> Comparison:
        """Return the comparison of *row* with *base*. *ratio*: the ratio of their times."""
        same = (row.case, row.scheme, row.scale, row.method, row.path, base.path, row.clock)
        return cls(*same, ratio.value, ratio.low, ratio.high, ratio.pairs, ratio.verdict)


@dataclasses.dataclass
class Failure:
    """An arm (a path of vkq, or another library) without a time: its results are wrong (``mismatch``), or
    it could not run (``skipped``)."""

    case: str
    scheme: str
    scale: str
    path: str
    kind: str
    reason: str
    command: str


@dataclasses.dataclass
class NodeTime:
    """The times of one node of a model.

    ``floor_us``: the minimum possible time. It is the larger of bytes / (copy rate) and operations /
    (ceiling of the path), with the copy rate and the ceiling measured in the same run.
    """

    case: str
    node: str
    operator: str
    shapes: str
    kernels: list[str]  # the node's kernels in order of dispatch
    times_us: list[float]  # the time of each kernel
    floor_us: float
    operations: int
    bytes: int

    @property
    def time_us(self) -> float:
        """The time of all dispatches of the node, in microseconds."""
        return sum(self.times_us)


@dataclasses.dataclass
class Total:
    """The time of a network on one path by one clock: the sum over its distinct layers of (median time) x
    (count of the layer)."""

    network: str
    scheme: str
    scale: str
    path: str
    clock: str
    layers: int
    missing: int  # the number of distinct layers without a time, which the sum leaves out
    time_us: float  # the sum of the layers' median times
    operations: int
    compute_ceiling: str | None
    compute_share: float | None

    @property
    def gops(self) -> float:
        """10**9 operations a second."""
        return self.operations / self.time_us / 1e3


@dataclasses.dataclass
class Result:
    """All measurements of a benchmark run, with descriptions of the device and the host."""

    device: dict[str, Any]
    host: dict[str, Any]
    vkq: str
    command: str
    created: str
    settings: dict[str, Any]
    ceilings: dict[str, float | None]
    rows: list[Row] = dataclasses.field(default_factory=list)
    comparisons: list[Comparison] = dataclasses.field(default_factory=list)
    failures: list[Failure] = dataclasses.field(default_factory=list)
    totals: list[Total] = dataclasses.field(default_factory=list)
    nodes: list[NodeTime] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    @property
    def interrupted(self) -> bool:
        """True if the user ended the run before all cases were timed."""
        return any(one.reason == INTERRUPTED for one in self.failures)

    @property
    def mismatches(self) -> list[Failure]:
        """The failures of arms whose results were wrong."""
        return [one for one in self.failures if one.kind == "mismatch"]

    def to_json(self) -> str:
        """Return the result as JSON. Each row has one line."""
        top = {"schema": SCHEMA, **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)}}
        lists: dict[str, list[Any]] = {
            "rows": self.rows,
            "comparisons": self.comparisons,
            "failures": self.failures,
            "totals": self.totals,
            "nodes": self.nodes,
        }
        parts = [f'  "{key}": {json.dumps(value)}' for key, value in top.items() if key not in lists]
        for key, values in lists.items():
            lines = [json.dumps(_rounded(dataclasses.asdict(one))) for one in values]
            parts.append(
                f'  "{key}": [' + (("\n    " + ",\n    ".join(lines) + "\n  ") if lines else "") + "]"
            )
        return "{\n" + ",\n".join(parts) + "\n}\n"


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(one) for one in value]
        return float(f"{value:.6g}") if isinstance(value, float) else value

    return {key: short(value) for key, value in values.items()}


def read_json(path: Path) -> Any:
    """Parse a JSON file that a benchmark wrote. Raises ArgumentError with the file's name if the file
    cannot be read or is not JSON."""
    try:
        return files.parse_json(files.read(path, MOST_BYTES))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error  # str(error) of an OSError would repeat the path
        raise ArgumentError(
            f"{path} cannot be read as JSON: {why}; give a file that `vkq bench --json` wrote"
        ) from error


def read(path: Path) -> Result:
    """Read the result of a run from its JSON file. Raises ArgumentError with the file's name if the file is
    not a result or its schema version is not `SCHEMA`."""
    top = read_json(path)
    version = top.get("schema") if isinstance(top, dict) else None
    if version != SCHEMA:
        raise ArgumentError(
            f"{path} has schema {version!r:.60}, and this vkq reads {SCHEMA}; measure again with this version"
        )
    top = {"totals": [], "nodes": [], **top}  # results before 2026-11-22 lack these keys
    kinds: dict[str, Any] = {
        "rows": Row, "comparisons": Comparison, "failures": Failure, "totals": Total, "nodes": NodeTime
    }  # fmt: skip
    try:
        lists = {key: [_made(kind, one) for one in _list(top, key)] for key, kind in kinds.items()}
        found: Result = _made(Result, {key: value for key, value in top.items() if key != "schema"} | lists)
        for name in ("uuid", "name", "driver"):
            if not isinstance(found.device.get(name), str):
                raise ValueError(f"device.{name} is {found.device.get(name)!r:.60}; it must be text")
    except ValueError as error:
        raise ArgumentError(f"{path} is not a result of `vkq bench`: {error}") from error
    return found


def _list(top: dict[str, Any], key: str) -> list[Any]:
    if not isinstance(top.get(key), list):
        raise ValueError(f"{key} is not a list")
    return list(top[key])


def _made(kind: Any, value: Any) -> Any:
    """Return a JSON value as an object of the dataclass *kind*. Raises ValueError for a wrong key or type."""
    fields = {field.name: field.type for field in dataclasses.fields(kind)}
    if not isinstance(value, dict) or value.keys() != fields.keys():
        raise ValueError(f"a {kind.__name__} must have the keys {', '.join(fields)}")
    for name, type_ in fields.items():
        if not _TYPES[str(type_)](value[name]):
            shown = f"{value[name]!r:.60}"
            raise ValueError(f"{name} of a {kind.__name__} is {shown}; it must be {type_}")
    return kind(**value)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


# {annotation of a dataclass field: function that returns True for a valid JSON value}
_TYPES: dict[str, Callable[[Any], bool]] = {
    "str": _text,
    "str | None": lambda v: v is None or _text(v),
    "int": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "float": lambda v: _number(v) and v >= 0,
    "float | None": lambda v: v is None or _number(v),
    "list[float]": lambda v: (
        isinstance(v, list) and 0 < len(v) <= MOST_SAMPLES and all(_number(one) and one > 0 for one in v)
    ),
    "list[str]": lambda v: isinstance(v, list) and all(map(_text, v)),
    "dict[str, Any]": lambda v: isinstance(v, dict),
    "dict[str, float | None]": lambda v: (
        isinstance(v, dict) and all(one is None or _number(one) for one in v.values())
    ),
    **dict.fromkeys(
        ("list[Row]", "list[Comparison]", "list[Failure]", "list[Total]", "list[NodeTime]"),
        lambda v: isinstance(v, list),
    ),
}
