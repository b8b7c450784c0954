"""Install the arm64 wheel in the arm64 Debian of tests/mobile and run it there, under qemu-user: ``python -m
tests.wheels.arm64 FOLDER`` (make test-arm64).

The demo's networks, `vkq doctor`, 100 cases of `vkq check`, and both networks as files of `vkq export` run
on that system's lavapipe: another processor, vectors of 128 bits, and subgroups of 4 lanes. The C and C++
examples with the wheel's libvkq, and `vkq.load`, run the exported files. All results must equal those of
ONNX Runtime and vkq on this machine. (The arm64 build of ONNX Runtime does not start under qemu-user 7.2.)
Only the processor is emulated; neither binfmt nor root is needed.
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

import vkq.onnx
from tests.onnx.networks import onnxruntime_results
from vkq.cli.private import without_private

from .build import ROOT, WORK, compilers

PYTHON = "3.11"  # the version of the arm64 Debian's Python
PLATFORMS = [f"{tag}_aarch64" for tag in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
# vkq starts child processes with sys.executable. qemu-user does not run child processes under qemu by
# default, so sys.executable becomes a script that does.
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
PLAYED = (
    BOOT
    + """
import numpy as np, vkq
files, given, results = sys.argv
found = {}
with np.load(given) as inputs:
    for name in inputs:
        with vkq.load(f"{files}/{name}.vkq") as model:
            found[name] = np.concatenate([model.run(None, {"x": x[None]})[0] for x in inputs[name]])
np.savez(results, **found)
"""
)
# model -> input shapes for which the model is exported; the tests use the last one
SHAPES = {"digits": ((1, 1, 8, 8),), "denoise": ((1, 3, 8, 8), (1, 3, 33, 50))}
MODELS = ROOT / "examples" / "models"


class Tree:
    """The arm64 Debian's root folder, with the wheel and its dependencies."""

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
        """The command that runs an arm64 program under qemu-user."""
        return ["qemu-aarch64-static", "-L", str(self.root)]

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of the arm64 programs."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root.parent),
            "VK_DRIVER_FILES": "/usr/share/vulkan/icd.d/lvp_icd.json",
            "VKQ_CACHE_DIR": str(self.root.parent / "arm64-cache"),
            "PYTHONPATH": os.pathsep.join(str(self.root / name) for name in ("wheel", "demo", "site")),
        }

    def run(self, code: str, *arguments: str) -> str:
        """Run Python code under qemu-user and return its output; exit if it fails."""
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


def digit_images() -> tuple[Any, Any]:
    """Return (the demo's pictures of digits, the digits)."""
    with np.load(MODELS / "digits.npz") as file:
        return file["images"], file["labels"]


def compared(name: str, got: Any, want: Any) -> str:
    """Return a text with the number of equal elements; exit if any element differs."""
    found = f"{int((got == want).sum())} of {want.size} equal"
    if not np.array_equal(got, want):
        sys.exit(f"{name}: {found}")
    return found


def networks(tree: Tree) -> dict[str, str]:
    """Return {network: the number of its results on arm64 that equal ONNX Runtime's results on this
    machine}."""
    given, results = tree.root.parent / "given.npz", tree.root.parent / "results.npz"
    digits = (digit_images()[0][:, None] / 16).astype(np.float32)
    inputs = {"digits": digits, "denoise": np.random.default_rng(0).random((1, 3, 67, 45), np.float32)}
    np.savez(given, **inputs)
    tree.run(NETWORKS, str(MODELS), str(given), str(results))
    found = {}
    with np.load(results) as got:
        for name, x in inputs.items():
            (want,) = onnxruntime_results((MODELS / f"{name}.onnx").read_bytes(), {"x": x})
            found[name] = compared(name, got[name], want)
    return found


