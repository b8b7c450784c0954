"""Tests of the probe's child process: its findings, the parent's handling of crashes, hangs and invalid
output, and the stored verdicts."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import vkq
from tests.device.reported import profile_says
from vkq import cache, spawn
from vkq.device import verdict
from vkq.device.choose import choose_device
from vkq.probe import selftest
from vkq.runtime.device import Device
from vkq.select import path as select


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Forget all reports: remove those of this process, and use a cache that has only compiled shaders."""
    shared = vkq.cache.cache_dir() / "spirv"
    monkeypatch.setattr(verdict, "_reports", {})
    monkeypatch.setenv("VKQ_CACHE_DIR", str(tmp_path))
    if shared.is_dir():
        (tmp_path / "spirv").symlink_to(shared)
    return tmp_path


CHILD = """
import os, signal, sys, time
from pathlib import Path
from vkq.probe import child, selftest
true = selftest.stages
def seen():
    "How often this was asked before."
    with open({file!r}, "a") as file: file.write(".")
    return Path({file!r}).stat().st_size - 1
def crash(): os.kill(os.getpid(), signal.SIGSEGV)
def killed(): os.kill(os.getpid(), signal.SIGKILL)
def hang(): time.sleep(3600)
def wrong(): return "1 of 2 wrong"
def right(): return None
def stages(device):
    found = true(device)
    {change}
    return found
selftest.stages = stages
sys.exit(child.main(sys.argv[1:]))
"""
Faulty = Callable[[str], None]


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch, fresh: Path) -> Faulty:
    """Return a function that runs the real child with an additional Python statement at its start. The
    statement may change the child's stages (``found``)."""

    def use(change: str) -> None:
        code = CHILD.format(change=change, file=str(fresh / "seen"))
        monkeypatch.setattr(
            spawn, "command", lambda module, *arguments: [sys.executable, "-c", code, *arguments]
        )

    return use


