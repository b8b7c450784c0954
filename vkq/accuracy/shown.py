"""Writes the comparison of layers with the float model as a table, as data for JSON, and as a plot."""

from __future__ import annotations

import dataclasses
import html
import math
from typing import Any

SPOILT = 6.0  # a scale with a larger loss in dB is reported
WORST = 5  # maximum number of layers that are named under the table
WIDE = 100  # minimum width in characters at which the table shows all columns
CLEAN = 60.0  # signal-to-noise ratio in dB at which a bar of the plot has its full length


@dataclasses.dataclass(frozen=True)
class LayerRow:
    """How close one value of the quantized model is to this value in the float model, over all samples.

    - snr_db: the signal-to-noise ratio, with the noise that earlier layers cause
    - own_db: the signal-to-noise ratio of this layer alone, fed with the float model's values
    - cosine: the cosine similarity of the value in both models
    - clipped: the fraction of float elements outside the quantization range
    - used: the fraction of the quantization range that float elements cover
    - scale_loss_db: the loss that the scale of the result or of the weight causes, compared with a scale that
      fits the elements
    - channel, channel_db: the worst channel (axis 1), and its signal-to-noise ratio
    """

    layer: str
    op: str
    output: str
    snr_db: float
    own_db: float
    cosine: float
    clipped: float
    used: float
    scale_loss_db: float
    channel: int
    channel_db: float

    def why(self) -> str:
        """Return the reason to look at this layer, as a text."""
        if self.scale_loss_db > SPOILT and self.clipped > 0.001:
            return f"{self.clipped:.1%} of its numbers are clipped: its range is too small"
        if self.scale_loss_db > SPOILT:
            return f"its scale loses {self.scale_loss_db:.1f} dB: numbers fill {self.used:.1%} of the range"
        return f"{_db(self.own_db).strip()} dB alone, {_db(self.snr_db).strip()} dB with inherited errors"


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """The rows of all layers in the order of the graph. ``str()`` is a table."""

    rows: tuple[LayerRow, ...]
    samples: int

    def worst(self, count: int = WORST) -> list[LayerRow]:
        """Return the *count* worst layers: first the layers that lose most by their scales, and then the
        layers with the lowest ``own_db``."""
        spoilt = [row for row in self.rows if row.scale_loss_db > SPOILT]
        spoilt.sort(key=lambda row: -row.scale_loss_db)
        rest = sorted((row for row in self.rows if row not in spoilt), key=lambda row: row.own_db)
        return [*spoilt, *rest][:count]

    def __str__(self) -> str:
        return self.table()

    def table(self, columns: int | None = None) -> str:
        """Return a table with a row for each layer, at most *columns* characters wide (80 or more). A narrow
        table leaves out the columns cosine and used. Names and operators are cut at the front, because their
        ends are more specific."""
        narrow = columns is not None and columns < WIDE
        kind = min(max([len(row.op) for row in self.rows] + [8]), 17 if narrow else 40)
        most = 40 if columns is None else max(columns - (43 if narrow else 59) - kind, 5)
        width = min(max([len(row.layer) for row in self.rows] + [5]), most)
        more = "" if narrow else f" {'cosine':>8} {'used':>6}"
        lines = [
            f"{'layer':{width}} {'operator':{kind}} {'dB':>6} {'own dB':>6}{more} {'clipped':>7}"
            f" {'lost dB':>7}  channel dB"
        ]
        for row in self.rows:
            more = "" if narrow else f" {row.cosine:8.5f} {row.used:6.1%}"
            lines.append(
                f"{row.layer[-width:]:{width}} {row.op[-kind:]:{kind}} {_db(row.snr_db)} {_db(row.own_db)}"
                f"{more} {row.clipped:7.2%} {row.scale_loss_db:7.1f}"
                f"  {row.channel}: {_db(row.channel_db).strip()}"
            )
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as data for JSON. Infinities become None."""
        rows = [
            {
                k: None if isinstance(v, float) and math.isinf(v) else v
                for k, v in dataclasses.asdict(row).items()
            }
            for row in self.rows
        ]
        return {"samples": self.samples, "layers": rows, "worst": [row.layer for row in self.worst()]}

    def svg(self) -> str:
        """Return a plot as SVG. Each layer, in order, has a bar for ``snr_db`` and a mark for ``own_db``. The
        worst layers are in another colour."""
        step, height, left, top = 14, 12, 260, 46
        worst = {row.output for row in self.worst()}
        body = []
        for i, row in enumerate(self.rows):
            y = top + i * step
            fill = "#c0392b" if row.output in worst else "#4878a8"
            own = left + _pixels(row.own_db)
            name = html.escape(f"{row.op} {row.layer}"[-42:])
            weight = ' font-weight="bold"' if row.output in worst else ""
            length = _pixels(row.snr_db)
            body.append(
                f'<text x="{left - 6}" y="{y + 10}" text-anchor="end"{weight}>{name}</text>'
                f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{height}" fill="{fill}"/>'
                f'<path d="M{own:.1f} {y}v{height}" stroke="#222" stroke-width="2"/>'
                f'<text x="{left + 492}" y="{y + 10}">{_db(row.snr_db).strip()}</text>'
            )
        for tick in range(0, int(CLEAN) + 1, 10):
            x = left + _pixels(tick)
            body.append(
                f'<text x="{x}" y="{top - 6}" text-anchor="middle">{tick} dB</text>'
                f'<path d="M{x} {top - 3}v{len(self.rows) * step + 3}" stroke="#8888" stroke-width="0.5"/>'
            )
        size = f'width="{left + 550}" height="{top + len(self.rows) * step + 8}"'
        title = f"Signal to noise of each layer over {self.samples} samples; mark: the layer alone"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}'
            ' font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
            f'<text x="8" y="18" font-size="13">{title}</text>{"".join(body)}</svg>\n'
        )


def decibels(signal: float, noise: float) -> float:
    """Return the signal-to-noise ratio in dB. It is infinite without noise, and -infinity without signal."""
    if not noise > 0:
        return math.inf
    return float(10 * math.log10(signal / noise)) if signal > 0 else -math.inf


def _db(value: float) -> str:
    return f"{value:6.1f}" if math.isfinite(value) else " exact" if value > 0 else "     -"


def _pixels(decibel: float) -> float:
    return 8 * min(max(decibel, 0.0), CLEAN)
