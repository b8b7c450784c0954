from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from vkq import reference
from vkq.errors import AccumulatorOverflowError, ArgumentError, DTypeError
from vkq.numerics.qparams import QParams
from vkq.numerics.quantize import quantize
from vkq.numerics.requantize import activation_range
from vkq.problem.conv2d import Conv2dProblem
from vkq.problem.names import parse

from ..cases import ODD, Data, random_conv2d, random_data, random_linear
from ..referees import node_tests, ort

# (dtype of x and y, dtype of w), as ONNX Runtime accepts them
TYPES = [("int8", "int8"), ("uint8", "uint8"), ("uint8", "int8")]


# Tests with ONNX's node tests.


@pytest.mark.parametrize("name", ["test_convinteger_with_padding", "test_convinteger_without_padding"])
def test_onnx_convinteger(name):
    test = node_tests.load(name)
    x, w, x_zero_point, *w_zero_point = test.inputs
    got = reference.conv2d_acc(
        x, w, QParams.of(1.0, x_zero_point), None, *w_zero_point, padding=test.attributes.get("pads", 0)
    )
    np.testing.assert_array_equal(got, test.outputs[0])


def test_onnx_matmulinteger():
    test = node_tests.load("test_matmulinteger")
    a, b, a_zero_point, b_zero_point = test.inputs
    got = reference.linear_acc(a, b.T, QParams.of(1.0, a_zero_point), w_zero_point=b_zero_point)
    np.testing.assert_array_equal(got, test.outputs[0])


def test_onnx_qlinearconv():
    test = node_tests.load("test_qlinearconv")
    x, x_scale, x_zp, w, w_scale, w_zp, y_scale, y_zp = test.inputs
    assert test.attributes == {}
    got = reference.conv2d(
        x, w, x=QParams.of(x_scale, x_zp), w_scale=w_scale, w_zero_point=w_zp, y=QParams.of(y_scale, y_zp)
    )
    np.testing.assert_array_equal(got, test.outputs[0], strict=True)


@pytest.mark.parametrize(
    "form", [f"{d}_{q}_{s}" for d in ("2D", "3D") for q in ("int8", "uint8") for s in ("float16", "float32")]
)
def test_onnx_qlinearmatmul(form):
    test = node_tests.load(f"test_qlinearmatmul_{form}")
    a, a_scale, a_zp, b, b_scale, b_zp, y_scale, y_zp = test.inputs
    x, y = QParams.of(a_scale, a_zp), QParams.of(y_scale, y_zp)
    for index in np.ndindex(a.shape[:-2]):
        got = reference.linear(a[index], b[index].T, x=x, w_scale=b_scale, w_zero_point=b_zp, y=y)
        np.testing.assert_array_equal(got, test.outputs[0][index], strict=True)


# Tests against ONNX Runtime, byte for byte.


def compare_with_onnx_runtime(data: Data) -> None:
    bias = {} if isinstance(data.problem, Conv2dProblem) else {"bias": None}  # QLinearMatMul has no bias
    np.testing.assert_array_equal(data.expected(data.y_q, **bias), ort.qlinear(data), strict=True)


def weights_range(x_dtype: str, w_dtype: str) -> tuple[int, int] | None:
    return ort.exact_int8_weights() if w_dtype == "int8" else None


@pytest.mark.parametrize("types", TYPES, ids="_".join)
@pytest.mark.parametrize("zero_points", ["none", "tensor"])
@pytest.mark.parametrize("seed", range(40))
def test_random_conv2d_equals_onnx_runtime(seed, zero_points, types):
    rng = np.random.default_rng([seed, len(zero_points), TYPES.index(types)])
    w_range = weights_range(*types)
    compare_with_onnx_runtime(
        random_data(
            random_conv2d(rng),
            rng,
            *types,
            w_range=w_range,
            w_zero_points=zero_points,
            extreme=seed % 10 == 0,
        )
    )


