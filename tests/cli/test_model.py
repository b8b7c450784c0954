"""Tests of `vkq inspect`, `vkq run` and `vkq quantize`: output, files and exit codes."""

import errno
import io
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import vkq
from tests.onnx.networks import KINDS, Net, onnxruntime_results, quantized
from vkq.cli import main
from vkq.onnx.fallback import FallbackWarning
from vkq.onnx.quantize import quantize, stored_bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an int8 model, a float model, a model with nodes that vkq cannot run, and
    pictures."""
    path = tmp_path_factory.mktemp("models")
    net = Net(seed=3)
    proto = net.model(*KINDS["resnet"](net))
    (path / "float.onnx").write_bytes(proto.SerializeToString())
    (path / "int8.onnx").write_bytes(quantized(proto, "qdq_int8", path, net.shape))
    (path / "pictures").mkdir()
    for i in range(4):
        pixels = np.random.default_rng(i).integers(0, 256, (20 + i, 30, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(path / "pictures" / f"{i}.png")
    net = Net(seed=5)
    (path / "partly.onnx").write_bytes(
        net.model(net.head(net.op("LpPool", net.conv("x", 4), kernel_shape=[1, 1]))).SerializeToString()
    )
    return path


@pytest.fixture(autouse=True)
def device_of_the_commands(software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKQ_DEVICE", software_device.name)
    monkeypatch.setattr("vkq.runtime.opened._default", software_device)


def test_inspect(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder / "int8.onnx")]) == 0
    out = capsys.readouterr().out
    assert "input   x: float32[1, 3, 16, 16], here [1, 3, 16, 16]" in out
    assert "device  conv2d" in out
    assert "operators: " in out
    assert main(["inspect", str(folder / "partly.onnx")]) == 1
    assert "cannot run LpPool" in capsys.readouterr().out
    assert main(["inspect", str(folder / "pictures" / "0.png")]) == 2
    assert "vkq: error: not an ONNX model" in capsys.readouterr().err


def test_run_a_picture(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out.npz"
    picture = folder / "pictures" / "0.png"
    options = [
        "-i",
        f"x={picture}",
        "-o",
        str(out),
        "--mean",
        "0.5",
        "--std",
        "0.25",
        "--compare",
        "onnxruntime",
    ]
    assert main(["run", str(folder / "int8.onnx"), *options]) == 0
    said = capsys.readouterr().out
    assert "10 of 10 equal" in said
    assert "session.qdqisint8allowed=1" in said
    scaled = Image.open(picture).resize((16, 16), Image.Resampling.BILINEAR)
    x = ((np.asarray(scaled).astype(np.float32) / 255 - np.float32(0.5)) / np.float32(0.25)).transpose(
        2, 0, 1
    )[None]
    want = onnxruntime_results((folder / "int8.onnx").read_bytes(), {"x": x})[0]
    with np.load(out) as arrays:
        (got,) = (arrays[name] for name in arrays)
    np.testing.assert_array_equal(got, want)


def test_run_arrays_and_repeat(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype(np.float32)
    np.save(folder / "x.npy", x)
    np.savez(folder / "x.npz", x=x)
    for name in ("x.npy", "x.npz"):
        assert (
            main(["run", str(folder / "int8.onnx"), "-i", str(folder / name), "--repeat", "3", "--explain"])
            == 0
        )
        out = capsys.readouterr().out
        assert "of 3 runs" in out
        assert "dispatches" in out
    np.save(folder / "bad.npy", np.array([{}]))
    assert main(["run", str(folder / "int8.onnx"), "-i", str(folder / "bad.npy")]) == 2
    assert "bad.npy holds no array of numbers" in capsys.readouterr().err


def test_run_profile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = folder / "trace.json"
    words = [
        "run",
        str(folder / "int8.onnx"),
        "--random",
        "--profile",
        "--repeat",
        "3",
        "--trace",
        str(trace),
    ]
    assert main(words) == 0
    events = json.loads(trace.read_text())["traceEvents"]
    assert f"us on the device, {len(events)} nodes, medians of 3 runs" in capsys.readouterr().out
    assert {event["ph"] for event in events} == {"X"}
    assert sum(event["cat"].split("+")[0].strip() == "conv2d" for event in events) == 6, events
    assert any("Conv" in event["name"] for event in events), "events are named by node"


def test_a_profile_says_how_many_nodes_it_leaves_out(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vkq.cli.run.NODES", 2)
    assert main(["run", str(folder / "int8.onnx"), "--random", "--profile"]) == 0
    out = capsys.readouterr().out
    (nodes,) = re.findall(r"(\d+) nodes, medians of 1 run\n", out)
    assert f"  {int(nodes) - 2} shorter nodes are left out; --trace writes all\n" in out


def test_external_data_is_counted(folder: Path, tmp_path: Path) -> None:
    model = onnx.load(folder / "float.onnx")
    whole = tmp_path / "whole.onnx"
    onnx.save(model, whole)
    assert stored_bytes(whole) == whole.stat().st_size
    onnx.save(
        model, tmp_path / "split.onnx", save_as_external_data=True, location="split.data", size_threshold=0
    )
    files = [(tmp_path / name).stat().st_size for name in ("split.onnx", "split.data")]
    assert files[1] > files[0] / 2
    assert stored_bytes(tmp_path / "split.onnx") == sum(files)


def test_run_refusals(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(folder / "int8.onnx")
    assert main(["run", model]) == 2
    assert "nothing is given for the inputs ['x']" in capsys.readouterr().err
    assert main(["run", model, "--random", "--shape", "x=1x3"]) == 2
    assert main(["run", model, "--random", "--shape", "y=1x3x16x16"]) == 2
    assert "--shape names ['y']" in capsys.readouterr().err
    assert main(["inspect", model, "--shape", "x=1x3x8x8"]) == 2
    assert "input 'x' has shape (1, 3, 8, 8); it must be [1, 3, 16, 16]" in capsys.readouterr().err
    np.save(folder / "zeros.npy", np.zeros((1, 3, 16, 16), np.float32))
    given = ["-i", str(folder / "zeros.npy"), "-i", f"x={folder / 'zeros.npy'}"]
    assert main(["run", model, *given]) == 2
    assert "the input 'x' is given already" in capsys.readouterr().err
    assert main(["run", str(folder / "partly.onnx"), "--random"]) == 2
    assert "cannot run on a device" in capsys.readouterr().err
    assert main(["quantize", str(folder / "float.onnx"), "-c", str(folder / "nothing")]) == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_what_compares_is_there_before_anything_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["run", str(folder / "int8.onnx"), "--random", "--compare", "onnxruntime"]) == 2
    said = capsys.readouterr()
    assert "--compare onnxruntime needs the package onnxruntime: pip install onnxruntime" in said.err
    assert not said.out


@pytest.fixture(scope="module")
def pair(folder: Path) -> str:
    """Return the path of a model whose inputs a and b share a variable size."""
    constants = [numpy_helper.from_array(v, n) for n, v in (("s", np.float32(0.1)), ("z", np.int8(0)))]
    nodes = [helper.make_node("QuantizeLinear", [n, "s", "z"], [f"{n}q"]) for n in "abc"]
    nodes += [helper.make_node("DequantizeLinear", [f"{n}q", "s", "z"], [f"{n}r"]) for n in "abc"]
    order = [nodes[i] for i in (0, 3, 1, 4)] + [
        helper.make_node("Add", ["ar", "br"], ["c"]),
        nodes[2],
        nodes[5],
    ]
    a, b, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 3]) for n in ("a", "b", "cr"))
    graph = helper.make_graph(order, "g", [a, b], [y], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "pair.onnx"
    path.write_bytes(proto.SerializeToString())
    for name, value in (("one", 1.0), ("two", 2.0)):
        np.save(folder / f"{name}.npy", np.full((2, 3), value, np.float32))
    np.savez(folder / "both.npz", a=np.ones((2, 3), np.float32), b=np.ones((2, 3), np.float32))
    np.savez(folder / "others.npz", c=np.ones((2, 3), np.float32), d=np.ones((2, 3), np.float32))
    np.save(folder / "list.npy", np.array([{}]))
    (folder / "text.npz").write_text("no array")
    (folder / "empty.npy").touch()
    return str(path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        # files that are given without an input's name belong to the inputs in their order
        (["-i", "{}/one.npy", "-i", "{}/two.npy"], "y float32[2, 3] from 3 to 3"),
        (["-i", "{}/two.npy", "-i", "b={}/two.npy"], "y float32[2, 3] from 4 to 4"),
        (["-i", "{}/both.npz"], "y float32[2, 3] from 2 to 2"),
        (["-i", "b={}/both.npz", "-i", "a={}/two.npy"], "y float32[2, 3] from 3 to 3"),
        # an axis with the same name has the same size in all inputs
        (["--random", "-i", "a={}/one.npy"], "y float32[2, 3] "),
        (["--random", "--shape", "b=5x3"], "y float32[5, 3] "),
        (["--random", "--shape", "b=4x3", "--shape", "b=5x3"], "y float32[5, 3] "),
        (["--random", "--shape", "0x3"], "y float32[0, 3] empty"),
    ],
    ids=str,
)
def test_run_takes_each_input_by_its_name(
    pair: str, folder: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", pair, *(option.format(folder) for option in options)]) == 0
    assert said in capsys.readouterr().out.replace("output  cr:", "y")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["-i", "typo={}/one.npy", "-i", "b={}/one.npy"], "-i names 'typo'; the model takes ['a', 'b']"),
        (["-i", "a={}/one.npy"], "nothing is given for the inputs ['b']"),
        (["-i", "{}/one.npy"] * 3 + ["--random"], "all inputs are given already"),
        (["-i", "{}/others.npz", "--random"], "inputs are given for ['c', 'd']; the model takes ['a', 'b']"),
        (["-i", "a={}/others.npz", "--random"], "has the arrays ['c', 'd']; one must be named 'a'"),
        (["-i", "{}/list.npy", "--random"], "list.npy holds no array of numbers"),
        (["-i", "{}/text.npz", "--random"], "text.npz holds no array of numbers"),
        (["-i", "{}/empty.npy", "--random"], "empty.npy holds no array of numbers"),
        (["--random", "--shape", "a=-1x3"], "--shape is 'a=-1x3'; write it as NAME=1x3x224x224"),
        (["--random", "--shape", "a=4x3", "--shape", "b=5x3"], "shapes [(4, 3), (5, 3)] do not broadcast"),
    ],
    ids=str,
)
def test_run_refuses_inputs_that_are_not_clear(
    pair: str, folder: Path, options: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", pair, *(option.format(folder) for option in options)]) == 2
    assert error in capsys.readouterr().err


def test_nan_equals_nan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--compare onnxruntime` counts two NaN as equal. Here vkq and ONNX Runtime return NaN for the square
    root of a negative number."""
    constants = [numpy_helper.from_array(v, n) for n, v in (("s", np.float32(0.5)), ("z", np.int8(0)))]
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["r"]),
        helper.make_node("Sqrt", ["r"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.INT8, [5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [5])
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "root.onnx").write_bytes(proto.SerializeToString())
    np.save(folder / "signs.npy", np.int8([-8, 0, 2, 8, -1]))
    options = ["-i", str(folder / "signs.npy"), "--compare", "onnxruntime"]
    assert main(["run", str(folder / "root.onnx"), *options]) == 0
    said = capsys.readouterr().out
    assert "float32[5] from 0 to 2, 2 NaN" in said
    assert "y: 5 of 5 equal" in said


def test_run_keeps_results_of_any_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Results may be named like arguments of numpy.savez, and the file may have no suffix."""
    names = ["file", "allow_pickle", "a/b"]
    constants = [numpy_helper.from_array(v, n) for n, v in (("s", np.float32(0.5)), ("z", np.int8(0)))]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], [names[0]]),
        helper.make_node("Greater", [names[0], "s"], [names[1]]),
        helper.make_node("ArgMax", [names[0]], [names[2]], axis=0),
    ]
    kinds = (TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64)
    outputs = [
        helper.make_tensor_value_info(name, kind, [5 if i < 2 else 1])
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [5])
    graph = helper.make_graph(nodes, "g", [x], outputs, constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "names.onnx").write_bytes(proto.SerializeToString())
    np.save(folder / "five.npy", np.float32([-1, 0.5, 3, 1, 1]))
    model, kept = str(folder / "names.onnx"), folder / "kept"
    options = ["-i", str(folder / "five.npy"), "-o", str(kept), "--compare", "onnxruntime"]
    assert main(["run", model, *options]) == 0
    with np.load(kept) as found:
        assert {name: found[name].tolist() for name in found} == {
            "file": [-1, 0.5, 3, 1, 1],
            "allow_pickle": [False, False, True, True, True],
            "a/b": [2],
        }


def test_what_is_no_standard_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands other than bench refuse "-" as an output file: they neither write to standard output nor
    create a file named "-"."""
    model = str(folder / "int8.onnx")
    for words in (["run", model, "--random", "-o"], ["run", model, "--random", "--trace"], ["report", "-o"]):
        with pytest.raises(SystemExit, match="2"):
            main([*words, "-"])
        assert "'-': this is not written to standard output" in capsys.readouterr().err


def test_run_says_what_onnx_runtime_refuses(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = onnx.load(folder / "int8.onnx")
    proto.ir_version = 99
    onnx.save(proto, folder / "newer.onnx")
    assert main(["run", str(folder / "newer.onnx"), "--random", "--compare", "onnxruntime"]) == 2
    assert "vkq: error: ONNX Runtime refuses the model: " in capsys.readouterr().err


def test_pipes_are_no_inputs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A named pipe as an input is refused: reading it would wait for a writer."""
    for name in ("pipe", "pipe.png"):
        os.mkfifo(tmp_path / name)
        assert main(["run", str(folder / "int8.onnx"), "-i", str(tmp_path / name)]) == 2
        assert f"{name} is not a regular file" in capsys.readouterr().err
    assert main(["quantize", str(folder / "float.onnx"), "-c", str(tmp_path)]) == 2
    assert "has 0 samples" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_told_in_lines(folder: Path, tmp_path: Path) -> None:
    """Failures to write a cache, also the pipeline cache at the process's exit, are one warning line each."""
    (tmp_path / "file").touch()
    argv = [sys.executable, "-m", "vkq", "run", str(folder / "int8.onnx"), "--random"]
    environment = os.environ | {"VKQ_CACHE_DIR": str(tmp_path / "file"), "VKQ_TUNE": "off"}
    said = subprocess.run(argv, capture_output=True, text=True, env=environment, check=True).stderr
    assert re.findall("^vkq: warning: the cache folder .*pipelines cannot be written", said, re.MULTILINE)
    assert all(line.startswith("vkq: warning: ") for line in said.splitlines()), said


def test_run_refuses_a_negative_seed(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", pair, "--random", "--seed", "-1"])
    assert "'-1' is not a whole number from 0" in capsys.readouterr().err


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(*warned: Any) -> None:  # pytest replaces this function; Python's own prints the warning
        sys.stderr.write(warnings.formatwarning(*warned[:4]))

    monkeypatch.setattr(warnings, "showwarning", shown)
    assert main(["run", str(folder / "partly.onnx"), "--random", "--fallback", "onnxruntime"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("vkq: warning: 1 of 6 nodes run on the CPU through ONNX Runtime (LpPool)")


def test_quantize(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = folder / "made.onnx"
    options = ["-c", str(folder / "pictures"), "-o", str(target), "--mean", "0.5", "--std", "0.5"]
    assert main(["quantize", str(folder / "float.onnx"), "--fast", *options]) == 0
    out = capsys.readouterr().out
    assert "dB signal to noise" in out
    assert float(re.findall(r": (\S+) dB signal", out)[-1]) > 10
    assert main(["run", str(target), "--random", "--compare", "onnxruntime"]) == 0
    assert (
        main(["quantize", str(target), "-c", str(folder / "pictures"), "-o", str(folder / "twice.onnx")]) == 2
    )
    assert "made.onnx is quantized already (" in capsys.readouterr().err
    assert not (folder / "twice.onnx").exists()
    for wrong, said in (("0.5,0,1", "--std is '0.5,0,1'"), ("nan", "'nan' must be 3 numbers")):
        assert main(["quantize", str(folder / "float.onnx"), *options[:4], "--std", wrong]) == 2
        assert said in capsys.readouterr().err
    (folder / "empty").mkdir()
    assert main(["quantize", str(folder / "float.onnx"), "-c", str(folder / "empty")]) == 2
    assert "has 0 samples" in capsys.readouterr().err


def test_an_excluded_node_keeps_its_float_weight(folder: Path, tmp_path: Path) -> None:
    """An excluded node's weight stays byte for byte; the weights of the other layers become int8."""
    node = next(one for one in onnx.load(folder / "float.onnx").graph.node if one.name == "Conv_5")
    words = ["quantize", str(folder / "float.onnx"), "--fast", "-c", str(folder / "pictures"), "-o"]

    def stored(*more: str) -> tuple[onnx.TensorProto | None, int]:
        """Return (the node's weight, the number of int8 weights)."""
        target = tmp_path / "made.onnx"
        assert main([*words, str(target), *more]) == 0
        graph = onnx.load(target).graph
        constants = {tensor.name: tensor for tensor in graph.initializer}
        inside = next(one for one in graph.node if one.name == "Conv_5")
        int8 = sum(len(t.dims) > 1 and t.data_type == TensorProto.INT8 for t in constants.values())
        return constants.get(inside.input[1]), int8

    (none, every), (weight, fewer) = stored(), stored("--exclude", "Conv_5")
    assert none is None, "quantized: the node's weight comes from a DequantizeLinear"
    assert fewer == every - 1
    assert weight is not None
    before = {tensor.name: tensor for tensor in onnx.load(folder / "float.onnx").graph.initializer}
    np.testing.assert_array_equal(numpy_helper.to_array(weight), numpy_helper.to_array(before[node.input[1]]))
    assert weight.data_type == TensorProto.FLOAT


def test_quantize_weights_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["quantize", str(folder / "float.onnx"), "--weights-only"]
    assert main([*words, "-o", str(folder / "w8.onnx"), "-c", str(folder / "pictures")]) == 0
    out = capsys.readouterr().out
    assert "weights: int8 by channel" in out
    assert float(re.findall(r": (\S+) dB signal", out)[-1]) > 30
    assert main([*words, "--bits", "4", "--block", "16", "--exclude", "nothing"]) == 2
    assert "the model has no node 'nothing'" in capsys.readouterr().err
    assert main([*words, "--bits", "4", "--block", "16"]) == 0
    out = capsys.readouterr().out
    assert f"written {folder / 'float.w4.onnx'}: " in out
    assert "1 weight: int4 in blocks of 16\nleast exact: Gemm " in out
    assert main(["run", str(folder / "float.w4.onnx"), "--random"]) == 0
    assert main(words[:2]) == 2
    assert "name a folder with -c, or use --weights-only" in capsys.readouterr().err


@pytest.fixture
def small(tmp_path: Path) -> onnx.ModelProto:
    """Return a float model with an open batch size; write a folder "pictures" with two pictures."""
    rng = np.random.default_rng(5)
    weight, bias = rng.normal(0, 0.2, (4, 3, 3, 3)), rng.normal(0, 0.1, 4)
    constants = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in (("w", weight), ("b", bias))]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", channels, 8, 8])
        for name, channels in (("x", 3), ("y", 4))
    )
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1] * 4)], "g", [x], [y], constants
    )
    (tmp_path / "pictures").mkdir()
    for i in range(2):
        Image.fromarray(rng.integers(0, 256, (9, 7, 3), np.uint8)).save(tmp_path / "pictures" / f"{i}.png")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("opset", [10, 12, 13])
