"""Tests of quantization with a search: the layers that stay float, the corrections, the targets, and
results on a device without CPU nodes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import vkq
import vkq.onnx
from tests.onnx.networks import KINDS, Net
from vkq.accuracy import Agreement, compare_layers, quantize
from vkq.accuracy.histogram import Histogram
from vkq.accuracy.mend import corrected, equalized, repeated, smoothed
from vkq.accuracy.observe import Observed
from vkq.accuracy.place import QuantPlan, blocks, elementwise, placed, tail
from vkq.accuracy.ranges import RULES, full_range, least_squares, step
from vkq.cli import main
from vkq.errors import ArgumentError
from vkq.onnx.cpu import cpu_session
from vkq.onnx.quantize import quantize as fast


def samples(shape: tuple[int, ...], count: int = 6, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Return smooth random images."""
    random = np.random.default_rng(seed)
    return [{"x": random.normal(0, 1, shape).cumsum(-1).astype(np.float32) / 2} for _ in range(count)]


def detector(net: Net) -> list[str]:
    """Add a detector. Its last Concat joins boxes of values up to 320 and scores up to 1."""
    x = net.relu(net.conv(net.relu(net.conv("x", 8)), 12, stride=2))
    boxes = net.op("Mul", net.op("Sigmoid", net.conv(x, 4)), net.constant(np.float32(320)))
    scores = net.op("Sigmoid", net.conv(x, 3))
    return [net.op("Reshape", net.concat(boxes, scores), net.constant(np.int64([0, 7, -1])))]


def short(net: Net) -> list[str]:
    """Add a network of five layers, one of them depthwise."""
    x = net.relu(net.conv("x", 6, stride=2))
    y = net.op("HardSwish", net.conv(net.conv(x, 6, groups=6), 6, 1))
    return [net.head(net.relu(net.op("Add", x, y)))]


def uneven(net: Net) -> list[str]:
    """Add two layers whose channels are scaled by factors from 1/16 to 16, and a third layer whose weights
    undo these factors."""
    x = net.relu(net.conv("x", 12, 1))
    x = net.relu(net.conv(x, 12, 3, groups=12))
    y = net.conv(x, 8)
    by_name = {t.name: t for t in net.weights}
    s = np.float32(2) ** np.linspace(-4, 4, 12, dtype=np.float32)
    first, depthwise, last = (
        next(n for n in net.nodes if n.output[0] == name)
        for name in (net.nodes[0].output[0], net.nodes[2].output[0], y)
    )

    def scale(name: str, by: np.ndarray) -> None:
        array = numpy_helper.to_array(by_name[name])
        by_name[name].CopyFrom(
            numpy_helper.from_array(
                array * by.reshape(-1, *(1 for _ in array.shape[1:])) if by.ndim == 1 else array * by, name
            )
        )

    scale(first.input[1], s)
    scale(first.input[2], s)
    scale(depthwise.input[2], s)
    scale(last.input[1], (1 / s).reshape(1, -1, 1, 1))
    return [net.head(net.relu(y))]


def saved(kind: Any, folder: Path, seed: int = 3) -> tuple[Path, Net]:
    net = Net(seed)
    onnx.save(net.model(*kind(net)), folder / "float.onnx")
    return folder / "float.onnx", net


def on_device(device: vkq.Device, real: Path, target: Path, feeds: list[dict[str, Any]]) -> Agreement:
    """Return the agreement of the device's outputs with the float model's. Check that every node runs on the
    device, and that its outputs differ from ONNX Runtime's much less than from the float model's."""
    session = vkq.onnx.InferenceSession(target, device)  # raises an error if a node cannot run on the device
    beside, floats = cpu_session(target.read_bytes(), "test"), ort.InferenceSession(real)
    names = [value.name for value in session.get_outputs()]
    found = Agreement(names)
    for feed in feeds:
        got, want, exact = session.run(names, feed), beside.run(names, feed), floats.run(names, feed)
        for a, b, c in zip(got, want, exact, strict=True):
            noise, apart = np.square(b - c).sum(), np.square(a - b).sum()
            assert apart <= 0.05 * noise + 1e-9 * np.square(c).sum()
        found.add(exact, got)
    return found


