"""Tests of constants and attributes read from ONNX files, compared with the package onnx."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from vkq.onnx.protobuf import ATTRIBUTES, DATA_TYPES, attribute_of, messages, numbers_of

VALUES = {
    "float16": [0.0, -1.5, 65504.0, np.inf], "float32": [0.0, -1.5, 3e38, np.inf],
    "float64": [0.0, -1.5, 1e300, np.inf], "bool": [True, False, True, True],
}  # fmt: skip


def array(name: str) -> Any:
    if name in VALUES:
        return np.array(VALUES[name], name).reshape(2, 2)
    info = np.iinfo(name)
    return np.array([info.min, info.max, 0, 1], name).reshape(2, 2)


@pytest.mark.parametrize(("number", "name"), DATA_TYPES.items())
@pytest.mark.parametrize("raw", [True, False])
def test_numbers_are_the_packages(number: int, name: str, raw: bool) -> None:
    assert number == helper.np_dtype_to_tensor_dtype(np.dtype(name))
    want = array(name)
    flat = want.tobytes() if raw else want.reshape(-1).tolist()
    for dims, data in ((want.shape, flat), ((0, 3), b"" if raw else [])):
        tensor = helper.make_tensor("x", number, dims, data, raw=raw)
        got = numbers_of(tensor, np.dtype(name))
        assert (got.dtype, got.shape) == (np.dtype(name), dims)
        np.testing.assert_array_equal(got, numpy_helper.to_array(tensor))
    np.testing.assert_array_equal(
        numbers_of(helper.make_tensor("x", number, (2, 2), flat, raw=raw), want.dtype), want
    )


@pytest.mark.parametrize("raw", [True, False])
def test_other_numbers_than_the_dims_say_are_refused(raw: bool) -> None:
    tensor = helper.make_tensor("x", 1, (4,), np.zeros(4, "<f4").tobytes() if raw else [0.0] * 4, raw=raw)
    tensor.dims[0] = 5
    with pytest.raises(ValueError, match="reshape"):
        numbers_of(tensor, np.dtype("float32"))
    tensor.segment.begin = 1
    with pytest.raises(ValueError, match="segment"):
        numbers_of(tensor, np.dtype("float32"))


def test_attributes_are_the_packages() -> None:
    given = {"f": 0.5, "i": 3, "s": b"text", "floats": [0.5, 1.5], "ints": [1, 2], "strings": [b"a", b"b"]}
    for name, value in given.items():
        attribute = helper.make_attribute(name, value)
        want = helper.get_attribute_value(attribute)
        assert ATTRIBUTES[attribute.type] == name
        assert (attribute_of(attribute), type(attribute_of(attribute))) == (want, type(want))
    tensor = numpy_helper.from_array(np.arange(3), "t")
    assert attribute_of(helper.make_attribute("t", tensor)) == tensor
    assert attribute_of(onnx.AttributeProto(name="nothing")) is None
    with pytest.raises(ValueError, match="'own' refers to an attribute of a function"):
        attribute_of(onnx.AttributeProto(name="own", ref_attr_name="outer"))
    types = onnx.AttributeProto.AttributeType
    assert set(ATTRIBUTES) == set(types.values()) - {types.UNDEFINED}


ALONE = """
import sys
import vkq.onnx
from vkq.onnx.protobuf import messages
vkq.onnx.read(sys.argv[1])
assert "onnx" not in sys.modules
import onnx
assert messages().ModelProto is onnx.ModelProto
vkq.onnx.read(onnx.load(sys.argv[1]))
"""


def test_a_model_is_read_without_the_rest_of_the_package(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info("x", 1, (2, 3))
    weight = helper.make_tensor("w", 1, (3,), [1.0, 2.0, 3.0])
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["y"]),
        helper.make_node("Concat", ["y", "y"], ["z"], axis=1),
    ]
    result = helper.make_tensor_value_info("z", 1, (2, 6))
    graph = helper.make_graph(nodes, "g", [info], [result], [weight])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert messages() is onnx or messages().ModelProto is onnx.ModelProto
