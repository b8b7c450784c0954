"""Rules for GLSL and SPIR-V that no compiler enforces. Each violation once gave wrong results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from vkq.shader.catalog import Catalog
from vkq.shader.spec import Variant
from vkq.shader.specialize import literals_of, specialized
from vkq.shader.spirv import (
    OP_ARRAY,
    OP_CONSTANT,
    OP_FUNCTION,
    OP_MATRIX,
    OP_MATRIX_LOAD,
    OP_MATRIX_STORE,
    OP_SELECT,
    OP_SPEC_OP,
    parse,
)

FORBIDDEN = (  # forbidden in GLSL: (pattern, reason)
    (r"\bround\s*\(", "round() leaves ties to the driver; use roundEven()"),
    (r"\w*AccSat\w*", "saturating dot products change the result; use the plain ones"),
    (
        # gl_SubgroupID stays allowed: with it and the lane from gl_LocalInvocationIndex, a test on the
        # device below gave correct results (PR 6972). It also tells compilers that the value is the same in
        # all lanes.
        r"\bgl_SubgroupInvocationID\b",
        "an Adreno 840's driver gives another lane's value in shaders with matrices (Tencent/ncnn PR 6720,"
        " 6972); use own_lane of lane.glslh",
    ),
    (
        r"\b(memoryBarrier|groupMemoryBarrier|subgroupMemoryBarrier)\w*\s*\((?!\); barrier\(\);)",
        "narrow barriers are fragile; use barrier(), after memoryBarrierBuffer() if buffers are shared",
    ),
)
EXTENSIONS = {  # {extension: Vulkan features, of which a variant must require one}
    "GL_KHR_shader_subgroup_basic": ("computeFullSubgroups",),  # subgroupBarrier() waits for whole subgroups
    "GL_EXT_shader_8bit_storage": ("storageBuffer8BitAccess",),
    "GL_EXT_shader_16bit_storage": ("storageBuffer16BitAccess",),
    "GL_EXT_shader_explicit_arithmetic_types": ("shaderInt8", "shaderInt16", "shaderInt64", "shaderFloat16"),
    "GL_EXT_shader_explicit_arithmetic_types_int8": ("shaderInt8",),
    "GL_EXT_shader_explicit_arithmetic_types_int16": ("shaderInt16",),
    "GL_EXT_shader_explicit_arithmetic_types_int64": ("shaderInt64",),
    "GL_EXT_shader_explicit_arithmetic_types_float16": ("shaderFloat16",),
    "GL_EXT_bfloat16": ("shaderBFloat16CooperativeMatrix",),
}
GLSL_SUFFIXES = (".comp", ".glslh", ".glsl")

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_EXTENSION = re.compile(r"^\s*#\s*extension\s+(\w+)\s*:\s*(?:require|enable)", re.MULTILINE)
_MATRIX_ACCESS = re.compile(r"\bcoopMat(Load|Store)\s*\(")
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(?!define)\w+[^\n]*", re.MULTILINE)
_CONDITION = re.compile(r"\b(if|else|switch|while)\b")
_TOKEN = re.compile(r"[{}]|\breturn\b|\bbarrier\s*\(")


def check_sources(folder: Path, catalog: Catalog) -> list[str]:
    """Return every violation in the GLSL files of the shaders folder, as ``file:line: rule``."""
    breaches = []
    for path in sorted(path for path in folder.glob("*/*") if path.suffix in GLSL_SUFFIXES):
        users = [variant for variant in catalog.variants.values() if variant.source == path]
        required = {name for variant in users for name in variant.requires} if users else None
        name = path.relative_to(folder).as_posix()
        breaches += [
            f"{name}:{line}: {what}." for line, what in check_text(path.read_text(encoding="utf-8"), required)
        ]
    return breaches


def check_text(text: str, required: set[str] | None = None) -> list[tuple[int, str]]:
    """Return (line, rule) of every violation in one GLSL text.

    *required*: the Vulkan features that the text's variants require. None: an included file; its extensions
    are checked only in the SPIR-V of the files that include it.
    """
    code = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    found = [(match.start(), why) for pattern, why in FORBIDDEN for match in re.finditer(pattern, code)]
    found += _returns_above_barriers(code)
    found += _fragile_matrices(code)
    for match in _EXTENSION.finditer(code):
        features = EXTENSIONS.get(match[1], ())
        if required is not None and features and not required & set(features):
            found.append(
                (match.start(1), f"{match[1]} is used, but no variant requires {' or '.join(features)}")
            )
    return sorted((code.count("\n", 0, at) + 1, what) for at, what in found)


def check_module(variant: Variant, spirv: bytes) -> list[str]:
    """Return the constructs of the specialized module, as a driver gets it, that phone drivers miscompile."""
    packed = variant.pack_specialization(variant.constants())
    bits = {number: int.from_bytes(word, "little") for number, word in packed.items()}

    def got(matrix_literals: bool) -> bytes:
        literals = literals_of(variant, matrix_literals)
        return specialized(spirv, {number: bits[number] for number in literals}, bits)

    found = []
    if _has_chosen_length(got(matrix_literals=False)):
        found.append(
            "the length of an array depends on a choice between specialization constants that vkq cannot"
            " fold, and an Adreno 840's driver gets such lengths wrong in shared memory (Tencent/ncnn PR"
            " 6972); choose only between integers and bools"
        )
    if "cooperativeMatrix" in variant.requires:
        literal = got(matrix_literals=True)
        if _has_open_stride(literal):
            found.append(
                "the stride of a load or store of a matrix is not a literal: Xclipse's compiler"
                " miscompiles strides from uniform data (pytorch/executorch, linear_dq8ca_qw_coopmat.glsl);"
                " compute it from sizes"
            )
        if _has_open_shape(literal):
            found.append(
                "the rows or columns of a matrix are not literals, which MoltenVK will need (clpeak#190);"
                " compute them from sizes"
            )
    return [f"{variant.name}: {what}" for what in found]


def _has_chosen_length(spirv: bytes) -> bool:
    """Return True if an array's length depends on an OpSelect of specialization constants, for the driver
    to compute."""
    _, instructions, _ = parse(spirv, lambda op: op != OP_FUNCTION)
    chosen = set[int]()
    for one in instructions:
        if one.op == OP_SPEC_OP and (one.words[2] == OP_SELECT or not chosen.isdisjoint(one.words[3:])):
            chosen.add(one.words[1])
    return any(one.op == OP_ARRAY and one.words[2] in chosen for one in instructions)


def _has_open_stride(spirv: bytes) -> bool:
    _, instructions, _ = parse(spirv)
    literals = {one.words[1] for one in instructions if one.op == OP_CONSTANT}
    strides = {one.words[4] for one in instructions if one.op == OP_MATRIX_LOAD}
    return not literals.issuperset(
        strides | {one.words[3] for one in instructions if one.op == OP_MATRIX_STORE}
    )


def _has_open_shape(spirv: bytes) -> bool:
    _, instructions, _ = parse(spirv, lambda op: op != OP_FUNCTION)
    literals = {one.words[1] for one in instructions if one.op == OP_CONSTANT}
    return not literals.issuperset(
        number for one in instructions if one.op == OP_MATRIX for number in one.words[3:5]
    )


def _returns_above_barriers(code: str) -> Iterator[tuple[int, str]]:
    """Yield each ``return`` above a ``barrier()`` in the same function: invocations that return never reach
    the barrier."""
    why = "return above a barrier() in the same function; let every invocation reach the barrier"
    depth, returns = 0, list[int]()
    for match in _TOKEN.finditer(code):
        token = match[0]
        if token == "{":
            depth += 1
        elif token == "}":
            depth -= 1
            if depth == 0:
                returns = []
        elif token == "return":
            returns.append(match.start())
        else:
            yield from ((at, why) for at in returns)
            returns = []


def _fragile_matrices(code: str) -> Iterator[tuple[int, str]]:
    """Yield cooperative matrices whose layout is not a literal, and conditional stores of matrices."""
    layout = (
        "the layout of a matrix must be a literal, gl_CooperativeMatrixLayout...: one from a push constant"
        " makes the pipeline fail on an Adreno 840 (Tencent/ncnn PR 6720)"
    )
    condition = (
        "a store of a matrix under a condition crashes Xclipse's compiler (pytorch/executorch,"
        " linear_dq8ca_qw_coopmat.glsl); store always, and skip the extra elements when reading it"
    )
    plain = _DIRECTIVE.sub(lambda match: " " * len(match[0]), code)
    for match in _MATRIX_ACCESS.finditer(plain):
        arguments = _arguments(plain, match.end())
        if not arguments[-1].strip(" \\\n\t").startswith("gl_CooperativeMatrixLayout"):
            yield match.start(), layout
        if match[1] == "Store" and any(map(_CONDITION.search, _heads(plain, match.start()))):
            yield match.start(), condition


def _arguments(code: str, at: int) -> list[str]:
    """Return the arguments of a call. *at*: the position after its opening parenthesis."""
    depth, found = 0, [""]
    for c in code[at:]:
        if c == ")" and depth == 0:
            break
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(c, 0)
        if c == "," and depth == 0:
            found.append("")
        else:
            found[-1] += c
    return found


def _heads(code: str, at: int) -> list[str]:
    """Return the text that introduces each block that is open at position *at*, such as an ``if``; then the
    text of the statement before *at*."""
    heads, start, depth = list[str](), 0, 0
    for i, c in enumerate(code[:at]):
        depth += {"(": 1, ")": -1}.get(c, 0)
        if c == "{":
            heads.append(code[start:i])
        elif c == "}" and heads:
            heads.pop()
        # a semicolon in the parentheses of a `for` does not end a statement
        if c in "{}" or (c == ";" and not depth):
            start = i + 1
    return [*heads, code[start:at]]