def test_quantize_of_any_opset_has_channels(small: onnx.ModelProto, tmp_path: Path, opset: int) -> None:
    """A model before opset 13 is converted to opset 13, the first with scales for each channel."""
    small.opset_import[0].version = opset
    small.ir_version = 6
    onnx.save(small, tmp_path / "old.onnx")
    target = tmp_path / "new.onnx"
    assert (
        main(
            [
                "quantize",
                str(tmp_path / "old.onnx"),
                "--fast",
                "-c",
                str(tmp_path / "pictures"),
                "-o",
                str(target),
            ]
        )
        == 0
    )
    onnx.checker.check_model(onnx.load(target), full_check=True)
    assert main(["run", str(target), "--random", "--compare", "onnxruntime"]) == 0


def test_quantize_what_cannot_be_converted(
    small: onnx.ModelProto,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no adapter")

    monkeypatch.setattr("onnx.version_converter.convert_version", refuse)
    small.opset_import[0].version = 12
    onnx.save(small, tmp_path / "old.onnx")
    words = ["quantize", str(tmp_path / "old.onnx"), "--fast", "-c", str(tmp_path / "pictures")]
    assert main(words) == 2
    assert (
        "onnx cannot convert the model (no adapter); export it with that opset, or" in capsys.readouterr().err
    )
    assert main([*words, "--per-tensor"]) == 0
    assert main(["run", str(tmp_path / "old.int8.onnx"), "--random", "--compare", "onnxruntime"]) == 0


def test_quantize_what_cannot_run_whole(
    small: onnx.ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`vkq quantize` writes a model with unsupported nodes, prints its accuracy, and warns of these nodes."""
    small.graph.node.append(helper.make_node("LpPool", ["y"], ["z"], kernel_shape=[1, 1]))
    small.graph.output[0].name = "z"
    onnx.save(small, tmp_path / "float.onnx")
    with pytest.warns(FallbackWarning, match=r"run on the CPU through ONNX Runtime \(LpPool\)"):
        assert main(["quantize", str(tmp_path / "float.onnx"), "-c", str(tmp_path / "pictures")]) == 0
    assert "dB signal to noise" in capsys.readouterr().out


def test_quantize_with_external_data(small: onnx.ModelProto, tmp_path: Path) -> None:
    float_model = tmp_path / "float.onnx"
    onnx.save(small, float_model, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert main(["quantize", str(float_model), "--fast", "-c", str(tmp_path / "pictures")]) == 0
    assert main(["run", str(tmp_path / "float.int8.onnx"), "--random", "--compare", "onnxruntime"]) == 0


def test_quantize_writes_nothing_it_should_not(
    small: onnx.ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`vkq quantize` does not overwrite its float model, and writes no file if shapes or device are
    refused."""
    model = tmp_path / "float.onnx"
    onnx.save(small, model)
    before = model.read_bytes()
    words = ["quantize", str(model), "-c", str(tmp_path / "pictures"), "-o"]
    assert main([*words, str(model)]) == 2
    assert f"{model} is an input of this command, too; name another file" in capsys.readouterr().err
    assert model.read_bytes() == before
    target = str(tmp_path / "int8.onnx")
    assert main([*words, target, "--shape", "x=1x3x9x9"]) == 2
    assert "it must be ['N', 3, 8, 8]" in capsys.readouterr().err
    assert main([*words, target, "--shape", "x=0x3x8x8"]) == 2
    assert "a picture needs (N, C, H, W)" in capsys.readouterr().err
    assert main([*words, target, "--device", "none such"]) == 3
    assert not Path(target).exists()
    (tmp_path / "float.int8.onnx").mkdir()
    assert main(words[:-1]) == 2
    assert "is a folder; name a file in it" in capsys.readouterr().err


def test_quantize_leaves_the_old_model_on_a_full_disk(
    small: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    model, target = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    onnx.save(small, model)
    target.write_text("old")
    monkeypatch.setattr("vkq.files.os.fsync", full)
    with pytest.raises(OSError, match=r"No space left on device.*int8\.onnx"):
        quantize(model, target, [{"x": np.ones((1, 3, 8, 8), np.float32)}])
    assert target.read_text() == "old"


def test_names_that_the_terminal_cannot_show(
    small: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.graph.node[0].name = "Größe"
    onnx.save(small, tmp_path / "float.onnx")
    shown = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", shown)
    assert main(["inspect", str(tmp_path / "float.onnx")]) == 0
    assert b"Gr\\xf6\\xdfe" in shown.buffer.getvalue()  # type: ignore[attr-defined]


def test_quantize_says_what_onnx_runtime_refuses(
    small: onnx.ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small.ir_version = 99
    onnx.save(small, tmp_path / "float.onnx")
    words = ["quantize", str(tmp_path / "float.onnx"), "-c", str(tmp_path / "pictures")]
    for more, said in (
        ([], "ONNX Runtime refuses"),
        (["--fast"], "onnxruntime.quantization cannot quantize"),
    ):
        assert main([*words, *more]) == 2
        assert f"{said} the model: " in capsys.readouterr().err
