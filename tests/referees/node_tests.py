"""The node tests of the onnx package: one node, its inputs and the correct outputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from tests.conftest import lacks

_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "node"


@dataclass(frozen=True)
class NodeTest:
    """A node test: inputs and outputs in the order of the node, attributes as Python values."""

    op: str
    attributes: dict[str, Any]
    inputs: list[npt.NDArray[Any]]
    outputs: list[npt.NDArray[Any]]


def load(name: str) -> NodeTest:
    """Return the node test of this name, for example "test_qlinearconv"."""
    if not _FOLDER.is_dir():
        lacks(f"onnx {onnx.__version__} comes without node tests; pyproject.toml names a version with them")
    model = onnx.load(str(_FOLDER / name / "model.onnx"))
    (node,) = model.graph.node
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    data = _FOLDER / name / "test_data_set_0"
    inputs = [_tensor(data / f"input_{i}.pb") for i in range(len(node.input))]
    return NodeTest(
        node.op_type, attributes, inputs, [_tensor(data / f"output_{i}.pb") for i in range(len(node.output))]
    )


def _tensor(path: Path) -> npt.NDArray[Any]:
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return np.asarray(numpy_helper.to_array(tensor))
