from __future__ import annotations

import numpy as np
import pytest

from vkq.errors import AccumulatorOverflowError, ArgumentError, DTypeError
from vkq.numerics.qparams import QParams
from vkq.numerics.requantize import check_accumulator
from vkq.problem.conv2d import Conv2dProblem
from vkq.problem.linear import LinearProblem
from vkq.problem.names import parse

from ..cases import CASES, KNOWN, random_conv2d, random_linear


def test_linear_sizes():
    p = LinearProblem.of((2, 3, 64), (32, 64))
    assert (p.m, p.n, p.k, p.lead) == (6, 32, 64, (2, 3))
    assert (p.x_shape, p.weight_shape, p.y_shape) == ((2, 3, 64), (32, 64), (2, 3, 32))
    assert (p.gemm_m, p.gemm_n, p.gemm_k, p.macs) == (6, 32, 64, 6 * 32 * 64)
    assert p.bytes() == 6 * 64 + 32 * 64 + 6 * 32
    assert p.bytes(4, 1, 4) == 4 * 6 * 64 + 32 * 64 + 4 * 6 * 32
    assert LinearProblem(6, 32, 64).y_shape == (6, 32)


def test_linear_of_a_vector_and_of_nothing():
    assert LinearProblem.of((64,), (32, 64)).y_shape == (32,)
    assert LinearProblem.of((64,), (32, 64)).m == 1
    assert LinearProblem.of((0, 64), (32, 64)).y_shape == (0, 32)
    assert LinearProblem.of((5, 0), (32, 0)).y_shape == (5, 32)
    assert LinearProblem.of((5, 7), (0, 7)).macs == 0


def test_linear_refuses():
    with pytest.raises(ArgumentError) as error:
        LinearProblem.of((8, 64), (128, 96))
    assert (
        str(error.value)
        == "linear: x has K=64 (shape (8, 64)) but weight has K=96 (shape (128, 96)); their last axes must be"
        " equal."
    )
    with pytest.raises(ArgumentError, match=r"weight has 3 axes \(shape \(1, 2, 3\)\); it must have 2"):
        LinearProblem.of((2, 3), (1, 2, 3))
    with pytest.raises(ArgumentError, match="x has no axes"):
        LinearProblem.of((), (2, 3))
    with pytest.raises(ArgumentError, match="M is -1; it must be at least 0"):
        LinearProblem(-1, 2, 3)
    with pytest.raises(DTypeError, match=r"N is 2.0 \(float\); it must be an integer"):
        LinearProblem(1, 2.0, 3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"leading dims are \(2, 2\) but M=3"):
        LinearProblem(3, 2, 3, (2, 2))


def test_conv2d_sizes():
    p = Conv2dProblem.of(
        (2, 6, 10, 11), (9, 2, 3, 5), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=3
    )
    assert (p.n, p.ic, p.h, p.w, p.oc, p.kh, p.kw) == (2, 6, 10, 11, 9, 3, 5)
    assert p.padding == (1, 2, 1, 2)
    assert p.y_shape == (2, 9, 5, 7)
    assert (p.gemm_m, p.gemm_n, p.gemm_k) == (2 * 5 * 7, 9, 2 * 3 * 5)
    assert p.macs == 2 * 5 * 7 * 9 * 30
    assert p.bytes(1, 1, 4) == 2 * 6 * 110 + 9 * 30 + 4 * 2 * 9 * 35


@pytest.mark.parametrize(
    ("padding", "expected"),
    [
        (0, (0, 0, 0, 0)),
        (2, (2, 2, 2, 2)),
        ((1, 2), (1, 2, 1, 2)),
        ([1, 2, 3, 4], (1, 2, 3, 4)),
        ("valid", (0, 0, 0, 0)),
        ("same", (1, 1, 1, 2)),
    ],
)
def test_padding_forms(padding, expected):
    p = Conv2dProblem.of((1, 1, 8, 8), (1, 1, 3, 4), padding=padding)
    assert p.padding == expected


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_same_padding_keeps_the_size(kernel, dilation):
    p = Conv2dProblem.of((1, 1, 7, 9), (1, 1, kernel, kernel), padding="same", dilation=dilation)
    assert p.y_shape == (1, 1, 7, 9)


