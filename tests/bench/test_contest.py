"""Tests of ``vkq bench model.onnx --peer``: outputs are compared, the calls of both libraries are timed
alternately, and the report states where each model ran."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkq
from tests.bench.test_run import SHORT
from vkq import cli
from vkq.bench import contest, ncnn_peer, result

node, info = helper.make_node, helper.make_tensor_value_info
WEIGHT = np.random.default_rng(0).normal(size=(4, 3, 1, 1)).astype(np.float32)


def saved(path: Path, nodes: list[Any], x: Any, y: Any, constants: dict[str, Any]) -> str:
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


@pytest.fixture
def convolution(tmp_path: Path) -> str:
    """Return a model of a convolution with unknown sizes; ncnn's files are next to it."""
    for kind in ("param", "bin"):
        (tmp_path / f"conv.ncnn.{kind}").touch()
    nodes = [node("Conv", ["x", "w"], ["y"])]
    x, y = info("x", TensorProto.FLOAT, [1, 3, "h", "v"]), info("y", TensorProto.FLOAT, None)
    return saved(tmp_path / "conv.onnx", nodes, x, y, {"w": WEIGHT})


@pytest.fixture
def determinants(tmp_path: Path) -> str:
    """Return a model with an open batch size. One of its nodes runs on the CPU."""
    nodes = [node("Det", ["x"], ["d"]), node("Relu", ["d"], ["y"])]
    x, y = info("x", TensorProto.FLOAT, ["n", 3, 3]), info("y", TensorProto.FLOAT, ["n"])
    return saved(tmp_path / "det.onnx", nodes, x, y, {})


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """Return a model that gathers rows of a table by ids."""
    table = np.arange(22).reshape(11, 2).astype(np.float32)
    nodes = [node("Gather", ["t", "ids"], ["r"]), node("Relu", ["r"], ["y"])]
    x, y = info("ids", TensorProto.INT64, ["n", 3]), info("y", TensorProto.FLOAT, ["n", 3, 2])
    return saved(tmp_path / "rows.onnx", nodes, x, y, {"t": table})


def bench(*words: str) -> int:
    return cli.main(["bench", *words, "--device", "llvmpipe", *SHORT])


