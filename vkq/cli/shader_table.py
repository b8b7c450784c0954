"""The table of ``vkq shaders stats``: the statistics that the driver's compiler reports for the kernels that
``auto`` chooses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vkq import files
from vkq.cli.common import folded, progress
from vkq.errors import ArgumentError
from vkq.kernels.auto_programs import auto_programs
from vkq.runtime.program import refusals
from vkq.runtime.statistics import Compiler, PipelineExecutable

# The names of three statistics in the drivers RADV, turnip, v3dv and panvk: the number of instructions, the
# number of registers, and the occupancy.
INSTRUCTIONS = ("Instructions", "Instruction Count", "inst")
REGISTERS = ("VGPRs", "Registers used")
RUNNING = ("Subgroups per SIMD", "Max Waves Per Core", "Thread Count", "threads")
# Multiply-add instructions in the machine code of AMD and Adreno, as (pattern, number of multiply-adds of one
# instruction).
MULTIPLY_ADDS = (
    (r"v_dot4\w*|dp4acc", 4),
    (r"dp2acc", 2),
    (r"v_pk_fma_f16", 2),
    (r"v_fmac?_f(?:32|16)\w*|v_mac_f32\w*|v_mad_f32\w*|mad\.f(?:32|16)", 1),
)
# Matches a dot-product instruction in the machine code of AMD and Adreno.
DOTS = re.compile(r"\b(?:v_dot4\w*|dp[24]acc)")
# A label, and a jump or branch to a label.
LABEL = re.compile(r"^\s*(BB\d+|l\d+):")
JUMP = re.compile(r"\b(?:s_c?branch\w*\s+(BB\d+)|(?:jump|br\w*)\s.*?#(l\d+))")
COMPARED = ("instructions", "for_each_mac", "running", "spills")  # the figures that `worse` compares
MOST_BYTES = 1 << 24  # a stored table with more bytes is refused
SLACK = 1.02  # a shader is worse if its instruction count grows by more than this factor


def measure(which: int | str | None) -> dict[str, Any]:
    """Compile the kernels that ``auto`` chooses on a device. Return {"device": name, "driver": name,
    "kernels": a dict from each layer to its `figures`}."""
    with Compiler(which) as device:
        c, kernels = device.capabilities, {}
        layers = auto_programs(c)
        for each in progress(layers, len(layers), "compiling"):
            reasons = refusals(each.variant, dict(each.constants), c)
            if reasons:
                kernels[each.layer] = {"variant": each.variant.name, "refused": "; ".join(reasons)}
                continue
            found = device.executables(each.variant, each.constants)[0]
            kernels[each.layer] = {"variant": each.variant.name, **figures(found, each.results)}
        return {"device": c.name, "driver": c.driver, "kernels": kernels}


def read(path: Path) -> dict[str, Any]:
    """Read a result of `measure` from a file. Raises ArgumentError, with the file's name, if the file does
    not contain one."""
    try:
        found = files.parse_json(files.read(path, MOST_BYTES))
        kernels = found["kernels"]
        numbers = [figure.get(name) for figure in kernels.values() for name in COMPARED]
        known = isinstance(found["driver"], str)
        if not known or not all(isinstance(number, int | float | None) for number in numbers):
            raise ValueError("its driver is not text, or a figure of a kernel is not a number")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArgumentError(
            f"{path} cannot be read: {error}; give a file that `vkq shaders stats --json` wrote"
        ) from error
    return dict(found)


def figures(e: PipelineExecutable, results: int | None = None) -> dict[str, Any]:
    """Return the figures of a pipeline; a figure that the driver does not report is None.

    - instructions, registers, spills: their numbers
    - for_each_result: instructions / *results*, the number of results of an invocation
    - for_each_mac: instructions per multiply-add (`loop_cost`)
    - running: the occupancy
    - dots: the number of dot-product instructions
    - seconds: the time to compile"""
    text = list(e.texts.values())[-1] if e.texts else ""
    instructions = _first(e.statistics, INSTRUCTIONS)
    return {
        "instructions": instructions,
        "for_each_result": round(instructions / results, 1) if instructions and results else None,
        "for_each_mac": loop_cost(text),
        "registers": _first(e.statistics, REGISTERS),
        "running": _first(e.statistics, RUNNING),
        "spills": e.spills,
        "dots": len(DOTS.findall(text)) if text else None,
        "seconds": round(e.seconds, 1),
    }


def _first(statistics: Mapping[str, int | float | bool], names: Iterable[str]) -> int | None:
    return next((int(statistics[name]) for name in names if name in statistics), None)


def loop_cost(text: str) -> float | None:
    """Return the number of instructions divided by the number of multiply-adds, in the innermost loop that
    has the most multiply-adds, or None if no innermost loop has multiply-adds. *text*: machine code.

    >>> loop_cost("BB1:\\n v_dot4c_i32_i8 v0\\n v_add v1\\n s_branch BB1\\n")
    0.75
    """
    lines = text.splitlines()
    at = {m[1]: i for i, line in enumerate(lines) if (m := LABEL.match(line))}
    ends = {}  # from the first line of each loop to its last line
    for i, line in enumerate(lines):
        if (found := JUMP.search(line)) and (start := at.get(found[1] or found[2], i)) < i:
            ends[start] = i
    best, cost = 0, None
    for start, end in ends.items():
        if any(start < other and ends[other] <= end for other in ends):
            continue  # skip a loop that contains another loop
        body = [one for one in lines[start : end + 1] if one.strip() and not LABEL.match(one)]
        macs = sum(count * len(re.findall(pattern, one)) for one in body for pattern, count in MULTIPLY_ADDS)
        if macs > best:
            best, cost = macs, round(len(body) / macs, 2)
    return cost


def worse(now: Mapping[str, Any], kept: Mapping[str, Any], most_seconds: float) -> list[str]:
    """Return a text for each kernel that cannot run, spills more registers than in the stored table *kept*,
    or takes more than *most_seconds* to compile. If the stored table is of the same driver and version, also
    report kernels with more instructions or a lower occupancy."""
    out, same_driver = [], now["driver"] == kept["driver"]
    for layer, figure in now["kernels"].items():
        old = kept["kernels"].get(layer, {})
        if "refused" in figure:
            out.append(f"{layer}: {figure['variant']} cannot run: {figure['refused']}")
            continue
        if figure["spills"] and figure["spills"] > (old.get("spills") or 0):
            out.append(f"{layer}: {figure['variant']} spills {figure['spills']}, kept is {old.get('spills')}")
        if figure["seconds"] > most_seconds:
            out.append(
                f"{layer}: {figure['variant']} took {figure['seconds']} s to compile, above {most_seconds:g}"
            )
        if not same_driver:
            continue
        for name in ("instructions", "for_each_mac"):
            if figure[name] and old.get(name) and figure[name] > SLACK * old[name]:
                out.append(f"{layer}: {name} {figure[name]}, kept is {old[name]}")
        if figure["running"] and old.get("running") and figure["running"] < old["running"]:
            out.append(f"{layer}: {figure['running']} run at once, kept is {old['running']}")
    return out


def lines(now: Mapping[str, Any], kept: Mapping[str, Any] | None, columns: int | None = None) -> list[str]:
    """Return the lines of the table. If the stored table *kept* has another figure, it follows in brackets.
    If a line would be longer than *columns*, layer and kernel are on lines above the figures."""
    names = {
        "instructions": "instructions", "for_each_result": "for a result", "for_each_mac": "for a MAC",
        "registers": "registers", "running": "running", "spills": "spills", "dots": "dots", "seconds": "s",
    }  # fmt: skip
    rows: list[tuple[str, ...]] = [("layer", "kernel", *names.values())]
    for layer, figure in now["kernels"].items():
        old = kept["kernels"].get(layer, {}) if kept else {}
        cells = [layer, figure["variant"]]
        for name in names:
            text = "-" if figure.get(name) is None else str(figure[name])
            changed = name != "seconds" and kept is not None and old.get(name) != figure.get(name)
            cells.append(f"{text} ({old.get(name)})" if changed else text)
        rows.append(tuple(cells))
    whole = _aligned(rows, "  ")
    if columns is None or max(map(len, whole)) <= columns:
        return whole
    figures = _aligned([row[2:] for row in rows], " ")
    heads = [folded(f"{layer}: {kernel}", 4, columns).splitlines() for layer, kernel, *_ in rows]
    return [line for head, own in zip(heads, figures, strict=True) for line in (*head, f"  {own}")]


def _aligned(rows: Sequence[Sequence[str]], between: str) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [between.join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
