"""Plot benchmark results with matplotlib: time and rate over one size, a roofline with the measured ceilings,
or bars that compare libraries on whole networks."""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vkq import files
from vkq.bench.cases import swept
from vkq.bench.result import Result, Row
from vkq.check.cases import Case
from vkq.errors import ArgumentError

SUFFIXES = (".svg", ".png", ".pdf")
MOST_LABELS = 10  # maximum number of points with names in a roofline; more names would overlap
# The colours of each theme: background, text, lines.
THEMES = {"light": ("#ffffff", "#1f2328", "#d0d7de"), "dark": ("#0d1117", "#e6edf3", "#30363d")}
# The colours of the series, distinct for readers with colour blindness (Okabe and Ito's palette).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a8f98")


def library() -> Any:
    """Import and return ``matplotlib.figure``, which needs no display. Raises ArgumentError if matplotlib is
    not installed."""
    try:
        figure = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise ArgumentError(
            f"a plot needs matplotlib ({error}); install it: pip install 'vkq[plot]'"
        ) from error
    return figure


def check(path: Path) -> None:
    """Raise ArgumentError if the suffix of *path* is not in `SUFFIXES`, or matplotlib is not installed.
    Call it before measuring, so that no measurement is lost."""
    if path.suffix.lower() not in SUFFIXES:
        raise ArgumentError(
            f"plot: {str(path)!r} has no suffix that says what to write; use {', '.join(SUFFIXES)}"
        )
    library()


def draw(result: Result, cases: Sequence[Case], path: Path, theme: str = "light") -> None:
    """Plot a result into *path*, in the format of its suffix (.svg, .png, .pdf). If the cases are a sweep
    over one size, plot over this size; else draw a roofline."""
    rows = [row for row in result.rows if row.clock == _clock(result)]
    if not rows:
        raise ArgumentError("plot: there is no row to draw; every case failed")
    size = swept(cases) if cases else None
    if not size:
        rows = [row for row in rows if row.operations]  # a roofline shows only cases with arithmetic
        if not rows:
            raise ArgumentError(
                "plot: no row does arithmetic; sweep a size, as in 'repack[N=1,8,C=64,H=56,W=56]'"
            )
    with _figure(path, theme, (9, 7 if size else 5.5)) as figure:
        if size:
            _sweep(figure, rows, size)
        else:
            _roofline(figure, rows, result.ceilings, THEMES[theme][1])
        device = f"{result.device['name']}{', software device' if result.device['software'] else ''}"
        what = f"\n{_fixed(rows[0].case, size)}" if size else ""
        figure.suptitle(f"vkq {result.vkq} on {device}, {rows[0].clock} clock{what}", fontsize=10)


def bars(title: str, groups: Mapping[str, Mapping[str, float]], path: Path, theme: str = "light") -> None:
    """Write a bar chart to *path*. *groups*: {group: {series: milliseconds}}.

    The first series is vkq's. The label of each other bar has its milliseconds, and the ratio to vkq's bar.
    """
    series = list(dict.fromkeys(name for one in groups.values() for name in one))
    with _figure(
        path, theme, (9, 0.9 + 0.27 * sum(map(len, groups.values())) + 0.25 * len(groups))
    ) as figure:
        axes = figure.subplots()
        at, ticks = 0.0, []
        for one in groups.values():
            first = at
            for name, value in one.items():
                axes.barh(at, value, 0.85, color=COLOURS[series.index(name)])
                axes.annotate(
                    _bar_label(one, name), (value, at), (4, 0), textcoords="offset points", va="center"
                )
                at += 1
            ticks.append((first + at - 1) / 2)
            at += 0.7
        axes.set_yticks(ticks, list(groups))
        axes.invert_yaxis()
        axes.set_xlabel("milliseconds (shorter is faster)")
        axes.margins(x=0.18)
        axes.tick_params(axis="y", length=0)
        for spine in ("top", "right"):
            axes.spines[spine].set_visible(False)
        handles = [axes.barh(0, 0, color=COLOURS[i], label=name) for i, name in enumerate(series)]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(series), frameon=False)
        axes.set_title(title, fontsize=10)


