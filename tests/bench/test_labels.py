"""Tests of the labels by which readers tell a table's rows apart, on terminals of 80 and of 120 columns."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from tests.bench.test_compare import row, run
from tests.conftest import ROOT
from vkq import cli
from vkq.bench import report
from vkq.bench.cases import load_list
from vkq.bench.fitted import shown_names
from vkq.bench.labels import Labels
from vkq.bench.result import Row
from vkq.check.cases import Case
from vkq.cli import compare, doctor
from vkq.problem.names import parse

LISTS = sorted((ROOT / "benchmarks").glob("*.yaml"))


def timed(case: Case) -> Row:
    options = {"scheme": case.scheme, "scale": case.scale, "method": case.method}
    return dataclasses.replace(row(case.name, 123.4), **options)


def printed(cases: list[Case], columns: int) -> list[list[str]]:
    """Return the printed lines of each case. The case's name is before the path, or on a line above."""
    table = report.Table(cases, columns)
    found = [table.lines([timed(case)], [], []) for case in cases]
    return ["\n".join(lines).split("\n") for lines in found]


def read(lines: list[str]) -> str:
    """Return the text that a person reads as the name of the case."""
    numbers = next(line for line in lines if " portable " in line)
    above = "".join(line.removeprefix("  ") for line in lines[: lines.index(numbers)])
    return above + numbers.partition(" portable ")[0].strip()


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_each_case_of_a_list_has_a_label_of_its_own(path: Path, columns: int) -> None:
    cases = list({dataclasses.replace(c, reason="", times=1, use="correctness"): c for c in load_list(path)})
    tables = printed(cases, columns)
    assert len(set(map(read, tables))) == len(cases)
    assert not re.findall(r"\S+\.\.(?!\])\S*", " ".join(map(read, tables))), "no name without its middle"
    assert max(len(line) for lines in tables for line in lines) <= columns


def test_options_are_said_where_they_differ() -> None:
    one, other = (parse(f"linear[M={m},K=8,N=8]") for m in (1, 2))
    assert Labels([Case(one), Case(other)]).of(Case(one)) == ("", one.name)
    weights, scale = Case(one, "q8csw"), Case(one, scale="tensor")
    for case, said in ((weights, "q8csw"), (scale, "per-tensor"), (Case(one, method="gemv"), "gemv")):
        assert Labels([Case(other), case]).of(case) == ("", f"{one.name} {said}")
        assert Labels([Case(other), case], 20).of(case) == (f"{one.name} {said}", "")
        assert Labels([case, case], 20).of(case)[1] == one.name  # an option that all cases share is not shown
    assert Labels(["model.onnx[x=1]", Case(one)]).of("model.onnx[x=1]") == ("", "model.onnx[x=1]")


def test_rows_of_a_document_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In Markdown, the names of rows with different schemes, scales or methods differ. In `vkq compare
    --wide`, this also holds for cases that only one of the two runs has."""
    p = parse("linear[M=1,K=8,N=8]")
    cases = [
        Case(p),
        Case(p, "q8csw"),
        Case(p, scale="tensor"),
        Case(p, method="gemv"),
        Case(p, method="tiled"),
    ]
    every = dataclasses.replace(run(*map(timed, cases)), host={"cpu": "a CPU", "cpus": 1})
    names = re.findall(r"^\| (`linear.*?) \|", report.markdown(every), re.MULTILINE)
    assert len(set(names)) == len(cases)
    assert names[-1] == f"`{p.name}` tiled"
    for name, one in (("old", every), ("new", run(timed(cases[0])))):
        (tmp_path / f"{name}.json").write_text(one.to_json())
    assert cli.main(["compare", str(tmp_path / "old.json"), str(tmp_path / "new.json"), "--wide"]) == 0
    only = re.findall(r"^only in the old run: (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert len(set(only)) == len(cases) - 1
    assert f"{p.name} q8ta_q8csw_q8to channel gemv portable gpu" in only


def test_a_name_above_stands_there_once() -> None:
    """A case's name is printed once, above the rows of the case's paths."""
    cases = [Case(parse(f"linear[M={m},K={k},N={k}]")) for m in (1, 8) for k in (4096, 8192)]
    table = report.Table(cases, 80)
    rows = [timed(cases[0]), dataclasses.replace(timed(cases[0]), path="coopmat")]
    first, *numbers = table.lines(rows, [], [])
    assert first == cases[0].name
    assert [line.split()[0] for line in numbers] == ["portable", "coopmat"]
    assert table.lines([timed(cases[1])], [], [])[0] == cases[1].name


def test_names_that_would_be_shortened_alike_stand_above(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two names with the same short form are printed above their rows, also by `vkq compare` and `vkq
    doctor`."""
    cases = [
        f"conv2d[N={n},IC={n},H={n},W={n},OC={n}{oc},KH={n},KW={n},padding={n}]"
        for n in (20, 30)
        for oc in (1, 2)
    ]
    for module in (compare, doctor):
        monkeypatch.setattr(module, "columns", lambda: 80)
    doctor._show_replays([{"case": case, "path": "auto", "wrong": 0, "times": 3} for case in cases])
    said = capsys.readouterr().out.splitlines()
    assert said == [line for case in cases for line in (case, "3 x 1 path   the same bytes")]
    old, new = (run(*(row(case, us) for case in cases)) for us in (100, 200))
    changes = compare.compare.compare(old, new).changes
    lines = list(compare._lines([("SLOWER", change) for change in changes], wide=False))
    assert lines[::2] == cases
    assert all(re.fullmatch(r"SLOWER  2\.000 +\S+ -> +\S+  portable gpu", line) for line in lines[1::2])


def test_what_follows_the_sizes_stays_behind_them() -> None:
    names = [f"linear[M=33,K=75,N={n}]/seed={n},scheme=q8csw" for n in (1, 2)]
    short = [f"linear[N={n},..]/seed={n},scheme=q8csw" for n in (1, 2)]
    assert shown_names(names, 40) == dict(zip(names, short, strict=True))
