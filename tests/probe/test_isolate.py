"""The probe's child process: what it finds, and what the parent makes of crashes, hangs and nonsense."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import vkq
from vkq.probe import child as probe
from vkq.probe import isolate, selftest
from vkq.runtime.device import Device
from vkq.select import path as select


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing is remembered: an empty cache, with the shaders compiled, and no report in this process."""
    shared = vkq.cache.cache_dir() / "spirv"
    monkeypatch.setattr(selftest, "_reports", {})
    monkeypatch.setenv("VKQ_CACHE_DIR", str(tmp_path))
    if shared.is_dir():
        (tmp_path / "spirv").symlink_to(shared)
    return tmp_path


def test_the_child_finds_what_this_process_finds(device: Device, fresh: Path) -> None:
    found = selftest.report_of(device.capabilities)
    assert found.isolated
    assert found.failures == {}
    assert set(found.rates) == {"s8s8", "u8s8", "u8u8", "float", "fma", "copy"}
    assert selftest.run(device).failures == {}


def test_a_report_is_cached_by_device_driver_and_version(
    any_device: Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = selftest.report(any_device)
    (file,) = (fresh / "probe").iterdir()
    assert any_device.capabilities.device_uuid in file.name
    assert vkq.__version__ in file.name
    monkeypatch.setattr(selftest, "_reports", {})
    monkeypatch.setattr(isolate, "ask", lambda *_: pytest.fail("the cached report was not used"))
    assert selftest.report(any_device) == found


def test_a_driver_that_crashes_in_one_form_loses_that_form_alone(
    any_device: Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(probe.FAULT, "u8s8=crash")
    found = selftest.report(any_device)
    assert found.failures == {"u8s8": "the driver crashed (SIGSEGV)"}
    assert "u8u8" in found.rates
    assert select.choose(any_device).path != "dot_u8s8"
    with pytest.raises(vkq.PathError, match=r"path dot_u8s8 cannot run on .*the driver crashed \(SIGSEGV\)"):
        select.choose(any_device, "dot_u8s8")


def test_a_driver_that_hangs_in_the_rates_keeps_its_paths(
    any_device: Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(probe.FAULT, "rates=hang")
    monkeypatch.setattr(isolate, "TIMEOUT_S", 10.0)
    found = selftest.report(any_device)
    assert (found.failures, found.rates) == ({}, {})
    claims = any_device.capabilities.properties["integerDotProduct4x8BitPackedSignedAccelerated"]
    assert select.without_matrices(any_device).path == ("dot_s8s8" if claims else "portable")


def test_a_driver_that_crashes_at_once_is_refused_and_this_process_lives(
    any_device: Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(probe.FAULT, "open=crash")
    assert selftest.report(any_device).failures == {"open": "the driver crashed (SIGSEGV)"}
    with pytest.raises(vkq.PathError, match=r"no int8 path can run on .*the driver crashed \(SIGSEGV\)"):
        select.choose(any_device)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import time; time.sleep(60)", "the driver did not answer within 0.5 s"),
        ("import sys; sys.exit('no such thing')", "the probe failed (exit code 1): no such thing"),
        ("import os; os.kill(os.getpid(), 9)", "the driver crashed (SIGKILL)"),
        ("print('no result')", "the probe ended without a result"),
        (
            "print('nonsense'); print('[1]'); import sys; sys.exit(3)",
            "the probe failed (exit code 3): no message",
        ),
    ],
)
def test_what_a_bad_child_does_becomes_the_reason(
    code: str, reason: str, any_device: Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolate, "command", lambda index: [sys.executable, "-c", code])
    monkeypatch.setattr(isolate, "TIMEOUT_S", 0.5 if "sleep" in code else 20)
    assert selftest.report(any_device).failures["open"].startswith(reason)


@pytest.mark.parametrize("argv", [None, ["/nonexistent/python"]])
def test_where_no_child_can_be_started_the_probe_runs_here(
    argv: list[str] | None, any_device: Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolate, "command", lambda index: argv)
    found = selftest.report(any_device)
    assert not found.isolated
    assert found.failures == {}


def test_a_child_that_finds_another_device_is_not_believed(
    any_device: Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [sys.executable, "-c", 'print(\'{"device": "another"}\')']
    monkeypatch.setattr(isolate, "command", lambda index: said)
    found = selftest.report(any_device)
    assert (found.isolated, found.failures) == (False, {})


def test_a_child_starts_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(isolate.CHILD, "1")
    assert isolate.command(0) is None


def test_an_application_that_embeds_python_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/blender/blender")
    assert isolate.command(0) is None


def test_a_line_cut_short_by_a_crash_counts_as_not_said() -> None:
    text = (
        '{"device": "k", "begin": null}\n{"begin": "s8s8"}\n{"end": "s8s8", "result": null}\n{"begin":'
        ' "u8s8"}\n{"end": "u8s'
    )
    assert isolate._stages(text, "k") == ("u8s8", {"s8s8": None})
