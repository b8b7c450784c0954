"""Tests of networks in which one dispatch computes a 1x1 convolution and the depthwise convolution after
it, if the device's profile says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkq
from tests.conftest import share
from tests.kernels import emulated
from tests.onnx.networks import KINDS, Net, quantized
from tests.ops import doctored
from vkq.check import graph as oracle
from vkq.graph.executable import Executable
from vkq.graph.graph import Graph
from vkq.graph.passes import lower
from vkq.kernels.expanded import SHADER
from vkq.onnx.reader import read
from vkq.runtime.plan import Resident

from .test_layouts import network

# The profile asks for one dispatch, on dot products.
TOGETHER = (("expanded_bytes", 1 << 30), ("form", "s8s8"))
APART = (("expanded_bytes", 0), ("form", "s8s8"))


def pairs_in(executable: Executable) -> int:
    """Return the number of dispatches that compute two convolutions each."""
    return sum(name.startswith(SHADER) for name in executable.plan.variants)


def weights(executable: Executable) -> list[Resident]:
    """Return the weights and parameters of all dispatches that compute two convolutions, in order."""
    plan = executable.plan
    steps = (step for step in plan.steps if step.program and step.program.variant.shader.startswith(SHADER))
    return [plan.constants[slot] for step in steps for slot in step.slots[1:5]]


def test_the_results_are_those_of_two_dispatches(
    device: vkq.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One dispatch for two convolutions gives the oracle's results, without matrix units. SwiftShader runs
    only the network with the most pairs."""
    one, two = (doctored.capabilities(device, choices=choices) for choices in (TOGETHER, APART))
    for kind, pairs in share([("mobilenet_v2", 3), ("mobilenet_v3", 1)], device, 2):
        graph = network(kind, tmp_path, 2, 20)
        with monkeypatch.context() as patch:
            patch.setattr(device, "capabilities", two)
            apart = Executable(graph, device, {})
            patch.setattr(device, "capabilities", one)
            check_pairs(apart, Executable(graph, device, {}), graph, pairs)


def check_pairs(apart: Executable, together: Executable, graph: Graph, pairs: int) -> None:
    assert (pairs_in(apart), pairs_in(together)) == (0, pairs)
    assert len(together.plan.variants) == len(apart.plan.variants) - pairs
    assert len(together.reasons) == 2 * pairs
    feed = {"x": np.random.default_rng(2).standard_normal((2, 3, 20, 20)).astype(np.float32)}
    want = oracle.run(graph, feed)
    for name, y in together.run(feed).items():
        np.testing.assert_array_equal(y, want[name], strict=True)


def test_on_matrix_units(strict_device: vkq.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not strict_device.capabilities.features["cooperativeMatrix"]:
        emulated.emulate(strict_device, monkeypatch, "16x8x32", choices=TOGETHER)
    net, layers = Net(seed=6, shape=(1, 3, 40, 40)), dict[Hashable, Any]()
    float_model = net.model(*KINDS["mobilenet_v2"](net), batch="n")
    model = read(quantized(float_model, "qdq_int8", tmp_path, net.shape))
    graph, twice = (lower(model.at({"x": (n, 3, 40, 40)})) for n in (1, 2))
    executable = Executable(graph, strict_device, layers)
    assert sum(name.startswith(f"{SHADER}_coopmat") for name in executable.plan.variants) == 3
    feed = {"x": np.random.default_rng(2).standard_normal((1, 3, 40, 40)).astype(np.float32)}
    for name, want in oracle.run(graph, feed).items():
        np.testing.assert_array_equal(executable.run(feed)[name], want, strict=True)
    other = Executable(twice, strict_device, layers)
    assert pairs_in(other) == 3
    assert weights(other) == weights(executable)  # batches of 1 and 2 share the weights


def test_a_value_that_others_read_is_written(
    software_device: vkq.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the image between the two convolutions is also a result of the graph, each convolution is a
    dispatch of its own."""
    graph = network("mobilenet_v2", tmp_path, 1, 16)
    changed = dataclasses.replace(software_device.capabilities, choices=TOGETHER)
    monkeypatch.setattr(software_device, "capabilities", changed)
    pairs = pairs_in(Executable(graph, software_device, {}))
    depthwise = next(node for node in graph.nodes if node.op == "conv2d" and node.attributes["groups"] > 1)
    read = dataclasses.replace(graph, outputs=[*graph.outputs, depthwise.inputs[0]])
    assert pairs_in(Executable(read, software_device, {})) == pairs - 1