def test_boxes_do_not_destroy_scores(device: vkq.Device, tmp_path: Path) -> None:
    path, net = saved(detector, tmp_path)
    feeds = samples(net.shape)
    fast(path, tmp_path / "fast.onnx", feeds)
    report = quantize(path, tmp_path / "int8.onnx", feeds, seconds=0)
    (row,) = report.outputs
    (got,) = on_device(device, path, tmp_path / "int8.onnx", feeds).rows()
    (before,) = on_device(device, path, tmp_path / "fast.onnx", feeds).rows()
    assert before.channel >= 4  # channels 4 and later are scores
    assert before.channel_db < 10
    assert got.channel_db > 25
    assert row.channel_db > 25
    ops = {node.name: node.op_type for node in onnx.load(path).graph.node}
    assert [ops[name] for name in tail(onnx.load(path))] == ["Reshape", "Concat", "Sigmoid", "Mul", "Sigmoid"]


@pytest.mark.parametrize("kind", ["mobilenet_v3", "efficientnet", "unet", "densenet", "shufflenet"])
def test_it_runs_whole_and_is_no_worse(software_device: vkq.Device, tmp_path: Path, kind: str) -> None:
    path, net = saved(KINDS[kind], tmp_path)
    feeds = samples(net.shape)
    fast(path, tmp_path / "fast.onnx", [feeds[i] for i in (0, 1, 3, 4)])
    report = quantize(path, tmp_path / "int8.onnx", feeds, seconds=0)
    assert report.held_out == 2
    assert [step.what for step in report.steps] == ["min-max"]
    assert report.steps[0].kept
    held = [feeds[2], feeds[5]]
    got = on_device(software_device, path, tmp_path / "int8.onnx", held).worst()
    assert got > on_device(software_device, path, tmp_path / "fast.onnx", held).worst() - 1
    assert got == pytest.approx(min(min(row.snr_db, row.even_db) for row in report.outputs), abs=0.5)


def test_uneven_channels_are_equalized(tmp_path: Path) -> None:
    path, net = saved(uneven, tmp_path)
    feeds = samples(net.shape)
    said: list[str] = []
    report = quantize(path, tmp_path / "int8.onnx", feeds, seconds=30, progress=said.append)
    steps = {step.what: step for step in report.steps}
    assert steps["equalized, min-max"].kept
    assert steps["equalized, min-max"].snr_db > steps["min-max"].snr_db + 6
    assert report.outputs[0].snr_db >= max(step.snr_db for step in report.steps if step.kept) - 1e-9
    assert any(text.startswith("equalizing 2 pairs") for text in said)
    layers = compare_layers(path, tmp_path / "int8.onnx", feeds[:2])
    assert min(row.snr_db for row in layers.rows) > 20  # the comparison equalizes the float model, too
    assert max(row.scale_loss_db for row in layers.rows) < 10
    model = onnx.load(tmp_path / "int8.onnx")
    assert "vkq.equalized" in {entry.key for entry in model.metadata_props}
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "int8.onnx")
    assert min(row.snr_db for row in compare_layers(path, tmp_path / "int8.onnx", feeds[:2]).rows) < 10


def test_equalizing_keeps_the_function(tmp_path: Path) -> None:
    path, net = saved(uneven, tmp_path)
    proto = onnx.load(path)
    before = proto.SerializeToString()
    seen = Observed(proto, samples(net.shape))
    new, count = equalized(proto, seen)
    assert count == 2
    assert proto.SerializeToString() == before
    feed = samples(net.shape, 1, 7)[0]
    a, b = (ort.InferenceSession(p.SerializeToString()).run(None, feed)[0] for p in (proto, new))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    after = Observed(new, samples(net.shape))
    depthwise = [n for n in proto.graph.node if n.op_type == "Conv"][1].input[0]
    # after equalization, all channels have the same range
    assert np.ptp(np.log2(after.peaks(depthwise))) < 0.01
    assert np.ptp(np.log2(seen.peaks(depthwise))) > 5


