"""ONNX Runtime's CPU provider, one operator at a time.

A session is built once for each operator, set of attributes and input types; every tensor is an input of
the session. Graph optimizations are off, so that the named operator itself runs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import TensorProto, helper

from vkq.problem.conv2d import Conv2dProblem

from ..cases import Data

Array = npt.NDArray[Any]

_TYPES = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int32": TensorProto.INT32,
    "float32": TensorProto.FLOAT,
}


def run(op: str, inputs: list[Array], output: str, **attributes: Any) -> Array:
    """Run the ONNX operator ``op`` (opset 17) and return its only output, which has the dtype ``output``."""
    frozen = tuple(
        (key, tuple(v) if isinstance(v, (list, tuple)) else v) for key, v in sorted(attributes.items())
    )
    session = _session(op, tuple(x.dtype.name for x in inputs), output, frozen)
    return np.asarray(session.run(None, {f"i{i}": np.asarray(x) for i, x in enumerate(inputs)})[0])


def run_all(op: str, inputs: list[Array], outputs: list[str], **attributes: Any) -> list[Array]:
    """Run the ONNX operator ``op`` (opset 17) and return its outputs, which have the dtypes ``outputs``."""
    feeds = {f"i{i}": x for i, x in enumerate(inputs)}
    values = [helper.make_tensor_value_info(name, _TYPES[x.dtype.name], None) for name, x in feeds.items()]
    made = [helper.make_tensor_value_info(f"y{i}", _TYPES[dtype], None) for i, dtype in enumerate(outputs)]
    node = helper.make_node(op, list(feeds), [value.name for value in made], **attributes)
    model = helper.make_model(
        helper.make_graph([node], op, values, made), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(None, feeds)]


@cache
def _session(op: str, inputs: tuple[str, ...], output: str, attributes: tuple[tuple[str, Any], ...]) -> Any:
    names = [f"i{i}" for i in range(len(inputs))]
    values = [
        helper.make_tensor_value_info(name, _TYPES[dtype], None)
        for name, dtype in zip(names, inputs, strict=True)
    ]
    node = helper.make_node(op, names, ["y"], **dict(attributes))
    graph = helper.make_graph([node], op, values, [helper.make_tensor_value_info("y", _TYPES[output], None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def qlinear(data: Data) -> Array:
    """Return the result of QLinearConv, or of QLinearMatMul (without a bias), for the operands."""
    x_q, y_q = data.x_q, data.y_q
    w_zero_point = np.asarray(0 if data.w_zero_point is None else data.w_zero_point, data.w.dtype)
    activation = [data.x, np.asarray(x_q.scale, np.float32), np.asarray(x_q.zero_point, x_q.dtype)]
    output = [np.asarray(y_q.scale, np.float32), np.asarray(y_q.zero_point, y_q.dtype)]
    if isinstance(data.problem, Conv2dProblem):
        p = data.problem
        weight = [data.w, data.w_scale, np.broadcast_to(w_zero_point, (p.oc,)).copy()]
        attributes: dict[str, Any] = {
            "strides": p.stride, "pads": p.padding, "dilations": p.dilation, "group": p.groups,
        }  # fmt: skip
        return run("QLinearConv", [*activation, *weight, *output, data.bias], y_q.dtype, **attributes)
    points = np.broadcast_to(w_zero_point, (data.problem.n,)).copy()
    weight = [np.ascontiguousarray(data.w.T), data.w_scale, points]
    return run("QLinearMatMul", [*activation, *weight, *output], y_q.dtype)


@cache
def exact_int8_weights() -> tuple[int, int]:
    """Return the range of int8 weights for which this machine's ONNX Runtime is exact.

    On an x86-64 CPU without VNNI, ONNX Runtime adds two uint8 x int8 products in saturating int16
    arithmetic, and only 7-bit weights are safe from saturation. On any other CPU the range is all of int8.
    """
    x = np.full((16, 64), 255, np.uint8)
    w = np.full((64, 16), 127, np.int8)
    acc = run("MatMulInteger", [x, w], "int32")
    return (-128, 127) if np.all(acc == 255 * 127 * 64) else (-64, 63)
