"""Tests that imports go only from higher to lower layers, and that ``import vkq`` does no work."""

import ast
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke
PACKAGE = Path(__file__).resolve().parents[1] / "vkq"
# Modules and packages by layer. Each may import its own layer and earlier layers.
LAYERS = [
    {"errors", "_version", "log"},
    {"files", "spawn", "arguments", "turns"},
    {"yamlfile", "cache"},
    {"numerics"},
    {"problem"},
    {"layout", "reference"},
    {"shader"},
    {"device"},
    {"runtime"},
    {"probe"},
    {"select"},
    {"kernels"},
    {"schemes"},
    {"ops"},
    {"integer", "graph"},
    {"onnx", "player"},
    {"accuracy", "tflite"},
    {"bench", "check"},
    {"__init__"},
    {"cli", "__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
# These modules test the other modules. The other modules must not import them.
JUDGES = {"reference", "check", "bench"}


def part(module: tuple[str, ...]) -> str:
    """Return the name under which LAYERS lists a module of vkq."""
    return module[0] if module else "__init__"


def imported(path: Path) -> list[tuple[int, tuple[str, ...]]]:
    """Return (line, module of vkq) for each internal import, also inside functions."""
    here = path.relative_to(PACKAGE).with_suffix("").parts
    folder = here[:-1]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = folder[: len(folder) - node.level + 1]
                names = node.module.split(".") if node.module else []
                target = (*base, *names)
            elif node.module and node.module.split(".")[0] == "vkq":
                target = tuple(node.module.split(".")[1:])
            else:
                continue
            found += [(node.lineno, (*target, alias.name)) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [
                (node.lineno, tuple(a.name.split(".")[1:]))
                for a in node.names
                if a.name.split(".")[0] == "vkq"
            ]
    return found


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """Return kernels.gemm for vkq/kernels/gemm.py; for an __init__, return the package's name."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and parts[:-1] else parts)


@functools.cache
def graph() -> dict[str, set[str]]:
    """Return module -> its imports, including imports inside functions and imports only for type checkers."""
    names = {*(name_of(path) for path in modules()), ""}

    def module(target: tuple[str, ...]) -> str:
        found = next(n for n in (".".join(target[:i]) for i in range(len(target), -1, -1)) if n in names)
        return found or "__init__"

    return {
        name_of(path): {module(target) for _, target in imported(path)} - {name_of(path)}
        for path in modules()
    }


def circles(edges: dict[str, set[str]]) -> set[str]:
    """Return the modules that import themselves through other modules."""

    def reached(name: str) -> set[str]:
        seen: set[str] = set()
        ahead = [name]
        while ahead:
            new = edges.get(ahead.pop(), set()) - seen
            seen |= new
            ahead += new
        return seen

    return {name for name in edges if name in reached(name)}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_downward(path: Path) -> None:
    own = part(path.relative_to(PACKAGE).with_suffix("").parts)
    assert own in RANK, f"vkq/{own} has no place in LAYERS: give it one"
    for line, target in imported(path):
        name = part(target)
        assert name in RANK, f"{path}:{line}: vkq.{name} has no place in LAYERS"
        above = RANK[name] > RANK[own]
        assert not above, f"{path}:{line}: vkq.{own} imports vkq.{name}, which lies above it"
        judged = name == "reference" and own not in JUDGES
        assert not judged, f"{path}:{line}: vkq.{own} imports the oracle; take vkq.numerics or vkq.problem"


def test_no_circle() -> None:
    """No module imports itself through other modules; imports inside a package and under TYPE_CHECKING
    count too."""
    edges = graph()
    assert not circles(edges), {name: sorted(edges[name] & circles(edges)) for name in circles(edges)}


def inside(package: str, edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return each module and package of a package ("" means vkq) -> the siblings that it imports."""
    prefix = f"{package}." if package else ""

    def child(name: str) -> str | None:
        if name == (package or "__init__"):
            return "__init__"
        return name.removeprefix(prefix).split(".")[0] if name.startswith(prefix) else None

    found: dict[str, set[str]] = {}
    for name, imports in edges.items():
        own = child(name)
        if own is not None:
            others = {child(other) for other in imports} - {own, None}
            found.setdefault(own, set()).update(other for other in others if other)
    return found


def test_packages_go_one_way() -> None:
    """No two packages import each other, even if their modules form no import cycle."""
    edges = graph()
    packages = {""} | {name.rsplit(".", i)[0] for name in edges for i in range(1, name.count(".") + 1)}
    assert {"", "graph", "graph.passes", "kernels"} < packages
    for package in sorted(packages):
        assert not circles(inside(package, edges)), package


def test_circles_of_packages_are_found() -> None:
    edges = {"a.b.x": {"a.c.y"}, "a.c.z": {"a.b.w"}, "a.c.y": set(), "a.b.w": set(), "d": {"a.b.x"}}
    assert not circles(edges)
    assert circles(inside("a", edges)) == {"b", "c"}
    assert not circles(inside("", edges))


# (module, module that it starts in a process). The started modules are in higher layers, and return only
# text.
STARTED = {
    ("cli.check", "vkq.cli"),
    ("device.drivers", "vkq.device.trial"),
    ("device.first_sight", "vkq.check.measuring"),
    ("device.verdict", "vkq.probe.child"),
}


def test_no_module_is_named_in_a_text() -> None:
    """No string in vkq names a module of vkq, because an import through a string would bypass these rules."""
    names = {f"vkq.{name_of(path)}" for path in modules()}
    found = {
        (name_of(path), node.value)
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
    }
    assert found == STARTED


def test_circles_are_found() -> None:
    edges = {"a": {"b", "c"}, "b": {"c"}, "c": {"d"}, "d": {"b", "e"}, "e": set(), "f": {"a"}}
    assert circles(edges) == {"b", "c", "d"}
    assert not circles({"a": {"b"}, "b": {"c"}, "c": set()})


def test_the_rule_can_be_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test detects a forbidden import in each way of writing an import."""
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "device").mkdir()
    lines = [
        "from ..ops import linear",
        "from vkq.ops.linear import x",
        "import vkq.ops",
        "from .. import ops",
        "def f():",
    ]
    (tmp_path / "device" / "bad.py").write_text("\n".join([*lines, "    from ..ops.y import z"]))
    assert [(line, part(target)) for line, target in imported(tmp_path / "device" / "bad.py")] == [
        (1, "ops"), (2, "ops"), (3, "ops"), (4, "ops"), (6, "ops"),
    ]  # fmt: skip


def test_only_the_command_line_prints() -> None:
    for path in modules():
        if path.relative_to(PACKAGE).parts[0] in ("cli", "__main__.py"):
            continue
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        printing = [n.lineno for n in calls if isinstance(n.func, ast.Name) and n.func.id == "print"]
        # These two modules run with python -m.
        allowed = path.relative_to(PACKAGE).as_posix() in ("shader/build.py", "probe/child.py")
        assert not printing or allowed, f"{path}: print in lines {printing}"


WATCH = """
import json, sys, threading
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
import numpy, yaml, platformdirs
opened.clear()
calls = 0
def count(frame, event, argument):
    global calls
    calls += event == "call" and "importlib" not in frame.f_code.co_filename
sys.setprofile(count)
import vkq
sys.setprofile(None)
files = [name for name in opened if not name.endswith((".py", ".pyc", ".so")) and "__pycache__" not in name]
modules, threads = sorted(sys.modules), threading.active_count()
print(json.dumps({"calls": calls, "files": files, "modules": modules, "threads": threads}))
"""


def test_import_does_no_work(tmp_path: Path) -> None:
    """``import vkq`` opens no Vulkan, loads no extension, reads no shader, layout or cache, starts no thread,
    and makes few calls."""
    env = {**os.environ, "VKQ_CACHE_DIR": str(tmp_path / "cache"), "VK_DRIVER_FILES": "/nonexistent"}
    command = [sys.executable, "-c", WATCH]
    for _ in range(2):  # the second run has compiled bytecode
        run = json.loads(subprocess.run(command, env=env, capture_output=True, check=True, timeout=60).stdout)
        assert not {"vkq._kompute", "onnx", "onnxruntime", "torch"} & set(run["modules"])
        assert [f for f in run["files"] if f.endswith((".yaml", ".comp", ".glslh", ".spv", ".json"))] == []
        assert run["threads"] == 1
        assert run["calls"] < 40_000
    assert not (tmp_path / "cache").exists()
