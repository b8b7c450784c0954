"""Tests of q8csw (float activations, int8 weights) against float64, within a bound that depends on K.

The products of a float32 and an int8, the K additions and the last two steps each round once, so
    |error| <= (K + 4) * eps * (sum |x w| * scale + |bias|)
with eps = 2**-24 for rounding to nearest (2**-23 on devices that round toward zero).
"""

import numpy as np
import pytest

import vkq
from vkq import reference
from vkq.check.catalogue import check_of
from vkq.check.compare import layer, run_check
from vkq.problem.linear import LinearProblem

from ..cases import CASES, Case, random_conv2d, random_linear

EPSILON = 2.0**-23
SMALL = [case for case in CASES if case.problem.macs <= 3_000_000]


def check(problem: object, device: vkq.Device, seed: int, activation: object = None) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=problem.x_shape).astype(np.float32)  # type: ignore[attr-defined]
    w = rng.integers(-128, 128, problem.weight_shape).astype(np.int8)  # type: ignore[attr-defined]
    scale = np.exp(rng.uniform(-7, 0, w.shape[0])).astype(np.float32)
    bias = rng.normal(size=w.shape[0]).astype(np.float32)
    linear = isinstance(problem, LinearProblem)
    options = {} if linear else {n: getattr(problem, n) for n in ("stride", "padding", "dilation", "groups")}
    op, oracle = (vkq.linear, reference.linear_q8csw) if linear else (vkq.conv2d, reference.conv2d_q8csw)
    got = op(x, w, scale, bias=bias, activation=activation, device=device, **options)  # type: ignore[operator]
    want = oracle(x, w, scale, bias, activation, **options)  # type: ignore[operator]
    magnitude = oracle(np.abs(x), np.abs(np.maximum(w, -127)), scale, np.abs(bias), **options)  # type: ignore[operator]
    assert got.dtype == np.float32
    assert got.shape == want.shape
    allowed = (problem.gemm_k + 4) * EPSILON * magnitude * 1.01  # type: ignore[attr-defined]
    assert (np.abs(got - want) <= allowed).all()


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_cases(case: Case, device: vkq.Device) -> None:
    check(case.problem, device, 1)


def test_random_shapes_and_activations(device: vkq.Device) -> None:
    rng = np.random.default_rng(2)
    for i, activation in enumerate([None, "relu", (-1.0, 0.5)] * 4):
        check(random_linear(rng) if i % 2 else random_conv2d(rng), device, i, activation)


def test_nan_and_infinity_pass_through_where_they_belong(device: vkq.Device) -> None:
    """NaN and infinity affect only their own rows: no row reads elements of the next row as padding along
    K."""
    x = np.ones((6, 5), np.float32)
    x[2, 4], x[3, 0] = np.nan, np.inf
    got = vkq.linear(x, np.ones((3, 5), np.int8), 1.0, device=device)
    assert np.isnan(got[2]).all()
    assert np.isposinf(got[3]).all()
    assert (got[[0, 1, 4, 5]] == 5).all()


def test_what_does_not_go_with_float_activations(any_device: vkq.Device) -> None:
    w = np.ones((3, 5), np.int8)
    with pytest.raises(
        vkq.DTypeError, match="bias has dtype int32; with float activations it must be float32"
    ):
        vkq.Linear(w, 1.0, bias=np.zeros(3, np.int32), device=any_device)
    with pytest.raises(vkq.DTypeError, match="bias has dtype float64; with float activations it must be fl"):
        vkq.Linear(w, 1.0, bias=np.zeros(3), device=any_device)
    with pytest.raises(vkq.ArgumentError, match="path dot needs int8 activations"):
        vkq.Linear(w, 1.0, path="dot", device=any_device)


