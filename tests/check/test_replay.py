"""Tests of `vkq doctor`'s replays: they find each published driver fault on a driver that has it, and nothing
on a driver without a fault."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from tests.conftest import share
from vkq.check import replay, workgroups, works
from vkq.check.expected import Expected
from vkq.check.symptom import symptom, when
from vkq.cli import main
from vkq.device.profiles import preferred
from vkq.runtime.device import Device
from vkq.select.path import COOPMAT, FORMS

from . import all as every
from . import faulty

SMALL, LARGE = 81, 30  # numbers of small and large workloads on a device that supports every path
# fault -> regular expression of the symptom that the doctor reports for the first wrong operator, or for the
# first wrong chain of operators if no single operator is wrong
SAYS = {
    "one workgroup in 1 of 20 runs": r"differ, rows .*in [1-4] of 20 runs \(",
    "a band of channels": r"differ, rows 0 to 32, channels 8 to 11;.*in every run",
    "stale texels from the second run on": r"in \d+ of 20 runs",
    "no write-after-read barrier": r"in every run",
    "zeros": r"^zeros: ",
    "the result of the run before": r"^the result of the run before: .*in every run but the first",
    "a wrong lane index": r"^right numbers in wrong lanes: ",
    "a shuffle off by one": r"^lanes are off by 1 ",
    "partial writes": r"^not written: .*, rows ",
    "wrong in the first run alone": r"in the first run alone$",
}


@pytest.fixture
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay few operators, and a large problem with few workgroups, because a faulty driver submits each
    step separately. On SwiftShader, which compiles slowly, replay one operator and the chains."""
    kept = [works.REPLAYED[i] for i in (0, 2, 5, 6)]
    if "device" in request.fixturenames:
        kept = share(kept, request.getfixturevalue("device"), 4)
    monkeypatch.setattr(works, "REPLAYED", kept)
    monkeypatch.setattr(replay, "POWER_S", 0.05)
    monkeypatch.setattr(works, "LARGE", ("linear[M=150,K=38,N=84]/seed=31",))


def found(device: Device, monkeypatch: pytest.MonkeyPatch, fault: str) -> tuple[list[replay.Replay], int]:
    kind = faulty.FAULTS.get(fault, faulty.Driver)
    with faulty.driver(monkeypatch, kind) as driver:
        replayed = list(replay.replays(device, ["portable"], 20, 1000.0))
    return [one for one in replayed if one.wrong], driver.changed


@pytest.mark.parametrize("fault", faulty.FAULTS)
def test_each_published_fault_is_found(
    device: Device, monkeypatch: pytest.MonkeyPatch, small: None, fault: str
) -> None:
    wrong, changed = found(device, monkeypatch, fault)
    assert changed, "the fault never showed"
    assert wrong, f"the doctor did not find {fault}, which showed {changed} times"
    alone = [one for one in wrong if one.case == one.operator]  # no chains: a wrong result spreads in a chain
    said = (alone or wrong)[0].said
    assert re.search(SAYS[fault], said), said
    assert wrong[0].operator in wrong[0].case or wrong[0].operator in (*works.NETWORK, *works.SHARING)


def test_a_driver_without_a_fault_raises_no_alarm(
    device: Device, monkeypatch: pytest.MonkeyPatch, small: None
) -> None:
    assert found(device, monkeypatch, "none") == ([], 0)


def test_doctor_exits_1_on_a_driver_with_a_fault(
    any_device: Device, monkeypatch: pytest.MonkeyPatch, small: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """`vkq doctor` exits with code 1 on a driver with a fault."""
    with faulty.driver(monkeypatch, faulty.Before) as driver:
        assert main(["doctor", "--device", any_device.name, "--times", "4", "--seconds", "0"]) == 1
    assert driver.changed
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"portable, cold: linear\[.* the result of the run before: .*in every run but", said)
    assert "NOT HEALTHY" in said


def test_the_table_of_faults_tells_right_from_wrong(any_device: Device, small: None) -> None:
    """In the table, the doctor is right if it finds a fault that changed a result, or raises no alarm without
    a fault. It is wrong if it misses a fault, or raises an alarm without one."""
    found = every.examined("lavapipe", "zeros", 1, 0.0)
    assert found.right
    assert found.cells()[:2] == ("zeros", "lavapipe")
    assert found.cells()[-1].startswith("linear[M=33,K=75,N=37]/seed=1: zeros: ")
    quiet = every.examined("lavapipe", "none", 1, 0.0)
    assert (quiet.right, quiet.cells()[-1]) == (True, "no alarm")
    assert not dataclasses.replace(quiet, fault="zeros").right
    assert not dataclasses.replace(quiet, fault="zeros", shown=9).right
    assert not dataclasses.replace(quiet, found_s=1.0).right


