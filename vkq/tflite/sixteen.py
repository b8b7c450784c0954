"""Reads files with int16 activations (16x8) as float files. LiteRT sums the products of int16 activations in
64 bits, which a device does not support. Each value is clipped to the range of its int16 quantization, but
not rounded to the quantization steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..errors import UnsupportedModelError
from .file import File, FileOperator, FileTensor

BIASES = {"CONV_2D": 2, "DEPTHWISE_CONV_2D": 2, "FULLY_CONNECTED": 2, "TRANSPOSE_CONV": 3}
ENDS = (
    "the model has int16 inputs or outputs; with int16 activations (16x8) they must be float: convert it with"
    " inference_input_type and inference_output_type float32"
)
MOVED = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE", "PACK", "UNPACK", "SPLIT", "SPLIT_V", "SLICE",
         "STRIDED_SLICE", "GATHER", "PAD", "MAX_POOL_2D", "CAST", "DEQUANTIZE")  # fmt: skip


def is_sixteen(tensor: FileTensor) -> bool:
    """Return True if a tensor is int16 and quantized."""
    return tensor.dtype == "int16" and bool(tensor.scales.size)


def has_sixteen(file: File) -> bool:
    """Return True if a file has int16 activations. Raises UnsupportedModelError for int16 inputs or
    outputs."""
    if any(file.tensors[n].dtype == "int16" for n in (*file.inputs, *file.outputs)):
        raise UnsupportedModelError(ENDS, [ENDS])
    return any(is_sixteen(tensor) for tensor in file.tensors)


def as_floats(file: File) -> File:
    """Return the file with float32 tensors in place of its int16 tensors. Computed int16 tensors are clipped
    to their range. The results of operators in MOVED need no clipping, because their elements are elements of
    inputs, which are in range already."""
    sixteen = [is_sixteen(tensor) for tensor in file.tensors]
    tensors = [_real(tensor) if real else tensor for tensor, real in zip(file.tensors, sixteen, strict=True)]
    operators: list[FileOperator] = []
    for operator in file.operators:
        place = BIASES.get(operator.op, len(operator.inputs))
        bias = operator.inputs[place] if place < len(operator.inputs) else -1
        if bias >= 0 and sixteen[operator.outputs[0]]:
            tensors[bias] = _real(file.tensors[bias])
        one = dataclasses.replace(operator, op=_converted(operator, file.tensors))
        if operator.op in MOVED or not any(sixteen[n] for n in one.outputs):
            operators.append(one)
        else:
            operators += _cut(one, file.tensors, tensors)
    return dataclasses.replace(file, tensors=tuple(tensors), operators=tuple(operators))


def _real(tensor: FileTensor) -> FileTensor:
    """Return the tensor as float32 without quantization parameters. If it is a constant, dequantize it."""
    data, none = tensor.data, np.zeros(0, np.float32)
    if data is not None and tensor.scales.size and data.dtype.kind == "i":
        along = [1] * data.ndim
        if tensor.scales.size > 1:
            along[tensor.axis] = -1
        points, scales = tensor.zero_points.reshape(along), tensor.scales.astype(np.float64).reshape(along)
        data = ((data - points) * scales).astype(np.float32)
    return dataclasses.replace(
        tensor, dtype="float32", data=data, scales=none, zero_points=none.astype(np.int64)
    )


def _converted(operator: FileOperator, tensors: Sequence[FileTensor]) -> str:
    """Return the name of an operator after int16 tensors have become float. Only QUANTIZE and DEQUANTIZE
    change."""
    if operator.op not in ("QUANTIZE", "DEQUANTIZE"):
        return operator.op
    x, y = tensors[operator.inputs[0]], tensors[operator.outputs[0]]
    if is_sixteen(y):
        return "DEQUANTIZE" if x.dtype in ("int8", "uint8") else "CAST"
    return "CAST" if is_sixteen(x) and y.dtype == "float32" else operator.op


def _cut(one: FileOperator, given: Sequence[FileTensor], tensors: list[FileTensor]) -> list[FileOperator]:
    """Return the operator *one*, followed by a MAXIMUM and a MINIMUM for each int16 result, which clip the
    result to its range."""
    made, outputs = list[FileOperator](), list[int]()
    for number in one.outputs:
        if not is_sixteen(given[number]):
            outputs.append(number)
            continue
        tensor, scale = tensors[number], np.float32(given[number].scales[0])
        names = [len(tensors) + i for i in range(4)]
        before, between, low, high = names
        for end in (before, between):
            tensors.append(dataclasses.replace(tensor, name=f"{tensor.name}/{end}"))
        for bound in (-(2**15), 2**15 - 1):
            constant = np.asarray(scale * np.float32(bound))
            tensors.append(
                dataclasses.replace(
                    tensor, name=f"{tensor.name}/{bound}", shape=(), signature=(), data=constant
                )
            )
        made += [
            FileOperator("MAXIMUM", (before, low), (between,), {}, one.place),
            FileOperator("MINIMUM", (between, high), (number,), {}, one.place),
        ]
        outputs.append(before)
    return [dataclasses.replace(one, outputs=tuple(outputs)), *made]
