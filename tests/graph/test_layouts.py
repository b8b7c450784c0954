"""Tests of layouts in networks: the layout of each value, repacks on simulated devices, and shared repacked
copies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkq
import vkq.onnx
from tests.device.reported import reported
from tests.kernels import emulated
from tests.onnx.networks import KINDS, Net, onnxruntime_results, quantized
from vkq import QParams, Tensor
from vkq.check import graph as oracle
from vkq.device.profiles import profile
from vkq.graph.device.context import Context
from vkq.graph.device.rows import ROWS
from vkq.graph.executable import Executable
from vkq.graph.graph import Graph
from vkq.graph.passes import lower
from vkq.kernels.excite import EXCITE
from vkq.kernels.repack import repacked
from vkq.layout.extent import BLOCKED, IMAGE, MATRIX, Spec
from vkq.numerics.elementwise import binary
from vkq.onnx.reader import read
from vkq.ops import elementwise, pool
from vkq.ops.mean import averaged_by_table
from vkq.reference import operators
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run
from vkq.runtime.plan import Plan, Resident
from vkq.runtime.program import Program
from vkq.select.path import Choice
from vkq.shader.spec import Value, Variant

Q = QParams(0.05, 3)


class Planned(vkq.Device):
    """A device that has only capabilities: it can plan, but not run."""

    converts = False

    def __init__(self, name: str):
        self.capabilities = reported(name)
        self._soft_float = self.doctored = False
        self.matrices = bool(self.capabilities.cooperative_matrices)

    def program(
        self, variant: Variant, constants: Mapping[str, Value] | None = None, subgroup_size: int = 0
    ) -> Program:
        return Program(variant, variant.constants(constants or {}), None)

    def constant(self, key: Any, size: int, make: Callable[[], Any]) -> Resident:
        return Resident(self, size, make)

    def groups_per_dispatch(self, total: int, macs: int, size: int = 0) -> int:
        return total


def network(kind: str, folder: Path, batch: int, size: int) -> Graph:
    net = Net(seed=6, shape=(batch, 3, size, size))
    model = read(quantized(net.model(*KINDS[kind](net)), "qdq_int8", folder, net.shape))
    return lower(model.at({a.name: (batch, 3, size, size) for a in model.inputs}))


def plan_of(graph: Graph, device: vkq.Device) -> Plan:
    b = Builder(device)
    values = {name: b.input(Spec(graph.specs[name].shape, graph.specs[name].dtype)) for name in graph.inputs}
    context = Context(graph, b, {}, values)
    for node in graph.nodes:
        context.made(node, ROWS[node.op].record(context, node))
    return b.plan(*(values[name] for name in graph.outputs))


@pytest.mark.parametrize(("batch", "size"), [(1, 32), (40, 16)])  # batch 40: matrix units need 29 rows
@pytest.mark.parametrize("kind", ["resnet", "mobilenet_v2", "mobilenet_v3", "efficientnet"])
@pytest.mark.parametrize("name", ["nvidia-h200", "radv-gfx1030"])
def test_nothing_is_repacked(
    name: str, kind: str, batch: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Planned(name)
    choice = Choice("coopmat" if device.matrices else "dot_s8s8", "s8s8", "as the test says")
    monkeypatch.setattr("vkq.schemes.int8.choose_path", lambda device, path: choice)
    variants = plan_of(network(kind, tmp_path, batch, size), device).variants
    assert any("coopmat" in variant for variant in variants) == device.matrices
    assert not any(variant.startswith("repack") for variant in variants)


@pytest.mark.parametrize(("name", "apart"), [("nvidia-h200", True), ("radv-gfx1030", False)])
def test_sums_of_large_results_are_apart_on_matrix_units(
    name: str, apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, graph = Planned(name), network("resnet", tmp_path, 1, 32)
    choice = Choice("coopmat" if device.matrices else "dot_s8s8", "s8s8", "as the test says")
    monkeypatch.setattr("vkq.schemes.int8.choose_path", lambda device, path: choice)
    sums = [node for node in graph.nodes if node.op == "conv2d" and node.input(3)]
    counts = []
    for most in (1 << 30, 1):
        monkeypatch.setattr("vkq.graph.device.layers.SUM_APART_BYTES", most)
        variants = plan_of(graph, device).variants
        counts.append(sum(variant.startswith("binary") for variant in variants))
    assert sums
    assert counts == [0, len(sums) if apart else 0]


@pytest.mark.parametrize("kind", ["efficientnet", "resnet"])
def test_networks_in_blocks_of_channels(
    kind: str, strict_device: vkq.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Networks on matrix units store images in kPackedInt8_16C and give the oracle's results."""
    if not strict_device.capabilities.features["cooperativeMatrix"]:
        emulated.emulate(strict_device, monkeypatch, "16x8x32")
    graph = network(kind, tmp_path, 1, 16)
    feed = {"x": np.random.default_rng(2).standard_normal((1, 3, 16, 16)).astype(np.float32)}
    executable = Executable(graph, strict_device, {})
    assert any("coopmat" in variant for variant in executable.plan.variants)
    for name, want in oracle.run(graph, feed).items():
        np.testing.assert_array_equal(executable.run(feed)[name], want, strict=True)


