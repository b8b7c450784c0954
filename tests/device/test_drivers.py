"""Tests of a driver that crashes, hangs or ends the process, next to a healthy driver. The faulty driver is
a fake (shim.c), which fails in one of these ways at each Vulkan call in turn."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vkq
from tests.conftest import EVERY, ROOT
from vkq import cache, spawn
from vkq.device import drivers, verdict

LAVAPIPE = next(Path("/usr/share/vulkan/icd.d").glob("lvp_icd.*.json"), Path("lavapipe is missing"))
SWIFTSHADER = ROOT / ".drivers" / "vk_swiftshader_icd.json"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")

# Calls at which the fake driver fails. AT_LOADING: while all drivers are tried together; AT_OPENING: in the
# probe of one device.
AT_LOADING = [
    "load",
    "negotiate",
    "vkCreateInstance",
    "vkEnumeratePhysicalDevices",
    "vkGetPhysicalDeviceProperties2",
]
AT_OPENING = ["vkCreateDevice", "vkCreatePipelineCache", "vkAllocateMemory", "vkCreateShaderModule"]
AT_OPENING += ["vkCreateComputePipelines", "vkQueueSubmit", "vkWaitForFences"]
if not EVERY:  # a test of one call takes seconds, and one child process makes all calls of a list
    AT_LOADING, AT_OPENING = AT_LOADING[::2], AT_OPENING[::2]

USE = """
import numpy as np, vkq, warnings
from vkq.cli import main
from vkq.device import drivers, verdict
drivers.TIMEOUT_S, verdict.TIMEOUT_S = 10, 20
print(vkq.Device().name)
print(vkq.quantize(np.ones(3, np.float32), vkq.QParams(0.5)).tolist())
try:
    print(vkq.Device("llvmpipe").name)
except vkq.NoDeviceError as error:
    print(error)
print(main(["devices"]))
"""


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the fake driver (shim.c); return the path of its manifest."""
    if COMPILER is None or not LAVAPIPE.exists() or not SWIFTSHADER.exists():
        pytest.skip("needs a C compiler, lavapipe and SwiftShader")
    folder = tmp_path_factory.mktemp("shim")
    library = folder / "libshim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, "-x", "c", source, "-ldl"], check=True)
    manifest = folder / "shim_icd.json"
    icd = {"library_path": str(library), "api_version": "1.3.230"}
    manifest.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))
    return manifest


def use(shim: Path, folder: Path, at: str = "", how: str = "crash", code: str = USE) -> list[str]:
    """Run a process with two drivers, the shim and SwiftShader; return the lines that the process prints.

    SwiftShader's probe report and the compiled shaders are already in the cache.
    """
    shared = cache.cache_dir()
    if (shared / "spirv").is_dir():
        (folder / "spirv").symlink_to(shared / "spirv")
    (folder / "probe").mkdir(exist_ok=True)
    for c in vkq.devices():
        if "SwiftShader" in c.name:
            verdict.report_of(c)
            shutil.copy(verdict._place(c), folder / "probe")
    environment = {
        **os.environ, "VKQ_CACHE_DIR": str(folder), "VKQ_VALIDATION": "0", "SHIM_AT": at, "SHIM_HOW": how,
        "SHIM_REAL": str(json.loads(LAVAPIPE.read_text())["ICD"]["library_path"]),
        "VK_DRIVER_FILES": f"{shim}:{SWIFTSHADER}",
    }  # fmt: skip
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_a_healthy_shim_is_the_first_device(shim: Path, tmp_path: Path) -> None:
    lines = use(shim, tmp_path)
    assert lines[0].startswith("llvmpipe")
    assert lines[1] == "[2, 2, 2]"
    assert lines[-1] == "0"
    assert len(list((tmp_path / "drivers").iterdir())) == 2, "both are known to be good"


@pytest.mark.parametrize(
    ("at", "how"),
    [
        *((at, "crash") for at in AT_LOADING),
        ("vkEnumeratePhysicalDevices", "hang"),
        ("load", "exit"),
    ],
)
def test_a_driver_that_fails_while_it_is_loaded_is_left_out(
    shim: Path, tmp_path: Path, at: str, how: str
) -> None:
    lines = use(shim, tmp_path, at, how)
    assert lines[0].startswith("SwiftShader")
    assert lines[1] == "[2, 2, 2]"
    why = {"crash": "the driver crashed (SIGSEGV)", "hang": "the driver did not answer within 10 s"}
    said = f"the driver {shim} is left out: {why.get(how, 'the driver ended the process (exit code 9)')}"
    assert lines[2].startswith("no device matches 'llvmpipe'")
    assert said in lines[2]
    assert lines[-3].startswith(said)
    assert lines[-2] == "default: 0, the best"
    assert lines[-1] == "0"
    kept = [json.loads(cache.read(path) or b"")["refused"] for path in (tmp_path / "drivers").iterdir()]
    assert kept.count(None) == 1
    assert len(kept) == (1 if how == "hang" else 2), "a crash is a verdict, a time-out is none"


