"""What a benchmark found: rows, ratios, and the JSON that holds them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from vkq.bench.stats import Ratio
from vkq.errors import ArgumentError

SCHEMA = 1


@dataclasses.dataclass
class Row:
    """One arm of one case under one clock. Times are microseconds of one pass; shares are of the run's
    ceilings."""

    case: str
    scheme: str
    scale: str
    method: str | None
    path: str  # of vkq; for a peer its name
    arm: str  # "vkq" or "peer"
    variant: str  # the shaders in order of dispatch, or what the peer ran
    clock: str
    verified: str  # how the numbers were compared with the reference, and that they agreed
    median_us: float
    p20_us: float
    p80_us: float
    samples_us: list[float]
    dispatches: int  # of one pass
    passes: int  # in one sample
    sets: int  # rotating copies of all data
    operations: int
    bytes: int
    compute_ceiling: str | None
    compute_share: float | None
    copy_share: float | None
    overhead_us: float | None  # submit clock: the host's time beyond the device's, median
    warnings: list[str]
    command: str

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two rows of different runs the same measurement."""
        return (self.case, self.scheme, self.scale, self.method or "", self.path, self.clock)

    @property
    def gops(self) -> float:
        """10**9 operations a second, two for each multiply-add."""
        return self.operations / self.median_us / 1e3

    @property
    def gbps(self) -> float:
        """10**9 bytes a second: x, weight and y once each."""
        return self.bytes / self.median_us / 1e3


@dataclasses.dataclass
class Comparison:
    """Two arms of a case, sampled in turn."""

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
        """From the rows of both arms and their ratio."""
        same = (row.case, row.scheme, row.scale, row.method, row.path, base.path, row.clock)
        return cls(*same, ratio.value, ratio.low, ratio.high, ratio.pairs, ratio.verdict)


@dataclasses.dataclass
class Failure:
    """An arm with no time: its numbers are wrong (``mismatch``), or it could not run (``skipped``)."""

    case: str
    scheme: str
    scale: str
    path: str
    kind: str
    reason: str
    command: str


@dataclasses.dataclass
class Result:
    """A whole run."""

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
    seconds: float = 0.0

    @property
    def mismatches(self) -> list[Failure]:
        """The arms whose numbers were wrong."""
        return [one for one in self.failures if one.kind == "mismatch"]

    def to_json(self) -> str:
        """The run as JSON, one row a line."""
        top = {"schema": SCHEMA, **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)}}
        lists: dict[str, list[Any]] = {
            "rows": self.rows,
            "comparisons": self.comparisons,
            "failures": self.failures,
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


def read(path: Path) -> Result:
    """A run from its JSON file. Raises ArgumentError, naming the file, where it is not one or of another
    schema version."""
    try:
        top = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ArgumentError(
            f"{path} cannot be read as JSON: {error}; give a file that `vkq bench --json` wrote"
        ) from error
    version = top.get("schema") if isinstance(top, dict) else None
    if version != SCHEMA:
        raise ArgumentError(
            f"{path} has schema {version}, and this vkq reads {SCHEMA}; measure again with this version"
        )
    kinds: dict[str, Any] = {"rows": Row, "comparisons": Comparison, "failures": Failure}
    try:
        lists = {key: [kind(**one) for one in top[key]] for key, kind in kinds.items()}
        return Result(**{f.name: lists.get(f.name, top[f.name]) for f in dataclasses.fields(Result)})
    except (KeyError, TypeError) as error:
        raise ArgumentError(f"{path} is not a result of `vkq bench`: {error}") from error
