"""Tests of the catalogue of checks: part of a name selects checks, and the whole name reproduces a check."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import vkq
from tests.runtime.operators import MATRIX_UNITS
from vkq.bench.cases import CHECKED
from vkq.check import catalogue
from vkq.check.cases import CASES, FLOAT, SCHEMES, TRANSPOSED
from vkq.check.catalogue import Check, check_of, random_checks, select
from vkq.check.compare import FIXED, layer, usable_paths
from vkq.kernels.methods import METHODS as CONV_METHODS
from vkq.ops.linear import METHODS as LINEAR_METHODS
from vkq.problem.conv2d import Conv2dProblem
from vkq.problem.names import parse
from vkq.select.path import COOPMAT, TABLE


def test_a_name_gives_the_check_back() -> None:
    checks = [*catalogue.catalogue(None), *random_checks(300, seed=5)]
    assert [check_of(check.name) for check in checks] == checks


def test_names_are_unique() -> None:
    names = [check.name for check in catalogue.catalogue(None)]
    assert len(set(names)) == len(names)


def test_the_same_name_gives_the_same_data() -> None:
    (check,) = random_checks(1, seed=3)
    first, second = check.data(), check_of(check.name).data()
    assert np.array_equal(first.x, second.x)
    assert np.array_equal(first.w, second.w)
    assert first.y_q == second.y_q


def test_random_checks_reach_every_option() -> None:
    checks = list(random_checks(400, seed=0))
    for key, values in catalogue._CHOICES.items():
        seen = {getattr(check, key) for check in checks}
        assert seen == set(values), key
    assert {check.extreme for check in checks} == {check.float_in for check in checks} == {True, False}
    problems = [check.problem for check in checks]
    convolutions = [p for p in problems if isinstance(p, Conv2dProblem)]
    assert 0.4 < len(convolutions) / len(problems) < 0.6
    assert {problem.name.partition("[")[0] for problem in problems} == set(catalogue.METHODS)
    assert {p.groups for p in convolutions} >= {1, 2, 3, 5}
    assert any(p.padding[0] != p.padding[2] for p in convolutions)
    assert any(p.dilation != (1, 1) for p in convolutions)


def test_every_path_and_method_and_scheme_is_forced() -> None:
    """The catalogue covers every path, method and scheme of the registries. The test reads the names from
    the registries."""
    assert set(FIXED) == {path.name for path in TABLE} | {COOPMAT}
    checks = list(catalogue.catalogue())
    registered = {"linear": LINEAR_METHODS, "conv2d": ("auto", *(m.name for m in CONV_METHODS))}
    for op, names in registered.items():
        assert {c.method for c in checks if c.op == op} == set(names), op
    assert {c.scheme for c in checks} == set(SCHEMES)
    assert {case.layer.name for case in (*CASES, *TRANSPOSED)} >= {c.problem.name for c in checks}
    measured = {case.layer.name for cases in CHECKED.values() for case in cases}
    assert measured == {case.layer.name for case in (*CASES, *TRANSPOSED) if case.problem.macs}


def test_what_is_forced_is_taken(any_device: vkq.Device) -> None:
    """For each path of the device, and each method that needs no matrix units, the catalogue has a problem
    whose layer runs on that path or by that method."""
    paths, refused = usable_paths(any_device)
    assert {*paths, *refused} == set(FIXED)
    taken: dict[str, set[str]] = {"linear": set(), "conv2d": set()}
    for check in catalogue.catalogue():
        if check.method == "auto" or check.scheme in FLOAT or check.method in taken[check.op]:
            continue
        with contextlib.suppress(vkq.MethodError):
            said = layer(any_device, check, check.data(), paths[0]).explain(check.problem.x_shape)
            assert said.path == paths[0]
            taken[check.op].add(said.method or check.method)
    assert taken["conv2d"] == {m.name for m in CONV_METHODS} - set(MATRIX_UNITS)
    assert taken["linear"] == set(LINEAR_METHODS) - {"auto"}
    for path in paths:
        check = check_of("linear[M=9,K=9,N=9]/seed=0")
        assert layer(any_device, check, check.data(), path).choice().path == path


def test_random_scales_span_six_decades_and_zero_points_reach_both_ends() -> None:
    data = [check.data() for check in random_checks(400, seed=1)]
    scales = np.concatenate([d.w_scale for d in data])
    assert scales.max() / scales.min() > 1e6
    assert {d.x_q.zero_point for d in data if d.x_q.dtype == "int8"} >= {-128, 127}
    assert {d.x_q.zero_point for d in data if d.x_q.dtype == "uint8"} >= {0, 255}


def test_a_filter_is_a_part_of_a_name_or_a_glob() -> None:
    assert {c.problem.name for c in select("groups=96")} == {
        "conv2d[N=1,IC=96,H=64,W=64,OC=96,KH=5,KW=5,stride=2,padding=2,groups=96]"
    }
    assert all(c.name.startswith("linear[M=9,") for c in select("linear[M=9,*"))
    assert len(select("linear[M=9,K=9,N=9]")) == 21
    assert select("linear[M=9,K=9,N=9]/seed=1,x=uint8,scheme=q8ta_q8csw,act=relu") == [
        Check(parse("linear[M=9,K=9,N=9]"), 1, x="uint8", scheme="q8ta_q8csw", act="relu")
    ]
    # this shape is in no list
    assert select("linear[M=17,K=3,N=2]") == [Check(parse("linear[M=17,K=3,N=2]"))]
    assert all(c.problem.name != "linear[M=1024,K=2048,N=2048]" for c in select(""))


@pytest.mark.parametrize(
    "bad",
    [
        "nothing",
        "linear[M=1,K=1,N=1]/x=int4",
        "linear[M=1,K=1,N=1]/fast",
        "linear[M=1,K=1,N=1]/method=direct",
        "conv2d[N=1,IC=1,H=1,W=1,OC=1,KH=1,KW=1]/scheme=q8csw,method=im2col",
        "linear[M=1,K=1,N=1]/scheme=dq8ca_q8csw,float_in",
        "conv2d[N=1,IC=1,H=1,W=1,OC=1,KH=1,KW=1]/scheme=dq8ca_q8csw",
        "conv2d[N=1,IC=1,H=1,W=1,OC=1,KH=1,KW=1]/method=gemv",
        "conv2d[N=1,IC=32,H=1,W=1,OC=1,KH=1,KW=1]/scheme=q8gsw",
        "linear[M=1]",
    ],
)
def test_what_names_no_check_is_refused(bad: str) -> None:
    with pytest.raises(vkq.ArgumentError):
        select(bad)
