"""Tests of the comparison of two runs: regressions, noise, other devices, and exit codes."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest

import vkq
from vkq import cli
from vkq.bench.compare import compare
from vkq.bench.result import Failure, Result, Row, read
from vkq.errors import ArgumentError

DEVICE = {
    "name": "a GPU",
    "uuid": "00ff",
    "driver": "1.0",
    "software": False,
    "type": "discrete",
    "vulkan": "1.3.0",
}


def row(case: str, median: float, spread: float = 0.01, clock: str = "gpu", path: str = "portable") -> Row:
    samples = (median * np.random.default_rng(len(case)).normal(1, spread, 30)).tolist()
    return Row(
        case, "q8ta_q8csw_q8to", "channel", None, path, "vkq", "shader", clock, "bit for bit",
        float(np.median(samples)), 0.9 * median, 1.1 * median, samples, 1, 10, 1, 1000, 100, None, None, None,
        None, [], "vkq bench ...",
    )  # fmt: skip


def run(*rows: Row, **device: str) -> Result:
    return Result({**DEVICE, **device}, {}, "0.1", "vkq bench", "now", {}, {}, list(rows))


OLD = run(row("a", 100), row("b", 100), row("c", 100), row("noisy", 100, 0.5), row("a", 100, clock="call"))
NEW = run(row("a", 103), row("b", 120), row("c", 80), row("noisy", 115, 0.5), row("a", 200, clock="call"))


def test_slower_beyond_the_limit_and_the_noise() -> None:
    # Samples that differ only by a factor would be resampled identically, so the noisy case has noise of its
    # own.
    rng = np.random.default_rng(5)
    noisy = NEW.rows[3]
    noisy.samples_us = (np.array(noisy.samples_us) * rng.lognormal(0, 0.5, 30)).tolist()
    found = {c.new.key[0] + " " + c.new.clock: c for c in compare(OLD, NEW).changes}
    assert {name: (c.regressed(0.05), c.improved(0.05)) for name, c in found.items()} == {
        "a gpu": (False, False),
        "b gpu": (True, False),
        "c gpu": (False, True),
        "noisy gpu": (False, False),
        "a call": (True, False),
    }
    assert found["b gpu"].ratio.value == pytest.approx(1.2)
    assert not found["b gpu"].regressed(0.25)
    assert len(compare(OLD, NEW, ["call"]).changes) == 1


def test_inputs_that_take_turns_in_one_run_alone() -> None:
    turns = [dataclasses.replace(one, sets=9 if one.case == "b" else one.sets) for one in NEW.rows]
    with pytest.raises(ArgumentError, match=r"in 1 of 5 measurements .* without --no-ceilings"):
        compare(OLD, dataclasses.replace(NEW, rows=turns))
    more = [dataclasses.replace(one, sets=2 * one.sets) for one in turns if one.case == "b"]
    both = compare(dataclasses.replace(NEW, rows=more), dataclasses.replace(NEW, rows=turns))
    assert [change.new.case for change in both.changes] == ["b"]


def test_two_devices_are_refused_unless_told() -> None:
    other = run(row("a", 100), uuid="1234")
    with pytest.raises(vkq.ArgumentError, match=r"the new one of a GPU \(1234\).*--any-device"):
        compare(OLD, other)
    assert len(compare(OLD, other, any_device=True).changes) == 1
    # Another driver of the same device is no error.
    assert len(compare(OLD, run(row("a", 100), driver="2.0")).changes) == 1


def test_what_only_one_run_has_is_listed() -> None:
    found = compare(OLD, run(row("a", 100), row("new", 1)))
    assert {r.case for r in found.only_old} == {"a", "b", "c", "noisy"}
    assert [r.case for r in found.only_new] == ["new"]
    with pytest.raises(vkq.ArgumentError, match="no case in common"):
        compare(OLD, run(row("new", 1)))


def write(folder: Path, **runs: Result) -> list[str]:
    for name, one in runs.items():
        (folder / f"{name}.json").write_text(one.to_json())
    return [str(folder / f"{name}.json") for name in runs]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write(tmp_path, old=run(row("a", 100), row("b", 100)), new=run(row("a", 101), row("b", 120)))
    assert cli.main(["compare", *files]) == 1
    out = capsys.readouterr().out
    assert "SLOWER  1.200    100.0 ->    120.0  b portable gpu" in out
    assert out.endswith("1 slower by more than 5 %, 0 faster, 1 the same\n")
    assert cli.main(["compare", *files, "--fail-above", "25%", "--all"]) == 0
    assert "  same  1.010" in capsys.readouterr().out
    assert cli.main(["compare", *files[::-1], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["regressions"] == 0
    assert [c["regression"] for c in found["changes"]] == [False, False]
    assert cli.main(["compare", *files, "--fail-above", "much"]) == 2
    assert "write a percentage such as 5%" in capsys.readouterr().err
    assert cli.main(["compare", *files, "--clock", "moon"]) == 2
    assert cli.main(["compare", files[0], str(tmp_path / "gone.json")]) == 2
    assert "give a file that `vkq bench --json` wrote" in capsys.readouterr().err


def test_wrong_numbers_in_the_new_run_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = dataclasses.replace(
        run(row("a", 100)), failures=[Failure("b", "s", "channel", "dot_u8u8", "mismatch", "3 of 4", "c")]
    )
    assert cli.main(["compare", *write(tmp_path, old=run(row("a", 100)), new=wrong)]) == 1
    assert "MISMATCH in the new run: b dot_u8u8: 3 of 4" in capsys.readouterr().out


GOOD = run(row("a", 100))


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(GOOD.to_json()), **fields})


def other_row(**fields: object) -> str:
    return changed(rows=[{**json.loads(GOOD.to_json())["rows"][0], **fields}])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("[]" * 200_001, "more than 200000 lists"),
        ('{"schema": ' + "1" * 5000 + "}", "an integer of 5000 digits"),
        ("3", "has schema None"),
        (changed(rows={}), "rows is not a list"),
        (changed(rows=[3]), "a Row must have the keys"),
        (changed(more=1), "a Result must have the keys"),
        (changed(device=[]), r"device of a Result is \[\]; it must be dict"),
        (changed(device={}), r"device.uuid is None; it must be text"),
        (changed(vkq=3), "vkq of a Result is 3; it must be str"),
        (other_row(samples_us="abc"), "samples_us of a Row is 'abc'; it must be list"),
        (other_row(samples_us=[]), "samples_us of a Row"),
        (other_row(samples_us=[1, -1]), "samples_us of a Row"),
        (other_row(samples_us=[float("nan")]), "samples_us of a Row"),
        (other_row(samples_us=[1] * 6000), "samples_us of a Row"),
        (other_row(median_us="1"), "median_us of a Row"),
        (other_row(passes=1.5), "passes of a Row"),
        (other_row(passes=True), "passes of a Row"),
        (other_row(case=None), "case of a Row is None; it must be str"),
        (other_row(warnings=[1]), "warnings of a Row"),
    ],
)
def test_files_that_are_no_result_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(vkq.ArgumentError, match=message):
        read(tmp_path / "a.json")
    assert cli.main(["compare", *[str(tmp_path / "a.json")] * 2]) == 2
    assert len(capsys.readouterr().err) < 1000


def test_files_that_never_end_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b" " * (9 << 20))
    for path, message in (
        (tmp_path / "pipe", "regular"),
        (Path("/dev/zero"), "regular"),
        (tmp_path / "large", "larger"),
    ):
        with pytest.raises(vkq.ArgumentError, match=f"cannot be read as JSON: .*{message}"):
            read(path)


@pytest.mark.parametrize("percent", ["nan%", "-1%", "inf", "1e400", "", "%"])
def test_a_limit_is_a_percentage(tmp_path: Path, percent: str) -> None:
    files = write(tmp_path, old=GOOD, new=GOOD)
    assert cli.main(["compare", *files, f"--fail-above={percent}"]) == 2


def test_another_path_is_named_and_can_be_left_out_of_account(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = row("linear[M=2,K=8,N=8]", 500, path="dot_u8u8")
    old, new = run(row("linear[M=2,K=8,N=8]", 100)), run(slow, row(slow.case, 200, path="dot_s8s8"))
    files = write(tmp_path, old=old, new=new)
    assert cli.main(["compare", *files]) == 2
    said = capsys.readouterr().err
    assert "1 cases in common, but no measurement of one" in said
    assert "their paths are portable and dot_s8s8, dot_u8u8: give --ignore-path" in said
    assert cli.main(["compare", *files, "--ignore-path"]) == 1
    said = capsys.readouterr().out
    assert "portable -> dot_s8s8" in said  # the fastest path of each run is compared
    assert "1 measurement in common: 1 slower by more than 5 %" in said
    with pytest.raises(vkq.ArgumentError, match="no case in common"):
        compare(old, run(row("another", 1)))


def test_lines_fit_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = "conv2d[N=10,IC=128,H=72,W=120,OC=128,KH=3,KW=3,stride=2,padding=1,dilation=2,groups=4]"
    files = write(tmp_path, old=run(row(case, 123456)), new=run(row(case, 234567)))
    assert cli.main(["compare", *files]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("SLOWER  1.900 ") for line in lines)
    assert max(map(len, lines)) <= 80
    assert cli.main(["compare", *files, "--wide"]) == 1
    assert case in capsys.readouterr().out
