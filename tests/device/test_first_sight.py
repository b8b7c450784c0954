"""Tests of the first measurement of a device (`first_sight`): candidates that are slow, wrong or crash are
never chosen, and the chosen candidates are stored."""

import dataclasses
import json
import sys
from typing import Any

import pytest

import vkq
from vkq import spawn
from vkq.check import measuring, tuning
from vkq.device import first_sight, tuner, verdict, vulkan
from vkq.device.profiles import families, profile
from vkq.device.tuner import Measured, Store
from vkq.probe import selftest

from .reported import NAMES, reported

# The code of a child process that reports the outcomes in its first argument. The outcome "late" imitates a
# candidate that takes too long, "crash" a driver that crashes.
CHILD = """
import json, os, sys
outcomes = json.loads(sys.argv[1])
skipped = [json.loads(a[7:]) for a in sys.argv[2:] if a.startswith("--skip=")]
def say(**what): print(json.dumps(what), flush=True)
say(started=True)
say(device=sys.argv[2])
spent = 0.0
for family, name, what in outcomes:
    if [family, name] in skipped: continue
    say(begin=[family, name], spent=spent)
    spent += 0.1
    if what == "late": os._exit(90)
    if what == "crash": os.abort()
    say(end=name, spent=spent, **({"us": what} if isinstance(what, float) else {"wrong": what}))
"""
PRODUCT = families()[0].name
LARGE, SMALL = list(families()[0].candidates)[:2]
WIDE, PLAIN = "4x8 in registers", "4x4 in registers"
TILES = reported("adreno-740")  # a device that nobody timed; its profile chooses 4x8 in registers


def faked(monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, Any]) -> list[list[str]]:
    """Make all children run CHILD with *outcomes* (candidate of the matrix product -> outcome). Return a list
    that receives the options of each child that is started."""
    vulkan.instance()  # tries each driver in a real child, so it must come before children are faked
    started: list[list[str]] = []

    def command(module: str, *options: str) -> list[str]:
        assert module == first_sight.CHILD
        started.append(list(options))
        told = json.dumps([[PRODUCT, name, what] for name, what in outcomes.items()])
        return [sys.executable, "-c", CHILD, told, TILES.key, *options[2:]]

    monkeypatch.setattr(spawn, "command", command)
    return started


def measure(kept: dict[str, Measured] | None = None) -> dict[str, Measured] | None:
    return first_sight.measure(TILES, {"any": "report"}, kept)


def test_the_fastest_that_is_right_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest correct candidate is chosen. A candidate that compiles too long or crashes ends the child,
    and a new child continues with the other candidates."""
    started = faked(monkeypatch, {WIDE: 50.0, LARGE: "late", SMALL: "crash", PLAIN: 20.0})
    found = measure()
    assert found is not None
    taken = found[PRODUCT]
    assert taken.taken == PLAIN
    assert taken.outcomes[LARGE] == "not compiled and run once in 0.5 s"
    assert "SIGABRT" in str(taken.outcomes[SMALL])
    assert [len([o for o in options if o.startswith("--skip")]) for options in started] == [0, 2, 3]
    seconds = [float(next(o for o in options if "seconds" in o).split("=")[1]) for options in started]
    assert seconds[0] == first_sight.TOTAL_S
    assert seconds[1] == pytest.approx(first_sight.TOTAL_S - 0.1 - first_sight.COMPILE_S)
    says = dict(tuner.choices(found))
    assert says == {"staged": None, "tile": "4x4", "texels": False}
    chosen = profile(dataclasses.replace(TILES, choices=tuple(says.items())))
    assert (chosen.tile, chosen.measured, "measured here" in chosen.reason) == ("4x4", True, True)
    assert (profile(TILES).tile, profile(TILES).measured) == ("4x8", False)


def test_wrong_ones_are_out_and_small_gains_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate with a wrong result is not chosen. A candidate that is less than 10 % faster does not
    replace the one in use."""
    faked(monkeypatch, {WIDE: 50.0, LARGE: "3 of 9 differ", PLAIN: 46.0})
    found = measure()
    assert found is not None
    assert found[PRODUCT].taken == WIDE  # 46 is less than a tenth faster than the profile's choice
    assert found[PRODUCT].outcomes[LARGE] == "wrong: 3 of 9 differ"
    assert str(found[PRODUCT]) == f"{WIDE}, 50.0 us ({LARGE} wrong: 3 of 9 differ; {PLAIN} 46.0 us)"