def _bar_label(one: Mapping[str, float], name: str) -> str:
    first = next(iter(one.values()))
    return f"{one[name]:.3g}" + ("" if one[name] is first else f"   {one[name] / first:.2f} x")


@contextmanager
def _figure(path: Path, theme: str, size: tuple[float, float]) -> Iterator[Any]:
    """Context manager: yield a figure with the colours of *theme*, and write it to *path* at the end of the
    block."""
    check(path)
    if theme not in THEMES:
        raise ArgumentError(f"plot: the theme is {theme!r}; it must be one of {', '.join(THEMES)}")
    made = library()
    back, fore, line = THEMES[theme]
    settings = {
        "svg.fonttype": "none", "svg.hashsalt": "vkq", "font.family": "sans-serif", "font.size": 9,
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor"),
        back), **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), fore),
        **dict.fromkeys(("axes.edgecolor", "grid.color", "legend.edgecolor"), line),
        "axes.prop_cycle": importlib.import_module("cycler").cycler(color=COLOURS),
    }  # fmt: skip
    with importlib.import_module("matplotlib").rc_context(settings):
        figure = made.Figure(figsize=size, layout="constrained")
        yield figure
        with files.output(path) as file:
            figure.savefig(file, dpi=120, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def _clock(result: Result) -> str:
    """Return the clock to draw: the first of gpu, submit, call and host that was measured."""
    measured = {row.clock for row in result.rows}
    return next((clock for clock in ("gpu", "submit", "call", "host") if clock in measured), "gpu")


def _series(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        label = " ".join(
            filter(None, [row.path, row.scheme if row.scheme != "q8ta_q8csw_q8to" else "", row.method])
        )
        found.setdefault(label + (", one scale" if row.scale == "tensor" else ""), []).append(row)
    return found


def _sizes(case: str) -> dict[str, str]:
    return dict(item.split("=") for item in case.partition("[")[2][:-1].split(",") if "=" in item)


def _fixed(case: str, size: str | None) -> str:
    """Return the case's name without the value of the swept size, such as linear[M,K=1024,N=1024] for M."""
    sizes = [key if key == size else f"{key}={value}" for key, value in _sizes(case).items()]
    return f"{case.partition('[')[0]}[{','.join(sizes)}]"


def _sweep(figure: Any, rows: Sequence[Row], size: str) -> None:
    upper, lower = figure.subplots(2, 1, sharex=True)
    for label, series in _series(rows).items():
        numbers = [float(_sizes(row.case).get(size, "0").split("x")[0]) for row in series]
        order = sorted(range(len(series)), key=lambda i: numbers[i])
        xs, ordered = [numbers[i] for i in order], [series[i] for i in order]
        upper.plot(xs, [row.gops or row.gbps for row in ordered], marker="o", label=label)
        lower.plot(xs, [row.median_us for row in ordered], marker="o", label=label)
        lower.fill_between(xs, [row.p20_us for row in ordered], [row.p80_us for row in ordered], alpha=0.2)
    upper.set_ylabel("GOP/s" if any(row.operations for row in rows) else "GB/s")
    lower.set_ylabel("us (p20 to p80 shaded)")
    lower.set_xlabel(size)
    positive = all(float(_sizes(row.case).get(size, "0").split("x")[0]) > 0 for row in rows)
    for axes in (upper, lower):
        axes.set_yscale("log")
        if positive:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.5, which="both")
        axes.legend(fontsize=8)


def _roofline(figure: Any, rows: Sequence[Row], ceilings: Mapping[str, float | None], colour: str) -> None:
    axes = figure.subplots()
    intensities = [row.operations / row.bytes for row in rows]
    left, right = min(intensities) / 4, max(intensities) * 4
    copy = ceilings.get("copy")
    labels: list[Label] = []
    roofs = {name: rate for name, rate in _distinct(ceilings).items() if not copy or rate <= right * copy}
    # If all arithmetic ceilings meet the memory ceiling beyond the right edge, draw only the memory ceiling.
    for name, rate in (roofs or ({"copy": copy * right} if copy else {})).items():
        knee = rate / copy if copy else left
        xs = [left, knee, right] if left < knee < right else [left, right]
        axes.plot(
            xs, [min(rate, x * copy) if copy else rate for x in xs], linewidth=1, color=colour, alpha=0.5,
            label=f"ceiling {name}, copy" if roofs else "ceiling copy",
        )  # fmt: skip
        if roofs:
            middle = math.sqrt(max(knee, left) * right)
            text = f"{name} {_tops(rate)}"
            labels.append(Label(text, 8, [(right, rate, 0, 3, "right"), (middle, rate, 0, 3, "center")]))
    for label, series in _series(rows).items():
        xs = [row.operations / row.bytes for row in series]
        axes.scatter(xs, [row.gops for row in series], s=24, label=label, zorder=3)
    axes.set(xscale="log", yscale="log", xlabel="operations per byte of x, weight and y", ylabel="GOP/s")
    axes.grid(alpha=0.5, which="major")
    legend = axes.legend(fontsize=8, loc="lower right", handles=axes.collections)
    _place(figure, axes, [*labels, *_names(rows)], [legend])


def _tops(gops: float) -> str:
    return (
        f"{gops / 1e3:,.0f} TOPS"
        if gops >= 1e5
        else f"{gops / 1e3:.3g} TOPS"
        if gops >= 1e3
        else f"{gops:.3g} GOP/s"
    )


def _distinct(ceilings: Mapping[str, float | None]) -> dict[str, float]:
    """Return the arithmetic ceilings, without those that are within 2 % of an earlier one."""
    found: dict[str, float] = {}
    for name, rate in ceilings.items():
        if rate and name != "copy" and all(abs(rate / other - 1) > 0.02 for other in found.values()):
            found[name] = rate
    return found


@dataclasses.dataclass(frozen=True)
class Label:
    """A text and its possible positions.

    A position is (x, y, offset to the right, offset upwards, horizontal alignment). x and y are data
    coordinates; the offsets are in points.
    """

    text: str
    size: int  # of the font, in points
    places: Sequence[tuple[float, float, int, int, str]]  # the best first


def _names(rows: Sequence[Row]) -> list[Label]:
    """Return one label for each case, at its fastest point. The case with the highest rate comes first."""
    best: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: row.gops):
        best[row.case] = row
    sides = ((5, 3, "left"), (-5, 3, "right"), (5, -9, "left"), (-5, -9, "right"))
    return [
        Label(_short(case), 7, [(row.operations / row.bytes, row.gops, *side) for side in sides])
        for case, row in sorted(best.items(), key=lambda item: -item[1].gops)
    ]


