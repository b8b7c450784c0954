"""Tests of blocks of push constants (`push:` in a YAML), from which Python and GLSL get the same layout,
and of errors in such blocks."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.shader.sample import sample
from vkq.errors import SpecError
from vkq.shader.catalog import catalog, shaders_folder
from vkq.shader.compile import build, text
from vkq.shader.interface import FILE, blocks

PUSH = """\
factors:  # a comment is not a part of it
  - uint count      # nor here
  - int offset, shift
"""
OWN = "push_constants:\n  - {name: count, type: uint}\n  - {name: offset, type: int}\n"
OWN_BLOCK = "layout(push_constant) uniform Push { uint count; int offset; float factor; } p;"


def write(root: Path, push: str = PUSH) -> None:
    (root / "shaders").mkdir(exist_ok=True)
    (root / "shaders" / FILE).write_text(push)


def test_a_shared_block_is_what_glsl_declares_and_python_packs(tmp_path: Path) -> None:
    write(tmp_path)
    shader = sample(
        tmp_path, (OWN, "push: [factors]\npush_constants:\n"), glsl=(OWN_BLOCK, '#include "push.glslh"')
    )
    variant = shader.variants[0]
    assert [(word.name, word.type, word.offset) for word in variant.push_constants] == [
        ("first_group", "uint", 0), ("count", "uint", 4), ("offset", "int", 8), ("shift", "int", 12),
        ("factor", "float", 16),
    ]  # fmt: skip
    build([variant], text(variant))  # this also compares the SPIR-V with the YAML
    packed = variant.pack_push(factor=0.5, count=7, shift=-2, offset=1, first_group=3)
    assert struct.unpack("<IIiif", packed) == (3, 7, 1, -2, 0.5)


def test_the_glsl_of_a_block_changes_with_the_text(tmp_path: Path) -> None:
    write(tmp_path)
    changes = (OWN, "push: [factors]\npush_constants:\n"), (OWN_BLOCK, '#include "push.glslh"')
    before = text(sample(tmp_path, changes[0], glsl=changes[1]).variants[0])
    write(tmp_path, PUSH.replace("shift", "move"))
    after = text(sample(tmp_path, changes[0], glsl=changes[1]).variants[0])
    assert before.replace("int shift;", "int move;") == after != before


@pytest.mark.parametrize(
    ("push", "taken", "message"),
    [
        (PUSH, "[factor]", r"scale.yaml:15: there is no block 'factor' in push.yaml; there are: factors"),
        (PUSH, "[factors, factors]", "the push constant 'count' is declared twice"),
        ("a:\n  - uint x;\n", "[a]", r"push.yaml:2: 'uint x;' is not a declaration; write a type"),
        ("a:\n  - vec4 x\n", "[a]", "'vec4 x' is not a declaration"),
        ("a:\n  - uint first_group\n", "[a]", "the push constant 'first_group' is declared twice"),
        (
            "a:\n  - uint " + ", ".join(f"w{i}" for i in range(31)) + "\n",
            "[a]",
            "132 bytes of push constants",
        ),
    ],
)
def test_refused_with_line(tmp_path: Path, push: str, taken: str, message: str) -> None:
    write(tmp_path, push)
    with pytest.raises(SpecError, match=message):
        sample(tmp_path, (OWN, f"push: {taken}\npush_constants:\n"))


def test_every_block_is_shared() -> None:
    """Each block of push.yaml is used by several shaders. A block for one shader belongs in that shader's
    YAML."""
    yamls = [path.read_text() for path in shaders_folder().glob("*/*.yaml")]
    taken = [line for text in yamls for line in text.splitlines() if line.startswith("push: [")]
    for name in blocks(shaders_folder()):
        assert sum(name in line[len("push: [") : -1].split(", ") for line in taken) > 1, name


def test_every_block_begins_with_the_first_group() -> None:
    for variant in catalog().variants.values():
        assert variant.push_constants[0].name == "first_group", variant.name
