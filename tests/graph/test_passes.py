"""Tests of graph passes on random graphs: NumPy gives equal results for the graph before and after
a pass."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import vkq
from tests.graph.graphs import SHAPE, Builder, models
from vkq.check import graph as oracle
from vkq.graph.executable import Executable, refusals
from vkq.graph.graph import Graph, Node, Spec
from vkq.graph.passes import PASSES, lower
from vkq.graph.passes.branches import side_by_side
from vkq.graph.passes.tables import to_tables
from vkq.numerics.qparams import QParams

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
    """A lowered graph has no float operator between 8-bit values. Lowering it again changes at most the
    order of branches: some became shorter when tables were fused into convolutions."""
    lowered = lower(graph)
    assert refusals(lowered) == []
    again = lower(lowered)
    assert sorted(node.op for node in again.nodes) == sorted(node.op for node in lowered.nodes)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(graph=models())
def test_the_device_agrees(device: vkq.Device, graph: Graph) -> None:
    lowered = lower(graph)
    feed = numbers(lowered, 1)
    same(Executable(lowered, device, {}).run(feed), oracle.run(lowered, feed))


def by_hand(dtype: str = "int8", shape: tuple[int, ...] = SHAPE) -> tuple[Builder, str]:
    """Return a builder without random choices (zero points of 0, one weight scale), and the name of its
    dequantized input."""
    b = Builder(lambda strategy: 0, dtype, shape)
    return b, b.real("x", 0.25)[0]


def unchanged(graph: Graph) -> Graph:
    """Lower the graph, check that this does not change its results, and return the lowered graph."""
    lowered = lower(graph)
    same(oracle.run(graph, numbers(graph)), oracle.run(lowered, numbers(graph)))
    return lowered


def test_a_fill_that_no_number_stands_for() -> None:
    """A Pad of 8-bit values needs a fill value that is a multiple of the scale. With another fill value,
    Pad runs on floats."""
    b, x = by_hand()
    pads = b.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
    for fill, op in ((0.1, "dequantize"), (0.5, "Pad")):
        y = b.op("Pad", x, pads, b.constant(np.float32(fill)))
        graph = b.graph(y, b.stored(y, 0.5))
        assert unchanged(graph).nodes[0].op == op


def test_bounds_add_up() -> None:
    """Relu and Clip after a layer become its activation bounds: the highest lower bound and the lowest
    upper bound."""
    b, x = by_hand()
    y = b.op("Relu", b.op("Conv", x, b.weight(3, 4, 3, 3)))
    y = b.op("Clip", y, b.constant(np.float32(-1)), b.constant(np.float32(4)))
    lowered = unchanged(b.graph(b.stored(y, 0.5)))
    assert lowered.nodes[-1].attributes["activation"] == (0.0, 4.0)


@pytest.mark.parametrize(("shared", "op"), [(False, "linear"), (True, "dequantize")])
def test_a_linear_layer_stores_numbers_where_nothing_reads_its_bytes(
    any_device: vkq.Device, shared: bool, op: str
) -> None:
    b, x = by_hand(shape=(3, 8))
    y = b.stored(b.op("MatMul", x, b.weight(8, 5, axis=1)), 0.5)
    z = b.real(y, 0.5)[0]
    lowered = unchanged(b.graph(z, *[y] * shared))
    assert lowered.nodes[-1].op == op
    assert ("after" in lowered.nodes[0].attributes) == (not shared)
    feed = numbers(lowered)
    same(Executable(lowered, any_device, {}).run(feed), oracle.run(lowered, feed))


@pytest.mark.parametrize("factor", [1.0, 1.004, 1.5, 8.0])
def test_the_scale_of_a_bias(factor: float) -> None:
    """An int32 bias is used unchanged, as in ONNX Runtime, if its scale is within 1 % of the product of
    the scales of x and w. Otherwise the bias is converted to the scale of this product."""
    b, x = by_hand()
    bias = b.constant(np.array([100, -50, 7], np.int32))
    real = b.op("DequantizeLinear", bias, b.constant(np.float32(0.25 * 0.125 * factor)))
    y = b.op("Conv", x, b.weight(3, 4, 3, 3), real)
    graph = b.graph(b.stored(y, 0.5))
    lowered = lower(graph) if factor == 1.004 else unchanged(graph)
    taken = lowered.constants[lowered.nodes[-1].inputs[2]]
    want = (
        [100, -50, 7] if factor < 1.01 else np.rint(np.array([100, -50, 7]) * np.float32(factor)).astype(int)
    )
    np.testing.assert_array_equal(taken, want)


def test_transposes_join_in_their_order() -> None:
    b, x = by_hand()
    y = b.op("Transpose", b.op("Transpose", x, perm=(0, 2, 3, 1)), perm=(1, 0, 3, 2))
    lowered = unchanged(b.graph(b.stored(y, pair=("c0", "c1"))))
    assert [node.op for node in lowered.nodes if node.op != "Identity"] == ["Transpose"]
    for perm in ((1, 2, 3, 0), (2, 0, 1, 3), (3, 1, 2, 0)):
        x = b.op("Transpose", x, perm=perm)
    y = x
    lowered = unchanged(b.graph(b.stored(y, pair=("c0", "c1"))))
    assert len([node for node in lowered.nodes if node.op == "Transpose"]) <= 1


def test_constants_that_make_a_value_larger() -> None:
    """An operator whose constant broadcasts x to a larger shape does not become a lookup, because an
    element of x then has several results."""
    b, x = by_hand(shape=(2, 4, 1, 6))
    y = b.op("Add", x, b.constant(np.arange(5, dtype=np.float32).reshape(5, 1)))
    lowered = unchanged(b.graph(b.stored(y, 0.5)))
    assert "lookup" not in [node.op for node in lowered.nodes]


@pytest.mark.parametrize(("value", "op"), [(0, "Identity"), (9, "lookup")])
@pytest.mark.parametrize("first", [True, False])
def test_constants_of_equal_elements_are_numbers(value: int, op: str, first: bool) -> None:
    """A sum with a constant of equal elements becomes a lookup, or is dropped if the elements are 0."""
    q, of_mask = QParams(0.1, 3), QParams(1.0, 0)
    own = {"a": of_mask, "b": q} if first else {"a": q, "b": of_mask}
    node = Node("add", ("m", "x") if first else ("x", "m"), ("y",), {**own, "y": q})
    mask = np.full((1, 5, 5), value, np.int8)
    specs = {"x": Spec("int8", (2, 5, 5)), "m": Spec.of(mask), "y": Spec("int8", (2, 5, 5))}
    graph = Graph(["x"], ["y"], [node], {"m": mask}, specs)
    found = to_tables(graph)
    assert [node.op for node in found.nodes] == [op]
    x = np.random.default_rng(1).integers(-128, 128, (2, 5, 5)).astype(np.int8)
    same(oracle.run(found, {"x": x}), oracle.run(graph, {"x": x}))


@pytest.mark.parametrize(
    ("shape", "op"), [((4, 1, 1), "mean_lookup"), ((5, 1), "lookup"), ((), "mean_lookup")]
)
def test_means_of_tables(shape: tuple[int, ...], op: str) -> None:
    """A mean is fused with the lookup before it, if the lookup has one table or a table per channel. With
    tables along another axis they remain two nodes."""
    b, x = by_hand()
    constant = b.constant((np.arange(np.prod(shape)) / 4).astype(np.float32).reshape(shape))
    y = b.op("GlobalAveragePool", b.op("Relu", b.op("Add", x, constant)))
    lowered = lower(b.graph(b.stored(y, 0.5)))
    assert lowered.nodes[0].op == op
    if op == "mean_lookup":
        feed = numbers(lowered)
        (got,) = oracle.run(lowered, feed).values()
        (want,) = oracle.run(b.graph(b.stored(y, 0.5)), feed).values()
        assert np.abs(got.astype(int) - want).max() <= 1


def test_branches_stand_side_by_side() -> None:
    """`side_by_side` interleaves branches: the first nodes of all branches, then the second nodes. A
    missing operand ("") is no input."""
    chain = (("x", "a"), ("a", "b"), ("b", "c"), ("x", "side"))
    nodes = [Node("Identity", (one, ""), (two, "")) for one, two in chain]
    nodes.append(Node("add", ("c", "side"), ("y",)))
    ordered = side_by_side(Graph(["x"], ["y"], nodes, {}, {})).nodes
    assert [node.outputs[0] for node in ordered] == ["a", "side", "b", "c", "y"]
