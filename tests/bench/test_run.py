"""Tests of whole runs: results are verified before they are timed; outputs, ratios, failures, warnings."""

import csv
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkq
from tests.device.reported import profile_says
from vkq import cli
from vkq.bench import arms, ceilings, data, peers, report, result, selftest, timer
from vkq.bench.cases import expand
from vkq.bench.ceilings import Sentinel
from vkq.bench.environment import describe, host
from vkq.bench.fitted import clipped, shown_names
from vkq.bench.result import Result
from vkq.bench.rows import warnings_of
from vkq.bench.run import Request, Runner, paths_of
from vkq.check.cases import GROUPED, SCHEMES, Case
from vkq.check.expected import Expected
from vkq.problem.names import parse
from vkq.select.path import FORMS, choose_path

QUICK = timer.Settings(samples=3, submission_us=200, time_s=0.5, enough_s=0.0)
SHORT = ["--samples", "3", "--time", "0.2", "--submission-ms", "0.1", "--no-ceilings", "--clock", "submit"]
CASES = [Case(p) for p in expand("linear[M=1,5,K=70,N=9]")]
CONV = Case(parse("conv2d[N=2,IC=3,H=7,W=9,OC=6,KH=3,KW=3,stride=2,padding=1]"), "q8ta_q8csw", "tensor")


def empty(device: vkq.Device, ceilings: dict[str, float | None] | None = None) -> Result:
    return Result(describe(device), host(), "0", "vkq bench", "now", {}, ceilings or {})


def measured(
    device: vkq.Device, cases: list[Case], ceilings: dict[str, float | None] | None = None, **plan: Any
) -> Result:
    found = empty(device, ceilings)
    runner = Runner(device, Request(settings=QUICK, **plan), found)
    for case in cases:
        runner.run(case)
    return found


def test_every_path_and_clock_gives_a_verified_row(device: vkq.Device) -> None:
    paths = [path for path in paths_of(["all"], device) if path in FORMS]
    assert set(paths) == set(FORMS)  # both software drivers can run every path
    cases = [CASES[1], dataclasses.replace(CONV, method="im2col")]
    found = measured(device, cases, {"dot_s8s8": 8.0, "fp32_fma": 4.0, "copy": 2.0}, paths=tuple(paths))
    assert found.failures == []
    assert {(r.case, r.path, r.clock) for r in found.rows} == {
        (c.name, p, k) for c in cases for p in paths for k in timer.CLOCKS
    }
    for row in found.rows:
        assert row.verified == "bit for bit"
        assert 0 < row.p20_us <= row.median_us <= row.p80_us
        assert len(row.samples_us) >= 3
        assert ("im2col" in row.variant) == row.case.startswith("conv2d")
        if row.clock == "host":  # the host clock does not measure the device
            assert (row.copy_share, row.compute_share) == (None, None)
            continue
        assert row.copy_share == pytest.approx(row.bytes / row.median_us / 1e3 / 2.0)
        rate = {"dot_s8s8": 8.0, "portable": 4.0}.get(row.path)
        assert row.compute_share == (
            pytest.approx(row.operations / row.median_us / 1e3 / rate) if rate else None
        )
        assert row.command.endswith(f"--path {row.path} --device {device.capabilities.index}")
        software = device.capabilities.device_type == "cpu"
        assert any("software device" in w for w in row.warnings) == software
    gpu = next(r for r in found.rows if r.case == CONV.name and r.clock == "gpu")
    assert (gpu.dispatches, gpu.operations) == (2, 2 * 2 * 4 * 5 * 6 * 27)
    assert gpu.bytes == 2 * 3 * 7 * 9 + 6 * 27 + 4 * 2 * 6 * 4 * 5
    assert "--scheme q8ta_q8csw --scale tensor" in gpu.command