@pytest.mark.parametrize(
    ("at", "how"),
    [*((at, "crash") for at in AT_OPENING), ("vkCreateDevice", "hang"), ("vkQueueSubmit", "abort")],
)
def test_a_driver_that_fails_in_use_is_refused_and_the_next_is_the_default(
    shim: Path, tmp_path: Path, at: str, how: str
) -> None:
    lines = use(shim, tmp_path, at, how)
    assert lines[0].startswith("SwiftShader")
    assert lines[1] == "[2, 2, 2]"
    why = {"crash": r"the driver crashed (SIGSEGV)", "abort": "the driver crashed (SIGABRT)"}
    assert lines[2].startswith("no device matches 'llvmpipe'")
    assert "its probe failed (" in lines[2]
    assert why.get(how, "the driver did not answer within 20 s") in lines[2]
    assert any(line.startswith("   int8 path      none: its probe failed") for line in lines)
    assert lines[-1] == "0"
    assert len(list((tmp_path / "probe").iterdir())) == (1 if how == "hang" else 2)


def test_drivers_that_are_known_are_not_tried_again(
    shim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKQ_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("VK_DRIVER_FILES", f"{SWIFTSHADER}:{shim}")
    started: list[str] = []
    monkeypatch.setattr(
        drivers, "_trial", lambda paths: started.append(str(paths)) or spawn.Ended("done", "", True, [])
    )
    assert drivers.tried() == drivers.Tried({}, ())
    assert drivers.tried() == drivers.Tried({}, ())
    assert len(started) == 1
    library = shim.with_name("libshim.so")
    os.utime(library, (1, 1))  # the changed time stands for a driver that was updated in place
    drivers.tried()
    assert started[1:] == [str([shim])]


def test_what_cannot_be_kept_or_read_is_tried(
    shim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKQ_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("VK_DRIVER_FILES", str(shim))
    place = drivers._place(shim)
    for data in (b"{}", b"[]", b"null", b'{"manifest": "m", "refused": 3}', b"[" * 100_000):
        cache.write(place, data)
        with pytest.warns(cache.CacheWarning, match="ignored and made again: ValueError"):
            assert drivers._load(shim) is None
        cache._warned.clear()


def test_the_manifests_are_those_of_the_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("config", "data", "system"):
        (tmp_path / folder / "vulkan/icd.d").mkdir(parents=True)
        (tmp_path / folder / "vulkan/icd.d" / f"{folder}.json").write_text("{}")
        (tmp_path / folder / "vulkan/icd.d" / "readme.txt").write_text("")
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "system"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "none"))
    names = [path.name for path in drivers.manifests()]
    assert names[0] == "config.json"
    assert {"config.json", "data.json", "system.json"} <= set(names)
    mine = tmp_path / "data/vulkan/icd.d/data.json"
    monkeypatch.setenv("VK_ADD_DRIVER_FILES", str(mine))
    assert drivers.manifests()[0] == mine
    monkeypatch.setenv(
        "VK_DRIVER_FILES", f"{mine}:{tmp_path / 'gone.json'}:{tmp_path / 'system/vulkan/icd.d'}"
    )
    assert [path.name for path in drivers.manifests()] == ["data.json", "system.json"]


def test_the_environment_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKQ_A", "1")
    with drivers.loader_environment({"VKQ_A": "2", "VKQ_B": "3"}):
        assert (os.environ["VKQ_A"], os.environ["VKQ_B"]) == ("2", "3")
    assert os.environ["VKQ_A"] == "1"
    assert "VKQ_B" not in os.environ


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"hello", "malformed"),
        (b"", "malformed"),
        (b"{}", "malformed"),
        (b'{"ICD": {"library_path": 3}}', "names no library"),
        (b"[" * 100_000, "malformed"),
        (b"\xff\xfe\0", "malformed"),
        (b" " * (1 << 21), "larger than"),
    ],
    ids=range(7),
)
def test_a_manifest_that_is_none_is_named_and_left_out(
    text: bytes, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid manifest is named and ignored; the driver with the valid manifest is still used."""
    broken = tmp_path / "a_broken.json"
    broken.write_bytes(text)
    monkeypatch.setenv("VK_DRIVER_FILES", f"{broken}:{LAVAPIPE}")
    code = "import vkq.cli, sys; sys.exit(vkq.cli.main(['devices']))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr
    assert "llvmpipe" in child.stdout
    assert str(broken) in child.stdout + child.stderr
    assert why in child.stdout + child.stderr
