"""Install the wheels of dist/ as users do and run the demo's network: ``python -m tests.wheels.install``
(make test-wheels).

Each Python gets a fresh environment with only the wheel that pip chooses from dist/, and its dependencies.
There is no compiler, no shader compiler, no header and no checkout: PATH has only the environment's
programs. On the oldest Python, a part of the test suite runs on the installed wheel. On every Python, the
tests of a process's exit run, because the wheel's C++ library unwinds threads differently from the C++
library of a local build.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from .build import ROOT, WORK, python, run, tool

# (Python, NumPy) of each environment; the first pair has the oldest supported Python
PAIRS = (("3.10", "numpy==1.26.*"), ("3.12", "numpy>=2"), ("3.13", "numpy>=2"))
DEMO = ("onnx", "onnxruntime")  # onnx reads the network; onnxruntime computes the expected results
SLICE = (
    "tests/runtime/test_process.py", "tests/test_spawn.py", "tests/test_cache.py", "tests/probe",
    "tests/device/test_drivers.py", "tests/ops/test_linear.py",
)  # fmt: skip


def installed(version: str, numpy: str, wheels: Path) -> Path:
    """Return the interpreter of a fresh environment, in which pip has installed the wheel that it chooses."""
    interpreter = python(version, WORK / f"user{version}")
    uv = (tool("uv"), "pip", "install", "--python", interpreter)
    run(*uv, "pip", numpy, *DEMO, "-r", ROOT / "pyproject.toml")
    run(interpreter, "-m", "pip", "install", "--no-deps", "--no-index", "--only-binary=:all:", "--find-links",
        wheels, "vkq")  # fmt: skip
    run(interpreter, "-m", "pip", "check")
    return interpreter


def demo(interpreter: Path) -> str:
    """Run the demo's network without any compiler in PATH; return the output."""
    place = WORK / "examples"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(ROOT / "examples", place, ignore=shutil.ignore_patterns("out"))
    alone = {"PATH": str(interpreter.parent), "VKQ_CACHE_DIR": str(WORK / "cache"), "PYTHONPATH": ""}
    said = run(interpreter, place / "03_digits.py", cwd=place, **alone)
    facts = "import numpy, vkq._kompute as k; print('NumPy', numpy.__version__, k.__file__)"
    return said.splitlines()[-2] + "\n" + run(interpreter, "-c", facts, cwd=place, **alone)


def suite(interpreter: Path, chosen: Sequence[str]) -> str:
    """Run a part of the test suite on the installed wheel, in a copy of tests/ outside the checkout. Return
    the last line of the output."""
    place = WORK / "suite"
    shutil.rmtree(place, ignore_errors=True)
    for name in ("tests", "examples"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "out"))
    shutil.copy(ROOT / "pyproject.toml", place)
    (place / ".drivers").symlink_to(ROOT / ".drivers")
    run(tool("uv"), "pip", "install", "--python", interpreter, "pytest", "hypothesis")
    drivers = ":".join([*map(str, Path("/usr/share/vulkan/icd.d").glob("lvp_icd.*.json")),
                        str(ROOT / ".drivers" / "vk_swiftshader_icd.json")])  # fmt: skip
    said = run(
        interpreter, "-m", "pytest", "-q", *chosen, cwd=place,
        VK_DRIVER_FILES=drivers, VKQ_REQUIRE_DEVICE="1", VKQ_CACHE_DIR=str(WORK / "cache"), PYTHONPATH="",
    )  # fmt: skip
    return said.splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Install the wheels and run the demo's network.")
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    os.environ.pop("VIRTUAL_ENV", None)
    for version, numpy in PAIRS:
        interpreter = installed(version, numpy, options.wheels.resolve())
        print(f"== Python {version}, {numpy}", demo(interpreter), sep="\n", end="", flush=True)
        print(
            "the suite's slice:",
            suite(interpreter, SLICE if version == PAIRS[0][0] else SLICE[:1]),
            flush=True,
        )


if __name__ == "__main__":
    main()
