"""Tests of the wheel: it is built, installed into an empty environment without a shader compiler, and runs
layers and models there, like the demo."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import vkq
from vkq.shader.build import modules
from vkq.shader.catalog import catalog
from vkq.shader.compile import cache_folder, spirv

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import importlib.util, sys, warnings
warnings.simplefilter("error")
import numpy as np
import vkq
from vkq import reference
assert importlib.util.find_spec("slangpy") is None
assert vkq.__file__.startswith(sys.prefix), vkq.__file__
rng = np.random.default_rng(0)
x = rng.integers(-128, 128, (2, 5, 9, 7), dtype=np.int8)
w = rng.integers(-128, 128, (6, 5, 3, 3), dtype=np.int8)
q, y = vkq.QParams(0.02, 3), vkq.QParams(0.5, -9)
for path in ("auto", "dot_s8s8", "dot_u8s8", "dot_u8u8", "portable"):
    got = vkq.conv2d(x, w, 0.01, padding=1, x_qparams=q, y_qparams=y, path=path)
    assert (got == reference.conv2d(x, w, x=q, w_scale=0.01, y=y, padding=1)).all(), path
assert vkq.quantize(np.float32([0.25, 0.75]), vkq.QParams(0.5)).tolist() == [0, 2]
print("exact")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with the SPIR-V that the tests have compiled, because a new compilation takes minutes.
    (tests/shader/test_build.py tests the compilation.)"""
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    for module in modules(catalog().variants.values()):  # uses the cache that tests/shader filled
        spirv(module[0])
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["VKQ_SPIRV"] = str(cache_folder())
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("vkq-*.whl")
    return built


def test_a_build_without_headers_says_what_to_install(tmp_path: Path) -> None:
    """A build without Vulkan headers names the missing package, and stops before it downloads or compiles
    anything."""
    hidden = "-DCMAKE_IGNORE_PATH=/usr/include;/usr/local/include"
    python = f"-DPython_EXECUTABLE={sys.executable}"
    done = subprocess.run(
        ["cmake", "-S", str(ROOT), "-B", str(tmp_path), python, hidden],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    for remedy in (
        "apt-get install libvulkan-dev libfmt-dev",
        "pkg install vulkan-headers fmt",
        "-DVULKAN_HEADERS=DIR",
    ):
        assert remedy in done.stderr, done.stderr
    assert not list(tmp_path.glob("kp-*"))


def test_it_carries_shaders_layouts_and_spirv(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    spirv = [n for n in names if n.startswith("vkq/_spirv/") and n.endswith(".spv")]
    assert len(spirv) == len(modules(catalog().variants.values()))
    described = {Path(n).stem for n in names if n.startswith("vkq/_spirv/") and n.endswith(".json")}
    assert described == set(catalog().shaders)
    assert "vkq/shaders/gemm/gemm_tiled.comp" in names
    assert "vkq/layouts/4W4C.yaml" in names
    assert "vkq/py.typed" in names
    assert f"vkq-{vkq.__version__}-" in wheel.name
    assert not [n for n in names if n.startswith(("tests/", "examples/"))]
    # vkq compresses SPIR-V; with zip's compression alone, the wheel would have 11 MB
    assert wheel.stat().st_size < 10e6


def test_it_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", str(wheel)], check=True, timeout=600)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"VKQ_CACHE_DIR": str(tmp_path / "cache"), "PATH": str(tmp_path), "VKQ_VALIDATION": "0"}
    done = subprocess.run(
        [str(python), "-c", PROGRAM],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == "exact\n", done.stdout + done.stderr
