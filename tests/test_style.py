"""Tests of rules beyond ruff: lengths of lines, functions and files, and unique names of classes."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke
ROOT = Path(__file__).resolve().parents[1]
COLUMNS, FUNCTION_LINES, PARAGRAPH_WORDS = 110, 40, 90
MARKDOWN = sorted(
    path
    for folder in (".", "docs", "docs/guides", "shaders", "layouts", "benchmarks", "tests", "tests/wheels")
    for path in (ROOT / folder).glob("*.md")
    if path.name != "THIRD-PARTY.md"
)
FOLDERS = ("shaders", "layouts", "vkq", "benchmarks", "tests")
SUFFIXES = (".comp", ".glslh", ".glsl", ".cpp", ".hpp", ".yaml", ".yml")
# Maximum number of lines of a file. A test module may have any length.
MODULE_LINES = {"vkq/**/*.py": 300, "vkq/**/*.?pp": 300, "shaders/**/*.comp": 200, "shaders/**/*.glslh": 200}
LONG_MODULES: dict[str, str] = {}  # path -> the reason why the file is not split
# PRODUCTS: maximum number of shader sources for GEMM, GEMV and convolution. A new kind of operands is an
# include for an existing source (shaders/README.md). PACKING: sources in these folders that pack operands.
PRODUCTS, PACKING = 18, {"halves_weights", "runs_q8csw"}
SHADER_FILE = re.compile(r"\b[a-z0-9_]+\.(?:comp|glslh)\b")
GENERATED = {"push.glslh", "sizes.glslh", "any.glslh"}  # generated includes, except those of layouts
PYTHON = ("vkq", "tests", "benchmarks", "examples")
LONG_FUNCTIONS = {
    "tests/graph/graphs.py models": "one draw, with a branch of two lines for each kind of node",
    "tests/onnx/mutate.py _change": "one branch for each kind of damage",
}
# Names that several classes have, and the difference between these classes.
SHARED_NAMES = {
    "InferenceSession": "of an ONNX model; and of a .tflite file",
    "Compiler": "of GLSL; and a device of which only the driver's compiler is wanted",
    "Matrices": "the shape of matrices; and what a float product asks of matrix units",
    "Node": "of a model; and of a YAML file",
    "Part": "of an image on a device; and of a layout's order",
    "Spec": "of a graph's value; and, with its layout, of an array on a device",
    "Sweep": "over a graph's nodes; and of a kernel's taps over an image",
}

# Names of devices that code must not test: device/profiles.yaml has all knowledge about kinds of devices.
DEVICES = re.compile(
    r"H100|H200|GeForce|NVIDIA|AMD|Radeon|RDNA|RADV|Intel|Adreno|Mali|VideoCore|lavapipe|llvmpipe|Swift"
)
UNNAMED = ("kernels", "ops", "schemes", "integer", "graph", "select", "layout")


def sources(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Yield every function with its number of lines, without its docstring."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            documented = ast.get_docstring(node, clean=False) is not None
            told = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
            yield node.name, (node.end_lineno or 0) - node.lineno + 1 - told


@pytest.mark.parametrize("folder", FOLDERS)
def test_lines_fit(folder: str) -> None:
    found = [path for path in sources(f"{folder}/**/*") if path.suffix in SUFFIXES]
    assert found, folder
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in found
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS
    ]
    assert not long


def paragraphs(text: str) -> Iterator[list[str]]:
    """Yield the paragraphs of Markdown: consecutive lines of text, and each list item; no tables, code,
    HTML or headings."""
    code, lines = False, list[str]()
    for line in [*text.splitlines(), ""]:
        fence = line.startswith("```")
        code ^= fence
        other = fence or code or not line.strip() or line.startswith(("|", "#", "<", "  <img"))
        item = re.match(r"\s*([-*]|\d+\.) ", line)
        if (other or item) and lines:
            yield lines
            lines = []
        if not other and not (line.startswith("    ") and not lines):
            lines.append(line)


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_are_read_at_once(path: Path) -> None:
    """Lines of Markdown pages are at most `COLUMNS` long, and no paragraph has more than `PARAGRAPH_WORDS`
    words."""
    found = list(paragraphs(path.read_text(encoding="utf-8")))
    assert [line for lines in found for line in lines if len(line) > COLUMNS] == []
    words = {lines[0]: sum(len(line.split()) for line in lines) for lines in found}
    assert {first: count for first, count in words.items() if count > PARAGRAPH_WORDS} == {}


@pytest.mark.parametrize("folder", PYTHON)
def test_functions_fit(folder: str) -> None:
    found = {
        f"{path.relative_to(ROOT)} {name}": lines
        for path in sources(f"{folder}/**/*.py")
        for name, lines in functions(path)
    }
    assert found
    long = {name: lines for name, lines in found.items() if lines > FUNCTION_LINES}
    allowed = {name for name in LONG_FUNCTIONS if name.startswith(f"{folder}/")}
    assert long.keys() == allowed, long  # every entry of LONG_FUNCTIONS is still long


def test_files_fit() -> None:
    long = set()
    for pattern, most in MODULE_LINES.items():
        found = sources(pattern)
        assert found, pattern
        long |= {
            path.relative_to(ROOT).as_posix()
            for path in found
            if len(path.read_text(encoding="utf-8").splitlines()) > most
        }
    assert long == LONG_MODULES.keys()


def test_products_share_their_sources() -> None:
    """The number of sources that compute products is limited, and shaders/README.md lists all of them."""
    products = {path.stem for path in sources("shaders/gemm/*.comp", "shaders/conv/*.comp")} - PACKING
    listed = re.findall(r"^\| `(\w+)` \|.*\|.*\|$", (ROOT / "shaders/README.md").read_text(), re.MULTILINE)
    assert len(products) <= PRODUCTS
    assert products <= set(listed)


def test_shader_files_are_named_as_they_are() -> None:
    """If a comment, an include or a docstring names a shader file, this file exists."""
    present = {path.name for path in sources("shaders/**/*.comp", "shaders/**/*.glslh")} | GENERATED
    named = [
        (path.relative_to(ROOT).as_posix(), name)
        for path in sources("shaders/**/*.*", "layouts/*.md", "vkq/kernels/*.py", "vkq/probe/*.py")
        for name in SHADER_FILE.findall(path.read_text(encoding="utf-8"))
    ]
    assert named
    assert [(where, name) for where, name in named if name not in present] == []


def test_a_name_means_one_thing() -> None:
    classes = defaultdict(set)
    for path in sources("vkq/**/*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].add(path.relative_to(ROOT).as_posix())
    shared = {name: sorted(paths) for name, paths in classes.items() if len(paths) > 1}
    assert shared.keys() == SHARED_NAMES.keys(), shared


@pytest.mark.parametrize("package", UNNAMED)
def test_no_code_asks_for_a_device_by_name(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources(f"vkq/{package}/**/*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if DEVICES.search(line)
    ]
    assert not found


def test_lengths_are_counted(tmp_path: Path) -> None:
    """The length of a function includes nested functions, but not the docstring."""
    source = tmp_path / "one.py"
    source.write_text(
        'def f(\n    a: int,\n) -> int:\n    """Says\n    much."""\n\n    def g(): ...\n    return a\n'
    )
    assert dict(functions(source)) == {"f": 6, "g": 1}
