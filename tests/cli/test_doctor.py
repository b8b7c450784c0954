"""Tests of the output and exit codes of ``vkq doctor`` and ``vkq devices``."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from vkq.check import replay, works
from vkq.check.cases import FLOAT, SCHEMES
from vkq.check.catalogue import check_of
from vkq.cli import doctor, main
from vkq.cli.devices import show_measured
from vkq.device.query import devices
from vkq.device.tuner import Measured
from vkq.errors import CompileError, NoDeviceError
from vkq.runtime.device import Device
from vkq.select import path as select

from ..device.test_verdict import fresh, says  # noqa: F401  a fixture


def test_doctor_reports_versions_probe_path_and_replays(
    any_device: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--device", any_device.name, "--times", "3", "--seconds", "0", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["healthy"]
    assert {"vkq", "python", "numpy", "kompute", "vulkan loader"} <= said["versions"].keys()
    assert said["probe"]["isolated"]
    assert said["path"] in (*select.FORMS, select.COOPMAT)
    replayed = {(r["case"], r["path"]) for r in said["replays"]}
    assert {check_of(case).scheme for case in works.REPLAYED} == set(SCHEMES)
    for case in works.REPLAYED:
        paths = ["auto"] if check_of(case).scheme in FLOAT else said["paths"]
        assert {path for one, path in replayed if one == case} - {"texels"} == set(paths)
    assert {("quantize", "all"), ("dequantize", "all")} < replayed
    assert all(r["times"] == 3 and r["wrong"] == 0 for r in said["replays"])


def test_doctor_prints_what_a_person_reads(strict_device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--device", strict_device.name, "--times", "1", "--seconds", "0"]) == 0
    said = capsys.readouterr().out
    for part in (
        "network of 5 layers, one plan",
        "kompute",
        "self-test      passed (in a child process)",
        "TOPS",
        "GB/s",
        "int8 path",
        "the same bytes",
        "healthy",
    ):
        assert part in said


def test_one_different_byte_in_one_run_exits_1(
    any_device: Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    true, calls = replay.Tensor.numpy, []
    one = lambda device, paths, texels: works._single(device, works.REPLAYED[0], paths)  # noqa: E731
    monkeypatch.setattr(replay, "works", one)

    def wrong(self: replay.Tensor) -> object:
        out = true(self)
        calls.append(1)
        if len(calls) == 5:
            out.reshape(-1)[-1] += 1
        return out

    monkeypatch.setattr(replay.Tensor, "numpy", wrong)
    assert main(["doctor", "--device", any_device.name, "--times", "2", "--seconds", "0"]) == 1
    said = capsys.readouterr().out
    assert "DIFFERENT in 1 runs" in said
    assert "1 of 1221 elements differ, rows 32, channels 36; first at (32, 36): got" in " ".join(said.split())
    assert "do: dot_" in said
    assert "Give layers path='" in said
    assert "do: look for a newer driver than" in said
    assert "NOT HEALTHY" in said


PATHS = ["dot_s8s8", "portable"]
INT8, WEIGHTS = "linear[M=33,K=75,N=37]/seed=1", "linear[M=3,K=300,N=37]/seed=17,scheme=f32"
LAST = ["look for a newer driver than driver 1", "attach what `vkq report`"]
OTHER = "use another device until this one is right: VKQ_DEVICE="
REFUSED = "texels: wrong, and the probe did not refuse them; "


@pytest.mark.parametrize(
    ("wrong", "texels", "says"),
    [
        ([], "profile", []),
        ([("texels", INT8)], "unread", [f"{REFUSED}vkq's layers read no texels on this device. Report it"]),
        ([("texels", INT8)], "measured", [f"{REFUSED}layers read them because that was fastest here. Se"]),
        ([("texels", INT8)], "profile", [f"{REFUSED}layers read them on every device of this kind, and "]),
        ([("portable", INT8)], "unread",
         ["portable: wrong; right on this device: dot_s8s8. Give layers path='dot_s8s8'"]),
        ([("dot_s8s8", INT8), ("texels", INT8)], "unread",
         [REFUSED, "dot_s8s8: wrong; right on this device: portable. Give layers path='portable'", OTHER]),
        ([(path, INT8) for path in PATHS], "unread", [OTHER]),
        ([("auto", INT8)], "unread",
         ["auto: wrong; right on this device: dot_s8s8, portable. Give layers path='dot_s8s8'", OTHER]),
        ([("auto", WEIGHTS)], "unread", [OTHER]),
        ([("portable", INT8), ("auto", WEIGHTS)], "unread", [OTHER]),
        ([("all", "quantize")], "unread", [OTHER]),
        ([("all", "quantize"), ("portable", INT8)], "unread", [OTHER]),
    ],
)  # fmt: skip
def test_advice_names_what_helps(wrong: list[tuple[str, str]], texels: str, says: list[str]) -> None:
    """For wrong results, the advice is another path if one gives correct results, an environment variable
    if only texels are wrong, else another device."""
    replays = [{"path": path, "operator": operator, "wrong": 1} for path, operator in wrong]
    replays.append({"path": "auto", "operator": INT8, "wrong": 0})
    report = {"device": {"driver": "driver 1"}, "path": "dot_s8s8", "paths": PATHS, "texels": texels}
    said = doctor.advice(report | {"replays": replays})
    expected = [*says, *LAST] if wrong else []
    assert len(said) == len(expected)
    for one, begin in zip(said, expected, strict=True):
        assert one.startswith(begin)


def test_why_texels_are_read(software_device: Device) -> None:
    c = software_device.capabilities
    assert doctor.texels_read(c) == "profile"
    phone = dataclasses.replace(c, vendor_id=0x5143, device_type="integrated", choices=())
    assert doctor.texels_read(phone) == "unread"
    assert doctor.texels_read(dataclasses.replace(phone, choices=(("texels", True),))) == "measured"
    assert set(doctor.TEXELS_READ) == {"profile", "unread", "measured"}


def test_a_run_that_writes_nothing_is_seen(any_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = type("Recording", (), {"run": lambda self: None, "steps": ()})()
    true = any_device.record

    @contextmanager
    def record():  # type: ignore[no-untyped-def]
        with true():
            yield recording

    monkeypatch.setattr(any_device, "record", record)
    assert next(iter(replay.replays(any_device, ["portable"], 2))).wrong == 2


def test_doctor_and_devices_without_a_driver_exit_3() -> None:
    environment = {
        **os.environ,
        "VK_DRIVER_FILES": "/nonexistent.json",
        "VK_ICD_FILENAMES": "/nonexistent.json",
    }
    for command in ("doctor", "devices"):
        ended = subprocess.run(
            [sys.executable, "-m", "vkq", command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 3, ended.stderr
        assert "driver" in ended.stdout + ended.stderr


def test_devices_goes_on_after_a_driver_that_crashes(
    any_device: Device,
    capsys: pytest.CaptureFixture[str],
    fresh: object,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    says(monkeypatch, "import signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert main(["devices"]) == 3
    refused = "int8 path      none: its probe failed (open): the driver crashed (SIGSEGV)"
    assert capsys.readouterr().out.count(refused) == len(devices())
    assert main(["doctor", "--device", any_device.name]) == 1
    said = capsys.readouterr().out
    assert "self-test      FAILED (in a child process)" in said
    assert "NOT HEALTHY" in said


def test_doctor_asks_a_refused_device_again(
    any_device: Device,
    capsys: pytest.CaptureFixture[str],
    fresh: object,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        says(patch, "import signal; os.kill(os.getpid(), signal.SIGSEGV)")
        with pytest.raises(NoDeviceError, match="its probe failed"):
            Device(any_device.name)
    assert main(["doctor", "--device", any_device.name, "--times", "1", "--seconds", "0"]) == 0
    assert Device(any_device.name).name


def test_a_compiler_is_not_missed_where_shaders_are_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def none() -> None:
        raise CompileError("no usable GLSL compiler")

    monkeypatch.setattr(doctor, "find_compiler", none)
    monkeypatch.setattr(doctor, "PACKAGED", tmp_path)
    assert doctor.versions()["shader compiler"].startswith("none; vkq needs none")
    monkeypatch.setattr(doctor, "PACKAGED", tmp_path / "nothing")
    assert doctor.versions()["shader compiler"] == "none (no usable GLSL compiler)"


def test_devices_tells_measurements_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--why"]) == 0
    long = capsys.readouterr().out
    assert main(["devices"]) == 0
    short = capsys.readouterr().out
    assert "measured on lavapipe" in " ".join(long.split())
    assert "measured on lavapipe" not in " ".join(short.split())
    assert max(map(len, short.splitlines())) < 200


def test_measured_candidates_are_told_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"register tiles": str(Measured("8x8", {"8x8": 41.2, "4x4": 60.1, "2x2": "wrong"}))}
    show_measured(found, why=True)
    assert "4x4" in capsys.readouterr().out
    show_measured(found, why=False)
    short = capsys.readouterr().out
    assert "8x8" in short
    assert "4x4" not in short
    assert "(" not in short


def test_devices_shows_the_one_that_is_named(any_device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--device", any_device.name, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["devices"]
    assert found["capabilities"]["name"] == any_device.name
    assert main(["devices", "--device", "no such device"]) == 3
    assert "no such device" in capsys.readouterr().out


def test_devices_tells_the_default(
    any_device: Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VKQ_DEVICE", raising=False)
    assert main(["devices"]) == 0
    assert re.search(r"^default: \d+, the best$", capsys.readouterr().out, re.MULTILINE)
    monkeypatch.setenv("VKQ_DEVICE", any_device.name)
    assert main(["devices"]) == 0
    assert f"default: {any_device.capabilities.index}, as VKQ_DEVICE says" in capsys.readouterr().out
    monkeypatch.setenv("VKQ_DEVICE", "nowhere")
    assert main(["devices"]) == 0
    assert "default: none: no device matches 'nowhere' (from VKQ_DEVICE)" in capsys.readouterr().out


def test_devices_prints_the_rate_of_each_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    said = capsys.readouterr().out
    assert said.count("can run, ") >= len(devices()) * len(select.FORMS) - 2
    assert "TOPS measured" in said
