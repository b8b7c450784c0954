"""Install the arm64 wheel in the arm64 Debian of tests/mobile and run it there, under qemu-user: ``python -m
tests.wheels.arm64 FOLDER`` (make test-arm64).

The demo's networks, `vkq doctor`, 100 cases of `vkq check` and the C++ example with libvkq run on that
system's lavapipe: another processor, vectors of 128 bits, and subgroups of 4 lanes. Everything must be equal.
The networks' results are compared with ONNX Runtime's on this machine, because the arm64 build does not start
under qemu-user 7.2. Only the processor is emulated; neither binfmt nor root is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.onnx.networks import onnxruntime_results
from vkq.cli.private import without_private

from .build import ROOT, WORK, compilers

PYTHON = "3.11"  # the version of Debian's Python in the tree
PLATFORMS = [f"{tag}_aarch64" for tag in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
# vkq starts itself in child processes; qemu-user does not run them under itself by default.
BOOT = "import sys; sys.executable, sys.argv = sys.argv[1], sys.argv[2:]; "
COMMAND = BOOT + "from vkq.cli import main; sys.exit(main(sys.argv))"
NETWORKS = (
    BOOT
    + """
import numpy as np, vkq.onnx
models, given, results = sys.argv
with np.load(given) as inputs:
    sessions = {name: vkq.onnx.InferenceSession(f"{models}/{name}.onnx") for name in inputs}
    np.savez(results, **{name: s.run(None, {"x": inputs[name]})[0] for name, s in sessions.items()})
"""
)


class Tree:
    """The arm64 tree with the wheel and its dependencies."""

    def __init__(self, root: Path, wheels: Path):
        self.root = root
        self._pip("wheel", "--no-deps", "--no-index", "--find-links", str(wheels), "vkq")
        self._pip("demo", "onnx")
        self.python = root.parent / "python-arm64"
        self.python.write_text(f'#!/bin/sh\nexec {" ".join(self._qemu())} "$@"\n')
        self.python.chmod(self.python.stat().st_mode | stat.S_IXUSR)

    def _pip(self, folder: str, *what: str) -> None:
        options = [f"--platform={tag}" for tag in PLATFORMS]
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", self.root / folder,
             "--python-version", PYTHON, "--only-binary=:all:", *options, *what],
            check=True,
        )  # fmt: skip

    def _qemu(self) -> list[str]:
        return [*self.qemu, str(self.root / "usr/bin" / f"python{PYTHON}")]

    @property
    def qemu(self) -> list[str]:
        """The command that runs a program of the tree."""
        return ["qemu-aarch64-static", "-L", str(self.root)]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the tree's programs."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root.parent),
            "VK_DRIVER_FILES": "/usr/share/vulkan/icd.d/lvp_icd.json",
            "VKQ_CACHE_DIR": str(self.root.parent / "arm64-cache"),
            "PYTHONPATH": os.pathsep.join(str(self.root / name) for name in ("wheel", "demo", "site")),
        }

    def run(self, code: str, *arguments: str) -> str:
        """Run Python in the tree and return its output; exit if it fails."""
        command = [*self._qemu(), "-c", code, str(self.python), *arguments]
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=self.root.parent,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout


def networks(tree: Tree) -> dict[str, str]:
    """Return how many results of each network, computed on arm64, equal ONNX Runtime's on this machine."""
    models, given, results = (
        ROOT / "examples" / "models",
        tree.root.parent / "given.npz",
        tree.root.parent / "results.npz",
    )
    with np.load(models / "digits.npz") as file:
        digits = (file["images"][:, None] / 16).astype(np.float32)
    inputs = {"digits": digits, "denoise": np.random.default_rng(0).random((1, 3, 67, 45), np.float32)}
    np.savez(given, **inputs)
    tree.run(NETWORKS, str(models), str(given), str(results))
    found = {}
    with np.load(results) as got:
        for name, x in inputs.items():
            (want,) = onnxruntime_results((models / f"{name}.onnx").read_bytes(), {"x": x})
            found[name] = f"{int((got[name] == want).sum())} of {want.size} equal"
            if not np.array_equal(got[name], want):
                sys.exit(f"{name}: {found[name]} to ONNX Runtime's")
    return found


def application(tree: Tree) -> str:
    """Return how many bytes of a photograph that the C++ example filtered equal ONNX Runtime's."""
    folder, model = tree.root.parent / "arm64-application", ROOT / "examples/models/denoise.onnx"
    folder.mkdir(exist_ok=True)
    compilers()
    compiler = [str(WORK / "bin/aarch64-c++"), "-std=c++17", "-O2"]
    sources = [*(ROOT / "vkq/player/native").glob("*.cpp"), ROOT / "examples/c/denoise.cpp"]
    headers = ["-isystem", str(WORK / "include"), "-I", str(ROOT / "vkq/player/native")]
    program, file = folder / "denoise", folder / "denoise.vkq"
    subprocess.run(
        [*compiler, *headers, *map(str, sources), "-o", str(program), "-ldl", "-pthread"], check=True
    )
    shape, other = (1, 3, 33, 50), (1, 3, 8, 8)
    export = [sys.executable, "-m", "vkq", "export", str(model), "-o", str(file), "--for", "portable"]
    for one in (other, shape):  # the second is used
        export += ["--shape", "x=" + "x".join(map(str, one))]
    subprocess.run(export, check=True)
    pixels = np.random.default_rng(5).integers(0, 256, (*shape[2:], 3), np.uint8)
    got = subprocess.run(
        [*tree.qemu, str(program), str(file)], input=b"P6\n50 33\n255\n" + pixels.tobytes(),
        stdout=subprocess.PIPE, check=True, env=tree.environment,
    ).stdout  # fmt: skip
    x = (pixels.transpose(2, 0, 1)[None] / np.float32(255)).astype(np.float32)
    (y,) = onnxruntime_results(model.read_bytes(), {"x": x})
    want = np.floor(255 * y[0].clip(0, 1) + np.float32(0.5)).astype(np.uint8).transpose(1, 2, 0)
    found = np.frombuffer(got[-want.size :], np.uint8)
    if not np.array_equal(found, want.ravel()):
        sys.exit(f"denoise.cpp: {int((found != want.ravel()).sum())} of {want.size} bytes differ")
    return f"{want.size} of {want.size} equal"


def measured(tree: Tree, count: int) -> dict[str, Any]:
    """Return the results of the networks, of the check and of doctor: a row of docs/devices.md."""
    result: dict[str, Any] = {"application": application(tree), "networks": networks(tree)}
    print(result["application"], result["networks"], flush=True)
    result["check"] = json.loads(tree.run(COMMAND, "check", "--count", str(count), "--seed", "1", "--json"))
    print(result["check"]["summary"], flush=True)
    result["doctor"] = json.loads(tree.run(COMMAND, "doctor", "--json"))
    print("healthy:", result["doctor"]["healthy"], flush=True)
    private: dict[str, Any] = without_private({"emulated": "qemu-user (aarch64)"} | result)
    return private


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the arm64 wheel under qemu-user.")
    parser.add_argument("tree", type=Path, help="the folder that tests/mobile/setup.sh filled")
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist")
    parser.add_argument("--count", type=int, default=100, help="cases of vkq check")
    parser.add_argument("--json", type=Path, help="keep the result here")
    options = parser.parse_args()
    tree = Tree(options.tree.resolve(), options.wheels.resolve())
    result = measured(tree, options.count)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