def says(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Replace the child by this code. The line that reports the child's start is kept."""
    begun = "from vkq import spawn; say = spawn.begin(); import os, sys, time\n"
    monkeypatch.setattr(spawn, "command", lambda *_: [sys.executable, "-c", begun + code])


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the reports in this process's memory, as a new process would."""
    monkeypatch.setattr(verdict, "_reports", {})


def test_the_child_finds_what_this_process_finds(device: Device, fresh: Path) -> None:
    found = selftest.report_of(device.capabilities)
    assert found.isolated
    assert (found.failures, found.refusal) == ({}, None)
    assert set(found.rates) == {"s8s8", "u8s8", "u8u8", "float", "fma", "copy"}
    assert selftest.run(device).failures == {}


def test_a_report_is_kept_by_device_driver_and_version(
    any_device: Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = selftest.report(any_device)
    (file,) = (fresh / "probe").iterdir()
    assert any_device.capabilities.device_uuid in file.name
    assert vkq.__version__ in file.name
    forget(monkeypatch)
    monkeypatch.setattr(verdict, "_ask", lambda *_: pytest.fail("the kept report was not used"))
    assert selftest.report(any_device) == found


def test_a_driver_that_crashes_in_one_form_loses_that_form_alone(
    any_device: Device, fresh: Path, faulty: Faulty
) -> None:
    faulty("found['u8s8'] = crash")
    found = selftest.report(any_device)
    assert found.failures == {"u8s8": "the driver crashed (SIGSEGV)"}
    assert "u8u8" in found.rates
    assert select.choose_path(any_device).path != "dot_u8s8"
    with pytest.raises(vkq.PathError, match=r"path dot_u8s8 cannot run on .*the driver crashed \(SIGSEGV\)"):
        select.choose_path(any_device, "dot_u8s8")
    assert list((fresh / "probe").iterdir()), "a crash that was seen twice is a verdict"


def test_a_driver_that_hangs_in_the_rates_keeps_its_paths(
    any_device: Device, fresh: Path, faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty("found['rates'] = hang")
    monkeypatch.setattr(verdict, "TIMEOUT_S", 10.0)
    profile_says(monkeypatch, select, form=None)
    found = selftest.report(any_device)
    assert (found.failures, found.rates) == ({}, {})
    claims = any_device.capabilities.properties["integerDotProduct4x8BitPackedSignedAccelerated"]
    assert select.without_matrices(any_device).path == ("dot_s8s8" if claims else "portable")
    assert not (fresh / "probe").exists(), "a time-out is not kept"


@pytest.mark.parametrize(
    ("change", "failures", "kept"),
    [
        ("found['float'] = wrong", {"float": "1 of 2 wrong"}, True),
        ("found['float'] = right if seen() else wrong", {"float": "1 of 2 wrong"}, False),
        ("found['float'] = wrong if seen() else crash", {"float": "the driver crashed (SIGSEGV)"}, True),
        ("found['float'] = right if seen() else crash", {}, False),
        ("found['float'] = killed", {"float": "the driver crashed (SIGKILL)"}, False),
        ("found.pop('quantize')", {"quantize": "the probe gave no result for it"}, False),
        ("seen() or found.pop('quantize')", {}, True),
        ("found['extra'] = wrong", {"extra": "1 of 2 wrong"}, True),
    ],
)
def test_only_what_was_seen_twice_is_a_verdict(
    change: str, failures: dict[str, str], kept: bool, any_device: Device, fresh: Path, faulty: Faulty
) -> None:
    """A failure becomes a verdict only if it is seen twice. A wrong result is a verdict at once, even if
    the second run is correct."""
    faulty(change)
    assert selftest.report(any_device).failures == failures
    assert (fresh / "probe").exists() == kept


def test_a_time_out_is_tried_again_by_the_next_process(
    any_device: Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        says(patch, "time.sleep(60)")
        patch.setattr(verdict, "TIMEOUT_S", 2)
        assert selftest.report(any_device).failures == {"open": "the driver did not answer within 2 s"}
    forget(monkeypatch)
    assert selftest.report(any_device).failures == {}


def test_a_driver_that_crashes_at_once_is_refused_and_this_process_lives(
    any_device: Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, "import signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert selftest.report(any_device).failures == {"open": "the driver crashed (SIGSEGV)"}
    with pytest.raises(vkq.PathError, match=r"no int8 path can run on .*the driver crashed \(SIGSEGV\)"):
        select.choose_path(any_device)
    said = r"and can run vkq; there are: .*its probe failed \(open\): the driver crashed \(SIGSEGV\)"
    for which in (any_device.capabilities.index, any_device.name):
        with pytest.raises(vkq.NoDeviceError, match=said):
            Device(which)
    assert list((fresh / "probe").iterdir())


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("time.sleep(60)", "the driver did not answer within 2 s"),
        ("sys.exit('no such thing')", "the probe failed (exit code 1): no such thing"),
        ("os.kill(os.getpid(), 9)", "the driver crashed (SIGKILL)"),
        ("os._exit(9)", "the driver ended the process (exit code 9): no message"),
        ("print('nonsense'); print('[1]'); sys.exit(1)", "the probe failed (exit code 1): [1]"),
        ("sys.stderr.write('x' * (1 << 26)); sys.exit(1)", "the probe failed (exit code 1): xxx"),
    ],
)
def test_what_a_bad_child_does_becomes_the_reason(
    code: str, reason: str, any_device: Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, code)
    monkeypatch.setattr(verdict, "TIMEOUT_S", 2 if "sleep" in code else 20)
    found = selftest.report(any_device)
    assert found.failures["open"].startswith(reason)
    assert len(found.failures["open"]) < 600
    assert (fresh / "probe").exists() == ("ended the process" in reason)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("", "the probe gave no result for it"),
        (
            'print(\'{"end": "float", "result": null}\')',
            "the probe gave no result for it",
        ),  # printed on stdout, which is not the channel to the parent
        ("say(end='float', result=5)", "5"),
    ],
)
def test_a_child_that_says_too_little_has_failed(
    code: str, said: str, any_device: Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test counts as passed only if the child reports that it passed."""
    says(monkeypatch, code)
    found = selftest.report(any_device)
    assert set(found.failures) >= {"quantize", "requantize", "s8s8", "u8s8", "u8u8"}
    assert found.failures["float"] == said
    assert found.refusal
    assert not (fresh / "probe").exists()


def test_a_driver_that_prints_garbles_nothing(any_device: Device, faulty: Faulty) -> None:
    faulty("found['float'] = lambda: os.write(1, b'chatter without an end') and None")
    assert selftest.report(any_device).failures == {}


@pytest.mark.parametrize("argv", [None, ["/nonexistent/python"], [sys.executable, "-c", "import nowhere"]])
def test_where_no_child_can_be_started_the_probe_runs_here(
    argv: list[str] | None, any_device: Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn, "command", lambda *_: argv)
    found = selftest.report(any_device)
    assert not found.isolated
    assert found.failures == {}
    forget(monkeypatch)
    assert verdict.refusal(any_device.capabilities) is None


def test_a_child_that_finds_another_device_is_not_believed(
    any_device: Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, "say(device='another', stages=[])")
    found = selftest.report(any_device)
    assert (found.isolated, found.failures) == (False, {})


@pytest.mark.parametrize(
    "damage",
    [
        lambda report: [],
        lambda report: {},
        lambda report: {**report, "failures": None},
        lambda report: {**report, "failures": {"float": 3}},
        lambda report: {**report, "rates": {"float": "fast"}},
        lambda report: {**report, "rates": {"float": float("inf")}},
        lambda report: {**report, "soft_float": 0},
        lambda report: {**report, "more": 1},
    ],
)
def test_a_sealed_report_of_another_form_is_made_again(
    damage: Callable[[object], object], any_device: Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = verdict.Verdict({}, False, {"float": 1e9}, "gpu", True)
    place = verdict._place(any_device.capabilities)
    cache.write(place, json.dumps(damage(dataclasses.asdict(good))).encode())
    monkeypatch.setattr(verdict, "_ask", lambda _: (good, True))
    with pytest.warns(cache.CacheWarning, match="ignored and made again: ValueError: "):
        assert selftest.report(any_device) == good
    assert cache.read_json(place, verdict.Verdict.parse) == good


def test_what_makes_a_report_a_refusal() -> None:
    def refused(*failed: str) -> bool:
        return verdict.Verdict(dict.fromkeys(failed, "wrong"), False).refusal is not None

    assert [refused(one) for one in ("open", "requantize", "quantize")] == [True] * 3
    assert not refused("s8s8", "u8s8", "u8u8", "matrices")
    assert not refused("float", "s8s8")
    assert refused("float", "s8s8", "u8s8", "u8u8")


def test_the_default_is_the_best_that_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = choose_device(None)[1]
    others = [c for c in vkq.devices() if c.index != passed.index]
    if not others:
        pytest.skip("one device alone")
    monkeypatch.setattr(verdict, "refusal", lambda c: "it crashes" if c.index == passed.index else None)
    monkeypatch.delenv("VKQ_DEVICE", raising=False)
    assert choose_device(None)[1].index != passed.index
    with pytest.raises(vkq.NoDeviceError, match="it crashes"):
        choose_device(passed.index)
    assert choose_device(passed.index, probed=False)[1].index == passed.index, "vkq doctor asks it again"
    monkeypatch.setattr(verdict, "refusal", lambda c: "it crashes")
    with pytest.raises(vkq.NoDeviceError, match=r"no Vulkan device can run vkq: 0: .* \(it crashes\)"):
        choose_device(None)


def test_new_rates_count_only_where_another_arithmetic_is_clearly_faster() -> None:
    """Newly measured rates are kept only if they make another arithmetic clearly the fastest. Under load all
    rates fall and their order changes; this must not change the choice of kernels."""
    old = verdict.Verdict({}, False, {"s8s8": 100.0, "u8u8": 90.0, "float": 20.0, "copy": 5.0}, "gpu", True)
    loaded = dataclasses.replace(old, rates={"s8s8": 40.0, "u8u8": 48.0, "float": 19.0, "copy": 3.0})
    faster = dataclasses.replace(old, rates={"s8s8": 100.0, "u8u8": 126.0, "float": 20.0, "copy": 5.0})
    fewer = dataclasses.replace(old, rates={"s8s8": 100.0, "float": 20.0})
    assert verdict._steady(loaded, old) == old
    for new in (faster, fewer):
        assert verdict._steady(new, old) == new
    assert verdict._steady(loaded, None) == loaded
    failed = dataclasses.replace(loaded, failures={"u8u8": "wrong"})
    assert verdict._steady(failed, old).failures == {"u8u8": "wrong"}
