"""Run ONNX's node tests of integer and quantization operators on a device, through a small backend. Outputs
must be equal.

test_onnxruntime.py runs the tests of QLinearConv and QLinearMatMul, on every path.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vkq

from ..referees import node_tests
from .run import PATHS, assert_same_bits

Array = npt.NDArray[Any]
UNIT = np.float32(1.0)


def integer_product(
    inputs: list[Array], attributes: dict[str, Any], device: vkq.Device, path: str
) -> list[Array]:
    """Return the result of ConvInteger or MatMulInteger. An int8 layer with scale 1 and float32 output
    computes it, exactly below 2**24."""
    x, w, *zeros = inputs
    x_zero = zeros[0] if zeros else np.zeros((), x.dtype)
    w_zero = zeros[1] if len(zeros) > 1 else None
    given: dict[str, Any] = {
        "x_qparams": vkq.QParams.of(UNIT, x_zero),
        "w_zero_point": w_zero,
        "path": path,
        "device": device,
    }
    if x.ndim == 4:
        y = vkq.conv2d(x, w, UNIT, padding=attributes.get("pads", 0), **given)
    else:
        y = vkq.linear(x, np.ascontiguousarray(w.T), UNIT, **given)
    return [y.astype(np.int32)]


def by_block(op: Any, inputs: list[Array], attributes: dict[str, Any], device: vkq.Device) -> list[Array]:
    """Return the result of QuantizeLinear or DequantizeLinear. There is one scale for the whole tensor,
    one for each index of an axis, or one for each block of indices along an axis."""
    x, scales, zeros = inputs
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    out: Array = np.empty(x.shape, zeros.dtype if op is vkq.quantize else np.float32)
    for index in np.ndindex(scales.shape):
        if scales.ndim == 0:
            where: tuple[Any, ...] = (...,)
        elif block:  # one scale for each block of each index of the other axes
            where = tuple(slice(i * block, (i + 1) * block) if a == axis else i for a, i in enumerate(index))
        else:
            where = tuple(index[0] if a == axis else slice(None) for a in range(x.ndim))
        out[where] = op(np.asarray(x[where]), vkq.QParams.of(scales[index], zeros[index]), device=device)
    return [out]


def dynamic(inputs: list[Array], device: vkq.Device) -> list[Array]:
    """Return the results of DynamicQuantizeLinear: uint8 codes, scale and zero point of the range extended
    to contain 0."""
    x = inputs[0]
    q = vkq.QParams.from_range(min(0.0, float(x.min())), max(0.0, float(x.max())), "uint8")
    return [
        vkq.quantize(x, q, device=device),
        np.asarray(q.scale, np.float32),
        np.asarray(q.zero_point, np.uint8),
    ]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["convinteger_with_padding", "convinteger_without_padding", "matmulinteger"])
def test_integer_products(name: str, path: str, device: vkq.Device) -> None:
    test = node_tests.load(f"test_{name}")
    for got, want in zip(
        integer_product(test.inputs, test.attributes, device, path), test.outputs, strict=True
    ):
        assert_same_bits(got, want)


@pytest.mark.parametrize("name", ["", "_axis", "_blocked_asymmetric"])
def test_quantizelinear(name: str, device: vkq.Device) -> None:
    test = node_tests.load(f"test_quantizelinear{name}")
    assert_same_bits(by_block(vkq.quantize, test.inputs, test.attributes, device)[0], test.outputs[0])


@pytest.mark.parametrize("name", ["", "_axis", "_blocked"])
def test_dequantizelinear(name: str, device: vkq.Device) -> None:
    test = node_tests.load(f"test_dequantizelinear{name}")
    assert_same_bits(by_block(vkq.dequantize, test.inputs, test.attributes, device)[0], test.outputs[0])


@pytest.mark.parametrize("name", ["", "_max_adjusted", "_min_adjusted"])
def test_dynamicquantizelinear(name: str, device: vkq.Device) -> None:
    test = node_tests.load(f"test_dynamicquantizelinear{name}")
    for got, want in zip(dynamic(test.inputs, device), test.outputs, strict=True):
        assert_same_bits(got, want)
