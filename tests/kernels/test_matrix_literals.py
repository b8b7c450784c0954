"""Tests that matrix shapes, strides and trip counts of loops are literals in SPIR-V on devices whose
profile requires it, because some drivers compile specialization constants wrongly there."""

import dataclasses

import numpy as np
import pytest

import vkq
from tests.cases import random_data
from vkq.device.capabilities import Capabilities
from vkq.integer import matrix as integer
from vkq.integer.work import Sizes
from vkq.kernels import matrix_stem, matrix_units
from vkq.kernels.matrix_conv import CONV
from vkq.kernels.matrix_implicit import IMPLICIT
from vkq.kernels.matrix_tiles import GEMM, WIDE_GEMM
from vkq.kernels.matrix_units import DYNAMIC, SPLIT
from vkq.probe.matrices import Matrices, advertised, lacking_half
from vkq.problem.names import parse
from vkq.runtime.program import Program, code
from vkq.shader.catalog import catalog
from vkq.shader.compile import spirv
from vkq.shader.spec import Variant
from vkq.shader.spirv import OP_CONSTANT
from vkq.shader.spirv import parse as instructions_of

from . import emulated
from .matrix_layers import make

XCLIPSE, NVIDIA, ADRENO = 0x144D, 0x10DE, 0x5143
OP_MATRIX, OP_LOAD, OP_STORE = 4456, 4457, 4458  # OpTypeCooperativeMatrixKHR, OpCooperativeMatrix...KHR
SELFTEST = "selftest__matrices"
MODULES = (SELFTEST, GEMM, SPLIT, WIDE_GEMM, DYNAMIC, CONV, matrix_stem.STEM, IMPLICIT, integer.SHADER)
OPEN = (SELFTEST, integer.SHADER)  # their trip counts are push constants


def of_vendor(device: vkq.Device, vendor: int, *shapes: str, kind: str = "integrated") -> Capabilities:
    return dataclasses.replace(
        emulated.capabilities(device, *shapes), vendor_id=vendor, device_type=kind, choices=()
    )


def literal(variant: Variant, matrices: Matrices, c: Capabilities) -> tuple[set[int], int, set[int]]:
    """Return (the literal rows, columns and strides of matrices; the number of rows, columns and strides that
    are not literal; the ids of the remaining specialization constants) of the SPIR-V that the driver gets."""
    trips = {"TRIPS": 5} if "TRIPS" in variant.specialization else {}
    constants = variant.constants({**matrices.constants(variant), **trips})
    module, given = code(variant, spirv(variant), constants, c)
    _, instructions, _ = instructions_of(module)
    values = {one.words[1]: one.words[2] for one in instructions if one.op == OP_CONSTANT}
    ids = [number for one in instructions if one.op == OP_MATRIX for number in one.words[3:5]]
    ids += [one.words[4] for one in instructions if one.op == OP_LOAD]
    ids += [one.words[3] for one in instructions if one.op == OP_STORE]
    assert ids
    sizes = {values[number] for number in ids[:4] if number in values}
    return sizes, sum(number not in values for number in ids), {number for number, _ in given}


@pytest.mark.parametrize("name", MODULES)
def test_shapes_and_strides_are_literals(any_device: vkq.Device, name: str) -> None:
    """Shapes and strides are literals on an Adreno, for 8x8x16 and for its large shape. On NVIDIA they
    remain specialization constants."""
    for m, n, k, size in ((8, 8, 16, 32), (64, 16, 32, 64)):
        matrices = Matrices(m, n, k, subgroup=size)
        c = of_vendor(any_device, ADRENO, f"{m}x{n}x{k}")
        variant = next(
            v for v in catalog().shaders[name].variants if "DOT" not in v.defines or "s8s8" in v.name
        )
        sizes, others, given = literal(variant, matrices, c)
        assert (others, sizes) == (0, {m, n, k})
        trips = {one.id for key, one in variant.specialization.items() if key in ("TRIPS", "CHUNKS")}
        assert given == trips
        assert bool(trips) == (name not in OPEN)
        discrete = of_vendor(any_device, NVIDIA, f"{m}x{n}x{k}", kind="discrete")
        assert literal(variant, matrices, discrete)[1] > 0


