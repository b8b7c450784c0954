"""Tests of libvkq as a C programmer installs it, under a prefix where CMake and pkg-config find it; and of
its size."""

import shutil
import subprocess
from pathlib import Path

import pytest

from vkq._version import __version__

NATIVE = Path(__file__).parents[2] / "vkq/player/native"
PROGRAM = """
#include <stdio.h>
#include <vkq.h>
int main(void) { return vkq_open("no such device", NULL) != VKQ_ARGUMENT || puts(vkq_error()) < 0; }
"""
PROJECT = """
cmake_minimum_required(VERSION 3.16)
project(application C)
find_package(vkq {version} REQUIRED)
add_executable(application main.c)
target_link_libraries(application vkq::vkq)
"""


def ran(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=["static", "shared"])
def prefix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build libvkq without optimization, install it under a prefix other than the configured one, and
    return the prefix."""
    folder = tmp_path_factory.mktemp("libvkq")
    build = [
        f"-DVKQ_STATIC={'ON' if request.param == 'static' else 'OFF'}",
        "-DCMAKE_BUILD_TYPE=Debug",
        "-DCMAKE_CXX_FLAGS_DEBUG=-O0",
        "-DCMAKE_UNITY_BUILD=ON",
    ]
    ran("cmake", "-S", NATIVE, "-B", folder / "build", *build)
    ran("cmake", "--build", folder / "build", "-j2")
    ran("cmake", "--install", folder / "build", "--prefix", folder / "prefix")
    return folder / "prefix"


def test_a_c_project_finds_it(prefix: Path, tmp_path: Path) -> None:
    """A CMake project in C finds libvkq, without a C++ compiler."""
    (tmp_path / "main.c").write_text(PROGRAM)
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(version=__version__))
    ran("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    ran("cmake", "--build", tmp_path / "build")
    assert ran(tmp_path / "build/application") == "device is null\n"


@pytest.mark.skipif(not shutil.which("pkg-config"), reason="pkg-config is not installed")
def test_pkg_config_names_it(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(PROGRAM)
    (pc,) = prefix.rglob("vkq.pc")
    static = bool(list(prefix.rglob("libvkq.a")))
    flags = ran("pkg-config", *(["--static"] if static else []), "--cflags", "--libs", pc).split()
    flags += [] if static else [f"-Wl,-rpath,{next(prefix.rglob('libvkq.so')).parent}"]
    assert ran("pkg-config", "--modversion", pc).strip() == __version__
    ran("cc", "-std=c99", "-Wall", "-Werror", "main.c", *flags, "-o", "application", cwd=tmp_path)
    assert ran(tmp_path / "application") == "device is null\n"


def test_it_is_small() -> None:
    from vkq.player.load import library

    assert Path(library()._name).stat().st_size < 2_000_000