@pytest.mark.parametrize("types", TYPES, ids="_".join)
@pytest.mark.parametrize("zero_points", ["none", "channel"])
@pytest.mark.parametrize("seed", range(40))
def test_random_linear_equals_onnx_runtime(seed, zero_points, types):
    rng = np.random.default_rng([seed, len(zero_points), TYPES.index(types)])
    w_range = weights_range(*types)
    compare_with_onnx_runtime(
        random_data(
            random_linear(rng),
            rng,
            *types,
            w_range=w_range,
            w_zero_points=zero_points,
            extreme=seed % 10 == 0,
        )
    )


@pytest.mark.parametrize("types", TYPES, ids="_".join)
@pytest.mark.parametrize(
    "case",
    [c for c in ODD if min(c.problem.x_shape + c.problem.weight_shape) > 0],
    ids=lambda case: case.name,
)
def test_odd_shapes_equal_onnx_runtime(case, types):
    rng = np.random.default_rng(5)
    compare_with_onnx_runtime(random_data(case.problem, rng, *types, w_range=weights_range(*types)))


@pytest.mark.parametrize("types", TYPES, ids="_".join)
def test_accumulators_above_2_to_24_equal_onnx_runtime(types):
    """Accumulators above 2**24, which the conversion to float32 rounds, give ONNX Runtime's results."""
    rng = np.random.default_rng(6)
    problem = parse("linear[M=40,K=5000,N=60]")
    data = random_data(problem, rng, *types, w_range=weights_range(*types), extreme=True)
    data.x[...] = np.where(rng.random(data.x.shape) < 0.3, data.x_q.zero_point, data.x)
    acc = reference.linear_acc(data.x, data.w, data.x_q)
    assert np.mean(np.abs(acc) > 2**24) > 0.5
    assert np.any(acc.astype(np.float32).astype(np.int64) != acc)
    compare_with_onnx_runtime(data)


# Tests of requantization and activations.


@pytest.mark.parametrize("activation", ["relu", "relu6", (-0.3, 0.7)])
def test_fused_activation_gives_the_bits_of_the_separate_operation(activation):
    rng = np.random.default_rng(10)
    data = random_data(random_conv2d(rng), rng)
    y = QParams(data.y_q.scale, -20)
    low, high = (quantize(np.float32(b), y) for b in activation_range(activation))
    separate = np.clip(data.expected(y), low, high)
    np.testing.assert_array_equal(data.expected(y, activation=activation), separate, strict=True)
    floats_out = data.expected(None)
    clipped = np.clip(floats_out, *np.array(activation_range(activation), np.float32))
    np.testing.assert_array_equal(data.expected(None, activation=activation), clipped, strict=True)


# Tests of linear and conv2d against plain loops.