def test_smoothing_keeps_the_function(tmp_path: Path) -> None:
    """Smoothing does not change the function. A channel's factor cannot be moved through a HardSwish into the
    previous layer, so a Mul node applies the factor."""

    def kind(net: Net) -> list[str]:
        x = net.op("HardSwish", net.conv("x", 6))
        return [net.head(net.op("HardSwish", net.conv(net.conv(x, 6, groups=6), 8)))]

    path, net = saved(kind, tmp_path)
    proto = onnx.load(path)
    seen = Observed(proto, samples(net.shape))
    floats = elementwise(proto)
    assert [name.split("_")[0] for name in floats] == ["HardSwish", "HardSwish"]
    new, ranges, nodes = smoothed(proto, seen, floats)
    assert nodes == ["Conv_0/smooth", "Conv_2/smooth"]  # the other layers are equalized instead
    feed = samples(net.shape, 1, 7)[0]
    a, b = (ort.InferenceSession(p.SerializeToString()).run(None, feed)[0] for p in (proto, new))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    after = Observed(new, samples(net.shape))
    again = repeated(proto, new)
    assert [n.name for n in again.graph.node] == [n.name for n in new.graph.node]
    assert again.graph.initializer == new.graph.initializer
    for name, span in ranges.items():
        assert full_range(after.histograms[name]) == pytest.approx(span, rel=1e-5)
    assert np.ptp(np.log2(after.peaks("Conv_2/smooth"))) < 0.01
    assert np.ptp(np.log2(seen.peaks("hardswish1_0"))) > 0.5


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_biases_take_up_the_mean_error(tmp_path: Path, groups: int) -> None:
    """Corrected biases remove the mean error. In a 1 x 1 convolution, only the error from rounding the bias
    remains."""
    net = Net(3)
    y = net.conv(net.conv("x", 6, 1), 6, 1, groups=groups)
    proto = net.model(y)
    tensor = next(t for t in proto.graph.initializer if t.name == proto.graph.node[1].input[1])
    w = numpy_helper.to_array(tensor).copy()
    w[0] *= 40  # so with one scale for all channels, the other channels use few of the int8 codes
    tensor.CopyFrom(numpy_helper.from_array(w, tensor.name))
    for i, node in enumerate(proto.graph.node):
        node.name = f"n{i}"
    feeds = samples(net.shape, 2)
    seen = Observed(proto, feeds)
    plan = QuantPlan(
        {name: full_range(h) for name, h in seen.histograms.items()}, frozenset({"n0"}), per_channel=False
    )
    made = placed(proto, plan)
    new, count = corrected(proto, made, seen)
    assert count == 1

    def error(model: Any) -> np.ndarray:
        total = 0
        for feed in feeds:
            want, got = (cpu_session(p.SerializeToString(), "t").run(None, feed)[0] for p in (proto, model))
            total = total + (got - want).mean((0, 2, 3))
        return np.abs(total)[1:]

    low, high = plan.ranges[proto.graph.node[1].input[0]]
    # In each of the two samples, rounding the bias has an error of at most half a quantization step.
    bias_step = (high - low) / 255 * np.abs(w).max() / 127
    after, before = error(placed(new, plan)), error(made)
    assert after.max() < 1.5 * bias_step
    assert after.sum() < 0.65 * before.sum()


def test_targets(device: vkq.Device, tmp_path: Path) -> None:
    path, net = saved(short, tmp_path)
    feeds = samples(net.shape)
    plain = quantize(path, tmp_path / "int8.onnx", feeds, seconds=0)
    wanted = plain.outputs[0].snr_db + 4
    report = quantize(path, tmp_path / "mixed.onnx", feeds, seconds=0, target_db=wanted)
    assert plain.reached is None
    assert report.reached
    assert report.outputs[0].snr_db >= wanted
    assert 0 < len(report.kept) < len(blocks(onnx.load(path)))
    assert all(row.form == "weights" for row in report.kept)
    assert 0 < sum(row.share for row in report.kept) < 1
    assert on_device(device, path, tmp_path / "mixed.onnx", [feeds[2], feeds[5]]).worst() >= wanted - 0.2
    onnx.checker.check_model(onnx.load(tmp_path / "mixed.onnx"), full_check=True)
    names = {node.name: node for node in onnx.load(tmp_path / "mixed.onnx").graph.node}
    made = {name: node for node in names.values() for name in node.output}
    for row in report.kept:  # float layers read float inputs
        source = made.get(names[row.layer].input[0])
        assert source is None or source.op_type != "DequantizeLinear"
        assert made[names[row.layer].input[1]].op_type == "DequantizeLinear"


