"""Tests that the workloads of `vkq doctor` run the kernels that published drivers get wrong."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from tests.kernels import emulated
from vkq.check import replay, workgroups, works
from vkq.check.cases import FLOAT
from vkq.runtime.device import Device
from vkq.shader.compile import spirv
from vkq.shader.spec import Variant
from vkq.shader.spirv import parse

SHUFFLES = range(345, 349)  # opcodes OpGroupNonUniformShuffle, ...Xor, ...Up, ...Down


def recorded(device: Device, some: Iterable[works.Work]) -> dict[str, set[Variant]]:
    """Return workload name -> the kernels that it runs."""
    found: dict[str, set[Variant]] = {}
    for work in some:
        steps = replay.Replayer(device, work).recording.steps
        programs = [step.program for one in steps for step in one.steps if step.program]
        found.setdefault(work.name, set()).update(program.variant for program in programs)
    return found


def shuffles(variant: Variant) -> bool:
    return any(one.op in SHUFFLES for one in parse(spirv(variant))[1])


def test_works_that_read_texels_do(any_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(works, "REPLAYED", ())
    textured = [work for work in works.works(any_device, ()) if work.path == "texels"]
    found = recorded(any_device, textured)
    assert set(found) == set(works.TEXTURED)
    assert all(any(variant.texels for variant in variants) for variants in found.values())


def test_works_run_subgroup_shuffles(software_device: Device) -> None:
    """Some linear and convolution layers with float activations run kernels with subgroup shuffles."""
    singles = [
        work for name in works.REPLAYED for work in works._single(software_device, name, ("portable",))
    ]
    found = recorded(software_device, singles)
    by_lanes = [name for name, variants in found.items() if any(map(shuffles, variants))]
    assert {name.partition("[")[0] for name in by_lanes} == {"linear", "conv2d"}


def test_works_run_matrix_units(strict_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the path coopmat, linear layers and convolutions, also large ones, run on emulated matrix units
    and are compared with the reference."""
    emulated.emulate(strict_device, monkeypatch, "16x16x32")
    names = [name for name in (*works.REPLAYED, works.LARGE[0]) if works.check_of(name).scheme not in FLOAT]
    some = [work for name in names for work in works._single(strict_device, name, ("coopmat",))]
    found = recorded(strict_device, some)
    units = [name for name, v in found.items() if any("cooperativeMatrix" in one.requires for one in v)]
    assert {name.partition("[")[0] for name in units} == {"linear", "conv2d"}
    assert works.LARGE[0] in units
    first = replay.Replayer(strict_device, next(work for work in some if work.name == units[0]))
    assert first.run(replay.LEAST, 0.0).wrong == 0
    large = replay.Replayer(strict_device, next(work for work in some if work.name == works.LARGE[0]))
    wrong = np.zeros((1500, 384), np.bool_)
    wrong[-1, -1] = True
    said = workgroups.named(large.recording, large.results[0].buffer, wrong)
    total = sum(x * y for _, x, y in large.recording.steps[-1].steps[-1].grids)
    assert said.startswith(f"workgroup {total - 1} of {total}, from 0 (")


def test_operators_without_weights_are_replayed(device: Device) -> None:
    """The replays of operators without weights are correct in every run. No expected result is a constant
    that a fault could produce."""
    replayed = {work.name: work for work in works._pathless(device)}
    assert {"max_pool2d", "avg_pool2d", "softmax", "add", "resize", "matmul"} < set(replayed)
    assert {"quantize", "dequantize"} < set(replayed)
    for work in replayed.values():
        assert replay.Replayer(device, work).run(replay.LEAST, 0.0).wrong == 0
        assert all(np.unique(want.y).size > 20 for (want,) in work.wants)
        answers = [want.y.tobytes() for (want,) in work.wants]
        assert len(set(answers)) == works.INPUTS