def plain_conv2d_acc(data: Data) -> Any:
    """Return the accumulators by the definition of a convolution, pixel by pixel, in Python integers."""
    p = data.problem
    assert isinstance(p, Conv2dProblem)
    points = np.broadcast_to(0 if data.w_zero_point is None else data.w_zero_point, p.oc)
    acc = np.zeros(p.y_shape, np.int64)
    icg, ocg = p.ic // p.groups, p.oc // p.groups
    for n, oc, oy, ox in np.ndindex(*p.y_shape):
        total = int(data.bias[oc])
        for ic, ky, kx in itertools.product(range(icg), range(p.kh), range(p.kw)):
            iy = oy * p.stride[0] + ky * p.dilation[0] - p.padding[0]
            ix = ox * p.stride[1] + kx * p.dilation[1] - p.padding[1]
            if 0 <= iy < p.h and 0 <= ix < p.w:
                x = int(data.x[n, oc // ocg * icg + ic, iy, ix]) - data.x_q.zero_point
                total += x * (int(data.w[oc, ic, ky, kx]) - int(points[oc]))
        acc[n, oc, oy, ox] = total
    return acc


@pytest.mark.parametrize("seed", range(6))
def test_conv2d_acc_is_the_definition(seed):
    rng = np.random.default_rng([11, seed])
    problem = next(p for p in iter(lambda: random_conv2d(rng), None) if p.macs < 20_000)
    data = random_data(problem, rng, *TYPES[seed % 3], w_zero_points="channel")
    got = reference.conv2d_acc(data.x, data.w, data.x_q, data.bias, data.w_zero_point, **data.options)
    np.testing.assert_array_equal(got, plain_conv2d_acc(data))


@pytest.mark.parametrize("seed", range(6))
def test_linear_acc_is_the_definition(seed):
    rng = np.random.default_rng([12, seed])
    data = random_data(random_linear(rng), rng, *TYPES[seed % 3], w_zero_points="channel")
    x, w = data.x.astype(np.int64) - data.x_q.zero_point, data.w.astype(np.int64) - data.w_zero_point[:, None]
    expected = np.einsum("...k,nk->...n", x, w) + data.bias
    got = reference.linear_acc(data.x, data.w, data.x_q, data.bias, data.w_zero_point)
    np.testing.assert_array_equal(got, expected, strict=True)


@pytest.mark.parametrize("make", [random_linear, random_conv2d])
def test_float_output_rounds_each_step(make):
    rng = np.random.default_rng(13)
    data = random_data(make(rng), rng)
    is_conv = isinstance(data.problem, Conv2dProblem)
    column = (-1, 1, 1) if is_conv else (-1,)
    acc_of = reference.conv2d_acc if is_conv else reference.linear_acc
    float_bias = rng.standard_normal(data.problem.gemm_n).astype(np.float32)
    scale = (np.float32(data.x_q.scale) * data.w_scale).reshape(column)
    plain = acc_of(data.x, data.w, data.x_q, **data.options).astype(np.float32) * scale
    np.testing.assert_array_equal(data.expected(None, bias=None), plain, strict=True)
    with_float = data.expected(None, bias=float_bias)
    np.testing.assert_array_equal(with_float, plain + float_bias.reshape(column), strict=True)
    with_int = acc_of(data.x, data.w, data.x_q, data.bias, **data.options).astype(np.float32) * scale
    np.testing.assert_array_equal(data.expected(None), with_int, strict=True)


def test_float_output_is_never_minus_zero():
    data = random_data(parse("linear[M=4,K=8,N=3]"), np.random.default_rng(14))
    y = data.expected(None, activation=(-0.0, -0.0))
    np.testing.assert_array_equal(np.signbit(y), False)


def test_empty_and_k_0():
    x, w_scale, y = QParams(0.5, 3), 0.5, QParams(0.25, 1)
    bias = np.array([1, -2, 300, 0, 5], np.int32)
    none = reference.linear(
        np.zeros((2, 0), np.int8), np.zeros((5, 0), np.int8), x=x, w_scale=w_scale, bias=bias, y=y
    )
    np.testing.assert_array_equal(none, [[2, -1, 127, 1, 6]] * 2)
    for p in (case.problem for case in ODD if min(case.problem.x_shape + case.problem.weight_shape) == 0):
        data = random_data(p, np.random.default_rng(15))
        assert data.expected(data.y_q).shape == p.y_shape
        assert data.expected(None).shape == p.y_shape


def test_operands_may_be_strided_and_are_never_changed():
    rng = np.random.default_rng(16)
    data = random_data(parse("conv2d[N=2,IC=4,H=8,W=9,OC=4,KH=3,KW=2,padding=1]"), rng)
    expected = data.expected(data.y_q)
    x = np.asfortranarray(data.x)
    w = np.repeat(data.w, 2, axis=3)[..., ::2]
    x.setflags(write=False)
    w.setflags(write=False)
    got = reference.conv2d(
        x, w, x=data.x_q, w_scale=data.w_scale, bias=data.bias.astype(">i4"), y=data.y_q, **data.options
    )
    np.testing.assert_array_equal(got, expected, strict=True)
    np.testing.assert_array_equal(x, data.x)


# Tests of weight-only layers.


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_weight_only_linear(dtype):
    rng = np.random.default_rng(17)
    x, w = rng.standard_normal((2, 3, 50)).astype(dtype), rng.integers(-128, 128, (7, 50), dtype=np.int8)
    w_scale, bias = rng.uniform(0.01, 0.1, 7).astype(np.float32), rng.standard_normal(7).astype(np.float32)
    real = w.astype(np.float64) * w_scale[:, None]
    expected = np.einsum("abk,nk->abn", x.astype(np.float64), real) + bias
    got = reference.linear_q8csw(x, w, w_scale, bias)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    relu = reference.linear_q8csw(x, w, w_scale, bias, "relu")
    np.testing.assert_array_equal(relu, np.maximum(got, 0))


def test_weight_only_conv2d_has_the_exact_accumulator_of_integers():
    rng = np.random.default_rng(18)
    data = random_data(random_conv2d(rng), rng)
    x = data.x.astype(np.float32) - data.x_q.zero_point
    bias = rng.standard_normal(data.problem.gemm_n).astype(np.float32)
    got = reference.conv2d_q8csw(x, data.w, data.w_scale, bias, **data.options)
    acc = reference.conv2d_acc(data.x, data.w, data.x_q, **data.options)
    expected = acc * data.w_scale.astype(np.float64).reshape(-1, 1, 1) + bias.reshape(-1, 1, 1)
    np.testing.assert_array_equal(got, expected)


def test_weight_only_refuses():
    x, w = np.ones((2, 4), np.float32), np.ones((3, 4), np.int8)
    with pytest.raises(
        DTypeError, match="x has dtype int8 and weight int8; they must be float, and int8, uint8 or float"
    ):
        reference.linear_q8csw(x.astype(np.int8), w, 1.0)
    with pytest.raises(DTypeError, match="bias has dtype int32; with float x it must be of a float type"):
        reference.linear_q8csw(x, w, 1.0, np.ones(3, np.int32))
    with pytest.raises(ArgumentError, match=r"w_scale has shape \(2,\) but there are 3 output channels"):
        reference.linear_q8csw(x, w, [1.0, 1.0])


# Tests of refused arguments.

GOOD: dict[str, Any] = {
    "xq": np.ones((2, 4), np.int8),
    "wq": np.ones((3, 4), np.int8),
    "x": QParams(1.0),
    "w_scale": 1.0,
    "y": QParams(1.0),
}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"xq": np.ones((2, 5), np.int8)}, ArgumentError, "linear: x has K=5"),
        ({"wq": np.ones(4, np.int8)}, ArgumentError, "weight has 1 axes"),
        (
            {"xq": np.ones((2, 4), np.uint8)},
            DTypeError,
            "linear: x has dtype uint8 but its QParams are for int8",
        ),
        ({"wq": np.ones((3, 4), np.int32)}, DTypeError, "linear: weight has dtype int32"),
        ({"w_scale": [1.0, 1.0]}, ArgumentError, r"linear: w_scale has shape \(2,\)"),
        ({"w_scale": [1.0, 0.0, 1.0]}, ArgumentError, r"linear: w_scale\[1\] is 0.0"),
        ({"bias": np.ones(3, np.float32)}, DTypeError, "linear: bias has dtype float32; with int8 output"),
        ({"bias": np.ones(3, np.int64), "y": None}, DTypeError, "linear: bias has dtype int64"),
        ({"bias": np.ones(4, np.int32)}, ArgumentError, r"linear: bias has shape \(4,\)"),
        ({"bias": np.full(3, np.inf, np.float32), "y": None}, ArgumentError, r"linear: bias\[0\] is inf"),
        ({"w_zero_point": np.uint8(1)}, DTypeError, "w_zero_point has dtype uint8 but its tensor is int8"),
        ({"w_zero_point": [0, 0, 200]}, ArgumentError, r"w_zero_point\[2\] is 200"),
        ({"activation": "tanh"}, ArgumentError, "activation is 'tanh'"),
        ({"bias": np.full(3, 2**31 - 1, np.int32)}, AccumulatorOverflowError, "output channel 0"),
    ],
)
def test_linear_refuses(change, error, message):
    assert reference.linear(**GOOD).tolist() == [[4, 4, 4]] * 2
    with pytest.raises(error, match=message):
        reference.linear(**(GOOD | change))


def test_linear_acc_refuses_a_float_bias():
    with pytest.raises(DTypeError, match="linear: bias has dtype float32"):
        reference.linear_acc(GOOD["xq"], GOOD["wq"], GOOD["x"], np.ones(3, np.float32))