def test_a_target_that_is_out_of_reach(
    tmp_path: Path, software_device: vkq.Device, capsys: pytest.CaptureFixture[str]
) -> None:
    """The search reports a target that it cannot reach, and the best result. A product of two activations has
    no weight and stays int8."""
    path, net = saved(
        lambda net: [net.op("MatMul", "x", net.op("Transpose", "x", perm=[0, 1, 3, 2]))], tmp_path
    )
    report = quantize(path, tmp_path / "int8.onnx", samples(net.shape, 3), seconds=0, target_db=200)
    assert report.reached is False
    assert report.kept == ()
    (row,) = report.outputs
    assert 20 < row.snr_db < 60
    best = f"{min(row.snr_db, row.even_db):.1f} dB, {row.same:.2%} the same"
    assert f"the target is not reached; this is the best found: {best}" in str(report)
    np.savez(tmp_path / "x.npz", **samples(net.shape, 1)[0])
    words = ["quantize", str(path), "-c", str(tmp_path), "--device", software_device.name, "--seconds", "0"]
    assert main([*words, "--target-db", "200", "-o", str(tmp_path / "a.onnx")]) == 1
    assert (tmp_path / "a.onnx").exists()
    assert "this is the best found" in capsys.readouterr().out
    assert main([*words, "--target-db", "5", "-o", str(tmp_path / "b.onnx")]) == 0