class Applications:
    """Example programs in C and C++, and exported files. This machine compiles and exports them for the arm64
    Debian."""

    def __init__(self, tree: Tree):
        self.tree, self.folder = tree, tree.root.parent / "arm64-application"
        self.folder.mkdir(exist_ok=True)
        compilers()
        for name, shapes in SHAPES.items():
            export = ["export", str(MODELS / f"{name}.onnx"), "-o", str(self.folder / f"{name}.vkq")]
            for one in shapes:
                export += ["--shape", "x=" + "x".join(map(str, one))]
            subprocess.run([sys.executable, "-m", "vkq", *export, "--for", "portable"], check=True)

    def built(self, source: str) -> Path:
        """Compile an example and link it with the wheel's libvkq; return the program."""
        library, program = self.tree.root / "wheel/vkq", self.folder / Path(source).stem
        compiler = ["aarch64-cc", "-std=c99"] if source.endswith(".c") else ["aarch64-c++", "-std=c++17"]
        subprocess.run(
            [WORK / "bin" / compiler[0], compiler[1], "-O2", "-I", ROOT / "vkq/player/native",
             ROOT / "examples/c" / source, "-L", library, "-lvkq", f"-Wl,-rpath,{library}", "-o", program],
            check=True,
        )  # fmt: skip
        return program

    def output(self, program: Path, file: str, given: bytes) -> bytes:
        """Return the output of a program for an input."""
        return subprocess.run(
            [*self.tree.qemu, str(program), str(self.folder / file)],
            input=given, stdout=subprocess.PIPE, check=True, env=self.tree.environment,
        ).stdout  # fmt: skip

    def digit(self) -> str:
        """Return how many digits the C example recognizes correctly."""
        (pixels, labels), program, told = digit_images(), self.built("digit.c"), []
        for picture in pixels[:4]:
            said = self.output(program, "digits.vkq", b" ".join(b"%d" % n for n in picture.reshape(-1)))
            told.append(int(said.splitlines()[-1].removeprefix(b"digit ")))
        return compared("digit.c", np.array(told), labels[:4])

    def denoise(self) -> str:
        """Filter a picture with the C++ example. Return how many bytes equal those of ONNX Runtime."""
        *_, height, width = SHAPES["denoise"][-1]
        pixels = np.random.default_rng(5).integers(0, 256, (height, width, 3), np.uint8)
        head = b"P6\n%d %d\n255\n" % (width, height)
        got = self.output(self.built("denoise.cpp"), "denoise.vkq", head + pixels.tobytes())
        x = (pixels.transpose(2, 0, 1)[None] / np.float32(255)).astype(np.float32)
        (y,) = onnxruntime_results((MODELS / "denoise.onnx").read_bytes(), {"x": x})
        want = np.floor(255 * y[0].clip(0, 1) + np.float32(0.5)).astype(np.uint8).transpose(1, 2, 0)
        return compared("denoise.cpp", np.frombuffer(got[-want.size :], np.uint8), want.ravel())

    def played(self) -> dict[str, str]:
        """Run the exported files by `vkq.load` in the arm64 Debian. Return how many bytes equal those of a
        session on this machine, for each file."""
        given, results = self.folder / "given.npz", self.folder / "results.npz"
        random = np.random.default_rng(6)
        inputs: dict[str, Any] = {
            name: random.random((4, *shapes[-1][1:]), np.float32) for name, shapes in SHAPES.items()
        }
        np.savez(given, **inputs)
        self.tree.run(PLAYED, str(self.folder), str(given), str(results))
        found = {}
        with np.load(results) as got:
            for name, x in inputs.items():
                (want,) = vkq.onnx.InferenceSession(MODELS / f"{name}.onnx").run(None, {"x": x})
                found[f"{name}.vkq"] = compared(f"{name}.vkq", got[name].view(np.uint8), want.view(np.uint8))
        return found

    def all(self) -> dict[str, Any]:
        """Return application -> its result."""
        return {"digit.c": self.digit(), "denoise.cpp": self.denoise(), "vkq.load": self.played()}


def measured(tree: Tree, count: int) -> dict[str, Any]:
    """Return the results of the networks, of `vkq check` and of `vkq doctor`: a row of docs/devices.md."""
    result: dict[str, Any] = {"application": Applications(tree).all(), "networks": networks(tree)}
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