def test_output_size_is_that_of_counting_kernel_positions():
    rng = np.random.default_rng(0)
    for _ in range(100):
        p = random_conv2d(rng)
        rows = range(-p.padding[0], p.h + p.padding[2] - p.dilation[0] * (p.kh - 1), p.stride[0])
        columns = range(-p.padding[1], p.w + p.padding[3] - p.dilation[1] * (p.kw - 1), p.stride[1])
        assert (p.oh, p.ow) == (len(rows), len(columns)), p.name


@pytest.mark.parametrize("shape", [(0, 4, 6, 6), (1, 0, 6, 6)])
def test_conv2d_of_nothing(shape):
    p = Conv2dProblem.of(shape, (8, shape[1], 3, 3))
    assert p.y_shape == (shape[0], 8, 4, 4)
    assert p.macs == 0


@pytest.mark.parametrize(
    ("x", "w", "options", "message"),
    [
        ((3, 8, 8), (4, 3, 3, 3), {}, r"x has 3 axes \(shape \(3, 8, 8\)\)"),
        ((1, 3, 8, 8), (4, 3, 3), {}, r"weight has 3 axes"),
        ((1, 3, 8, 8), (4, 2, 3, 3), {}, r"IC=3 .* IC/groups=2 .*groups=1; IC must be 2 \* 1 = 2"),
        ((1, 4, 8, 8), (3, 2, 3, 3), {"groups": 2}, "OC=3, groups=2; groups must divide OC"),
        ((1, 4, 8, 8), (4, 4, 3, 3), {"groups": 0}, "groups is 0; it must be at least 1"),
        ((1, 4, 8, 8), (4, 4, 0, 3), {}, "KH is 0; it must be at least 1"),
        ((1, 4, 8, 8), (4, 4, 3, 3), {"stride": 0}, "stride is 0"),
        ((1, 4, 8, 8), (4, 4, 3, 3), {"stride": (1, 1, 1)}, r"stride is \(1, 1, 1\); give an int or"),
        ((1, 4, 8, 8), (4, 4, 3, 3), {"dilation": -1}, "dilation is -1"),
        ((1, 4, 8, 8), (4, 4, 3, 3), {"padding": -1}, "padding is -1; it must be at least 0"),
        ((1, 4, 8, 8), (4, 4, 3, 3), {"padding": (1, 2, 3)}, r"padding is \(1, 2, 3\); give an int"),
        ((1, 4, 8, 8), (4, 4, 3, 3), {"padding": "full"}, "padding is 'full'; give an int"),
        ((1, 4, 8, 8), (4, 4, 3, 3), {"padding": "same", "stride": 2}, '"same" needs stride 1'),
        (
            (1, 4, 2, 8),
            (4, 4, 3, 3),
            {},
            r"OH = .*\(2 \+ 0 \+ 0 - 1\*\(3 - 1\) - 1\) // 1 \+ 1 = 0; it must be at least 1",
        ),
        (
            (1, 4, 8, 4),
            (4, 4, 3, 3),
            {"dilation": 4, "padding": (2, 1)},
            r"OW = .*\(4 \+ 1 \+ 1 - 4\*\(3 - 1\) - 1\)",
        ),
        ((1, 4, 0, 4), (4, 4, 1, 1), {}, "OH = "),
    ],
)
def test_conv2d_refuses(x, w, options, message):
    with pytest.raises(ArgumentError, match=message):
        Conv2dProblem.of(x, w, **options)


@pytest.mark.parametrize(
    "options", [{"stride": 1.0}, {"padding": (1, True)}, {"dilation": "2"}, {"groups": 1.5}]
)
def test_conv2d_refuses_options_of_wrong_types(options):
    with pytest.raises((DTypeError, ArgumentError), match=next(iter(options))):
        Conv2dProblem.of((1, 4, 8, 8), (4, 4, 3, 3), **options)


def test_conv2d_refuses_a_wrong_count_at_construction():
    with pytest.raises(ArgumentError, match=r"padding is \(1, 1\); it must have 4 numbers"):
        Conv2dProblem(1, 4, 8, 8, 4, 3, 3, padding=(1, 1))  # type: ignore[arg-type]


def test_problems_are_values():
    p = Conv2dProblem.of([1, 3, 8, 8], [4, 3, 3, 3], stride=[2, 2], padding=[1, 1])
    assert p == Conv2dProblem.of((1, 3, np.int64(8), 8), (4, 3, 3, 3), stride=2, padding=1)
    assert {p: 1}[parse(p.name)] == 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_name_and_parse_are_inverse_for_every_case(case):
    assert parse(case.name) == case.problem


