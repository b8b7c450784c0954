"""Tests of ``vkq bench CASE --variant SHADER``: the named variant runs, is verified, and its name is in the
row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vkq
from tests.bench.test_run import SHORT, measured
from vkq import cli
from vkq.bench.cases import expand
from vkq.check import tuning
from vkq.check.cases import Case

(LINEAR,) = [Case(p) for p in expand("linear[M=9,K=70,N=13]")]
TILES = ("4x8", "4x4")


@pytest.mark.parametrize("tile", TILES)
def test_a_variant_by_name(tile: str, device: vkq.Device) -> None:
    wanted = f"gemm_q8ta_q8csw__*:float.q8to.{tile}"
    found = measured(device, [LINEAR], paths=("portable",), clocks=("submit", "call"), variant=wanted)
    assert found.failures == []
    assert [row.clock for row in found.rows] == ["submit", "call"]
    for row in found.rows:
        assert row.verified == "bit for bit"
        assert row.variant.split(" + ")[-1].endswith(f":float.q8to.{tile}")
        assert f"--variant '{wanted}'" in row.command


def test_what_no_choice_runs_is_told_with_what_does(
    device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [{}, {"tile in registers": "4x8, workgroup 16x4"}]
    monkeypatch.setattr(tuning, "legal", lambda rankings: iter(few))
    found = measured(device, [LINEAR], paths=("portable",), variant="gemm_q8ta_q8csw__texels:u8u8.q8to.8x8")
    assert found.rows == []
    (failure,) = found.failures
    assert failure.kind == "skipped"
    assert failure.reason.replace("__tiled:", "__texels:") == (  # SwiftShader uses another variant
        "no choice of kernels runs gemm_q8ta_q8csw__texels:u8u8.q8to.8x8 here; this path and method can run"
        " gemm_q8ta_q8csw__texels:float.q8to.4x4, gemm_q8ta_q8csw__texels:float.q8to.4x8"
    )


def test_operators_without_a_choice(any_device: vkq.Device) -> None:
    (case,) = [Case(p) for p in expand("transpose[N=1,C=16,H=8,W=8,block=4]")]
    found = measured(any_device, [case], variant="gemm")
    assert [failure.reason for failure in found.failures] == [
        "--variant: this operator has only one kernel on each path; leave it out"
    ]


def test_names() -> None:
    assert tuning.variant_names("gemm_q8ta_q8csw__texels:float.q8to.8x8") == {
        "gemm_q8ta_q8csw__texels:float.q8to.8x8"
    }
    with pytest.raises(vkq.ArgumentError, match=r"--variant is 'nothing', which names no shader; `vkq sh"):
        tuning.variant_names("nothing")


def test_the_command(any_device: vkq.Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "x.json"
    words = ["--device", any_device.name, "--path", "portable", "--variant", "float.q8to.4x8", *SHORT]
    assert cli.main(["bench", LINEAR.name, *words, "--json", str(target)]) == 0
    rows = json.loads(target.read_text())["rows"]
    assert rows
    assert all("float.q8to.4x8" in row["variant"] for row in rows)
    assert cli.main(["bench", "model.onnx", "--variant", "gemm"]) == 2
    assert "leave --path, --vs and --variant out" in capsys.readouterr().err