@pytest.mark.parametrize("kind", ["mobilenet_v3", "efficientnet"])
def test_gates_come_with_the_means_that_nobody_else_reads(
    kind: str, strict_device: vkq.Device, tmp_path: Path
) -> None:
    graph = network(kind, tmp_path, 1, 16)
    gated = [first_of_gates(graph)]
    for outputs, gates in ((graph.outputs, 1), ([*graph.outputs, *gated], 0)):
        variants = plan_of(dataclasses.replace(graph, outputs=outputs), strict_device).variants
        assert sum(variant.startswith(EXCITE) for variant in variants) == gates


def first_of_gates(graph: Graph) -> str:
    """Return the name of the result of the first convolution in squeeze-and-excite."""
    means = {node.outputs[0] for node in graph.nodes if node.op == "global_avg_pool2d"}
    return next(node.outputs[0] for node in graph.nodes if node.op == "conv2d" and node.inputs[0] in means)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("channels", [16, 21])
def test_a_gate_in_the_layout_that_it_comes_in(device: vkq.Device, channels: int, batch: int) -> None:
    rng, q, z = np.random.default_rng(7), QParams(0.02, -7), QParams(1 / 256, -128)
    shape = (3, channels, 2, 5)
    x = rng.integers(-128, 128, shape, dtype=np.int8)
    gate = rng.integers(-128, 128, (batch, channels, 1, 1), dtype=np.int8)
    tensors = [Tensor.from_numpy(x, device, BLOCKED), Tensor.from_numpy(gate, device, IMAGE)]
    b = Builder(device)
    y = elementwise.combined(b, *(b.input(t.spec) for t in tensors), "mul", q, z, Q)
    plan = b.plan(y)
    assert plan.variants == ("binary_q8__word:mul.16c",)
    np.testing.assert_array_equal(run(plan, tensors).numpy(), binary("mul", x, gate, q, z, Q), strict=True)