def test_a_kept_choice_yields_to_a_clearly_faster_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice from an earlier measurement stays, unless another candidate is 10 % faster or the choice gives
    a wrong result now."""
    kept = {PRODUCT: Measured(PLAIN, {PLAIN: 20.0})}
    for now, taken in ((46.0, PLAIN), (30.0, WIDE), ("3 of 9 differ", WIDE)):
        faked(monkeypatch, {WIDE: 28.0 if now == 30.0 else 44.0, PLAIN: now if now != 30.0 else 40.0})
        found = measure(kept)
        assert found is not None
        assert found[PRODUCT].taken == taken, now


def test_without_the_present_choice_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is stored if the candidate in use has no time: the time limit ended before its measurement, or
    all candidates failed."""
    faked(monkeypatch, {LARGE: 10.0})
    assert measure() == {}
    faked(monkeypatch, {WIDE: "late", PLAIN: "crash", SMALL: "late", LARGE: "crash"})
    assert measure() == {}


def test_no_child_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no measurement if no child can be started, if the child fails, or if it finds another
    device."""
    monkeypatch.setattr(spawn, "command", lambda *_: None)
    assert measure() is None
    monkeypatch.setattr(spawn, "command", lambda *_: [sys.executable, "-c", "import sys; sys.exit(1)"])
    assert measure() is None
    other = "import json; print(json.dumps({'started': 1})); print(json.dumps({'device': 'another'}))"
    monkeypatch.setattr(spawn, "command", lambda *_: [sys.executable, "-c", other])
    assert measure() is None


def test_each_driver_is_measured_in_a_child(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a real child, each family begins with the candidate that is in use, and every candidate that runs
    is correct."""
    seen: dict[tuple[str, str], tuner.Outcome] = {}
    told = first_sight._told

    def noted(said: Any, outcomes: dict[tuple[str, str], tuner.Outcome]) -> Any:
        result = told(said, outcomes)
        seen.update(outcomes)
        return result

    monkeypatch.setattr(first_sight, "_told", noted)
    monkeypatch.setattr(first_sight, "TOTAL_S", 0.4)
    c = device.capabilities
    found = first_sight.measure(c, dataclasses.asdict(selftest.report(device)), None)
    assert found is not None
    now = {(family.name, tuner.current(family, c)) for family in families()}
    assert not [outcome for outcome in seen.values() if isinstance(outcome, str)], seen
    assert {*list(seen)[: len(now)]} <= now
    assert {*found} <= {family for family, _ in seen}


def test_who_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, devices are measured unless their rule in profiles.yaml says that they were timed, or
    ``tuned`` has a file for them. With VKQ_TUNE set to "off", none is measured; with "always", all are."""
    devices = {name: reported(name) for name in NAMES}
    monkeypatch.delenv("VKQ_TUNE", raising=False)
    timed = {name for name, c in devices.items() if not tuner.wanted(c)}
    assert timed == {"lavapipe", "swiftshader", "nvidia-h200"}
    monkeypatch.setenv("VKQ_TUNE", "off")
    assert not any(tuner.wanted(c) for c in devices.values())
    assert tuner.choices({PRODUCT: Measured(PLAIN, {PLAIN: 1.0})}) == ()
    monkeypatch.setenv("VKQ_TUNE", "always")
    assert all(tuner.wanted(c) for c in devices.values())
    monkeypatch.setenv("VKQ_TUNE", "never")
    with pytest.raises(
        vkq.ArgumentError, match=r"VKQ_TUNE is .never.; it must be one of auto, always, fresh"
    ):
        tuner.mode()


def test_each_problem_shows_its_candidates() -> None:
    """The candidates of a family differ, and each device in NAMES has one of them as its profile's choice."""
    for family in families():
        assert len({tuple(sorted(says.items(), key=str)) for says in family.candidates.values()}) > 2
        for name in NAMES:
            says = family.candidates[tuner.current(family, reported(name))]
            known = {field: getattr(profile(reported(name)), field) for field in says}
            assert says == known, (family.name, name)


