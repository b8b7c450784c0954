"""Installs the arm64 wheel beside the arm64 Debian of tests/mobile and runs it there, under qemu-user:
``python -m tests.wheels.arm64 FOLDER`` (make test-arm64).

The demo's networks, `vkq doctor` and 100 cases of `vkq check` run on that tree's lavapipe: another
processor, vectors of 128 bits, and subgroups of 4 lanes. Everything must be equal; the networks' results are
compared with ONNX Runtime's on this machine (arm64's does not start under qemu-user 7.2). Nothing is emulated
but the processor, and nothing needs binfmt or root.
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

from .build import ROOT

PYTHON = "3.11"  # of the tree, Debian's
PLATFORMS = [f"{tag}_aarch64" for tag in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
# vkq starts itself for what it does in children; qemu-user does not know that the file is to be run by it.
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
    """The arm64 tree with the wheel and what it depends on."""

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
        return ["qemu-aarch64-static", "-L", str(self.root), str(self.root / "usr/bin" / f"python{PYTHON}")]

    def run(self, code: str, *arguments: str) -> str:
        """What Python said in the tree; it must end well."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root.parent),
            "VK_DRIVER_FILES": "/usr/share/vulkan/icd.d/lvp_icd.json",
            "VKQ_CACHE_DIR": str(self.root.parent / "arm64-cache"),
            "PYTHONPATH": os.pathsep.join(str(self.root / name) for name in ("wheel", "demo", "site")),
        }
        command = [*self._qemu(), "-c", code, str(self.python), *arguments]
        done = subprocess.run(
            command, env=environment, cwd=self.root.parent, stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout


def networks(tree: Tree) -> dict[str, str]:
    """How many of each network's results, computed on arm64, are ONNX Runtime's on this machine."""
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


def measured(tree: Tree, count: int) -> dict[str, Any]:
    """The networks' results, the check's and doctor's report."""
    result: dict[str, Any] = {"networks": networks(tree)}
    print(result["networks"], flush=True)
    result["check"] = json.loads(tree.run(COMMAND, "check", "--count", str(count), "--seed", "1", "--json"))
    print(result["check"]["summary"], flush=True)
    result["doctor"] = json.loads(tree.run(COMMAND, "doctor", "--json"))
    print("healthy:", result["doctor"]["healthy"], flush=True)
    return result


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
