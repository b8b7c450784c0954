"""Tests of vkq's child processes: their imports, the reported reason of their end, and that no child outlives
its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vkq import spawn

EVIL = "raise SystemExit(open({marker!r}, 'a').write(__name__ + ' '))"
NAMES = ("platformdirs", "numpy", "yaml", "json", "signal", "sitecustomize", "usercustomize", "vkq")
# A process whose sys.path contains the working directory under three names, as for a script or for `python
# -m`. It imports its own modules before it changes to this directory.
PARENT = """
import os, sys
import numpy, platformdirs, yaml
from vkq import spawn
from vkq.device import trial
from vkq.probe import child
os.chdir(sys.argv[1])
sys.path[:0] = ["", ".", os.getcwd(), os.getcwd() + "/."]
os.environ["PYTHONPATH"] = os.getcwd()
for module, arguments in (("vkq.device.trial", ()), ("vkq.probe.child", ("0",))):
    ended = spawn.run(spawn.command(module, *arguments), 60)
    print(ended.kind, ended.reason, bool(ended.said))
"""


def test_nothing_is_imported_from_the_working_directory(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    here = tmp_path / "here"
    here.mkdir()
    for name in NAMES:
        (here / f"{name}.py").write_text(EVIL.format(marker=str(marker)))
    done = subprocess.run(
        [sys.executable, "-c", PARENT, str(here)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr) == ("done  True\n" * 2, "")
    assert not marker.exists(), marker.read_text()


def test_vkq_itself_is_found_where_this_process_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child finds vkq where this process found it, even in the working directory (a checkout that is not
    installed). The working directory is then the last entry of the child's path."""
    root = str(Path(spawn.__file__).parents[1])
    monkeypatch.chdir(root)
    assert spawn._path()[-1] == root
    assert root not in spawn._path()[:-1]


def test_a_child_starts_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spawn.command("vkq.probe.child", "0") is not None
    monkeypatch.setenv(spawn.CHILD, "1")
    assert spawn.in_child()
    assert spawn.command("vkq.probe.child", "0") is None


def test_an_application_that_embeds_python_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/blender/blender")
    assert spawn.command("vkq.probe.child") is None


def python(code: str) -> list[str]:
    return [sys.executable, "-c", "import os, sys, time\nfrom vkq import spawn\n" + code]


@pytest.mark.parametrize(
    ("code", "kind", "reason", "said"),
    [
        ("say = spawn.begin(); say(a=1)", "done", "", [{"a": 1}]),
        ("say = spawn.begin(); print('noise'); os.write(1, b'[1]'); say(a=1)", "done", "", [{"a": 1}]),
        ("spawn.begin(); os.kill(os.getpid(), 6)", "crashed", "the driver crashed (SIGABRT)", []),
        ("spawn.begin(); os.kill(os.getpid(), 15)", "ended", "the driver crashed (SIGTERM)", []),
        (
            "spawn.begin(); os._exit(77)",
            "crashed",
            "the driver ended the process (exit code 77): no message",
            [],
        ),
        ("spawn.begin(); sys.exit('why')", "failed", "the probe failed (exit code 1): why", []),
        ("spawn.begin()(a=1); time.sleep(60)", "late", "the driver did not answer within 8 s", [{"a": 1}]),
        ("spawn.begin(); os.dup2(os.dup(2), 1); os.write(1, b'x' * (1 << 27))", "done", "", []),
    ],
)
def test_how_a_child_ended(code: str, kind: str, reason: str, said: list[object]) -> None:
    ended = spawn.run(python(code), 8 if kind == "late" else 30)
    assert ended is not None
    assert (ended.kind, ended.reason, ended.started, ended.said) == (kind, reason, True, said)


def test_a_child_that_never_began_says_nothing_of_a_driver() -> None:
    ended = spawn.run([sys.executable, "-c", "import nowhere"], 30)
    assert ended is not None
    assert not ended.started
    assert spawn.run(["/nonexistent/python"], 30) is None


def test_a_line_cut_short_counts_as_not_said() -> None:
    assert spawn._objects('{"a": 1}\nnoise\n[1]\n' + "[" * 100_000 + '\n{"end": "u8s') == [{"a": 1}]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_what_a_late_child_started_ends_too(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = f"""
spawn.begin()
import subprocess
grandchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
open({str(note)!r}, 'w').write(str(grandchild.pid))
time.sleep(600)
"""
    ended = spawn.run(python(code), 8)
    assert ended is not None
    assert ended.kind == "late"
    end = time.monotonic() + 5
    while alive(int(note.read_text())) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(int(note.read_text()))


def test_ctrl_c_in_the_parent_ends_the_child(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    child = (
        "from vkq import spawn; spawn.begin(); import os, time;"
        f"open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    code = f"spawn.run([sys.executable, '-c', {child!r}], 600)"
    # A shell's background job ignores SIGINT.
    usual = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    parent = subprocess.Popen(python(usual + code), stderr=subprocess.DEVNULL)
    end = time.monotonic() + 30
    while not (note.exists() and note.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    parent.send_signal(signal.SIGINT)
    assert parent.wait(30) == -signal.SIGINT
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_a_child_ends_itself_where_its_parent_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(spawn.CHILD, "1")
    done = subprocess.run(  # the child must end long before its sleep of 600 s does
        python("spawn.begin(); time.sleep(600)"), stdout=subprocess.PIPE, timeout=300, check=False
    )
    assert done.returncode == -signal.SIGALRM
