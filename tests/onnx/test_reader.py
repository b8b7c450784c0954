"""Tests of broken and malicious models: a typed error names the place and the reason, no other file is
read, and nothing is executed."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkq
import vkq.onnx
from tests.onnx import mutate
from vkq.graph.passes import lower
from vkq.onnx import ModelError, UnsupportedModelError, parsed


def model(nodes, constants=(), opset=17, inputs=(("x", TensorProto.FLOAT, (1, 3, 4, 4)),), outputs=("y",)):
    infos = [helper.make_tensor_value_info(*one) for one in inputs]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(list(nodes), "g", infos, results, list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def relu(x: str = "x", y: str = "y", name: str = "relu"):
    return helper.make_node("Relu", [x], [y], name=name)


@pytest.mark.parametrize("data", [b"", b"not a model", bytes(range(256)), b"\x08\x07\x12\x00" * 9])
def test_not_a_model(data: bytes) -> None:
    with pytest.raises(ModelError, match=r"not an ONNX model|opset 0|it has 0 bytes"):
        vkq.onnx.read(data)


def test_wrong_things(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a int; give a path"):
        vkq.onnx.read(3)
    with pytest.raises(FileNotFoundError, match="no such file"):
        vkq.onnx.read(tmp_path / "none.onnx")
    with pytest.raises(FileNotFoundError, match="a model is a regular file"):
        vkq.onnx.read(tmp_path)


@pytest.mark.parametrize("opset", [0, 6, 99])
def test_opsets(opset: int) -> None:
    with pytest.raises(ModelError, match=rf"opset {opset} of ai.onnx; 7 to 27"):
        vkq.onnx.read(model([relu()], opset=opset))


def test_structure() -> None:
    with pytest.raises(ModelError, match="is part of a cycle"):
        vkq.onnx.read(model([relu("b", "a", "one"), relu("a", "b", "two"), relu()]))
    with pytest.raises(ModelError, match="Relu 'relu': reads its own output 'y'"):
        vkq.onnx.read(model([relu("y", "y")]))
    with pytest.raises(ModelError, match="Relu 'relu': its input 'w' is neither an input, nor a constant"):
        vkq.onnx.read(model([relu("w")]))
    with pytest.raises(ModelError, match="'y' is made twice"):
        vkq.onnx.read(model([relu(), relu(name="again")]))
    with pytest.raises(ModelError, match=r"no node makes the model's results \['z'\]"):
        vkq.onnx.read(model([relu()], outputs=["y", "z"]))
    with pytest.raises(ModelError, match="has no results"):
        vkq.onnx.read(model([relu()], outputs=[]))


def test_nodes_out_of_order_are_put_in_order() -> None:
    read = vkq.onnx.read(model([relu("a", "y", "second"), relu("x", "a", "first")]))
    assert [node.source for node in read.nodes] == ["first", "second"]


def test_unknown_operators_are_all_listed(any_device: vkq.Device) -> None:
    nodes = [
        helper.make_node("Foo", ["x"], ["a"], name="foo", domain="nowhere"),
        helper.make_node("LpPool", ["x"], ["b"], name="pool", kernel_shape=[1, 1]),
        helper.make_node("LpPool", ["b"], ["y"], name="again", kernel_shape=[1, 1]),
    ]
    with pytest.raises(ModelError, match=r"vkq does not know the operator nowhere.Foo"):
        vkq.onnx.InferenceSession(model(nodes, outputs=["a", "y"]), any_device)
    with pytest.raises(UnsupportedModelError, match="2 of 2 nodes cannot run") as caught:
        vkq.onnx.InferenceSession(model(nodes[1:]), any_device)
    assert [text.split(":")[0] for text in caught.value.refusals] == ["LpPool 'pool'", "LpPool 'again'"]
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "error"),
    [
        ("BatchNormalization", "xaaa", {}, "input 4 is missing"),
        ("Div", ("x", ""), {}, "input 1 is missing"),
        ("Pow", "x", {}, "input 1 is missing"),
        ("Where", "fx", {}, "input 2 is missing"),
        ("QuantizeLinear", ("x", "", "z"), {}, "input 1 is missing"),
        ("QuantizeLinear", "x", {}, "input 1 is missing"),
        ("Slice", "xi", {}, "do not fit"),
        ("LeakyRelu", "x", {"alpha": "1"}, "attribute alpha is '1'; it must be a number"),
        ("Concat", "xx", {"axis": 1.0}, "attribute axis is 1.0; it must be a whole number"),
        ("Softmax", "x", {"axis": [1]}, r"attribute axis is \(1,\); it must be a whole number"),
        ("Transpose", "x", {"perm": 1}, "attribute perm is 1; it must be whole numbers"),
        ("MaxPool", "x", {"kernel_shape": [1.0, 1.0]}, "kernel_shape is .*; it must be whole numbers"),
        ("Pad", "xp", {"mode": numpy_helper.from_array(np.ones(2))}, "mode is .*; it must be a text"),
    ],
)
@pytest.mark.parametrize("fallback", [None, "onnxruntime"])
def test_nodes_that_are_none_of_onnx(
    any_device: vkq.Device,
    op: str,
    inputs: Sequence[str],
    attributes: dict[str, Any],
    error: str,
    fallback: str | None,
) -> None:
    """Nodes that lack inputs, or whose attributes have the wrong type, raise a ModelError."""
    arrays = {
        "a": np.ones(3, np.float32), "f": np.ones(4, bool), "z": np.int8(0), "i": np.zeros(1, np.int64),
        "p": np.ones(8, np.int64),
    }  # fmt: skip
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    proto = model([helper.make_node(op, list(inputs), ["y"], **attributes)], constants)
    with pytest.raises(vkq.ModelError, match=error):
        vkq.onnx.InferenceSession(proto, any_device, fallback=fallback)


def test_a_zero_point_of_no_quantized_type(any_device: vkq.Device) -> None:
    arrays = {"s": np.ones((1, 2, 4, 4), np.float32), "z": np.zeros((1, 2, 4, 4), np.int64)}
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    node = helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"], axis=1, block_size=2)
    proto = model([node], constants, 21, (("x", TensorProto.INT8, (1, 3, 4, 4)),))
    with pytest.raises(UnsupportedModelError, match=r"float32 constants.*8-bit.* int64"):
        vkq.onnx.InferenceSession(proto, any_device)


def test_constants() -> None:
    tensor = numpy_helper.from_array(np.zeros((2, 3), np.float32), "w")
    tensor.dims[0] = 5
    with pytest.raises(ModelError, match=r"constant 'w' has the dims \[5, 3\], which its data does not fit"):
        vkq.onnx.read(model([relu()], [tensor]))
    tensor.dims[0] = -1
    with pytest.raises(ModelError, match="each must be 0 or more"):
        vkq.onnx.read(model([relu()], [tensor]))
    tensor.dims[0] = 2**62
    with pytest.raises(ModelError, match="bytes at most"):
        vkq.onnx.read(model([relu()], [tensor]))
    tensor.data_type = TensorProto.FLOAT8E5M2
    with pytest.raises(ModelError, match="'w' is of float8_e5m2; only"):
        vkq.onnx.read(model([relu()], [tensor]))


def test_shapes_are_refused_with_the_node() -> None:
    wrong = numpy_helper.from_array(np.zeros((8, 5, 3, 3), np.float32), "w")
    conv = helper.make_node("Conv", ["x", "w"], ["y"], name="conv1")
    with pytest.raises(ModelError, match=r"Conv 'conv1': .*5"):
        vkq.onnx.read(model([conv], [wrong])).at({"x": (1, 3, 4, 4)})
    huge = numpy_helper.from_array(np.array([2**30, 2**30], np.int64), "s")
    fill = helper.make_node("ConstantOfShape", ["s"], ["y"], name="fill")
    with pytest.raises(ModelError, match=r"ConstantOfShape 'fill' would be .* bytes at most"):
        vkq.onnx.read(model([fill], [huge])).at({"x": (1, 3, 4, 4)})


def external(folder: Path, location: str, **entries: str):
    """Write a model whose constant is in an external file. Return (the model's path, the bytes for that
    file)."""
    tensor = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "w")
    data = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(model([helper.make_node("Add", ["w", "w"], ["y"])], [tensor]).SerializeToString())
    return path, data


def test_external_data(tmp_path: Path) -> None:
    path, data = external(tmp_path, "w.bin", offset="4")
    (tmp_path / "w.bin").write_bytes(b"----" + data)
    np.testing.assert_array_equal(vkq.onnx.read(path).constants["w"], np.arange(6).reshape(2, 3))
    with pytest.raises(ModelError, match="give the model as a path"):
        vkq.onnx.read(path.read_bytes())
    (tmp_path / "w.bin").write_bytes(b"--")
    with pytest.raises(ModelError, match=r"its data is 24 bytes from byte 4 on in 'w.bin', which has 2"):
        vkq.onnx.read(path)


@pytest.mark.parametrize(
    ("key", "text"), [("offset", "-1"), ("offset", "1_0"), ("length", "٣"), ("length", "9" * 5000)]
)
def test_external_data_at_no_number(tmp_path: Path, key: str, text: str) -> None:
    path, data = external(tmp_path, "w.bin", **{key: text})
    (tmp_path / "w.bin").write_bytes(data)
    with pytest.raises(ModelError, match="it must be a whole number"):
        vkq.onnx.read(path)


@pytest.mark.parametrize("location", ["circle", "x" * 300, "a\0b"])
def test_external_data_that_cannot_be_read(tmp_path: Path, location: str) -> None:
    path, _ = external(tmp_path, location)
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(ModelError, match=r"cannot be read|malformed|not a regular file"):
        vkq.onnx.read(path)


@pytest.mark.parametrize("location", ["../w.bin", "/etc/hostname", "a/../../w.bin", "", ".", "link.bin"])
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    path, data = external(folder, location)
    (tmp_path / "w.bin").write_bytes(data)
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    with pytest.raises(ModelError, match=r"outside the model's folder|which is not a regular file"):
        vkq.onnx.read(path)


def test_files_beyond_protobuf(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(parsed.LARGEST_FILE + 1)
    with pytest.raises(ModelError, match="holds at most 2 GiB"):
        vkq.onnx.read(path)


def test_other_types_of_inputs() -> None:
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, (1,))
    graph = helper.make_graph([relu()], "g", [sequence], [helper.make_empty_tensor_value_info("y")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(ModelError, match="'x' is not a tensor"):
        vkq.onnx.read(proto)


def test_functions_are_read(any_device: vkq.Device) -> None:
    """A call of a function that the model defines is inlined, and gives the right result."""
    function = helper.make_function(
        "own", "Twice", ["a"], ["b"], [helper.make_node("Concat", ["a", "a"], ["b"], axis=1)],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    proto = model([helper.make_node("Twice", ["x"], ["y"], domain="own")])
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    x = np.random.default_rng(0).normal(size=(1, 3, 4, 4)).astype(np.float32)
    (got,) = vkq.onnx.InferenceSession(proto, any_device).run(None, {"x": x})
    np.testing.assert_array_equal(got, np.concatenate([x, x], 1))


def calling(levels: int, times: int, lowest: str) -> Any:
    """Return a model with *levels* functions, each of which calls the next one *times* times."""
    names = ["a", *(f"t{i}" for i in range(times - 1)), "b"]
    steps = list(pairwise(names))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    proto = model([helper.make_node(f"F{levels}", ["x"], ["y"], domain="own")])
    proto.opset_import.append(opsets[1])
    for level in range(levels + 1):
        below, domain = (f"F{level - 1}", "own") if level else (lowest, "own" if lowest[0] == "F" else "")
        nodes = [helper.make_node(below, [x], [y], domain=domain) for x, y in steps]
        proto.functions.append(helper.make_function("own", f"F{level}", ["a"], ["b"], nodes, opsets))
    return proto


def test_functions_that_call_each_other() -> None:
    assert len(vkq.onnx.read(calling(3, 2, "Relu")).nodes) == 16
    for proto, rule in (
        (calling(0, 1, "F0"), "call themselves, or are nested more than 64 deep: F0 calls F0"),
        (calling(1, 2, "F1"), "call themselves"),
        (calling(99, 1, "Relu"), "more than 64 deep"),
        (calling(30, 10, "Relu"), "at most 100000 are read"),
    ):
        with pytest.raises(ModelError, match=rule):
            vkq.onnx.read(proto)


def test_mutants_are_taken_or_refused() -> None:
    """Every mutated model is accepted or raises a ModelError; `python -m tests.onnx.mutate 100000` tries
    more."""
    protos = mutate.sources()
    for seed in range(400):
        mutate.attempt(mutate.mutated(protos[seed % len(protos)], seed))


def test_mutants_differ() -> None:
    """Mutants differ: some are accepted, and the others raise many different errors."""
    protos, taken, said = mutate.sources(), 0, set()
    for seed in range(150):
        try:
            read = vkq.onnx.read(mutate.mutated(protos[seed % len(protos)], seed))
            lower(read.at(vkq.onnx.inputs.trial_shapes(read)))
            taken += 1
        except ModelError as error:
            said.add(str(error)[:40])
    assert taken > 10
    assert len(said) > 30


def test_a_model_proto_is_not_changed() -> None:
    proto = model([relu()])
    before = proto.SerializeToString()
    vkq.onnx.read(proto)
    assert proto.SerializeToString() == before
    assert onnx.ModelProto.FromString(before) == proto