@pytest.mark.parametrize("clock", timer.CLOCKS)
def test_a_clock_alone_is_verified_too(any_device: vkq.Device, clock: str) -> None:
    """A run with only one clock also verifies the result, even with the clock "call", which does not run
    the recorded work of the other clocks."""
    found = measured(any_device, [CONV], clocks=(clock,))
    assert found.failures == []
    assert {row.clock for row in found.rows} == {clock}


def test_without_timestamps_there_is_no_gpu_clock_and_the_row_says_so(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = dataclasses.replace(any_device.capabilities, timestamp_valid_bits=0, timestamp_period_ns=0.0)
    monkeypatch.setattr(any_device, "capabilities", blind)
    found = measured(any_device, CASES[:1])
    assert [r.clock for r in found.rows] == ["submit", "call", "host"]
    assert any("no timestamps: there is no gpu clock" in w for w in found.rows[0].warnings)
    assert found.rows[0].overhead_us is None
    assert all(value for value in ceilings.measure(any_device).values())
    ratio = selftest.run(any_device, trials=1).slower[0]
    assert ratio.value > 1.03


def test_few_rows_share_one_answer(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases of one linear layer with at most 32 rows share one reference result: they use the first rows of
    the same input of 32 rows."""
    asked: list[str] = []
    real = data.expected

    def counted(case: Case, *given: Any) -> Expected:
        asked.append(case.name)
        return real(case, *given)

    monkeypatch.setattr(data, "expected", counted)
    sweep = [Case(p, s) for s in ("q8csw", "q8ta_q8csw_q8to") for p in expand("linear[M=1,3,33,K=70,N=9]")]
    found = measured(any_device, sweep, clocks=("submit",))
    assert asked == ["linear[M=32,K=70,N=9]", "linear[M=33,K=70,N=9]"] * 2
    assert (len(found.rows), found.failures) == (6, [])
    for one in sweep:
        assert np.array_equal(
            data.activations(one),
            data.activations(sweep[2] if one.scheme == "q8csw" else sweep[5])[: one.problem.gemm_m],
        )


@pytest.mark.parametrize("clock", timer.CLOCKS)
def test_each_clock_can_be_asked_for_alone(any_device: vkq.Device, clock: str) -> None:
    """The benchmark can run with each clock alone. The test first fills device memory with 77, so that old
    contents of memory cannot pass as a correct result."""
    any_device.upload(any_device.allocate(1 << 20), np.full(1 << 20, 77, np.uint8))
    found = measured(any_device, CASES[:1], {"copy": 1e-3, "fp32_fma": 1e3}, clocks=(clock,))
    assert found.failures == []
    assert [(r.clock, r.sets > 1) for r in found.rows] == [(clock, clock in ("gpu", "submit"))]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_verified_and_timed(scheme: str, device: vkq.Device) -> None:
    """For each scheme, a matrix product is verified and timed, and also a convolution if the scheme
    supports convolutions."""
    linear = Case(parse("linear[M=3,K=64,N=9]"), scheme)
    cases = (
        [linear]
        if scheme in GROUPED or scheme.startswith("dq8ca")
        else [linear, dataclasses.replace(CONV, scheme=scheme)]
    )
    found = measured(device, cases, {"copy": 2.0, "fp32_fma": 4.0}, clocks=("submit",))
    assert found.failures == []
    assert [(r.case, r.scheme, bool(r.verified), r.median_us > 0) for r in found.rows] == [
        (case.name, scheme, True, True) for case in cases
    ]


def test_weight_only_is_within_its_bound(device: vkq.Device) -> None:
    cases = [dataclasses.replace(c, scheme="q8csw") for c in (CASES[1], CONV)]
    found = measured(
        device, cases, {"fp32_fma": 4.0, "copy": 2.0}, paths=("dot_s8s8", "portable"), clocks=("submit",)
    )
    assert found.failures == []
    assert [(r.path, r.verified, r.compute_ceiling) for r in found.rows] == [
        ("float", "within the bound of a float32 sum", "fp32_fma")
    ] * 2
    cases += [Case(parse("linear[M=3,K=97,N=9]"), "q4gsw"), dataclasses.replace(CONV, scheme="q8gsw")]
    found = measured(device, cases[2:], {"copy": 2.0}, clocks=("submit",))
    assert [(r.scheme, r.path, r.verified) for r in found.rows] == [
        ("q4gsw", "float", "within the bound of a float32 sum")
    ]
    assert [f.reason for f in found.failures] == [f"{CONV.name}: q8gsw is for linear layers"]
    weights, x = data.weights(cases[0]), data.activations(cases[0])
    want = data.expected(cases[0], weights, x)
    # an error of 1e-4 exceeds the bound
    assert want.mismatch(want.y.astype(np.float32) * np.float32(1 + 1e-4)) is not None
    assert want.mismatch(np.full(want.y.shape, np.nan)) is not None


def test_ratios_are_of_pairs_and_to_the_base(any_device: vkq.Device) -> None:
    found = measured(any_device, CASES, paths=("dot_s8s8",), base="portable", clocks=("gpu", "call"))
    assert [(c.case, c.path, c.base, c.clock) for c in found.comparisons] == [
        (case.name, "dot_s8s8", "portable", clock) for case in CASES for clock in ("gpu", "call")
    ]
    for one in found.comparisons:
        rows = {r.path: r for r in found.rows if (r.case, r.clock) == (one.case, one.clock)}
        assert one.low <= one.ratio <= one.high
        pairs = np.array(rows["dot_s8s8"].samples_us) / np.array(rows["portable"].samples_us)
        assert pairs.min() <= one.ratio <= pairs.max()
        assert one.pairs == len(pairs)


def test_auto_and_the_path_it_takes_are_measured_once(any_device: vkq.Device) -> None:
    found = measured(any_device, CASES[:1], paths=("auto", choose_path(any_device).path), clocks=("submit",))
    assert len(found.rows) == 1


def test_a_wrong_result_is_a_mismatch_without_a_time(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that is wrong before or after the timed runs gives a mismatch, and no time."""
    real = data.expected

    def wrong(*given: Any) -> Expected:
        y = real(*given).y.copy()
        y[..., -1] ^= 1
        return Expected(y, None)

    monkeypatch.setattr(data, "expected", wrong)
    found = measured(any_device, CASES)
    assert found.rows == []
    assert [(f.kind, f.case) for f in found.failures] == [("mismatch", c.name) for c in CASES]
    assert found.failures[1].reason.startswith("5 of 45 differ; first at (0, 8): got ")
    assert f"MISMATCH {choose_path(any_device).path}" in report.Table([]).lines([], [], found.failures)[0]
    *folded, again = report.Table([], 50).lines([], [], found.failures)[0].split("\n")
    assert max(len(line) for line in folded) <= 50
    assert again == f"{'again:':>18} {found.failures[0].command}"
    monkeypatch.setattr(data, "expected", real)
    monkeypatch.setattr(arms.CapturedWork, "results", lambda self: [Ones()])
    late = measured(any_device, CASES[:1])
    assert late.rows == []
    assert late.mismatches[0].reason.startswith("after the timed runs: ")


class Ones:
    def numpy(self) -> data.Array:
        return np.ones((1, 9), np.int8)


def test_what_cannot_run_is_told_and_the_rest_goes_on(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Any:
        if arguments[2] == "dot_s8s8":
            raise vkq.PathError("dot_s8s8 cannot run here: shaderIntegerDotProduct is false")
        return layer(*arguments)

    layer = data.layer
    monkeypatch.setattr(data, "layer", refuse)
    found = measured(any_device, CASES[:1], paths=("dot_s8s8", "portable"), clocks=("submit",))
    assert [r.path for r in found.rows] == ["portable"]
    assert [(f.kind, f.path) for f in found.failures] == [("skipped", "dot_s8s8")]
    assert found.mismatches == []
    method = measured(any_device, [dataclasses.replace(CASES[0], method="nonesuch")], clocks=("submit",))
    assert method.failures[0].kind == "skipped"
    assert "nonesuch" in method.failures[0].reason


class FakePeer:
    """A peer whose result is correct or wrong, or that cannot run."""

    def __init__(self, name: str, change: int | None = 0):
        self.name, self.change, self.calls = name, change, 0

    def arm(self, case: Case, weights: Any, x: Any, expected: Expected, device: vkq.Device) -> peers.PeerArm:
        if self.change is None:
            raise NotImplementedError("this library has no such layer")

        def call() -> data.Array:
            self.calls += 1
            return expected.y + np.int8(self.change or 0)

        return peers.PeerArm(call, f"{self.name} 1.0 int8, CPU", peers.agreement(call(), expected))


def test_peers_stand_beside_vkq_and_say_what_ran(any_device: vkq.Device) -> None:
    fakes = (FakePeer("right"), FakePeer("wrong", 1), FakePeer("unable", None))
    found = measured(any_device, CASES[:1], peers=fakes)
    rows = {r.path: r for r in found.rows if r.clock == "call"}
    assert list(rows) == [choose_path(any_device).path, "right", "wrong"]
    assert (rows["right"].arm, rows["right"].variant) == ("peer", "right 1.0 int8, CPU")
    assert rows["right"].verified == "agrees bit for bit"
    assert rows["wrong"].verified.startswith("DIFFERS from the reference: ")
    assert rows["right"].command.endswith(f"--peer right --device {any_device.capabilities.index}")
    assert [(f.path, f.reason) for f in found.failures] == [("unable", "this library has no such layer")]
    first = found.comparisons[0]
    assert (first.path, first.base, first.clock, first.verdict) == (
        "right",
        choose_path(any_device).path,
        "call",
        "faster",
    )
    assert (
        "right 1.0 int8, CPU; agrees bit for bit"
        in report.Table([], wide=True).lines(found.rows, found.comparisons, [])[1]
    )


@pytest.mark.parametrize(
    "case", [CASES[1], dataclasses.replace(CONV, scheme="q8ta_q8csw_q8to", scale="channel")]
)
def test_onnx_runtime_agrees_bit_for_bit(any_device: vkq.Device, case: Case) -> None:
    peer = peers.find_peer("ort")
    weights, x = data.weights(case), data.activations(case)
    arm = peer.arm(case, weights, x, data.expected(case, weights, x), any_device)
    assert arm.agreement == "agrees bit for bit"
    assert "CPUExecutionProvider" in arm.ran
    with pytest.raises(NotImplementedError, match="no operator of scheme q8csw"):
        peer.arm(
            dataclasses.replace(case, scheme="q8csw"), weights, x, data.expected(case, weights, x), any_device
        )


def test_a_peer_that_is_not_installed_or_unknown_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    real = importlib.import_module
    monkeypatch.setattr(
        importlib,
        "import_module",
        lambda name: real("no_such_module" if name in ("ncnn", "torch", "onnxruntime") else name),
    )
    for name in peers.PEERS:
        with pytest.raises(vkq.ArgumentError, match=rf"--peer {name} needs .*pip install 'vkq\[peers\]'"):
            peers.find_peer(name)
    with pytest.raises(vkq.ArgumentError, match="all or one of ort, torch, ncnn"):
        peers.find_peer("nonesuch")


def test_json_has_its_schema_and_is_read_back(any_device: vkq.Device, tmp_path: Path) -> None:
    found = measured(
        any_device,
        CASES[:1],
        {"copy": 2.0, "dot_s8s8": None},
        paths=("dot_s8s8", "portable"),
        base="portable",
    )
    top = json.loads(found.to_json())
    assert top["schema"] == result.SCHEMA
    assert {"name", "type", "software", "driver", "driver_version", "uuid", "vulkan"} <= top["device"].keys()
    assert top["device"]["software"] is (any_device.capabilities.device_type == "cpu")
    assert top["vkq"]
    assert len(top["rows"]) == 2 * len(timer.CLOCKS)
    for row in top["rows"]:
        assert {
            "case",
            "path",
            "variant",
            "clock",
            "median_us",
            "p20_us",
            "p80_us",
            "samples_us",
            "command",
        } <= row.keys()
        assert row["clock"] in timer.CLOCKS
        assert row["median_us"] == pytest.approx(np.median(row["samples_us"]), rel=1e-4)
    assert {"ratio", "low", "high", "pairs", "verdict", "base"} <= top["comparisons"][0].keys()
    file = tmp_path / "run.json"
    file.write_text(found.to_json())
    assert json.loads(result.read(file).to_json()) == top
    for text, message in (
        ("{}", "has schema None"),
        ('{"schema": 1}', "is not a result"),
        ("x", "cannot be read as JSON"),
    ):
        file.write_text(text)
        with pytest.raises(vkq.ArgumentError, match=message):
            result.read(file)


def test_the_sentinel_notices_a_slower_device(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentinel = Sentinel(any_device)
    rates = iter([10.0, 10.0, 8.0, 8.0])
    sentinel._rates = [10.0] * 5
    monkeypatch.setattr(sentinel._kernel, "run", lambda: next(rates))
    assert sentinel.throttled() is None
    assert sentinel.throttled() == pytest.approx(0.8)


def test_warnings_name_the_remedy(software_device: vkq.Device) -> None:
    found = measured(software_device, CASES[:1], clocks=("gpu",))
    c, row = software_device.capabilities, found.rows[0]

    def said_of(settled: bool, throttled: float | None) -> list[str]:
        return list(warnings_of(row, settled, timer.Settings(), c, throttled))

    row.samples_us, row.median_us, row.passes = [1.0] * 5, 0.001, 1
    said = said_of(False, 0.5)
    for part in ("software device", "warm-up", "fewer than 10 samples", "ten timestamp ticks", "sentinel"):
        assert any(part in one for one in said), part
    row.samples_us, row.median_us = [1.0] * 16 + [1.2] * 4, 1.0
    assert any("drift" in one for one in said_of(False, None))
    row.samples_us = [1.0, 1.01] * 9 + [3.0, 4.0]
    assert any("outliers" in one for one in said_of(False, None))
    row.samples_us = [1.0, 1.01] * 10
    row.median_us = 100.0
    assert [w for w in said_of(True, None) if "software" not in w] == []


def test_command_line(
    software_device: vkq.Device, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    profile_says(monkeypatch, ceilings, cache_bytes=1 << 18)  # any size would do
    monkeypatch.setattr(ceilings, "LASTING_US", 100.0)
    files = {option: tmp_path / f"run.{option}" for option in ("json", "csv", "md", "plot")}
    files["plot"] = tmp_path / "run.png"
    case = "linear[M=1,5,K=70,N=9]"
    words = ["bench", case, "--device", "llvmpipe", "--path", "dot_s8s8", "--vs", "portable"]
    quick = ["--samples", "3", "--time", "0.5", "--submission-ms", "0.2", "--clock", "call,submit"]
    assert (
        cli.main([*words, *quick, "--wide", *(w for o, f in files.items() for w in (f"--{o}", str(f)))]) == 0
    )
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    lines = out.splitlines()
    assert "SOFTWARE DEVICE" in lines[0]
    assert lines[2].startswith("ceilings dot_s8s8 ")
    commands = [line.partition("  vkq bench ")[2] for line in lines if "  vkq bench " in line]
    assert commands == [
        f"'linear[M={m},K=70,N=9]' --path {p} --device llvmpipe"
        for m in (1, 5)
        for p in ("portable", "dot_s8s8")
    ]
    run = result.read(files["json"])
    assert run.command.startswith("vkq bench 'linear[M=1,5,K=70,N=9]' --device llvmpipe")
    assert {r.clock for r in run.rows} == {"submit", "call"}
    table = list(csv.DictReader(io.StringIO(files["csv"].read_text())))
    assert [(r["case"], r["path"], r["clock"]) for r in table] == [
        (r.case, r.path, r.clock) for r in run.rows
    ]
    assert files["md"].read_text().count("| `linear[M=") == 4
    assert files["plot"].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


BRIEF = ["--no-ceilings", "--clock", "call", "--samples", "3", "--time", "0.01"]


@pytest.mark.parametrize("before", [0, 1])
def test_ctrl_c_keeps_what_was_measured(
    before: int, any_device: vkq.Device, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """After Ctrl+C the rows measured so far are written. If there are none, the old file is kept."""
    whole = Runner.run

    def interrupted(self: Runner, case: Case) -> None:
        if case.layer.gemm_m > before:
            raise KeyboardInterrupt
        whole(self, case)

    monkeypatch.setattr(Runner, "run", interrupted)
    files = {option: tmp_path / f"run.{option}" for option in ("json", "csv")}
    files["json"].write_text("old")
    words = ["bench", "linear[M=1:3:1,K=7,N=9]", "--device", any_device.name, *BRIEF]
    assert cli.main([*words, *(w for o, f in files.items() for w in (f"--{o}", str(f)))]) == 130
    out, err = capsys.readouterr()
    assert err == "vkq: interrupted\n"
    if not before:
        assert files["json"].read_text() == "old"
        assert not files["csv"].exists()
        return
    assert "interrupted: 2 of the cases have no time, or not on every clock" in out
    run = result.read(files["json"])
    assert [row.case for row in run.rows] == ["linear[M=1,K=7,N=9]"]
    assert run.interrupted
    assert [(one.case, one.kind, one.reason) for one in run.failures] == [
        (f"linear[M={m},K=7,N=9]", "skipped", "interrupted") for m in (2, 3)
    ]
    assert run.failures[0].command.startswith("vkq bench 'linear[M=2,K=7,N=9]' --path auto")
    assert len(files["csv"].read_text().splitlines()) == 2


def test_cases_may_stand_between_options(
    any_device: vkq.Device, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target, cases = tmp_path / "run.json", [f"linear[M={m},K=7,N=9]" for m in (1, 2, 3)]
    words = [cases[0], "--device", any_device.name, cases[1], *BRIEF, cases[2], "--json", str(target)]
    assert cli.main(["bench", *words]) == 0
    assert [row.case for row in result.read(target).rows] == cases
    with pytest.raises(SystemExit):
        cli.main(["bench", "--jsn", "x", cases[0]])
    assert "unrecognized arguments: --jsn" in capsys.readouterr().err


def test_the_table_fits_the_terminal(any_device: vkq.Device) -> None:
    long = Case(parse("conv2d[N=1,IC=1024,H=14,W=14,OC=2048,KH=1,KW=1,stride=2,padding=1x2x3x4]"))
    found = measured(any_device, CASES[:1], {"fp32_fma": 1e3}, paths=("portable",), clocks=("call", "submit"))
    row = dataclasses.replace(found.rows[0], case=long.name, median_us=1_234_567.9, p20_us=1e6, p80_us=2e6)
    for columns in (80, 120, 200):
        table = report.Table([long, CASES[0]], columns)
        lines = [table.head(), *table.lines([*found.rows[1:], row], [], [])]
        assert (lines[2] == long.name) == (columns < 200)  # a name that fits its column stands in the row
        lines = [line for line in lines if line != long.name]
        assert {len(line) for line in lines} == {len(lines[0])}
        assert max(len(lines[0]), len(long.name)) <= columns
        assert lines[1].startswith("linear[M=1,K=70,N=9] ")
        assert (long.name in lines[2]) == (columns == 200)
        assert " portable 1,234,568 1,000,000..2,000,000" in lines[2]
        assert [len(line.split()) for line in lines[1:]] == [6, 6 if columns == 200 else 5]
        assert lines[1].endswith("%")


def test_names_in_a_narrow_table_keep_what_tells_them_apart() -> None:
    rows = (1, 2, 16)
    names = [f"linear[M={m},K=8192,N=8192]" for m in rows]
    assert shown_names(names, 20) == dict(zip(names, (f"linear[M={m},..]" for m in rows), strict=True))
    assert shown_names(names, 80) == {}
    one = "linear[M=1,K=100000,N=100000]"
    assert shown_names([one], 20) == {one: one}
    assert report.Table(names, 80, clock="submit").head().split()[:3] == ["case", "path", "submit"]


def test_a_line_is_cut_between_words_and_outside_of_shapes() -> None:
    line = "conv2d int8[1, 24, 4, 4] -> int8[1, 32, 4, 4]: im2col"
    assert [clipped(line, columns) for columns in (None, 53, 52, 45, 27)] == [
        line, line, "conv2d int8[1, 24, 4, 4] -> int8[1, 32, 4, 4] ..", *["conv2d int8[1, 24, 4, 4] .."] * 2,
    ]  # fmt: skip
    assert clipped("a" * 9, 8) == "aaaaa .."


def test_a_network_ends_with_what_its_layers_add_up_to(
    any_device: vkq.Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "net.yaml"
    file.write_text(
        "summary: s\nnetwork: Net\ncases:\n"
        '  - {case: "linear[M=1,K=8,N=4]", reason: r, times: 3}\n'
        '  - {case: "linear[M=1,K=4,N=8]", reason: r}\n'
        '  - {case: "linear[M=1,K=4,N=9]", reason: r, times: 2, methods: [nonesuch]}\n'
    )
    out = tmp_path / "run.json"
    words = ["bench", str(file), "--device", any_device.name, "--path", "portable"]
    words += [*SHORT, "--json", str(out)]
    assert cli.main(words) == 0
    run = result.read(out)
    first, second = (row.median_us for row in run.rows)
    (total,) = run.totals
    assert total.time_us == pytest.approx(3 * first + second, rel=1e-4)
    assert (total.network, total.path, total.clock) == ("Net", "portable", "submit")
    assert (total.layers, total.missing, total.operations) == (6, 1, 2 * (3 * 32 + 32))
    said = capsys.readouterr().out
    assert "total    Net, 6 layers on portable: " in said
    assert "; 1 of its shapes have no time and are left out" in said


def test_results_of_before_have_no_totals(any_device: vkq.Device, tmp_path: Path) -> None:
    found = measured(any_device, CASES[:1], clocks=("submit",))
    top = json.loads(found.to_json())
    del top["totals"]
    (tmp_path / "old.json").write_text(json.dumps(top))
    assert result.read(tmp_path / "old.json").totals == []


def test_help_begins_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[4] == "examples:"
    assert lines[5].startswith("  vkq bench")


def test_all_peers_are_those_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise vkq.ArgumentError("not installed")

    monkeypatch.setattr(peers, "PEERS", {"a": lambda: FakePeer("a"), "b": missing})
    assert [p.name for p in peers.installed_peers()] == ["a"]


def test_command_line_refusals_and_json_alone(
    any_device: vkq.Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["bench"]) == 0
    assert "seed " in capsys.readouterr().out
    case = "linear[M=1,K=8,N=8]"
    for words, message in (
        (["--path", "nonesuch"], "it must be all or one of auto"),
        (["--clock", "moon"], "some of gpu, submit, call"),
        (["--vs", "nonesuch"], "it must be all or one of"),
        (["--peer", "nonesuch"], "all or one of ort"),
    ):
        assert cli.main(["bench", case, "--device", any_device.name, *words]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["bench", case, "--samples", "0"])
    assert "'0' is not a whole number from 1 to" in capsys.readouterr().err
    assert cli.main(["bench", case, "--device", any_device.name, *SHORT, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["case"] == case
    monkeypatch.setattr(Expected, "mismatch", lambda self, got: "7 of 8 differ")
    assert cli.main(["bench", case, "--device", any_device.name, "--path", "portable", *SHORT]) == 1
    out = capsys.readouterr().out
    assert "MISMATCH portable: 7 of 8 differ" in out
    assert "1 MISMATCH: these give wrong numbers" in out
