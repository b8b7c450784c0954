"""Run single operators of ONNX Runtime's CPU provider: also with optional inputs left out, and operators of
its own domain (com.microsoft)."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import TensorProto, helper

from vkq.numerics.qparams import QParams

Array = npt.NDArray[Any]
OPSET = 18
_TYPES = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int64": TensorProto.INT64,
    "float32": TensorProto.FLOAT,
}


def run(op: str, inputs: list[Array | None], output: str, **attributes: Any) -> Array:
    """Run the operator ``op`` and return its only output, which has the dtype ``output``. Operators whose
    names begin with "QLinear" are taken from ONNX Runtime's own domain."""
    frozen = tuple(
        (key, tuple(v) if isinstance(v, (list, tuple)) else v) for key, v in sorted(attributes.items())
    )
    session = _session(op, tuple(None if x is None else x.dtype.name for x in inputs), output, frozen)
    return np.asarray(session.run(None, {f"i{i}": x for i, x in enumerate(inputs) if x is not None})[0])


def parameters(q: QParams) -> list[Array]:
    """Return [scale, zero point] as arrays, for use as inputs of an operator."""
    return [np.asarray(q.scale, np.float32), np.asarray(q.zero_point, q.dtype)]


@cache
def _session(
    op: str, inputs: tuple[str | None, ...], output: str, attributes: tuple[tuple[str, Any], ...]
) -> Any:
    names = ["" if dtype is None else f"i{i}" for i, dtype in enumerate(inputs)]
    values = [
        helper.make_tensor_value_info(f"i{i}", _TYPES[dtype], None) for i, dtype in enumerate(inputs) if dtype
    ]
    domain = "com.microsoft" if op.startswith("QLinear") else ""
    node = helper.make_node(op, names, ["y"], domain=domain, **dict(attributes))
    graph = helper.make_graph([node], op, values, [helper.make_tensor_value_info("y", _TYPES[output], None)])
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
