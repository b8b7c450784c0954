"""Compile shaders ahead of time: ``python -m vkq.shader.build OUTPUT`` fills a wheel's ``vkq/_spirv``.

It runs while the wheel is built, so it needs only NumPy, PyYAML, platformdirs and a GLSL compiler. With
``--given DIR`` it needs no compiler: it copies the SPIR-V from a folder that was filled on another machine
(for Termux, for example). SPIR-V is the same for every processor.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from vkq import cache
from vkq.errors import CompileError, VkqError
from vkq.shader import stored
from vkq.shader.catalog import catalog
from vkq.shader.compile import build as compile_variants
from vkq.shader.compile import checked_spirv, key, text
from vkq.shader.frozen import SUFFIX, freeze
from vkq.shader.glslang import find_compiler
from vkq.shader.spec import Variant

COMPILER = "compiler.txt"  # the file in the folder of the modules that has the compiler's name
WORTH_A_PROCESS = 48  # minimum number of modules for which starting processes saves time

Module = tuple[Variant, ...]  # variants with the same SPIR-V, which differ only in specialization
_Map = Callable[[Callable[[Module], tuple[str, bytes]], Iterable[Module]], Iterable[tuple[str, bytes]]]


def modules(variants: Iterable[Variant]) -> list[Module]:
    """Group the variants by SPIR-V module. Return the groups in the order of their first variants."""
    found: dict[str, list[Variant]] = {}
    for variant in variants:
        found.setdefault(text(variant), []).append(variant)
    return [tuple(each) for each in found.values()]


def compile_all(chosen: Sequence[Module], jobs: int | None = None) -> Iterator[tuple[str, bytes]]:
    """Compile each module, and check it against the YAML of each of its variants. Yield (file name, SPIR-V)
    in the order of *chosen*.

    Args:
        chosen: the modules to compile.
        jobs: the number of processes; by default one per CPU if there are enough modules, because the
            compiler is not parallel.

    Raises:
        CompileError: a variant does not compile, or its SPIR-V differs from its YAML. The message names the
            first such variant.
    """
    with _mapper(jobs or (os.cpu_count() if len(chosen) >= WORTH_A_PROCESS else 1) or 1) as mapped:
        yield from mapped(_compile, chosen)


def taken(given: Path, chosen: Iterable[Module]) -> Iterator[tuple[str, bytes]]:
    """Read each module's SPIR-V from the folder *given*, which `build` filled, and check it against the
    YAML. Yield (file name, SPIR-V) in the order of *chosen*.

    Raises:
        CompileError: a variant's module is missing in the folder, or damaged.
    """
    for module in chosen:
        file = f"{key(text(module[0]))}.spv"
        spirv = b""
        for variant in module:
            found = checked_spirv(variant, given / file)
            if found is None:
                raise CompileError(
                    f"{variant.name}: {given} has no SPIR-V of this shader ({file});"
                    f" fill it again, from this version of vkq: python -m vkq.shader.build {given}"
                )
            spirv = found
        yield file, spirv


def build(
    output: Path,
    jobs: int | None = None,
    variants: Sequence[Variant] | None = None,
    given: Path | None = None,
) -> int:
    """Compile *variants* into the folder *output*, for `vkq.shader.compile`, or copy their modules from the
    folder *given*. If *variants* is None, do this for all variants, and also store their descriptions
    (`vkq.shader.frozen`) and the name of the compiler. Files of builds from other sources are deleted.

    Returns:
        The number of SPIR-V modules.

    Raises:
        CompileError: see `compile_all` and `taken`.
        OSError: the folder cannot be written.
    """
    chosen = modules(catalog().variants.values() if variants is None else variants)
    output.mkdir(parents=True, exist_ok=True)
    old = {*output.glob("*.spv"), *output.glob("*" + SUFFIX)}
    for file, spirv in taken(given, chosen) if given else compile_all(chosen, jobs):
        stored.write(output / file, spirv)
        old.discard(output / file)
    if variants is None:
        for shader in catalog().shaders.values():
            path = output / (shader.name + SUFFIX)
            cache.write_sealed(path, freeze(shader, lambda each: key(text(each))))
            old.discard(path)
        (output / COMPILER).write_text(f"{compiler_of(given)}\n", encoding="utf-8")
    for path in old:
        path.unlink()
    return len(chosen)


def compiler_of(folder: Path | None) -> str:
    """Return the name of the compiler that made the modules of a folder (None: this machine's compiler)."""
    if folder is None:
        return find_compiler().name
    file = folder / COMPILER
    return file.read_text(encoding="utf-8").strip() if file.exists() else "unknown"


def _compile(module: Module) -> tuple[str, bytes]:
    source = text(module[0])
    return f"{key(source)}.spv", compile_variants(module, source)


@contextmanager
def _mapper(jobs: int) -> Iterator[_Map]:
    if jobs == 1:
        yield map
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield partial(pool.map, chunksize=8)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m vkq.shader.build", description="Compile every shader variant."
    )
    parser.add_argument("output", type=Path, help="the folder to write")
    parser.add_argument(
        "--jobs",
        type=int,
        default=None,
        help="number of processes (default: one per CPU if there are enough modules)",
    )
    parser.add_argument("--given", type=Path, help="take the SPIR-V from this folder, and compile nothing")
    options = parser.parse_args(argv)
    try:
        build(options.output, options.jobs, given=options.given)
    except (VkqError, OSError) as error:
        sys.exit(f"vkq.shader.build: error: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