def test_beside_onnx_runtime(
    software_device: vkq.Device, convolution: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.json"
    assert bench(convolution, "--shape", "x=1x3x5x7", "--peer", "ort", "--json", str(out)) == 0
    told = capsys.readouterr().out
    run = result.read(out)
    assert [(row.case, row.path, row.clock) for row in run.rows] == [
        ("conv.onnx[x=1x3x5x7]", "vkq", "call"), ("conv.onnx[x=1x3x5x7]", "ort", "call"),
    ]  # fmt: skip
    assert len({len(row.samples_us) for row in run.rows}) == 1, "in turn"
    assert {row.operations for row in run.rows} == {2 * 5 * 7 * 3 * 4}
    assert "1 operator on llvmpipe" in told
    assert "ONNX Runtime" in told
    assert "140 outputs" in told
    assert f"takes {run.comparisons[0].ratio:.3f} of the time of vkq, " in told
    (ratio,) = run.comparisons
    assert (ratio.path, ratio.base) == ("ort", "vkq")
    assert run.rows[0].command.endswith("--shape x=1x3x5x7 --device llvmpipe --peer ort")


def test_nodes_on_the_cpu_and_batches(
    software_device: vkq.Device, determinants: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(UserWarning, match="Det"):
        assert bench(determinants, "--batch", "2", "--batch", "5", "--peer", "ort") == 0
    told = capsys.readouterr().out
    for batch in (2, 5):
        assert f"det.onnx[x={batch}x3x3]" in told
    assert told.count("1 operator on the CPU (ONNX Runtime)") == 2
    assert "all 5 outputs equal vkq's" in told


def test_ids(software_device: vkq.Device, rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Integer inputs hold valid row ids of the model's table, or, with --ids, numbers in the given range."""
    for more in ([], ["--ids", "ids=8:11"]):
        assert bench(rows, "--shape", "ids=4x3", *more, "--peer", "ort") == 0
        assert "all 24 outputs equal vkq's" in capsys.readouterr().out
    feed = contest.Contest(rows, 4, software_device, ids=["ids=8:11"]).feed["ids"]
    assert set(feed.reshape(-1)) == {8, 9, 10}


class Net:
    """A fake of ncnn's class with the methods that vkq uses: it computes 1 x 1 convolutions with WEIGHT."""

    def __init__(self) -> None:
        self.opt = SimpleNamespace(use_vulkan_compute=False)
        self.device: int | None = None
        self.load_param = self.load_model = lambda path: 0
        self.given: dict[str, Any] = {}
        self.input = self.given.__setitem__

    def set_vulkan_device(self, index: int) -> None:
        self.device = index

    def layers(self) -> list[Any]:
        every = ("Input", True), ("Convolution", True), ("Reshape", False)
        return [SimpleNamespace(type=name, support_vulkan=there) for name, there in every]

    def input_names(self) -> list[str]:
        return ["in0"]

    def output_names(self) -> list[str]:
        return ["out0"]

    def create_extractor(self) -> Net:
        assert self.opt.use_vulkan_compute
        assert self.device == 1
        return self

    def extract(self, name: str) -> tuple[int, Any]:
        assert name == "out0"
        return 0, np.einsum("ok,khw->ohw", WEIGHT[:, :, 0, 0], self.given["in0"])


class Mat(np.ndarray):
    """A fake of ncnn's class with the methods that vkq uses."""

    def clone(self) -> np.ndarray:
        return self.copy()


def fake(*devices: str) -> Any:
    """Return a fake module ncnn that finds these devices."""
    return SimpleNamespace(
        __version__="1.0", Net=Net, Mat=lambda x: x.view(Mat), get_gpu_count=lambda: len(devices),
        get_gpu_info=lambda i: SimpleNamespace(device_name=lambda: devices[i]),
    )  # fmt: skip


def test_ncnn_from_its_own_files(
    software_device: vkq.Device, convolution: str, determinants: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(contest, "library", lambda name, peer: fake("another", software_device.name))
    assert bench(convolution, "--shape", "x=1x3x5x7", "--peer", "ncnn", "--peer", "ort") == 0
    told = capsys.readouterr().out
    assert f"ncnn 1.0 conv.ncnn.param on Vulkan device 1 ({software_device.name})" in told
    assert "2 of 3 layers by Vulkan; Reshape on the CPU" in told
    with pytest.warns(UserWarning, match="Det"):
        assert bench(determinants, "--peer", "ncnn") == 0
    assert "no det.ncnn.param and no det.ncnn.bin beside the model" in capsys.readouterr().out


PARAM = """7767517
2 2
Input in0 0 1 in0
Convolution conv 1 1 in0 out0 0=4 1=1 6=12
"""


def test_the_real_ncnn(
    software_device: vkq.Device, convolution: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The benchmark runs with the real ncnn: its reader, layers and device. ncnn computes in float16 by
    default."""
    ncnn = pytest.importorskip("ncnn", reason="ncnn is not a dependency of the tests (tests/README.md)")
    (tmp_path / "conv.ncnn.param").write_text(PARAM)
    (tmp_path / "conv.ncnn.bin").write_bytes(bytes(4) + WEIGHT.tobytes())  # the tag 0 means float32
    out = tmp_path / "run.json"
    assert bench(convolution, "--shape", "x=1x3x5x7", "--peer", "ncnn", "--json", str(out)) == 0
    found = result.read(out)
    assert [(row.path, len(row.samples_us)) for row in found.rows] == [
        ("vkq", len(found.rows[0].samples_us)), ("ncnn", len(found.rows[0].samples_us)),
    ]  # fmt: skip
    assert f"ncnn {ncnn.__version__} conv.ncnn.param on Vulkan device" in capsys.readouterr().out
    x = np.random.default_rng(3).normal(size=(1, 3, 5, 7)).astype(np.float32)
    call, ran = ncnn_peer.model_call(ncnn, convolution, {"x": x}, software_device)
    assert ran.endswith("2 of 2 layers by Vulkan")
    np.testing.assert_allclose(call()[0], np.einsum("ok,nkhw->nohw", WEIGHT[:, :, 0, 0], x), atol=2e-2)


def test_what_ncnn_refuses(software_device: vkq.Device, convolution: str) -> None:
    x = np.zeros((2, 3, 4, 5), np.float32)
    ours = fake(software_device.name)
    with pytest.raises(NotImplementedError, match="does not list this device; it lists other"):
        ncnn_peer.model_call(fake("other"), convolution, {"x": x[:1]}, software_device)
    with pytest.raises(NotImplementedError, match=r"axis 0 must be 1 in x \(2, 3, 4, 5\)"):
        ncnn_peer.model_call(ours, convolution, {"x": x}, software_device)
    with pytest.raises(NotImplementedError, match="has the inputs \\['in0'\\]"):
        ncnn_peer.model_call(ours, convolution, {"x": x[:1], "z": x[:1]}, software_device)


def test_agreement() -> None:
    a, b = np.array([1, 2, 3], np.int8), np.array([1, 2, 5], np.int8)
    assert contest.agreement([a], [a.copy()]) == "all 3 outputs equal vkq's"
    assert contest.agreement([a], [b]) == "1 of 3 outputs differ, at most 2 where the largest is 5"
    assert contest.agreement([a], [b[None]]).startswith("DIFFERS: its results have shapes [3]")
    nan = np.array([np.nan, 1], np.float32)
    assert contest.agreement([nan], [nan]) == "all 2 outputs equal vkq's"


def test_refused(software_device: vkq.Device, convolution: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(convolution, "--peer", "torch") == 2
    assert "--peer torch does not run models; ort, ncnn do" in capsys.readouterr().err
    assert bench(convolution, "--vs", "portable") == 2
    assert "leave --path, --vs and --variant out" in capsys.readouterr().err
