from __future__ import annotations

import numpy as np
import pytest

from vkq.errors import ArgumentError
from vkq.problem.conv2d import Conv2dProblem
from vkq.problem.linear import LinearProblem
from vkq.problem.names import parse

from ..cases import CASES, KNOWN, TRANSPOSED, random_conv2d, random_linear, random_transposed


@pytest.mark.parametrize("case", [*CASES, *TRANSPOSED], ids=lambda case: case.name)
def test_name_and_parse_are_inverse_for_every_case(case):
    assert parse(case.name) == case.problem


def test_names_of_random_problems():
    rng = np.random.default_rng(1)
    for _ in range(200):
        t = random_transposed(rng)
        assert parse(t.name) == t
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
        ("conv_transpose2d[N=1", "is not a problem"),
        ("conv_transpose2d[N=1,IC=1]", "missing: H, W, OC, KH, KW;"),
        ("conv2d[N=1,IC=1,H=1,W=1,OC=1,KH=1,KW=1,output_padding=1]", "unknown: output_padding;"),
        ("conv_transpose2d[N=1,IC=4,H=1,W=1,OC=1,KH=1,KW=1,groups=0]", "groups is 0"),
        ("linear[M=1,K=2]", "missing: N;"),
        ("linear[M=1,K=2,N=3,stride=2]", "unknown: stride;"),
        ("linear[M=1,M=1,K=2,N=3]", "written twice: M"),
        ("linear[M=1x2,K=2,N=3]", "not a single number: M;"),
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


@pytest.mark.parametrize(
    "name",
    [
        "conv_transpose2d[N=1,IC=64,H=8,W=9,OC=32,KH=3,KW=3,stride=2,padding=1,output_padding=1,groups=2]",
        "conv_transpose2d[N=1,IC=4,H=8,W=9,OC=2,KH=3,KW=4,stride=2x3,padding=0x1x2x0,output_padding=0x2]",
        "conv_transpose2d[N=0,IC=4,H=8,W=9,OC=2,KH=1,KW=1,dilation=2]",
    ],
)
def test_transposed_names_and_parse_are_inverse(name):
    assert parse(name).name == name
