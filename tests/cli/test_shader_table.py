"""Tests of the table of ``vkq shaders stats``, and of the rule for changes that count as worse."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

import vkq
from vkq.cli.shader_table import figures, lines, loop_cost, read, worse
from vkq.runtime.statistics import PipelineExecutable

KEPT: dict[str, Any] = {
    "device": "a",
    "driver": "b",
    "kernels": {
        "linear": {
            "variant": "gemm", "instructions": 100, "for_each_result": 6.2, "for_each_mac": 0.5,
            "registers": 8, "running": 16, "spills": 0, "dots": 16, "seconds": 0.1,
        }
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spills": 4}, "spills 4, kept is 0"),
        ({"instructions": 103}, "instructions 103, kept is 100"),
        ({"for_each_mac": 0.6}, "for_each_mac 0.6, kept is 0.5"),
        ({"running": 8}, "8 run at once, kept is 16"),
        ({"seconds": 11.0}, "took 11.0 s to compile, above 10"),
    ],
)
def test_worse_is_said_with_both_numbers(change: dict[str, Any], said: str) -> None:
    now = copy.deepcopy(KEPT)
    now["kernels"]["linear"] |= change
    (problem,) = worse(now, KEPT, 10)
    assert said in problem
    assert f"({KEPT['kernels']['linear'][next(iter(change))]})" in lines(now, KEPT)[1] or "seconds" in change


def test_what_is_no_kept_table_is_refused(tmp_path: Path) -> None:
    """A file that is not a stored table of statistics is refused; so is an endless file, and one that is
    not text."""
    path, pipe = tmp_path / "kept.json", tmp_path / "pipe"
    path.write_text(json.dumps(KEPT))
    assert read(path) == KEPT
    odd = copy.deepcopy(KEPT)
    odd["kernels"]["linear"]["spills"] = "1"
    os.mkfifo(pipe)
    texts = ("{", "[1]", "1", '{"kernels": {}}', '{"kernels": [1]}', json.dumps(odd))
    for data in (b"\x93", *map(str.encode, texts)):
        path.write_bytes(data)
        with pytest.raises(vkq.ArgumentError, match=r"cannot be read: .* `vkq shaders stats --json` wrote"):
            read(path)
    with pytest.raises(vkq.ArgumentError, match="regular file"):
        read(pipe)


def test_the_same_and_better_are_not_worse() -> None:
    now = copy.deepcopy(KEPT)
    now["kernels"]["linear"] |= {"instructions": 90, "running": 20, "spills": 0}
    assert worse(now, KEPT, 10) == []
    assert worse(KEPT, KEPT, 10) == []


def test_instructions_are_told_for_each_result_where_their_number_is_known() -> None:
    found = PipelineExecutable("main", 32, {"Instructions": 203}, {}, 0.0)
    assert figures(found, 16)["for_each_result"] == 12.7
    assert figures(found)["for_each_result"] is None
    assert " for a result " in lines(KEPT, None)[0]
    assert " 6.2 " in lines(KEPT, None)[1]


def test_another_driver_counts_otherwise_but_spills_no_less() -> None:
    now = copy.deepcopy(KEPT) | {"driver": "c"}
    now["kernels"]["linear"] |= {"instructions": 200, "running": 8}
    assert worse(now, KEPT, 10) == []
    now["kernels"]["linear"]["spills"] = 4
    assert worse(now, KEPT, 10) == ["linear: gemm spills 4, kept is 0"]


def test_a_kernel_that_cannot_run_is_worse() -> None:
    now = {**KEPT, "kernels": {"linear": {"variant": "gemm", "refused": "no room"}}}
    assert worse(now, KEPT, 10) == ["linear: gemm cannot run: no room"]


def test_the_loop_is_the_innermost_with_most_multiply_adds() -> None:
    adreno = "l1:\nadd.u r0.x\nl2:\n(nop) dp4acc.mixed r1.x\nmad.f32 r2.x\njump #l2\nbr p0.x, #l1\n"
    assert loop_cost(adreno) == round(3 / 5, 2)
    assert loop_cost("v_dot4_i32_i8 v0") is None


def test_a_narrow_terminal_shows_long_names_in_two_lines() -> None:
    now = copy.deepcopy(KEPT)
    name = "1x1 C32 -> 192, depthwise 3x3 28x28"
    now["kernels"][name] = {
        **now["kernels"].pop("linear"), "variant": "conv2d_q8ta_q8csw__expand_depthwise:s8s8.4w4c",
    }  # fmt: skip
    shown = lines(now, None, 80)
    assert max(map(len, shown)) <= 80
    assert shown[2:4] == [f"{name}:", "    conv2d_q8ta_q8csw__expand_depthwise:s8s8.4w4c"]