def _place(figure: Any, axes: Any, labels: Sequence[Label], others: Sequence[Any]) -> None:
    """Draw each label at its first position that is inside the axes and overlaps neither *others* nor an
    earlier label. Labels without a free position are not drawn."""
    figure.draw_without_rendering()  # computes the positions of all elements of the figure
    taken = [one.get_window_extent() for one in others]
    inside = axes.get_window_extent()
    named = 0
    for label in labels:
        for x, y, right, up, end in label.places:
            text = axes.annotate(
                label.text, (x, y), (right, up), textcoords="offset points", fontsize=label.size, ha=end
            )
            text.set_in_layout(False)
            box = text.get_window_extent()
            corners = [(box.x0, box.y0), (box.x1, box.y1)]
            if all(inside.contains(*one) for one in corners) and not box.count_overlaps(taken):
                taken.append(box)
                break
            text.remove()
        else:
            continue
        named += label.size < 8
        if named == MOST_LABELS:
            return


def _short(case: str) -> str:
    """Return a short name of a case: ``4096x4096x4096`` (M, K, N), or ``128>128 3x3 72x120 x10`` (channels,
    kernel, image, batch)."""
    s = _sizes(case)
    if "M" in s:
        return f"{s['M']}x{s['K']}x{s['N']}"
    if "IC" not in s:
        return case[:24]
    batch = f" x{s['N']}" if s["N"] != "1" else ""
    return f"{s['IC']}>{s['OC']} {s['KH']}x{s['KW']} {s['H']}x{s['W']}{batch}"
