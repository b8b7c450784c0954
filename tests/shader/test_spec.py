"""Tests of the interface of a variant: sizes, push constants, specialization, device requirements."""

import pickle
import struct
from pathlib import Path

import pytest

from tests.shader.sample import sample
from vkq.errors import ArgumentError
from vkq.shader.spec import Variant


@pytest.fixture
def variant(tmp_path: Path) -> Variant:
    return sample(tmp_path).variants[0]


def test_sizes_follow_defines_and_specialization(tmp_path: Path) -> None:
    one, two = sample(tmp_path).variants[:2]
    assert one.workgroups({"count": 17, "offset": 0}) == 3
    assert one.workgroups({"count": 17}, {"LOCAL_X": 4}) == 5
    assert two.workgroups({"count": 33}) == 2
    assert two.workgroups({"count": 0}) == 0
    assert one.local_size() == (8, 1, 1)
    assert two.local_size() == (16, 1, 1)
    assert two.local_size({"LOCAL_X": 64}) == (64, 1, 1)
    assert one.shared_bytes() == 176
    assert one.shared_bytes({"LOCAL_X": 16}) == two.shared_bytes() == 304


def test_sizes_refuse(variant: Variant) -> None:
    with pytest.raises(ArgumentError, match="needs a value for 'count'"):
        variant.workgroups({})
    with pytest.raises(
        ArgumentError, match="unknown specialization constant 'LOCAL_Z'; there are: LOCAL_X, DOUBLED"
    ):
        variant.workgroups({"count": 1}, {"LOCAL_Z": 1})
    with pytest.raises(ArgumentError, match="divides by zero"):
        variant.workgroups({"count": 1}, {"LOCAL_X": 0})
    with pytest.raises(ArgumentError, match="each must be at least 1"):
        variant.local_size({"LOCAL_X": 0})


def test_pack_push(variant: Variant) -> None:
    assert variant.pack_push(count=2**32 - 1, offset=-(2**31), factor=0.1) == struct.pack(
        "<Iif", 2**32 - 1, -(2**31), 0.1
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 1, "offset": 1}, "missing push constant 'factor'; there are: count, offset, factor"),
        ({"count": 1, "offset": 1, "factor": 1, "zero": 1}, "unknown push constant 'zero'"),
        (
            {"count": -1, "offset": 1, "factor": 1},
            r"push constant 'count' is -1; a uint must .* \[0, 4294967295\]",
        ),
        ({"count": 2**32, "offset": 1, "factor": 1}, "'count' is 4294967296"),
        ({"count": 1, "offset": 2**31, "factor": 1}, "'offset' is 2147483648; an? int"),
        ({"count": 1.0, "offset": 1, "factor": 1}, "'count' is 1.0; a uint needs a whole number"),
        ({"count": True, "offset": 1, "factor": 1}, "'count' is True"),
        ({"count": 1, "offset": 1, "factor": 1e39}, r"'factor' is 1e\+39; a float must be within"),
        ({"count": 1, "offset": 1, "factor": "1"}, "'factor' is '1'; a float needs a number"),
    ],
)
def test_pack_push_refuses(variant: Variant, values: dict[str, float], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        variant.pack_push(**values)


def test_specialization(variant: Variant) -> None:
    assert variant.constants({"DOUBLED": True}) == {"LOCAL_X": 8, "DOUBLED": True}
    assert variant.pack_specialization({"DOUBLED": True}) == {0: b"\x08\0\0\0", 3: b"\x01\0\0\0"}
    with pytest.raises(ArgumentError, match="constant 'DOUBLED' is 1; a bool must be True or False"):
        variant.constants({"DOUBLED": 1})
    with pytest.raises(ArgumentError, match="constant 'LOCAL_X' is -1"):
        variant.pack_specialization({"LOCAL_X": -1})


def test_missing_names_every_reason(tmp_path: Path) -> None:
    change = (
        "requires: {maxComputeSharedMemorySize: 16384}",
        "requires: {shaderInt8: true, cooperativeMatrix: true}",
    )
    two = sample(tmp_path, change).variants[1]
    able = {"shaderInt8": True, "cooperativeMatrix": True, "maxComputeSharedMemorySize": 20000}
    assert two.missing(able) == []
    assert two.missing({**able, "maxComputeSharedMemorySize": 8192}) == [
        "maxComputeSharedMemorySize is 8192, needs 20000"
    ]
    assert two.missing({"shaderInt8": False, "maxComputeSharedMemorySize": 32768}) == [
        "shaderInt8 is false",
        "cooperativeMatrix is unknown",
    ]


def test_variants_survive_pickling(variant: Variant) -> None:
    copy = pickle.loads(pickle.dumps(variant))
    assert copy.name == variant.name
    assert copy.workgroups({"count": 100}) == variant.workgroups({"count": 100})
