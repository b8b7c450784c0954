"""Tests of the comparison of a quantized model's layers with the float model's layers: it names a layer
with a wrong scale, and its memory is bounded."""

import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.accuracy.memory import CHANNELS, compared
from tests.accuracy.memory import pair as pair_of
from tests.accuracy.spoil import NETWORKS, pair, scales, spoilt
from tests.accuracy.spoil import named as is_named
from tests.onnx.networks import KINDS, Net, Pictures, quantized
from vkq.accuracy import compare_layers
from vkq.accuracy.histogram import Histogram
from vkq.accuracy.tally import Tally
from vkq.accuracy.walk import Walk, give_back
from vkq.cli import main
from vkq.errors import ModelError


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("networks")
    return {kind: pair(kind, folder) for kind in NETWORKS}


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_spoilt_scale_is_named(networks: dict[str, Any], kind: str, tmp_path: Path) -> None:
    """One scale of an activation or a weight is multiplied by 4 or 1/4. The report must name the layer of
    this scale. (`python -m tests.accuracy.spoil 20` tries more scales.)"""
    path, model, samples = networks[kind]
    known = scales(model)
    factors = (4.0, 0.25) if NETWORKS.index(kind) % 2 else (0.25, 4.0)
    for scale, factor in zip((known[1 + len(known) // 3], known[-2]), factors, strict=True):
        broken, values = spoilt(model, scale, factor)
        onnx.save(broken, tmp_path / "broken.onnx")
        report = compare_layers(path, tmp_path / "broken.onnx", samples[:1])
        assert is_named(report, broken, values), (scale, factor, report.worst())


def test_what_a_layer_adds_and_what_it_inherits(networks: dict[str, Any], tmp_path: Path) -> None:
    path, model, samples = networks["resnet"]
    onnx.save(model, tmp_path / "int8.onnx")
    clean = {row.output: row for row in compare_layers(path, tmp_path / "int8.onnx", samples).rows}
    first = next(node for node in model.graph.node if node.op_type == "Conv")
    broken, _ = spoilt(model, first.input[1].replace("_DequantizeLinear_Output", "_scale"), 4.0)
    onnx.save(broken, tmp_path / "broken.onnx")
    rows = {row.output: row for row in compare_layers(path, tmp_path / "broken.onnx", samples).rows}
    assert rows.keys() == clean.keys()
    worse = [name for name in rows if rows[name].own_db < clean[name].own_db - 3]
    assert len(worse) == 1, worse  # only the spoilt layer became worse
    assert sum(rows[name].snr_db < clean[name].snr_db - 3 for name in rows) > len(rows) / 2
    assert clean["x"].own_db == clean["x"].snr_db
    assert all(row.cosine > 0.99 and 0 <= row.clipped < 0.1 and 0.3 < row.used <= 1 for row in clean.values())
    assert all(row.channel_db <= row.snr_db for row in clean.values())


@pytest.mark.parametrize("form", ["qdq_uint8", "qoperator_uint8"])
def test_forms(tmp_path: Path, form: str) -> None:
    net = Net(seed=3)
    proto = net.model(*KINDS["mobilenet_v2"](net))
    onnx.save(proto, tmp_path / "float.onnx")
    (tmp_path / "int8.onnx").write_bytes(quantized(proto, form, tmp_path, net.shape))
    rows = compare_layers(tmp_path / "float.onnx", tmp_path / "int8.onnx", Pictures(net.shape).left).rows
    assert len(rows) > 8
    assert min(row.own_db for row in rows) > 20


def test_only_live_values_take_memory() -> None:
    """In a walk through a chain of 50 values, at most one other value is in memory when a value is
    returned."""
    shape = [1, 4, 32, 32]
    nodes = [helper.make_node("Sqrt", [f"v{i}"], [f"v{i + 1}"]) for i in range(50)]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("v0", "v50")]
    model = helper.make_model(helper.make_graph(nodes, "chain", info[:1], info[1:]), ir_version=8)
    walk = Walk(model)
    names = [f"v{i}" for i in range(1, 51)]
    run = walk.run({"v0": np.ones(shape, np.float32)}, names)
    most = 0
    for name in names:
        run.take(name)
        most = max(most, len(run.values))
    assert most == 1
    assert not run.values


@pytest.mark.parametrize("blocks", [4, 10])
def test_bytes_alive_do_not_grow_with_depth(
    blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory for values does not grow with depth. `python -m tests.accuracy.memory compare 26 64`
    measures a whole process: values of 4 GB take less than 1 GB."""
    alive, most, plain = 0, 0, Walk.apply

    def dropped(size: int) -> None:
        nonlocal alive
        alive -= size

    def applied(self: Walk, node: Any, values: Any) -> dict[str, Any]:
        nonlocal alive, most
        found = plain(self, node, values)
        for array in found.values():
            weakref.finalize(array, dropped, array.nbytes)
            alive += array.nbytes
        most = max(most, alive)
        return found

    monkeypatch.setattr(Walk, "apply", applied)
    report = compared(blocks, 32, tmp_path)
    assert len(report.rows) >= 3 * blocks // 2
    assert most / (CHANNELS * 32 * 32 * 4) < 5.75  # the divisor is the bytes of one value


def test_memory_that_is_freed_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr("vkq.accuracy.layers.give_back", lambda: calls.append(1))
    compared(2, 16, tmp_path)
    assert not calls  # memory of small values is kept, because returning it would take longer
    monkeypatch.setattr("vkq.accuracy.layers.LARGE", CHANNELS * 16 * 16 * 4)
    assert len(compared(2, 16, tmp_path).rows) == len(calls)
    give_back()


def test_integers_are_held_in_place_of_floats(tmp_path: Path) -> None:
    """Integers are kept in memory instead of floats: each node that reads a dequantized value computes
    DequantizeLinear again."""
    path = pair_of(2, 8, tmp_path)[1]
    walk = Walk(onnx.load(path))
    run = walk.run({"x": np.ones((1, CHANNELS, 8, 8), np.float32)}, ["r0_DequantizeLinear_Output", "a1"])
    assert run.take("r0_DequantizeLinear_Output").dtype == np.float32
    assert {array.dtype.name for array in run.values.values()} == {"int8"}
    assert run.take("a1").shape == (1, CHANNELS, 8, 8)
    assert not run.values


def test_a_value_is_read_by_branches_too() -> None:
    x, y, then, other = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xyto")
    branches = {
        "then_branch": helper.make_graph([helper.make_node("Add", ["a", "a"], ["t"])], "then", [], [then]),
        "else_branch": helper.make_graph([helper.make_node("Sub", ["a", "a"], ["o"])], "else", [], [other]),
    }
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("If", ["c"], ["y"], **branches)]
    constant = numpy_helper.from_array(np.array(True), "c")
    walk = Walk(helper.make_model(helper.make_graph(nodes, "g", [x], [y], [constant]), ir_version=8))
    np.testing.assert_array_equal(walk.run({"x": np.float32([1, 2])}).take("y"), [-2, -4])


def test_a_tally_of_many_shapes() -> None:
    """Each channel is counted separately while all samples have the same channels. As soon as a sample has
    other channels, all values count as one channel."""
    x = np.float32([[[1, 5], [2, 3]]])
    tally = Tally()
    for _ in range(2):
        tally.add(x, x + np.float32([[[0], [3]]]), x + 1)
    np.testing.assert_array_equal(tally.signal, [52, 26])
    np.testing.assert_array_equal(tally.noise, [0, 36])
    tally.add(np.ones((1, 3, 2), np.float32), np.zeros((1, 3, 2), np.float32), np.ones((1, 3, 2), np.float32))
    np.testing.assert_array_equal(tally.signal, [52 + 26 + 6])
    np.testing.assert_array_equal(tally.noise, [36 + 6])
    tally.add(x, x, x)
    np.testing.assert_array_equal(tally.signal, [84 + 39])
    assert (tally.own, tally.histogram.counts.sum()) == (8, 18)


def test_histogram() -> None:
    random = np.random.default_rng(0)
    parts = [random.normal(0, s, 5000).astype(np.float32) for s in (0.01, 1, 30)]
    parts[1][:2] = np.nan, np.inf
    histogram = Histogram()
    for part in parts:
        histogram.add(part)
    x = np.concatenate(parts)
    x = x[np.isfinite(x)]
    assert (histogram.low, histogram.high) == (x.min(), x.max())
    assert histogram.counts.sum() == x.size
    for scale, zero in ((0.5, 3), (0.02, 0), (2.0, -100)):
        real = np.square((np.clip(np.rint(x / scale) + zero, -128, 127) - zero) * scale - x).mean()
        assert histogram.noise(scale, zero, -128, 127) == pytest.approx(real, rel=0.02)
    for share in (0.05, 0.5, 0.95):
        assert histogram.quantile(share) == pytest.approx(np.quantile(x, share), abs=histogram.limit / 2000)
    assert histogram.clipped(-20, 20) == pytest.approx((np.abs(x) > 20).mean(), rel=0.05)


def test_the_command(networks: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, model, samples = networks["resnet"]
    onnx.save(model, tmp_path / "int8.onnx")
    np.save(tmp_path / "x.npy", samples[0]["x"])
    words = ["compare-layers", str(path), str(tmp_path / "int8.onnx"), "-i", str(tmp_path / "x.npy")]
    assert main([*words, "--json", str(tmp_path / "l.json"), "--plot", str(tmp_path / "l.svg")]) == 0
    out = capsys.readouterr().out
    assert "over 1 sample; look first at:" in out
    found = json.loads((tmp_path / "l.json").read_text())
    assert [row["layer"] for row in found["layers"]] == [
        line.split()[0] for line in out.splitlines()[1 : 1 + len(found["layers"])]
    ]
    assert found["layers"][0]["op"] == "input"
    svg = (tmp_path / "l.svg").read_text()
    assert svg.count("<rect") == 1 + len(found["layers"])
    assert all(name in svg for name in found["worst"])
    assert main([*words, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_models_that_are_no_pair_are_refused(networks: dict[str, Any], tmp_path: Path) -> None:
    path, model, samples = networks["resnet"]
    other = onnx.ModelProto.FromString(model.SerializeToString())
    kept = {"x", *(tensor.name for tensor in other.graph.initializer)}
    for node in other.graph.node:
        node.output[:] = [f"other_{name}" for name in node.output]
        node.input[:] = [name if name in kept else f"other_{name}" for name in node.input]
    other.graph.input[0].name = other.graph.node[0].input[0] = "z"
    for node in other.graph.node:
        node.input[:] = ["z" if name == "x" else name for name in node.input]
    other.graph.output[0].name = f"other_{other.graph.output[0].name}"
    del other.graph.value_info[:]
    onnx.save(other, tmp_path / "other.onnx")
    with pytest.raises(ModelError, match="have no quantized value in common"):
        compare_layers(path, tmp_path / "other.onnx", samples[:1])