CASES = (
    "linear[M=33,K=300,N=40]",
    "conv2d[N=1,IC=70,H=6,W=9,OC=20,KH=3,KW=3] matrix",
    "conv2d[N=1,IC=70,H=6,W=9,OC=20,KH=3,KW=3] implicit",
    "conv2d[N=1,IC=3,H=12,W=13,OC=20,KH=5,KW=5] stem",
)


@pytest.mark.parametrize("case", CASES)
def test_trip_counts_are_constants(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """With constant trip counts, layers with matrices of 8x8x16 are exact, and no product splits k."""
    emulated.emulate(strict_device, monkeypatch, "8x8x16")
    changed = dataclasses.replace(strict_device.capabilities, vendor_id=XCLIPSE)
    monkeypatch.setattr(strict_device, "capabilities", changed)
    made: list[Program] = []
    program = strict_device.program
    monkeypatch.setattr(strict_device, "program", lambda *a: made.append(program(*a)) or made[-1])
    name, _, method = case.partition(" ")
    data = random_data(parse(name), np.random.default_rng(1))
    layer = make(data, strict_device, data.y_q, **({"method": method} if method else {}))
    np.testing.assert_array_equal(layer(data.x), data.expected(data.y_q), strict=True)
    trips = [one.constants["TRIPS"] for one in made if "TRIPS" in one.variant.specialization]
    assert trips
    assert all(trips)
    if method == "matrix":
        assert [one.constants["CHUNKS"] for one in made if "CHUNKS" in one.variant.specialization] != [0]


@pytest.mark.parametrize(
    ("vendor", "sizes", "size"),
    [(XCLIPSE, (32, 64), 64), (XCLIPSE, (64, 64), 64), (ADRENO, (32, 64), 32), (ADRENO, (64, 128), 64)],
)
def test_no_subgroup_of_32_is_asked_of_an_xclipse(
    any_device: vkq.Device, vendor: int, sizes: tuple[int, int], size: int
) -> None:
    """A subgroup size of 32 is not required on an Xclipse, because its compiler then crashes on int8
    matrices."""
    c = of_vendor(any_device, vendor, "16x16x16", "8x8x16")
    ranged = {**c.properties, "minSubgroupSize": sizes[0], "maxSubgroupSize": sizes[1]}
    found = advertised(dataclasses.replace(c, properties=ranged))
    assert {one.subgroup for one in found} == {size}


def test_others_have_one_pipeline_for_every_k(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    for vendor, kind, trips in (
        (NVIDIA, "discrete", {}),
        (ADRENO, "integrated", {}),
        (XCLIPSE, "integrated", {"TRIPS": 3}),
    ):
        monkeypatch.setattr(any_device, "capabilities", of_vendor(any_device, vendor, kind=kind))
        assert matrix_units.counts(any_device, TRIPS=3) == trips


def test_loops_that_are_not_counted_stay_off_such_devices(any_device: vkq.Device) -> None:
    """Devices that need constant trip counts use neither float matrices nor the integer correlation, because
    the trip counts of these kernels are push constants."""
    for vendor, able in ((ADRENO, True), (XCLIPSE, False)):
        halves = of_vendor(any_device, vendor, "16x16x16 f16")
        assert (lacking_half(halves) is None) == able
        c = of_vendor(any_device, vendor, "16x8x32")
        how = integer.arithmetic((0, 255), (-128, 127), False, c)
        assert any(integer.tilings(Sizes(1, 1, 8, 1, 32, 32, 64, 64), how, c)) == able
    assert "trip counts" in (lacking_half(halves) or "")
