"""Tests that Khronos' validator accepts every module as SPIR-V for Vulkan 1.1, that modules obey the rules
for phone drivers, and that the installed compiler is the one with which the shaders were tested."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import REQUIRED
from tests.wheels import release
from vkq.shader import stored
from vkq.shader.build import COMPILER, modules
from vkq.shader.catalog import catalog
from vkq.shader.compile import spirv
from vkq.shader.rules import check_module
from vkq.shader.spec import Variant
from vkq.shader.specialize import literals_of, specialized

from . import compiler

# Capabilities that Debian's validator (2023.1) does not know yet and names by number: 6022 of
# KHR_cooperative_matrix, 5116 of KHR_bfloat16.
NEWER = {"6022", "5116"}


def said(module: bytes) -> str:
    """Return the validator's messages about a module; "" if it is valid."""
    ended = subprocess.run(
        ["spirv-val", "--target-env", "vulkan1.1", "-"], input=module, capture_output=True, check=False
    )
    return (ended.stdout + ended.stderr).decode().strip() if ended.returncode else ""


@pytest.fixture
def validator() -> None:
    if shutil.which("spirv-val") is None:
        missing = "spirv-val is missing: apt-get install spirv-tools"
        pytest.fail(missing) if REQUIRED else pytest.skip(missing)


def given(variant: Variant, module: bytes) -> bytes:
    """Return the module with the variant's sizes and choices as literals, as a driver gets it."""
    packed = variant.pack_specialization(variant.constants())
    bits = {number: int.from_bytes(word, "little") for number, word in packed.items()}
    literals = literals_of(variant, matrix_literals=True)
    return specialized(module, {number: bits[number] for number in literals}, bits)


def test_every_module_is_valid_for_vulkan_1_1(validator: None) -> None:
    """Every module is valid as compiled, and also after specialization for each variant that shares the
    module."""
    made = [(each, spirv(each[0])) for each in modules(catalog().variants.values())]
    rules = [what for each, module in made for variant in each for what in check_module(variant, module)]
    assert not rules
    texts = {module: each[0].name for each, module in made}
    texts |= {given(variant, module): variant.name for each, module in made for variant in each}
    with ThreadPoolExecutor() as pool:
        answers = dict(zip(texts.values(), pool.map(said, texts), strict=True))
    bad, newer = {}, set()
    for name, words in answers.items():
        unknown = re.search("Invalid capability operand: ([0-9]+)$", words)
        if unknown and unknown[1] in NEWER:
            newer.add(name)
        elif words:
            bad[name] = words
    assert not bad
    assert all("coopmat" in name or "matri" in name for name in newer)
    assert len(answers) - len(newer) > len(made) > len(newer) > 0


def test_the_validator_refuses_a_damaged_module(validator: None) -> None:
    module = bytearray(spirv(catalog().find("selftest__loops")))
    assert said(bytes(module)) == ""
    module[-4:] = bytes(4)  # overwrites the last instruction, OpFunctionEnd
    assert said(bytes(module))


def test_the_compiler_is_the_one_that_was_tested() -> None:
    found, kept = compiler.found(), compiler.kept()
    changed = [f"{name}: {kept.get(name)} -> {value}" for name, value in found.items() if value != kept[name]]
    assert not changed, (
        f"another compiler, or other SPIR-V of it ({'; '.join(changed)}): run the whole suite and `make"
        f" mobile` with it, then {compiler.RENEW}"
    )


def test_other_spirv_of_a_release_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If the SPIR-V differs from the record of this version's release, the build stops. The difference is one
    changed byte of a module, an additional module, or another compiler. A new version may differ."""
    folder, file = tmp_path / "spirv", tmp_path / "release.json"
    folder.mkdir()
    stored.write(folder / "a.spv", b"\3\2\x23\7")
    (folder / COMPILER).write_text("glslang 1\n")

    def check(version: str) -> str:
        release.check(folder, file, version)
        return capsys.readouterr().out

    assert re.search("not kept. Before a release: python -m tests.wheels.release .*; the first", check("1.0"))
    release.keep(folder, file, "1.0")
    assert check("1.0") == ""
    stored.write(folder / "a.spv", b"\3\2\x23\6")
    with pytest.raises(SystemExit, match=r"another than .* keeps \(spirv \w+ -> \w+\)\. Where 1\.0 is"):
        check("1.0")
    assert "not kept" in check("1.1")
    release.keep(folder, file, "1.1")
    assert (check("1.1"), set(json.loads(file.read_text()))) == ("", {"1.0", "1.1"})
    stored.write(folder / "b.spv", b"")
    with pytest.raises(SystemExit, match=r"raise vkq/_version\.py"):
        check("1.1")
    (folder / "b.spv").unlink()
    (folder / COMPILER).write_text("glslang 2\n")
    with pytest.raises(SystemExit, match=r"keeps \(compiler glslang 1 -> glslang 2\)"):
        check("1.1")
