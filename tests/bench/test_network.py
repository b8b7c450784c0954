"""Tests of ``vkq bench model.onnx``: the model is verified and timed, as a whole and by nodes. Each node has
a floor, the minimum possible time."""

import gc
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import vkq
from tests.bench.test_run import SHORT
from tests.onnx.networks import KINDS, Net, quantized
from tests.onnx.test_groups import inputs_of, node, weight
from tests.onnx.test_operators import model as single_model
from vkq import cli
from vkq.bench import ceilings, network, result
from vkq.graph.executable import Executable
from vkq.onnx import protobuf, reader

QUICK = [*SHORT, "--clock", "gpu,submit,call,host"]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "LASTING_US", 100.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a quantized network with residual sums."""
    folder = tmp_path_factory.mktemp("network")
    net = Net(seed=4)
    proto = net.model(*KINDS["resnet"](net))
    path = folder / "small.onnx"
    path.write_bytes(quantized(proto, "qdq_int8", folder, net.shape))
    return path


def bench(model: Path, out: Path, *words: str) -> int:
    return cli.main(["bench", str(model), "--device", "llvmpipe", *QUICK, "--json", str(out), *words])


def test_a_model(
    software_device: vkq.Device, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.json"
    assert bench(model, out, "--batch", "1", "--batch", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    run = result.read(out)
    names = [f"small.onnx[x={n}x3x16x16]" for n in (1, 3)]
    assert [(row.case, row.clock) for row in run.rows] == [
        (name, clock) for name in names for clock in ("gpu", "submit", "call", "host")
    ]
    assert all("outputs are ONNX Runtime" in row.verified for row in run.rows)
    assert run.rows[0].command.endswith("--batch 1 --device llvmpipe")
    one, three = ([node for node in run.nodes if node.case == name] for name in names)
    assert [node.operator for node in one] == [node.operator for node in three]
    assert "conv2d+add" in [node.operator for node in one]
    for small, large in zip(one, three, strict=True):
        assert len(small.kernels) == len(small.times_us) >= 1
        assert large.operations == 3 * small.operations
        assert small.bytes < large.bytes < 3 * small.bytes or not small.operations
    row = run.rows[0]
    assert (row.operations, row.dispatches) == (
        sum(node.operations for node in one), sum(len(node.kernels) for node in one)
    )  # fmt: skip
    assert sum("more nodes: --wide" in line for line in lines) == 2 * (len(one) > 20)
    assert any(line.endswith("conv2d_q8ta_q8csw__depthwise") or "gemm" in line for line in lines)


def test_floors(model: Path, software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes and operations of a convolution equal the manually computed numbers."""
    found = network.Network(str(model), 2, software_device)
    node = next(node for node, _, _ in found.executable.steps if node.op == "conv2d")
    n, ic, h, w = found.graph.specs[node.inputs[0]].shape
    oc, _, kh, kw = found.graph.specs[node.inputs[1]].shape
    _, _, oh, ow = found.graph.specs[node.outputs[0]].shape
    operations, size = network.nodes.work_of(found.graph, node)
    assert operations == 2 * n * oc * oh * ow * ic * kh * kw
    images = 4 * n * ic * h * w  # this convolution reads float32 and quantizes it while loading
    assert size == images + oc * ic * kh * kw + 4 * oc + n * oc * oh * ow


