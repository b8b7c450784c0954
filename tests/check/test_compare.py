"""Tests of the comparison with the reference: all paths agree on both software drivers, and a single wrong
bit is detected."""

from __future__ import annotations

import numpy as np
import pytest

import vkq
from tests.conftest import share
from tests.runtime.operators import MATRIX_UNITS
from vkq.check import catalogue, compare
from vkq.check.cases import FLOAT
from vkq.check.catalogue import Check, check_of, random_checks, select
from vkq.check.expected import Expected
from vkq.problem.names import parse
from vkq.runtime.device import Device
from vkq.select.path import COOPMAT, PATHS


def test_random_checks_pass_on_every_path(device: Device) -> None:
    paths, refused = compare.usable_paths(device)
    assert not refused.keys() & {"dot_s8s8", "dot_u8s8", "dot_u8u8", "portable"}
    checks = share(random_checks(9, seed=11), device, 3)
    found = [compare.run_check(device, check, paths) for check in checks]
    assert [m for one in found for m in one.mismatches] == []
    assert sum(one.compared for one in found) > 2 * len(checks)


@pytest.mark.parametrize(
    ("name", "first", "step"),  # each linear problem takes every second of the catalogue's checks
    [
        ("linear[M=2,K=5000,N=3]", 0, 2),
        ("linear[M=33,K=1021,N=9]", 1, 2),
        ("conv2d[N=1,IC=9,H=5,W=5,OC=6,KH=3,KW=3,padding=1,groups=3]", 0, 1),
    ],
)
def test_catalogue_checks_pass(name: str, first: int, step: int, device: Device) -> None:
    paths, _ = compare.usable_paths(device)
    for check in share(select(name)[first::step], device, 4):
        assert compare.run_check(device, check, paths).mismatches == []


def test_a_check_on_a_path_by_its_name_and_on_auto(any_device: Device) -> None:
    assert compare.usable_paths(any_device, ["auto", "portable"]) == (["auto", "portable"], {})
    check = check_of("linear[M=9,K=9,N=9]/seed=3")
    assert compare.run_check(any_device, check, ["auto", "portable"]) == compare.Outcome(2, [], {})


def test_one_wrong_bit_is_a_mismatch_with_its_place_and_a_map(
    any_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = check_of("linear[M=9,K=9,N=9]/seed=3")
    true = vkq.Tensor.numpy

    def wrong(self: vkq.Tensor) -> np.ndarray:
        out = true(self)
        out[8, 5] ^= 1
        return out

    monkeypatch.setattr(vkq.Tensor, "numpy", wrong)
    (found,) = compare.run_check(any_device, check, ["portable"]).mismatches
    assert (found.case, found.path, found.wrong, found.total) == (check.name, "portable", 1, 81)
    assert found.first[0].startswith("y[8, 5] is ")
    assert found.map.splitlines()[1:] == ["...", "...", ".+."]
    assert check.name in str(found)


def test_negative_zero_is_not_zero() -> None:
    check = Check(parse("linear[M=1,K=1,N=1]"), scheme="q8ta_q8csw")
    want = Expected(np.array([[0.0]], np.float32))
    assert compare.compare(check, "portable", np.array([[-0.0]], np.float32), want) is not None
    assert compare.compare(check, "portable", np.array([[0.0]], np.float32), want) is None


@pytest.mark.parametrize("op", catalogue.METHODS)
def test_every_method_is_forced_and_taken(op: str, device: Device) -> None:
    """Checks of the catalogue run every method on every path of the device. Methods for matrix units run
    only on the path coopmat, which no software device has."""
    paths, _ = compare.usable_paths(device)
    for method in catalogue.METHODS[op]:
        named = [check for check in catalogue.catalogue() if (check.op, check.method) == (op, method)]
        able = {path for path in paths if path == COOPMAT or method not in MATRIX_UNITS}
        taken: set[str] = set()
        # layers with float activations are left out: they have one path
        for check in (check for check in named if check.integer):
            outcome = compare.run_check(device, check, paths)
            assert outcome.mismatches == [], method
            taken |= set(paths) - outcome.refused.keys()
            if able and taken == able:
                break
        assert taken == able, method


@pytest.mark.parametrize(
    "method", [name for name in catalogue.METHODS["conv2d"] if name not in ("auto", *MATRIX_UNITS)]
)
def test_a_forced_method_is_the_one_that_runs(method: str, any_device: Device) -> None:
    check = next(
        check
        for check in catalogue.catalogue()
        if check.method == method and compare.run_check(any_device, check, ["portable"]).compared
    )
    data = check.data()
    said = compare.layer(any_device, check, data, "portable").explain(data.x.shape)
    assert said.method == method


@pytest.mark.parametrize("scheme", ["dq8ca_q8csw", *FLOAT])
def test_schemes_of_float_activations(scheme: str, device: Device) -> None:
    paths, _ = compare.usable_paths(device)
    checks = [check for check in catalogue.catalogue() if check.scheme == scheme][:12]
    checks = share(checks, device, 3)
    assert len(checks) >= 3
    for check in checks:
        outcome = compare.run_check(device, check, paths)
        assert (outcome.compared, outcome.mismatches) == (1 if scheme in FLOAT else len(paths), [])


def test_a_float_sum_beyond_its_bound_is_wrong(any_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    check = check_of("linear[M=9,K=9,N=9]/seed=3,scheme=q8csw")
    true = vkq.Tensor.numpy
    monkeypatch.setattr(vkq.Tensor, "numpy", lambda self: true(self) * np.float32(1 + 1e-5))
    (found,) = compare.run_check(any_device, check, ["portable"]).mismatches
    assert found.wrong > 40


def test_an_error_is_a_mismatch_that_says_so(any_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise vkq.PathError("no such luck")

    monkeypatch.setattr(compare, "layer", refuse)
    (found,) = compare.run_check(any_device, check_of("linear[M=9,K=9,N=9]"), ["portable"]).mismatches
    assert found.error == "PathError: no such luck"


def test_the_map_of_a_convolution_has_pixels_as_rows_and_shrinks_to_the_screen() -> None:
    problem = parse("conv2d[N=1,IC=1,H=40,W=40,OC=600,KH=1,KW=1]")
    wrong = np.zeros(problem.y_shape, bool)
    wrong[0, 599] = True
    lines = compare.draw(problem, wrong).splitlines()
    assert lines[0].startswith("52x12 results each")
    assert (len(lines) - 1, {len(line) for line in lines[1:]}) == (31, {50})
    assert all(line == "." * 49 + "+" for line in lines[1:])


def test_every_path_is_checked_unless_refused(any_device: Device) -> None:
    paths, refused = compare.usable_paths(any_device)
    assert set(paths) | set(refused) == set(PATHS) - {"auto", "dot"}


def test_float16_results_are_float16_and_within_their_bound() -> None:
    """The float16 result of a sum beyond float16's range must be infinite. An error of 0.002 in a result near
    1, and a float32 array, are mismatches."""
    y, size = np.array([1.0, -70000.0]), np.array([1.0, 70000.0])
    want = Expected.of_half_rows(y, size, np.zeros(2), 32)
    right = np.array([1.0, -np.inf], np.float16)
    assert want.mismatch(right) is None
    assert want.mismatch(np.array([1.002, -np.inf], np.float16)) is not None
    assert want.mismatch(right.astype(np.float32)) is not None