def test_zero_points_and_uint8_weights(device: vkq.Device) -> None:
    """Results with zero points and uint8 weights are within the bound for the weight (w - w_zero_point), an
    integer that float32 represents exactly."""
    for name in (
        "linear[M=3,K=37,N=9]", "linear[M=11,K=40,N=13]", "conv2d[N=1,IC=5,H=6,W=7,OC=6,KH=3,KW=3,padding=1]",
        "conv2d[N=1,IC=6,H=6,W=7,OC=6,KH=3,KW=3,stride=2,padding=0x1x2x1,groups=6]",
        "conv_transpose2d[N=2,IC=6,H=5,W=7,OC=4,KH=3,KW=3,stride=2,padding=1,output_padding=1,groups=2]",
    ):  # fmt: skip
        check = check_of(f"{name}/seed=5,scheme=q8csw,w=uint8,wz=channel")
        outcome = run_check(device, check, ["auto"])
        assert (outcome.compared, outcome.mismatches) == (1, [])


def test_an_8_bit_result_is_the_float_result_quantized(device: vkq.Device) -> None:
    rng, q = np.random.default_rng(9), vkq.QParams(0.3, 4)
    x, w = rng.normal(size=(2, 6, 5, 7)).astype(np.float32), rng.integers(-128, 128, (8, 6, 3, 3), np.int8)
    options = {"bias": rng.normal(size=8).astype(np.float32), "padding": 1, "activation": "relu"}
    tensor = vkq.Tensor.from_numpy(x, device)
    got = vkq.Conv2d(w, 0.01, y_qparams=q, device=device, **options)(tensor)
    assert (got.dtype, got.qparams) == ("int8", q)
    floats = vkq.Conv2d(w, 0.01, device=device, **options)(tensor)
    np.testing.assert_array_equal(got.numpy(), vkq.quantize(floats, q).numpy(), strict=True)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("linear[M=3,K=70,N=5]", "gemv"),
        ("linear[M=9,K=70,N=5]", "tiled"),
        ("linear[M=9,K=70,N=5]", "staged"),
        ("conv2d[N=1,IC=8,H=7,W=7,OC=8,KH=3,KW=3,padding=1,groups=2]", "direct"),
        ("conv2d[N=1,IC=8,H=7,W=7,OC=8,KH=3,KW=3,padding=1,groups=2]", "implicit"),
        ("conv2d[N=1,IC=8,H=7,W=8,OC=24,KH=3,KW=3,padding=1]", "implicit"),
        ("conv2d[N=1,IC=8,H=7,W=7,OC=8,KH=3,KW=3,padding=1,groups=8]", "depthwise"),
        ("conv2d[N=1,IC=8,H=7,W=7,OC=8,KH=1,KW=1,stride=2]", "pointwise"),
    ],
)
def test_extremes_and_replays(device: vkq.Device, name: str, method: str) -> None:
    """Infinities and NaN affect only the sums that contain them. Sums of values of 1e30 and 1e-40 are
    within the bound (a device may flush subnormal values). 200 repeated runs give the same bytes."""
    check = check_of(f"{name}/seed=1,scheme=q8csw,method={method}")
    data = check.data()
    x = check.input(data)
    flat = x.reshape(-1)
    flat[::5] = np.where(flat[::5] < 0, np.float32(-1e30), np.float32(1e30))
    flat[1::5] = np.float32(1e-40)
    flat[[3, -1]] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        want = data.expected_sum(x, None)
    subject, tensor = layer(device, check, data, "auto"), vkq.Tensor.from_numpy(x, device)
    with device.record() as recording:
        y = subject(tensor)
    recording.run()
    first = y.numpy()
    finite = np.isfinite(want.y)
    assert 0 < finite.sum() < finite.size
    np.testing.assert_array_equal(np.isnan(first), np.isnan(want.y))
    np.testing.assert_array_equal(first[np.isinf(want.y)], want.y[np.isinf(want.y)])
    subnormal = check.problem.gemm_k * 2.0**-126 * 256 * data.w_scale.max()
    error = abs(first[finite] - want.y[finite])
    assert (error <= want.bound[finite] + subnormal).all()
    for _ in range(200):
        recording.run()
        assert y.numpy().tobytes() == first.tobytes()
