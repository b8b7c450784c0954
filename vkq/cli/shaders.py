"""``vkq shaders``: list, show, compile and check the shaders."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

from vkq.bench.fitted import clipped
from vkq.cli import shader_table
from vkq.cli.common import (
    Parsers,
    add_command,
    columns,
    counted,
    device_argument,
    folded,
    progress,
    show_help,
)
from vkq.errors import ArgumentError, CompileError, did_you_mean
from vkq.runtime.program import refusals
from vkq.runtime.statistics import Compiler, PipelineExecutable
from vkq.shader import compile as shader_compile
from vkq.shader import stored
from vkq.shader.build import compile_all, modules
from vkq.shader.catalog import catalog, shaders_folder
from vkq.shader.glslang import find_compiler
from vkq.shader.rules import check_module, check_sources
from vkq.shader.spec import Variant

COMPILE_SECONDS = 10.0  # a kernel that takes longer to compile is reported as worse
# Matches the names of statistics that are not printed: hashes, and internal figures of the compiler.
_HIDDEN = re.compile(r"hash|pre-sched|clause|copies|latency|throughput", re.IGNORECASE)


PATTERN = "a part of the name, or a glob such as 'gemm_*:s8s8.*' (default: all)"


def register(commands: Parsers) -> None:
    parser = commands.add_parser("shaders", help="list, show, compile and check the shaders")
    parser.set_defaults(run=show_help, parser=parser)
    inner = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add in (_add_list, _add_show, _add_build, _add_stats, _add_check):
        add(inner)


def _add_list(inner: Parsers) -> None:
    listing = add_command(
        inner,
        "list",
        shaders_list,
        "list the variants of the shaders",
        ["vkq shaders list", "vkq shaders list linear", "vkq shaders list 'conv2d_*:*.q8to' --json"],
    )
    listing.add_argument("pattern", nargs="?", default="", help=PATTERN)
    listing.add_argument("--wide", action="store_true", help="print whole summaries, whatever the width")
    listing.add_argument("--json", action="store_true", help="print JSON, one object per variant")


def _add_show(inner: Parsers) -> None:
    show = add_command(
        inner,
        "show",
        shaders_show,
        "show one variant: the facts in its YAML file and in its SPIR-V",
        ["vkq shaders show gemm_q8ta_q8csw__tiled:s8s8.q8to.4x8"],
    )
    show.add_argument("name", help="the full name of a variant, or a pattern that matches only one")


def _add_build(inner: Parsers) -> None:
    building = add_command(
        inner,
        "build",
        shaders_build,
        "compile variants to SPIR-V, into the user's cache or a folder",
        ["vkq shaders build", "vkq shaders build softmax --output spirv/"],
    )
    building.add_argument("pattern", nargs="?", default="", help=PATTERN)
    building.add_argument("--output", type=Path, metavar="DIR", help="the folder (default: the user's cache)")


def _add_stats(inner: Parsers) -> None:
    stats = add_command(
        inner,
        "stats",
        shaders_stats,
        "what the device's compiler makes of the variants: registers, spills, occupancy, instructions;"
        " nothing is run",
        [
            "vkq shaders stats",
            "vkq shaders stats --compare benchmarks/results/compiled-radv-gfx1030.json",
            "vkq shaders stats gemm_q8ta_q8csw__tiled",
            "vkq shaders stats '*:s8s8.q8to.4x4' --text",
            (
                "RADV_FORCE_FAMILY=navi21 VK_DRIVER_FILES=/usr/share/vulkan/icd.d/radeon_icd.x86_64.json vkq"
                " shaders stats"
            ),
        ],
    )
    stats.add_argument(
        "pattern",
        nargs="?",
        default="",
        help=f"{PATTERN.split(' (')[0]} (default: a table of the variants that auto uses)",
    )
    stats.add_argument(
        "--compare", type=Path, metavar="FILE",
        help="compare with a result of --json; exit code 1 if a default variant spills more, has a lower"
        f" occupancy or more instructions, or takes more than {COMPILE_SECONDS:g} s to compile",
    )  # fmt: skip
    device_argument(stats)
    stats.add_argument(
        "--text", action="store_true", help="print the compiler's last representation: usually machine code"
    )
    stats.add_argument("--json", action="store_true", help="print JSON, one object per variant")


def _add_check(inner: Parsers) -> None:
    check = add_command(
        inner,
        "check",
        shaders_check,
        "compile, compare the SPIR-V with the YAML, and apply the source rules; exit code 1 if anything"
        " fails",
        ["vkq shaders check", "vkq shaders check softmax"],
    )
    check.add_argument("pattern", nargs="?", default="", help=PATTERN)


def shaders_list(options: argparse.Namespace) -> int:
    variants = _matching(options.pattern)
    if options.json:
        print(json.dumps([_facts(variant) for variant in variants], indent=2))
        return 0
    width = max(len(variant.name) for variant in variants)
    for variant in variants:
        print(clipped(f"{variant.name:{width}}  {variant.summary}", None if options.wide else columns()))
    return 0


def shaders_show(options: argparse.Namespace) -> int:
    named = catalog().variants.get(options.name)
    variants = [named] if named else _matching(options.name)
    if len(variants) > 1:
        names = ", ".join(variant.name for variant in variants[:3]) + ", ..." * (len(variants) > 3)
        raise ArgumentError(f"{len(variants)} variants match '{options.name}'; name one of them: {names}")
    spirv = shader_compile.spirv(variants[0])
    found = shader_compile.reflection(variants[0], spirv)
    facts = _facts(variants[0])
    facts["spirv"] = {
        "size_bytes": len(spirv),
        "local_size": list(found.local_size),
        "constant_ids": sorted(found.specialization),
        "shared_bytes": found.shared_bytes,
        "capabilities": sorted(found.capabilities),
        "extensions": sorted(found.extensions),
    }
    _show(facts)
    return 0


def shaders_build(options: argparse.Namespace) -> int:
    variants = _matching(options.pattern)
    folder = options.output or shader_compile.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    size_bytes = 0
    chosen = modules(variants)
    for file, spirv in progress(compile_all(chosen), len(chosen), "compiling"):
        stored.write(folder / file, spirv)
        size_bytes += len(spirv)
    made = f"{counted(len(variants), 'variant')} in {counted(len(chosen), 'module')}"
    print(f"{made}, {size_bytes} bytes of SPIR-V in {folder}")
    return 0


def shaders_check(options: argparse.Namespace) -> int:
    variants = _matching(options.pattern)
    find_compiler()  # reports a missing compiler once, instead of for each variant
    problems = check_sources(shaders_folder(), catalog())
    chosen = modules(variants)
    for module in progress(chosen, len(chosen), "checking"):
        try:
            spirv = shader_compile.build(module, shader_compile.text(module[0]))
            problems += [what for variant in module for what in check_module(variant, spirv)]
        except CompileError as error:
            problems.append(str(error))
    for problem in problems:
        print(problem)
    checked = f"{counted(len(variants), 'variant')} in {counted(len(chosen), 'module')} checked"
    print(f"{checked}, {counted(len(problems), 'problem')}")
    return 1 if problems else 0


def shaders_stats(options: argparse.Namespace) -> int:
    if not options.pattern:
        return _stats_of_taken(options)
    variants = _matching(options.pattern)
    found: list[dict[str, Any]] = []
    with Compiler(options.device) as device:
        for variant in progress(variants, len(variants), "compiling"):
            reasons = refusals(variant, variant.constants(), device.capabilities)
            programs = [] if reasons else device.executables(variant)
            found.append(
                {"name": variant.name, "refused": reasons, "programs": [_program(p) for p in programs]}
            )
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    width = max(len(each["name"]) for each in found)
    for each in found:
        lines = [f"cannot run: {reason}" for reason in each["refused"]]
        for program in each["programs"]:
            lines.append(_pairs(_shown(program["statistics"])))
            lines += [program["text"]] if options.text else []
        print(f"{each['name']:{width}}  " + "\n".join(lines))
    return 0


def _stats_of_taken(options: argparse.Namespace) -> int:
    """Print the statistics of the kernels that ``auto`` chooses. Return exit code 1 if a kernel is worse than
    in the file of ``--compare``."""
    kept = shader_table.read(options.compare) if options.compare else None
    now = shader_table.measure(options.device)
    if options.json:
        print(json.dumps(now, indent=1))
    else:
        print(folded(f"{now['device']}, {now['driver']}: what auto takes", 2))
        print("\n".join(shader_table.lines(now, kept, columns())))
    problems = shader_table.worse(now, kept, COMPILE_SECONDS) if kept else []
    for problem in problems:
        print(folded(f"worse: {problem}", 7), file=sys.stderr)
    return 1 if problems else 0


def _program(program: PipelineExecutable) -> dict[str, Any]:
    return {
        "name": program.name,
        "subgroup_size": program.subgroup_size,
        "spills": program.spills,
        "statistics": dict(program.statistics),
        "text": list(program.texts.values())[-1] if program.texts else "",
    }


def _shown(statistics: dict[str, Any]) -> dict[str, Any]:
    """Return the statistics without those that `_HIDDEN` matches."""
    return {name: value for name, value in statistics.items() if not _HIDDEN.search(name)}


def _matching(pattern: str) -> list[Variant]:
    found = catalog().matching(pattern)
    if not found:
        known = ", ".join(catalog().shaders) or f"none in {shaders_folder()}"
        near = did_you_mean(pattern, catalog().shaders)
        raise ArgumentError(f"no shader variant matches '{pattern}'; the shaders are: {known}{near}")
    return found


def _facts(variant: Variant) -> dict[str, Any]:
    """Return the description of a variant in its YAML, as JSON values."""
    return {
        "name": variant.name,
        "summary": variant.summary,
        "source": str(variant.source),
        "axes": dict(variant.axes),
        "defines": dict(variant.defines),
        "requires": dict(variant.requires),
        "bindings": [dataclasses.asdict(binding) for binding in variant.bindings],
        "push_constants": [dataclasses.asdict(constant) for constant in variant.push_constants],
        "specialization": {name: dataclasses.asdict(each) for name, each in variant.specialization.items()},
        "local_size": [expression.text for expression in variant.local_size_text],
        "shared_bytes": variant.shared_bytes_text.text,
        "workgroups": variant.workgroups_text.text,
    }


def _show(facts: dict[str, Any]) -> None:
    """Print the facts about a variant, one a line. If a fact is a list or a mapping of records, each record
    gets its own line below."""
    for label, value in facts.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            print(f"{label}:", *(_pairs(entry) for entry in value), sep="\n  ")
        elif isinstance(value, dict) and value and isinstance(next(iter(value.values())), dict):
            print(f"{label}:", *(f"{name}: {_pairs(entry)}" for name, entry in value.items()), sep="\n  ")
        elif isinstance(value, dict):
            print(folded(f"{label}: {_pairs(value) or 'none'}", 2))
        else:
            said = ", ".join(map(str, value)) or "none" if isinstance(value, list) else value
            print(folded(f"{label}: {said}", 2))


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)