def test_without_onnx_runtime(
    model: Path, tmp_path: Path, software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert bench(model, tmp_path / "run.json", "--clock", "submit") == 0
    assert "NumPy reference's" in result.read(tmp_path / "run.json").rows[0].verified


def test_a_model_with_wrong_numbers_has_no_time(
    model: Path, tmp_path: Path, software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    real = network.Network.expected

    def wrong(self: network.Network) -> object:
        found, whose = real(self)
        return {
            name: np.where(np.arange(y.size).reshape(y.shape) == 0, y + 1, y) for name, y in found.items()
        }, whose

    monkeypatch.setattr(network.Network, "expected", wrong)
    assert bench(model, tmp_path / "run.json") == 1
    run = result.read(tmp_path / "run.json")
    assert (run.rows, run.nodes) == ([], [])
    assert run.failures[0].reason.startswith("1 of ")


def test_refusals(
    model: Path, tmp_path: Path, software_device: vkq.Device, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(model, tmp_path / "run.json", "--path", "portable") == 2
    assert "leave --path, --vs and --variant out" in capsys.readouterr().err
    proto = onnx.load(model)
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    broken = tmp_path / "half.onnx"
    onnx.save(proto, broken)
    assert bench(broken, tmp_path / "run.json") == 2
    assert bench(tmp_path / "none.onnx", tmp_path / "run.json") == 2


def refusal(message: str) -> Callable[..., object]:
    """Return a function that raises a ModelError."""

    def refuse(*_: object) -> object:
        raise vkq.ModelError(message)

    return refuse


@pytest.mark.parametrize("batch", [[], ["--batch", "2"]], ids=["as it is", "another batch"])
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "there is no such file"),
        (b"no model", "not an ONNX model"),
        (onnx.ModelProto(), "the model is empty: it has 0 bytes"),
        ("package", "pip install 'vkq[onnx]'"),
    ],
    ids=["missing", "broken", "empty", "no package"],
)
def test_refused_before_anything_is_measured(
    model: Path, tmp_path: Path, software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], made: object, said: str, batch: list[str],
) -> None:  # fmt: skip
    path = tmp_path / "broken.onnx"
    if made == "package":
        path = model
        monkeypatch.setattr(reader, "messages", refusal(protobuf._MISSING))
    elif made is not None:
        path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    monkeypatch.setattr(ceilings, "measure", lambda *_: pytest.fail("measures before it reads"))
    assert cli.main(["bench", str(path), "linear[M=4,K=4,N=4]", "--device", "llvmpipe", *batch]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert not captured.out


def test_external_data_and_results_without_shapes(
    model: Path, tmp_path: Path, software_device: vkq.Device
) -> None:
    """With --batch, weights that are also inputs keep their shapes, and a result without a stated shape is
    no error."""
    proto = onnx.load(model)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    weights = proto.graph.initializer
    proto.graph.input.extend(onnx.helper.make_tensor_value_info(w.name, w.data_type, w.dims) for w in weights)
    path, kept = tmp_path / "external.onnx", tmp_path / "run.json"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    for batch in ([], ["--batch", "2"]):
        assert bench(path, kept, "--clock", "submit", *batch) == 0
        assert "outputs are ONNX Runtime" in result.read(kept).rows[0].verified
    assert cli.main(["plot", str(kept), "-o", str(tmp_path / "roofline.svg")]) == 0


def test_files_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON and CSV need a file each: two options with one file name, or both with standard output, are
    refused."""
    for name in (str(tmp_path / "run"), "-"):
        assert cli.main(["bench", "linear[M=4,K=4,N=4]", "--json", name, "--csv", name]) == 2
        assert "name the same file" in capsys.readouterr().err


def test_no_number_is_no_wrong_number(tmp_path: Path, software_device: vkq.Device) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[9] x) => (float[9] y)
      <float s = {0.5}, int8 z = {0}>
      { q = QuantizeLinear(x, s, z) r = DequantizeLinear(q, s, z) y = Sqrt(r) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "root.onnx")
    assert bench(tmp_path / "root.onnx", tmp_path / "run.json", "--clock", "submit") == 0
    assert result.read(tmp_path / "run.json").rows[0].verified.startswith("9 of 9 outputs are ONNX Runtime")


def test_sums_of_floats_are_verified_to_a_bound(tmp_path: Path, software_device: vkq.Device) -> None:
    """A model with float sums is verified within a bound. ONNX Runtime returns other bytes, and may round x
    to 8 bits (accuracy_level)."""
    w, x = weight(40, 96, 4, 32, False), np.zeros((3, 96), np.float32)
    one = node(96, 40, 4, 32, inputs_of(w))
    one.attribute.append(onnx.helper.make_attribute("accuracy_level", 4))
    (tmp_path / "groups.onnx").write_bytes(single_model([one], {"x": x}, inputs_of(w), "float32"))
    assert bench(tmp_path / "groups.onnx", tmp_path / "run.json", "--clock", "submit") == 0
    said = "120 of 120 outputs are the NumPy reference's to 0.0001"
    assert result.read(tmp_path / "run.json").rows[0].verified == said
    found = network.Network(str(tmp_path / "groups.onnx"), None, software_device)
    want, _ = found.expected()
    assert found.wrong(want, want) == 0
    assert found.wrong({name: y * np.float32(1 + 1e-3) for name, y in want.items()}, want) > 0
    assert found.wrong({name: np.full_like(y, np.nan) for name, y in want.items()}, want) == 120


def test_one_model_at_a_time_is_on_the_device(
    model: Path, tmp_path: Path, software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Executable]] = []

    def alone(*given: object) -> Executable:
        gc.collect()
        assert not any(one() for one in made)
        found = Executable(*given)  # type: ignore[arg-type]
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(network, "Executable", alone)
    words = ["--batch", "1", "--batch", "2", "--clock", "submit"]
    assert bench(model, tmp_path / "run.json", *words) == 0
    assert len(made) == 2


def test_nothing_to_run(tmp_path: Path, software_device: vkq.Device) -> None:
    """A model whose result does not depend on its inputs is reported as having nothing to run."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g () => (float[2] y)
      <float s = {0.5}, int8 z = {0}, float[2] c = {1, 2}>
      { q = QuantizeLinear(c, s, z) y = DequantizeLinear(q, s, z) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "known.onnx")
    assert bench(tmp_path / "known.onnx", tmp_path / "run.json") == 1
    assert "no part of it runs on a device" in result.read(tmp_path / "run.json").failures[0].reason


def test_ctrl_c_in_a_model(
    model: Path, tmp_path: Path, software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(network, "_nodes", interrupted)
    kept = tmp_path / "run.json"
    words = ["bench", "linear[M=4,K=4,N=4]", str(model), "--json", str(kept), "--device", "llvmpipe"]
    assert cli.main([*words, *SHORT, "--clock", "submit"]) == 130
    run = result.read(kept)
    assert [row.scheme for row in run.rows] == ["q8ta_q8csw_q8to", "model"]
    assert [(one.case, one.reason) for one in run.failures] == [(run.rows[1].case, "interrupted")]


def test_what_was_measured_stays(
    model: Path, tmp_path: Path, software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the measurement of one model fails, the rows of the other models are kept."""

    monkeypatch.setattr(network, "referee", refusal("ONNX Runtime refuses the model: why"))
    kept = tmp_path / "run.json"
    words = ["bench", "linear[M=4,K=4,N=4]", str(model), "--json", str(kept), "--device", "llvmpipe"]
    assert cli.main([*words, *SHORT, "--clock", "submit"]) == 0
    run = result.read(kept)
    assert [row.case for row in run.rows] == ["linear[M=4,K=4,N=4]"]
    assert [failure.reason for failure in run.failures] == ["ONNX Runtime refuses the model: why"]