def test_large_works_run_cold_loaded_and_idle(
    any_device: Device, monkeypatch: pytest.MonkeyPatch, small: None
) -> None:
    monkeypatch.setattr(works, "REPLAYED", ())
    replayed = list(replay.replays(any_device, ["portable"], 7, 100.0, texels=False))
    large = [one for one in replayed if one.case.startswith("linear[M=150,")]
    assert [(one.path, one.state, one.times) for one in large] == [
        *((path, "cold", 7) for path in ("auto", "portable")),
        *((path, state, 6) for state in ("loaded", "idle") for path in ("auto", "portable")),
    ]
    assert [one.case for one in replay.replays(any_device, ["portable"], 1, 0.0) if "M=150" in one.case] == []


def test_how_many_works_there_are(any_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of workloads equal the numbers that `test_a_slow_device_ends_in_time` assumes."""
    paths, made = [*FORMS, COOPMAT], works._single

    def single(device: Device, name: str, paths: list[str]) -> Iterator[works.Work]:
        return made(device, name, ["portable" if path == COOPMAT else path for path in paths])

    monkeypatch.setattr(works, "_single", single)
    for name in ("_network", "_sharing"):
        monkeypatch.setattr(works, name, lambda *_, **__: works.Work("", "", (), (), (), lambda x: []))
    monkeypatch.setattr(works, "LARGE", works.REPLAYED[: len(works.LARGE)])
    found = [work.large for work in works.works(any_device, paths)]
    assert (found.count(False), found.count(True)) == (SMALL, LARGE)


@pytest.mark.parametrize(("run_s", "every"), [(0.001, 200), (0.01, 8), (0.03, replay.LEAST)])
def test_a_slow_device_ends_in_time(monkeypatch: pytest.MonkeyPatch, run_s: float, every: int) -> None:
    """The replays end within the time on a slow device.

    The clock is simulated. A run of a small workload takes 1 ms (a GPU), 10 ms or 30 ms (phones); a run of
    a large workload takes five times as long. The host needs 20 ms for the expected results of a workload.
    All small workloads run, and as many large ones as the time allows, at least two. Large workloads also
    run after load and after rest.
    """
    now = [100.0]

    class Slow:
        def __init__(self, device: Device, work: works.Work):
            self.work = work
            self.recording = self

        def run(self, times: int = 1, seconds: float = 0.0, state: str = "cold") -> replay.Replay:
            end, ran = now[0] + seconds, 0
            while ran < times and (times == 1 or ran < replay.LEAST or now[0] < end):
                now[0] += run_s * (5 if self.work.large else 1)
                ran += 1
            return replay.Replay(self.work.name, self.work.path, ran, 0, state=state)

    def some(*_: object) -> Iterator[works.Work]:
        for number in range(SMALL + LARGE):
            now[0] += 0.02
            large = number >= SMALL
            yield works.Work(f"work {number}", "auto", (), (), (), lambda x: [], large)

    monkeypatch.setattr(replay, "Replayer", Slow)
    monkeypatch.setattr(replay, "works", some)
    monkeypatch.setattr(
        replay, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: advance(now, s))
    )
    done = list(replay.replays(None, ["auto"]))  # type: ignore[arg-type]
    cold = [one for one in done if one.state == "cold"]
    small = [one.times for one in cold[:SMALL]]
    assert len(cold) >= SMALL + replay.POWERED
    assert min(small) >= replay.LEAST
    assert sorted(small)[40] >= every
    assert [one.state for one in done if one.state != "cold"] == ["loaded"] * 2 + ["idle"] * 2
    assert now[0] - 100.0 <= replay.SECONDS


def advance(now: list[float], seconds: float) -> None:
    now[0] += seconds


@pytest.mark.parametrize(
    ("got", "says"),
    [
        ([[0, 0, 0], [0, 0, 0]], "zeros: 6 of 6 elements"),
        ([[1, 2, 3], [9, 9, 9]], "not written: 3 of 6 elements, rows 1, channels 0 to 2"),
        ([[7, 7, 7], [4, 5, 6]], "the result of the run before: 3 of 6 elements, rows 0, channels 0 to 2"),
        ([[3, 1, 2], [6, 4, 5]], "lanes are off by 1 along axis 1: 6 of 6 elements, rows 0 to 1, channels "),
        ([[2, 1, 3], [4, 5, 6]], "right numbers in wrong lanes: 2 of 6 elements, rows 0, channels 0 to 1"),
        ([[1, 2, 3], [4, 5, 8]], "1 of 6 elements differ, rows 1, channels 2; first at (1, 2): got 8, "),
    ],
)  # fmt: skip
def test_symptoms(got: list[list[int]], says: str) -> None:
    arrays = [
        np.array(a, np.int8) for a in (got, [[1, 2, 3], [4, 5, 6]], np.full((2, 3), 7), np.full((2, 3), 9))
    ]
    assert symptom(arrays[0], Expected(arrays[1]), arrays[2], arrays[3]).startswith(says)


@pytest.mark.parametrize("says", [{}, {"staged": "32x32", "staged_conv": "32x32"}], ids=["", "staged"])
@pytest.mark.parametrize(
    "name",
    [
        "linear[M=150,K=38,N=84]/seed=31",
        "linear[M=2,K=130,N=300]/seed=3",
        "linear[M=33,K=75,N=37]/seed=12,scheme=q8csw",
        "conv2d[N=2,IC=8,H=8,W=8,OC=37,KH=1,KW=1]/seed=5",
    ],
)
def test_the_workgroup_that_is_wrong_is_named(
    any_device: Device, monkeypatch: pytest.MonkeyPatch, name: str, says: dict[str, str]
) -> None:
    """The last workgroup of the last dispatch writes nothing. The report names this workgroup and no
    other."""
    with faulty.driver(monkeypatch, faulty.Partial), preferred(says):
        (work,) = works._single(any_device, name, ("auto",))
        replayer = replay.Replayer(any_device, work)
        said = replayer.run(1, 0.0).said
    total = sum(x * y for _, x, y in replayer.recording.steps[-1].steps[-1].grids)
    assert total > 1
    assert re.search(rf"^not written: .*; workgroup {total - 1} of {total}, from 0 \(\d+x\d+ results", said)


def test_workgroups_of_other_tiles_are_not_named(any_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """No workgroup is named for an image with padded rows, nor for shaders whose tiles `workgroups.TILES`
    does not list."""
    for name in ("conv2d[N=2,IC=8,H=7,W=7,OC=37,KH=1,KW=1]/seed=5", works.REPLAYED[8]):
        with faulty.driver(monkeypatch, faulty.Zeros):
            (work,) = works._single(any_device, name, ("auto",))
            said = replay.Replayer(any_device, work).run(1, 0.0).said
        assert said.startswith("zeros: ")
        assert "workgroup" not in said


def test_all_workgroups_and_the_first_of_many(any_device: Device) -> None:
    (work,) = works._single(any_device, "linear[M=700,K=16,N=32]/seed=31", ("portable",))
    replayer = replay.Replayer(any_device, work)
    y, wrong = replayer.results[0].buffer, np.ones((700, 32), np.bool_)
    assert re.search(r"workgroups all \d+ \(", workgroups.named(replayer.recording, y, wrong))
    wrong[0] = False
    wrong[64:128] = False
    assert re.search(
        r"workgroups 0, (\d+, ){4}\.\.\. of \d+, from 0", workgroups.named(replayer.recording, y, wrong)
    )


def test_scratch_and_results_are_overwritten_before_each_run(any_device: Device) -> None:
    """Before each run, all scratch memory and all results are overwritten; the bytes differ from run to
    run."""
    work = works._sharing(any_device, "portable")
    replayer = replay.Replayer(any_device, work)
    scratch = {one.scratch for one in replayer.recording.steps if one.scratch is not None}
    assert scratch
    held: list[set[int]] = []

    def noted() -> None:
        buffers = [*scratch, *(y.buffer for y in replayer.results)]
        held.append({int(byte) for one in buffers for byte in any_device.download(one, one.bytes)})
        recorded.run()

    recorded = replayer.recording
    replayer.recording = SimpleNamespace(run=noted, steps=recorded.steps)  # type: ignore[assignment]
    assert replayer.run(2, 0.0).wrong == 0
    assert held == [{replay.GARBAGE[0]}, {replay.GARBAGE[1]}]


def test_the_run_before_is_known_by_float16_results() -> None:
    """A float16 result of the previous run is recognized, although the reference is float32 and has a
    bound."""
    want = Expected(np.ones((2, 3), np.float32), np.full((2, 3), 0.01), "float16")
    before = np.full((2, 3), 2.0, np.float32)
    got = before.astype(np.float16)
    said = symptom(got, want, before, np.full((2, 3), np.inf, np.float16))
    assert said.startswith("the result of the run before: 6 of 6 elements")
    got[0, 0] = np.inf
    assert symptom(got, want, before, np.zeros((2, 3), np.float16)).startswith("6 of 6 elements differ")


def test_a_lane_of_each_word_is_named() -> None:
    want = np.arange(64, dtype=np.int8).reshape(1, 16, 2, 2)
    got = want.copy()
    got[:, 2::4] += 1
    assert "rows 0 to 3, channels 2 to 14 (lane 2 of 4);" in symptom(got, Expected(want), None, got * 0)


def test_runs_in_words() -> None:
    assert [when(wrong, 4) for wrong in ([1, 2, 3, 4], [1], [2, 3, 4], [2, 4])] == [
        "in every run", "in the first run alone", "in every run but the first", "in 2 of 4 runs (2, 4)"
    ]  # fmt: skip