@pytest.mark.parametrize("channels", [16, 21])
@pytest.mark.parametrize(
    ("of", "to"),
    [(BLOCKED, IMAGE), (IMAGE, BLOCKED), (BLOCKED, BLOCKED), (BLOCKED, MATRIX), (IMAGE, MATRIX)],
)
def test_means_in_the_layout_that_is_read(device: vkq.Device, channels: int, of: str, to: str) -> None:
    n = 6 if to == MATRIX else 3  # blocks have four rows, so 6 rows need two blocks
    x = np.random.default_rng(8).integers(-128, 128, (n, channels, 4, 5), dtype=np.int8)
    numbers = np.linspace(-1, 3, 256, dtype=np.float32)
    tensor = Tensor.from_numpy(x, device, of)
    plain, table = Builder(device), Builder(device)
    mean = pool.globally_averaged(plain, plain.input(tensor.spec), Q, QParams(0.1, 5), to)
    # This kernel writes blocks of channels only if its input has them. Means in the MATRIX layout have the
    # shape (N, C).
    assert mean.spec.layout == (of if to == BLOCKED else to)
    got = run(plain.plan(mean), [tensor]).numpy()
    want = operators.global_avg_pool(x, QParams(0.1, 5), Q)
    np.testing.assert_array_equal(got, want.reshape(got.shape), strict=True)
    assert got.shape == ((n, channels) if to == MATRIX else want.shape)
    mean = averaged_by_table(table, table.input(tensor.spec), numbers, Q, to)
    assert mean.spec.layout == (of if to == MATRIX else to)
    got = run(table.plan(mean), [tensor]).numpy()
    np.testing.assert_array_equal(got, operators.mean_of_table(x, numbers, Q), strict=True)


def branches(net: Net, last: int, result: bool) -> list[str]:
    """Add parallel branches, one of which is also a residual; return the outputs."""
    x = net.relu(net.conv("x", 16))
    one, two, three = net.relu(net.conv(x, 32, 1)), net.relu(net.conv(x, 16, 3)), net.conv(x, last, 1)
    both = net.concat(one, two, three)
    y = net.conv(net.op("MaxPool", both, kernel_shape=[2, 2], strides=[1, 1]), 8, 1)
    again = net.op("Add", net.conv(x, 16, 1), two)
    head = net.head(net.conv(net.op("MaxPool", again, kernel_shape=[2, 2], strides=[1, 1]), 8, 1))
    return [net.head(y), head, *([both] if result else [])]


