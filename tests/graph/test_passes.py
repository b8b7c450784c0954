"""Every pass leaves every result as it was: random graphs in NumPy, before and after."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import vkq
from tests.graph.graphs import models
from vkq.check import graph as oracle
from vkq.graph.executable import Executable, refusals
from vkq.graph.graph import Graph
from vkq.graph.passes import PASSES, lower

MANY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def numbers(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        name: random.integers(0, 256, graph.specs[name].shape).astype(np.uint8).view(graph.specs[name].dtype)
        for name in graph.inputs
    }


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("number", range(len(PASSES)), ids=lambda i: f"{i}-{PASSES[i].__name__}")
@MANY
@given(graph=models())
def test_a_pass_changes_no_result(number: int, graph: Graph) -> None:
    for earlier in PASSES[:number]:
        graph = earlier(graph)
    after = PASSES[number](graph)
    after.verify()
    same(oracle.run(graph, numbers(graph)), oracle.run(after, numbers(graph)))


@MANY
@given(graph=models())
def test_lowered_graphs_run_whole(graph: Graph) -> None:
    """Nothing real is left between 8-bit values, and a second time changes nothing."""
    lowered = lower(graph)
    assert refusals(lowered) == []
    again = lower(lowered)
    assert [node.op for node in again.nodes] == [node.op for node in lowered.nodes]


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(graph=models())
def test_the_device_agrees(device: vkq.Device, graph: Graph) -> None:
    lowered = lower(graph)
    feed = numbers(lowered, 1)
    same(Executable(lowered, device, {}).run(feed), oracle.run(lowered, feed))
