"""Shaders whose loops end after the number of iterations that their YAML declares (``iterations``). An
iteration is counted each time that an invocation evaluates a loop's condition, as in drivers that end
loops. Results are wrong if the YAML declares too few iterations.

``VKQ_DECLARED_LOOPS=1 python -m pytest tests/ops ...`` runs any tests this way, on every driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vkq.runtime.program import LazyPipeline, Program, code
from vkq.runtime.programs import Programs
from vkq.shader.compile import text
from vkq.shader.glslang import find_compiler
from vkq.shader.spec import Value, Variant, Written

LOOP = re.compile(r"(\[\[unroll\]\]\s*)?\b(for|while)\s*\(")
# Declarations of constants. A loop with [[unroll]] is not counted if its bound has only numbers, constants
# and names in capitals.
CONSTANT = re.compile(r"\bconst u?int (\w+)")
NAME = re.compile(r"\b[a-z]\w*")
FUNCTIONS = """
uint vkq_rounds = 0u;
int ceil_div(int a, int b) { return (a + b - 1) / b; }
bool vkq_goes_on() { return int(++vkq_rounds) <= int(%s); }
"""
_original = Programs._make


def counted(variant: Variant, values: Mapping[str, Value]) -> str:
    """Return the GLSL of a variant with these specialization constants and counted loops."""
    source = text(variant)
    constants = {"length", "pairs", "halves", "total", "matrix", *CONSTANT.findall(source)}
    for match in reversed(list(LOOP.finditer(source))):
        start = match.end()
        end = _closing(source, start)
        head = source[start:end].split(";")
        if match[2] == "while":
            head = [f"vkq_goes_on() && ({head[0]})"]
        elif match[1] and set(NAME.findall(re.split("[<>]=?", head[1])[1])) <= constants:
            continue
        else:
            head[1] = f" vkq_goes_on() && ({head[1].strip()})"
        source = source[:start] + ";".join(head) + source[end:]
    before, found, after = source.partition("layout(local_size")
    assert found
    numbers = {**variant.defines, **values}
    known = {name: int(v) for name, v in numbers.items() if not isinstance(v, (str, float))}
    pushed = {c.name for c in variant.push_constants}
    expression = re.sub(
        r"\b[A-Za-z_]\w*\b",
        lambda m: f"int(p.{m[0]})" if m[0] in pushed else str(known.get(m[0], m[0])),
        variant.iterations_text.text,
    ).replace("//", "/")
    return before + "bool vkq_goes_on();\n" + found + after + FUNCTIONS % expression


def _closing(source: str, start: int) -> int:
    """Return the position of the parenthesis that closes the parenthesis before *start*."""
    depth = 1
    for at in range(start, len(source)):
        depth += {"(": 1, ")": -1}.get(source[at], 0)
        if depth == 0:
            return at
    raise AssertionError("a loop's parenthesis is never closed")


def make(self: Programs, variant: Variant, values: dict[str, Value], subgroup_size: int) -> Program:
    """Make a program whose loops are counted; this function replaces `Programs._make`. Loops of shaders that
    vkq assembles at run time (`Written`) are not counted."""
    if isinstance(variant, Written):
        return _original(self, variant, values, subgroup_size)
    spirv = find_compiler().compile(counted(variant, values), variant.source.name)
    module, constants = code(variant, spirv, values, self._capabilities)
    native: Any = self._context.program(
        variant.name, module, len(variant.bindings), 4 * len(variant.push_constants), constants,
        subgroup_size, variant.texels,
    )  # fmt: skip
    return Program(variant, values, LazyPipeline(variant.name, lambda: native))