def test_the_store_keeps_it(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first report of a device measures its kernels and stores the choices; later reports do not
    measure. `ask_again` measures again, and starts from the stored choices. Choices of `vkq tune` stay.
    VKQ_TUNE=off ignores the measured choices."""
    c = any_device.capabilities
    known = selftest.report(any_device)
    asked: list[object] = []
    found = {PRODUCT: Measured(PLAIN, {PLAIN: 2.5})}

    def fake(c: object, report: Any, kept: object) -> dict[str, Measured]:
        assert verdict.Verdict.parse(report) == known
        asked.append(kept)
        return found

    written: dict[str, bytes] = {}
    monkeypatch.setattr(first_sight, "measure", fake)
    monkeypatch.setattr(first_sight, "_looked", set())  # forget the measurements of earlier tests
    monkeypatch.setattr(tuner.cache, "read_json", lambda *_: None)
    monkeypatch.setattr(tuner.cache, "write", lambda path, data: written.update({path.parent.name: data}))
    monkeypatch.setattr(verdict, "_reports", {c.key: known})
    monkeypatch.setattr(tuner, "_stores", {c.key: Store(problems={"p q8csw": {PRODUCT: PLAIN}})})
    monkeypatch.setenv("VKQ_TUNE", "always")
    assert verdict.report_of(c) == known
    first = tuner.stored(c)
    assert (first.families, list(first.problems), asked) == (found, ["p q8csw"], [None])
    assert Store.parse(json.loads(written["tune"])) == first
    verdict.report_of(c)
    assert (tuner.stored(c), asked) == (first, [None])
    assert dict(verdict.with_choices(c).choices) == {"staged": None, "tile": "4x4", "texels": False}
    monkeypatch.setattr(verdict, "_ask", lambda c: (known, True))
    verdict.ask_again(c, lambda: known)
    assert asked == [None, found]
    monkeypatch.setenv("VKQ_TUNE", "off")
    plain = verdict.with_choices(c)
    assert plain.choices == ()
    assert verdict.with_choices(plain) is plain
    for bad in ({"taken": "a", "outcomes": {}}, {"taken": "a", "outcomes": {"a": -1.0}}, [], {"taken": "a"}):
        with pytest.raises(ValueError, match="not a measurement"):
            Measured.parse(bad)


def test_every_candidate_is_right(software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each candidate's result is correct when the code of the child runs it without a time limit. The 64x64
    tiles are left out, because they take seconds."""
    large = {(f.name, name) for f in families() for name in f.candidates if "64x64" in name}
    monkeypatch.setattr(measuring, "COMPILE_S", 600.0)
    monkeypatch.setattr(measuring, "SAMPLE_S", 0.0)
    said: list[dict[str, Any]] = []
    device = software_device  # SwiftShader would take minutes; other tests run these kernels on it
    before = device.capabilities
    measuring.run(device, lambda **what: said.append(what), 600.0, set(large))
    assert device.capabilities is before
    began = [tuple(each["begin"]) for each in said if "begin" in each]
    assert set(began) == {(f.name, name) for f in families() for name in f.candidates} - large
    assert began[0] == (PRODUCT, tuner.current(families()[0], before))
    assert all(each["us"] > 0 for each in said if "end" in each)


@pytest.mark.parametrize(("seconds", "least"), [(0.0, 0), (600.0, 20)])
def test_the_child_ends_a_slow_one_and_tells_a_wrong_one(
    seconds: float, least: int, software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child ends when a candidate is slow, reports a candidate that is wrong, and begins no candidate
    after its time limit."""
    ended: list[int] = []
    monkeypatch.setattr(measuring.os, "_exit", ended.append)
    monkeypatch.setattr(measuring, "COMPILE_S", 0.0)
    compare = tuning.compare
    monkeypatch.setattr(tuning, "compare", lambda check, path, got, want: compare(check, path, got ^ 1, want))
    said: list[dict[str, Any]] = []
    measuring.run(software_device, lambda **what: said.append(what), seconds, set())
    ends = [each for each in said if "end" in each]
    assert len(ends) == least
    assert all("differ" in each["wrong"] and "us" not in each for each in ends)
    assert set(ended) == ({first_sight.LATE} if least else set())


def test_a_device_can_leave_it_out(monkeypatch: pytest.MonkeyPatch, software_device: vkq.Device) -> None:
    """A device opened with tune="off" ignores the choices that were measured."""
    c = software_device.capabilities
    monkeypatch.setattr(verdict, "_reports", {c.key: selftest.report(software_device)})
    found = {PRODUCT: Measured(PLAIN, {PLAIN: 2.5})}
    monkeypatch.setattr(tuner, "_stores", {c.key: Store(found)})
    with vkq.Device(c.index) as device, vkq.Device(c.index, tune="off") as other:
        assert (profile(device.capabilities).tile, profile(other.capabilities).tile) == ("4x4", "8x8")
    with pytest.raises(vkq.ArgumentError, match="tune is 'fast'; it must be 'auto' or 'off'"):
        vkq.Device(c.index, tune="fast")
