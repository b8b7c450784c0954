from __future__ import annotations

import numpy as np
import pytest

from vkq.errors import ArgumentError
from vkq.problem.conv2d import Conv2dProblem
from vkq.problem.names import parse

from ..cases import random_conv2d


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


def test_conv2d_refuses_a_wrong_count_at_construction():
    with pytest.raises(ArgumentError, match=r"padding is \(1, 1\); it must have 4 numbers"):
        Conv2dProblem(1, 4, 8, 8, 4, 3, 3, padding=(1, 1))  # type: ignore[arg-type]


def test_problems_are_values():
    p = Conv2dProblem.of([1, 3, 8, 8], [4, 3, 3, 3], stride=[2, 2], padding=[1, 1])
    assert p == Conv2dProblem.of((1, 3, np.int64(8), 8), (4, 3, 3, 3), stride=2, padding=1)
    assert {p: 1}[parse(p.name)] == 1