def test_a_layer_that_stays_float_reads_what_its_relu_gave(device: vkq.Device, tmp_path: Path) -> None:
    """A layer that stays float reads the result of the Relu before it. (Before an int8 layer, a Relu is
    removed, because the range of the quantized value has its effect.)"""
    path, net = saved(lambda net: [net.head(net.relu(net.conv(net.relu(net.conv("x", 6)), 6)))], tmp_path)
    feeds = samples(net.shape)
    for options in ({"exclude": ["Conv_2"]}, {"only_weights": ["Conv_2"]}):
        report = quantize(path, tmp_path / "int8.onnx", feeds, seconds=0, **options)  # type: ignore[arg-type]
        assert report.outputs[0].snr_db > 30
        assert on_device(device, path, tmp_path / "int8.onnx", feeds).worst() > 30
        model = onnx.load(tmp_path / "int8.onnx")
        node = next(node for node in model.graph.node if node.name == "Conv_2")
        floats = {t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
        assert (node.input[1] in floats) == ("exclude" in options)


def test_rules() -> None:
    random = np.random.default_rng(0)
    x = random.laplace(0, 1, 40_000).astype(np.float32)
    found = Histogram()
    found.add(x)
    spans = {name: rule(found) for name, rule in RULES.items()}
    assert spans["min-max"] == (x.min(), x.max())
    widths = [spans[name][1] - spans[name][0] for name in ("min-max", "99.999 %", "99.99 %", "99.9 %")]
    assert sorted(widths, reverse=True) == widths
    assert spans["99.9 %"] == pytest.approx(np.quantile(x, [0.0005, 0.9995]), rel=0.02)

    def error(span: tuple[float, float]) -> float:
        scale, zero = step(span)
        return float(np.square((np.clip(np.rint(x / scale) + zero, -128, 127) - zero) * scale - x).mean())

    assert error(least_squares(found)) <= 1.01 * min(error(span) for span in spans.values())
    assert error(spans["entropy"]) < 4 * error(spans["min-max"])
    positive = Histogram()
    positive.add(np.maximum(x, 0))
    for rule in RULES.values():
        low, high = rule(positive)
        assert low == 0
        assert 1 < high <= x.max()
    empty = Histogram()
    assert all(step(rule(found))[0] > 0 for rule in RULES.values())
    empty.add(np.zeros(3, np.float32))
    assert {rule(empty) for rule in RULES.values()} == {(0.0, 0.0)}


def test_the_command(tmp_path: Path, software_device: vkq.Device, capsys: pytest.CaptureFixture[str]) -> None:
    path, net = saved(detector, tmp_path)
    (tmp_path / "x").mkdir()
    for i, feed in enumerate(samples(net.shape, 4)):
        np.save(tmp_path / "x" / f"{i}.npy", feed["x"])
    words = ["quantize", str(path), "-c", str(tmp_path / "x"), "--device", software_device.name]
    assert main([*words, "--seconds", "0", "--target-agreement", "50%", "-o", str(tmp_path / "a.onnx")]) == 0
    out = capsys.readouterr().out
    assert "min-max" in out
    assert "against the float model on 1 sample not used to find ranges, on" in out
    assert main([*words, "--fast", "-o", str(tmp_path / "b.onnx")]) == 0
    assert "against the float model on 4 samples, on" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--target-agreement", "101%"])
    with pytest.raises(ArgumentError, match="there are no samples"):
        quantize(path, tmp_path / "c.onnx", [])
    assert not (tmp_path / "c.onnx").exists()


def test_sessions_of_candidates_keep_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between runs no session keeps the memory of its values. `python -m tests.accuracy.memory quantize 26
    64` measures a whole process: values of 4 GB take less than 1 GB."""
    made: list[Any] = []

    def kept(*args: Any, **options: Any) -> Any:
        made.append(cpu_session(*args, **options))
        return made[-1]

    monkeypatch.setattr("vkq.accuracy.trial.cpu_session", kept)
    path, net = saved(short, tmp_path)
    quantize(path, tmp_path / "int8.onnx", samples(net.shape), seconds=0)
    assert len(made) == 2
    assert not any(session.get_session_options().enable_cpu_mem_arena for session in made)


def test_channels_are_counted_alike(tmp_path: Path) -> None:
    """Errors in channels of large values (boxes) do not hide errors in channels of small values (scores).
    The search maximizes the same number that it reports."""
    random = np.random.default_rng(0)
    real = np.abs(random.normal(1, 0.1, (4, 3, 50))).astype(np.float32) * np.float32([[320], [1], [1]])
    real[:, 2] = 0  # a channel that is always 0 does not count
    got = real.copy()
    got[:, 1] *= 1.1
    found = Agreement(["y"])
    found.add([real], [got])
    (row,) = found.rows()
    assert row.snr_db > 60
    assert row.channel_db == pytest.approx(20, abs=0.01)
    assert row.even_db == pytest.approx(20 + 20 * np.log10(2), abs=0.01)  # the channels' errors are 0.1 and 0
    assert found.worst() == row.even_db
    got[:, 1] *= 100  # an error above 1 counts as 1
    found = Agreement(["y"])
    found.add([real], [got])
    assert found.rows()[0].even_db == pytest.approx(20 * np.log10(2), abs=0.01)
    zeros = Agreement(["y"])
    zeros.add([np.zeros((2, 3), np.float32)], [np.zeros((2, 3), np.float32)])
    assert zeros.worst() == np.inf
    path, net = saved(detector, tmp_path)
    report = quantize(path, tmp_path / "int8.onnx", samples(net.shape), seconds=20)
    (row,) = report.outputs
    kept = [step.snr_db for step in report.steps if step.kept]
    assert kept == sorted(kept)
    assert kept[-1] == min(row.even_db, row.snr_db)


def test_agreement_of_many_shapes() -> None:
    found = Agreement(["a", "b"])
    x = np.float32([[[1, 5], [2, 3]]])
    found.add([x, x[0, 0]], [x + np.float32([[[0], [3]]]), x[0, 0]])
    found.add([x[..., :1], x[0, 0]], [x[..., :1], x[0, 0]])
    a, b = found.rows()
    assert (a.channel, a.same, b.snr_db, b.same) == (1, 2 / 3, np.inf, 1)
    assert a.snr_db == pytest.approx(10 * np.log10((39 + 5) / 18))
    assert found.worst() == a.snr_db
    # a sample with other channels
    found.add([np.ones((1, 3, 2), np.float32)] * 2, [np.ones((1, 3, 2), np.float32)] * 2)
    assert found.rows()[0].snr_db == pytest.approx(10 * np.log10((39 + 5 + 6) / 18))
