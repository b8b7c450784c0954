"""Tests of random pools, means and softmaxes: sizes exceed drivers' loop limits, and a wrong byte is
reported."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest

import vkq
from vkq import reference
from vkq.check import windows
from vkq.check.catalogue import random_checks
from vkq.cli import main
from vkq.problem.conv2d import Conv2dProblem


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def test_sizes_reach_beyond_loops() -> None:
    """Random cases reach rows and planes of more than 65,535 elements, windows of more than 127 elements
    along an axis, and more than 4,096 channels. Fewer than 150 of 400 cases have over 4,096 elements."""
    told = [windows.random_case(seed)[0] for seed in range(400)]
    pools = [text for text in told if "pool2d[x=" in text]
    shapes = [numbers(text.partition("[x=")[2].partition(",")[0]) for text in pools]
    kernels = [numbers(text.partition("kernel=")[2].partition(")")[0]) for text in pools]
    rows = [numbers(text.partition("[")[2].partition("]")[0]) for text in told if text not in pools]
    assert max(c for _, c, _, _ in shapes) > 4096
    assert max(max(kernel) for kernel in kernels) > 127
    assert max(kernel[0] * kernel[1] for kernel in kernels) < 1 << 16
    assert max(max(shape) for shape in rows) > 65_535
    assert max(int(np.prod(shape)) for shape in rows) < 4 << 20
    assert sum(int(np.prod(shape)) > 1 << 12 for shape in (*shapes, *rows)) < 150


def test_layers_reach_long_sums() -> None:
    """Random layers reach K above 33,025, where int32 can overflow, and windows of more than 127 elements
    along an axis. At most one layer in twelve has K above 4,096."""
    found = [check.problem for check in random_checks(480, 0)]
    assert max(problem.gemm_k for problem in found) > 33_025
    sides = [max(p.kh, p.kw) for p in found if isinstance(p, Conv2dProblem)]
    assert max(sides) > 127
    assert sum(problem.gemm_k > 4096 for problem in found) <= 40


def test_random_cases_agree(device: vkq.Device) -> None:
    """Four random cases of each operator, one of them large, agree with the reference."""
    assert [windows.check(device, seed) for seed in range(20)] == [None] * 20


def test_a_wrong_byte_is_told(
    any_device: vkq.Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["check", "windows", "--device", any_device.name]
    assert main([*words, "--count", "2"]) == 0
    assert "2 random windows: 0 mismatches" in capsys.readouterr().out
    assert main(words) == 2
    assert "--count is 0" in capsys.readouterr().err
    assert main([*words, "--count", "1", "--path", "portable"]) == 2
    assert "one path" in capsys.readouterr().err
    right = reference.max_pool2d
    monkeypatch.setattr(sys.modules["vkq.reference"], "max_pool2d", lambda x, window: right(x, window) ^ 1)
    assert main([*words, "--count", "1", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["summary"]["mismatches"] == 1
    assert "seed 0: max_pool2d[x=" in said["mismatches"][0]
