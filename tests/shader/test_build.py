"""Tests of compiling shaders ahead of time, for a wheel."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shader.sample import sample
from vkq.errors import CompileError
from vkq.shader import build as shader_build
from vkq.shader import stored
from vkq.shader.build import build, main
from vkq.shader.catalog import Catalog
from vkq.shader.compile import key, text


@pytest.mark.parametrize("jobs", [None, 2])
def test_files_carry_the_keys_that_are_looked_up(tmp_path: Path, jobs: int | None) -> None:
    variants = sample(tmp_path).variants
    assert build(tmp_path / "out", jobs, variants) == 4
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"{key(text(each))}.spv" for each in variants
    }
    assert all((stored.read(path) or b"")[:4] == b"\x03\x02\x23\x07" for path in (tmp_path / "out").iterdir())


def test_what_an_earlier_build_left_is_deleted(tmp_path: Path) -> None:
    variants = sample(tmp_path).variants
    build(tmp_path / "out", 1, variants)
    assert build(tmp_path / "out", 1, variants[:1]) == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == [f"{key(text(variants[0]))}.spv"]


def test_a_failure_names_the_variant(tmp_path: Path) -> None:
    shader = sample(tmp_path, glsl=("barrier();", "barier();"))
    with pytest.raises(CompileError, match=r"scale__plain:f32\.one: scale/scale\.comp:18: 'barier'"):
        build(tmp_path / "out", 1, shader.variants)


def test_a_folder_that_was_filled_elsewhere_is_taken_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = sample(tmp_path).variants
    build(tmp_path / "given", 1, variants)
    monkeypatch.delattr(shader_build, "compile_variants")
    assert build(tmp_path / "out", 1, variants, tmp_path / "given") == 4
    for path in (tmp_path / "given").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("damage", ["missing", "cut short", "no SPIR-V"])
@pytest.mark.filterwarnings("ignore::vkq.cache.CacheWarning")
def test_a_given_folder_of_other_shaders_is_refused(tmp_path: Path, damage: str) -> None:
    first = sample(tmp_path).variants[0]
    build(tmp_path / "given", 1, [first])
    (file,) = (tmp_path / "given").iterdir()
    if damage == "missing":
        file.unlink()
    elif damage == "cut short":
        file.write_bytes(file.read_bytes()[:100])
    else:
        stored.write(file, (stored.read(file) or b"")[:20])
    with pytest.raises(CompileError, match=rf"{re.escape(first.name)}: .*given has no SPIR-V of this shader"):
        build(tmp_path / "out", 1, [first], tmp_path / "given")


def test_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shader = sample(tmp_path)
    small = Catalog({shader.name: shader})
    monkeypatch.setattr(shader_build, "catalog", lambda: small)
    assert main([str(tmp_path / "out"), "--jobs", "1"]) == 0
    assert len(list((tmp_path / "out").glob("*.spv"))) == 4
    assert [path.name for path in (tmp_path / "out").glob("*.json")] == [f"{shader.name}.json"]
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"vkq\.shader\.build: error: .*file"):
        main([str(tmp_path / "file")])


def test_it_imports_little() -> None:
    """Building a wheel imports few packages: at that time only NumPy, PyYAML and platformdirs are
    installed, and the extension does not exist yet."""
    code = (
        "import sys, vkq.shader.build\n"
        "others = {'vulkan', 'slangpy', 'onnx', 'onnxruntime', 'skimage', 'scipy', 'vkq._kompute'}\n"
        "print(sorted(others & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout.decode().strip(), done.stderr) == (0, "[]", b"")