@pytest.mark.parametrize(
    ("last", "result", "copied"), [(48, False, False), (5, False, False), (48, True, True)]
)
def test_branches_are_written_where_they_lie_side_by_side(
    last: int, result: bool, copied: bool, strict_device: vkq.Device, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if not strict_device.capabilities.features["cooperativeMatrix"]:
        emulated.emulate(strict_device, monkeypatch, "16x8x32")
    net = Net(seed=9, shape=(1, 3, 8, 8))  # values need multiples of 256 bytes (alignment)
    model = read(quantized(net.model(*branches(net, last, result)), "qdq_int8", tmp_path, net.shape))
    graph = lower(model.at({"x": net.shape}))
    feed = {"x": np.random.default_rng(3).standard_normal(net.shape).astype(np.float32)}
    executable = Executable(graph, strict_device, {})
    counts = {node.op: end - first for node, first, end in executable.steps}
    assert (counts["Concat"] > 0) == copied
    for _ in range(2):
        got = executable.run(feed)
        for name, want in oracle.run(graph, feed).items():
            np.testing.assert_array_equal(got[name], want, strict=True)


def test_what_cannot_be_joined(any_device: vkq.Device) -> None:
    b = Builder(any_device)
    spec, whole = Spec((1, 16, 4, 4), "int8", BLOCKED), Spec((1, 32, 4, 4), "int8", BLOCKED)
    given, one, two, three = b.input(spec), b.new(spec), b.new(spec), b.new(spec)
    assert b.joined([given, one], whole) is None
    assert b.joined([one, one], whole) is None
    both = b.joined([one, two], whole)
    assert both is not None
    assert b.joined([two, three], whole) is None
    assert [b.shares(value) for value in (one, two, both, three)] == [True, True, True, False]
    for value in (three, one, two):
        b.fill(value, 1)
    result = repacked(b, both, IMAGE)
    plan = b.plan(result)
    places = [plan.scratch[value.slot] for value in (both, one, two, three)]
    assert places[1:3] == [(places[0][0], 256), (places[0][0] + 256, 256)]
    begin = places[0][0]
    assert not begin <= places[3][0] < begin + 512 or b.lifetimes([both.slot])[0].first > 0


def test_copies_are_shared_until_something_is_written(any_device: vkq.Device) -> None:
    b = Builder(any_device)
    x = b.new(Spec((1, 4, 3, 3), "int8"))
    b.fill(x, 1)
    copy = repacked(b, x, BLOCKED)
    assert repacked(b, x, BLOCKED) is copy
    assert repacked(b, x, IMAGE) is x
    b.fill(copy, 2)  # overwrites the copy, as an in-place sum does
    again = repacked(b, x, BLOCKED)
    assert again.slot != copy.slot
    assert repacked(b, x, BLOCKED) is again
    b.fill(x, 3)
    assert repacked(b, x, BLOCKED).slot not in (x.slot, copy.slot, again.slot)


def heads(net: Net) -> list[str]:
    """Add attention of two heads of 12 elements over 20 tokens, written as exporters do; return the
    outputs."""
    tokens, width = net.shape[1:]
    sizes = (1, tokens, 2, width // 2), (1, tokens, width)
    split, joined = (net.constant(np.array(s, np.int64)) for s in sizes)

    def head(perm: list[int]) -> str:
        made = net.op("Reshape", net.op("MatMul", "x", net.weight(width, width)), split)
        return str(net.op("Transpose", made, perm=perm))

    q, k, v = head([0, 2, 1, 3]), head([0, 2, 3, 1]), head([0, 2, 1, 3])
    mixed = net.op("MatMul", net.op("Softmax", net.op("MatMul", q, k), axis=-1), v)
    back = net.op("Reshape", net.op("Transpose", mixed, perm=[0, 2, 1, 3]), joined)
    return [str(net.op("MatMul", back, net.weight(width, 5)))]


def test_heads_of_attention_move_as_rows_of_matrices(device: vkq.Device, tmp_path: Path) -> None:
    """Products read the heads of q and k in place, and write the heads of the result side by side. If
    attention runs as separate dispatches, one of them transposes v. If attention is one dispatch, it reads v
    in place, too."""
    net = Net(4, (1, 20, 24))
    model = quantized(net.model(*heads(net)), "qdq_uint8", tmp_path, net.shape)
    graph = lower(read(model).at({"x": net.shape}))
    moved = [name.split("__")[0] for name in plan_of(graph, device).variants]
    assert moved.count("repack_q8") == 0
    steps = profile(device.capabilities).attention_in_steps
    assert (moved.count("move_q8"), moved.count("attention_q8")) == ((1, 0) if steps else (0, 1))
    assert not {"transpose_q8", "take_q8"} & set(moved)
    x = np.random.default_rng(3).normal(0, 1, net.shape).astype(np.float32)
    (got,) = vkq.onnx.InferenceSession(model, device).run(None, {"x": x})
    np.testing.assert_array_equal(got, onnxruntime_results(model, {"x": x})[0])


def test_heads_on_matrix_units_are_read_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On matrix units attention reads and writes the layout of linear layers, and nothing is repacked."""
    device = Planned("nvidia-h200")
    choice = Choice("coopmat", "s8s8", "as the test says")
    for module in ("schemes.int8", "kernels.attention_q8"):
        monkeypatch.setattr(f"vkq.{module}.choose_path", lambda device, path="auto": choice)
    for module in ("ops.matmul", "kernels.attention_q8"):
        monkeypatch.setattr(f"vkq.{module}.without_matrices", lambda device: Choice("", "s8s8", "so, too"))
    net = Net(4, (1, 64, 128))
    model = quantized(net.model(*heads(net)), "qdq_uint8", tmp_path, net.shape)
    variants = plan_of(lower(read(model).at({"x": net.shape})), device).variants
    assert [name for name in variants if name.startswith(("repack", "move"))] == []
    # One product computes queries, keys and values together, the second product computes the result.
    assert sum(name.startswith("gemm") and "coopmat" in name for name in variants) == 2
    assert [name for name in variants if name.startswith("attention")] == ["attention_q8__coopmat"]