def test_names_of_random_problems():
    rng = np.random.default_rng(1)
    for _ in range(200):
        p = random_conv2d(rng)
        assert parse(p.name) == p
        q = random_linear(rng)
        assert parse(q.name) == LinearProblem(q.m, q.n, q.k)


def test_name_states_only_what_is_not_default():
    assert Conv2dProblem.of((1, 3, 8, 8), (8, 3, 3, 3)).name == "conv2d[N=1,IC=3,H=8,W=8,OC=8,KH=3,KW=3]"
    full = Conv2dProblem.of((1, 4, 8, 8), (8, 2, 3, 3), (2, 1), (0, 1, 2, 3), (1, 2), 2).name
    assert full == "conv2d[N=1,IC=4,H=8,W=8,OC=8,KH=3,KW=3,stride=2x1,padding=0x1x2x3,dilation=1x2,groups=2]"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("linear", "is not a problem"),
        ("matmul[M=1,K=2,N=3]", "is not a problem"),
        ("linear[M=1,K=2,N=3] ", "is not a problem"),
        ("linear[M=1,K=-2,N=3]", "is not a problem"),
        ("linear[M=1,K=2]", r"missing \['N'\]"),
        ("linear[M=1,K=2,N=3,stride=2]", r"unknown \['stride'\]"),
        ("linear[M=1,M=1,K=2,N=3]", "written twice 1"),
        ("linear[M=1x2,K=2,N=3]", r"not a single number \['M'\]"),
        ("conv2d[N=1,IC=3,H=8,W=8,OC=8,KH=3,KW=3,groups=2]", "groups must divide IC"),
        ("conv2d[N=1,IC=3,H=8,W=8,OC=8,KH=3,KW=3,groups=0]", "groups is 0"),
        ("conv2d[N=1,IC=3,H=8,W=8,OC=8,KH=3,KW=3,stride=1x2x3]", "stride is"),
    ],
)
def test_parse_refuses(name, message):
    with pytest.raises(ArgumentError, match=message):
        parse(name)


def test_the_case_list_is_whole():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert len(KNOWN) == 49
    assert sum(case.use == "performance" for case in KNOWN) == 20
    assert all(case.reason for case in CASES)


@pytest.mark.parametrize(("zero_point", "reach"), [(0, 128), (-128, 255), (127, 255), (5, 133)])
def test_accumulator_bound_is_exact(zero_point, reach):
    """One below 2**31 passes, 2**31 does not: the weight and the bias together decide."""
    weight = np.full((3, 4), 1, np.int8)
    weight[1] = [-128, 127, 3, 0]
    x = QParams(1.0, zero_point)
    bias = np.zeros(3, np.int32)
    bias[1] = -(2**31 - 1 - reach * 258)
    check_accumulator(weight, x, bias)
    bias[1] -= 1
    with pytest.raises(AccumulatorOverflowError, match=f"output channel 1: .* may reach {2**31} \\({reach} "):
        check_accumulator(weight, x, bias)


def test_accumulator_bound_takes_the_extreme_bias():
    with pytest.raises(AccumulatorOverflowError, match=f"may reach {2**31}"):
        check_accumulator(np.zeros((1, 1), np.int8), QParams(1.0), np.array([-(2**31)], np.int32))


def test_accumulator_bound_of_the_weights_alone():
    k = 2**31 // (255 * 127)
    check_accumulator(np.full((1, k), 127, np.int8), QParams(1.0, -128))
    with pytest.raises(AccumulatorOverflowError, match=f"its length is {k + 1}"):
        check_accumulator(np.full((1, k + 1), 127, np.int8), QParams(1.0, -128))


def test_accumulator_bound_counts_the_weight_zero_point():
    weight = np.full((2, 40000), 255, np.uint8)
    check_accumulator(weight, QParams(1.0, 0, "uint8"), None, np.array([255, 255], np.int32))
    with pytest.raises(AccumulatorOverflowError, match="output channel 1"):
        check_accumulator(weight, QParams(1.0, 0, "uint8"), None, np.array([255, 0], np.int32))


def test_accumulator_bound_of_nothing():
    check_accumulator(np.zeros((0, 4), np.int8), QParams(1.0))
    check_accumulator(np.zeros((4, 0), np.int8), QParams(1.0), np.ones(4, np.int32))
