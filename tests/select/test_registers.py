"""Tests of the settings of register-tile kernels: the rules of the profiles apply, and no setting changes a
result."""

from __future__ import annotations

import numpy as np
import pytest

import vkq
from vkq import QParams, reference
from vkq.device.costs import CostTable
from vkq.device.profiles import preferred, profile
from vkq.errors import SpecError
from vkq.runtime.device import Device
from vkq.select import registers
from vkq.select.registers import ProductShape, Setting

from ..device.reported import picked, reported
from ..ops.doctored import SMALLEST_LIMITS, capabilities

ADRENO, MALI, VIDEOCORE = 0x5143, 0x13B5, 0x14E4
TILES = ("4x4", "4x8", "8x8")
SHAPE = ProductShape("s8s8", "q8to", m4=3, n4=4, k4=20)
GEMM = (
    (np.arange(9 * 77) % 251 - 125).astype(np.int8).reshape(9, 77),
    (np.arange(16 * 77) % 239 - 119).astype(np.int8).reshape(16, 77),
)


def padded(setting: Setting, shape: ProductShape) -> int:
    """Return the number of results that a product computes with a setting, padding included."""
    rows, columns = (int(size) for size in setting.tile.split("x"))
    rows, columns = rows * setting.local_y, columns * setting.local_x
    return -(-4 * shape.m4 // rows) * rows * -(-4 * shape.n4 // columns) * columns


@pytest.mark.parametrize(
    ("m4", "n4"), [(288, 32), (100, 1), (1, 100), (3, 100), (784, 6), (3136, 4), (196, 8), (13, 128)]
)
def test_the_default_wastes_little(m4: int, n4: int, software_device: Device) -> None:
    """The default setting computes, with padding, at most a third more results than the setting with the
    least padding. (Settings with workgroups less than eight tiles wide are not compared.) So large tiles and
    wide workgroups are chosen only if the product fills them."""
    c, shape = software_device.capabilities, ProductShape("s8s8", "q8to", m4, n4, 9)
    least = min(padded(one, shape) for one in registers.candidates(c, TILES) if one.local_x >= 8)
    assert padded(registers.default(c, shape), shape) <= 4 / 3 * least


@pytest.mark.parametrize(("m4", "n4"), [(196, 32), (13, 128)])
def test_lavapipe_pads_a_little_for_the_largest_tile(m4: int, n4: int) -> None:
    """lavapipe uses the largest tile even if this tile needs a little padding: for 784 rows, tiles of 4x8
    without padding take 1.15 times as long as tiles of 8x8; for 49 rows, 1.11 times. A product of four rows
    uses a tile with four rows."""
    c = reported("lavapipe")
    setting = registers.default(c, ProductShape("s8s8", "q8to", m4, n4, 512))
    assert registers._results(setting.tile) == registers._results(profile(c).tile)
    assert registers.default(c, ProductShape("s8s8", "q8to", 1, 100, 512)).tile.startswith("4x")


def test_narrow_workgroups_are_slow_on_lavapipe_alone() -> None:
    """For a product of 144 columns, a workgroup four tiles wide needs less padding than a workgroup eight
    tiles wide. SwiftShader uses the narrow workgroup; lavapipe does not, because it is slow there."""
    shape = ProductShape("u8s8", "q8to", m4=784, n4=36, k4=6)
    narrow = registers.default(reported("swiftshader"), shape)
    assert narrow.local_x == 4
    assert padded(narrow, shape) < padded(Setting(narrow.tile, 8, 8), shape)
    assert registers.default(reported("lavapipe"), shape).local_x >= 8


def test_a_tile_without_a_number_is_for_tuning_alone(any_device: Device) -> None:
    """A tile without a cost in the profile is a candidate of `vkq tune`, but never the default. The default
    is the tile with the lowest cost that is not larger than the profile's largest tile."""
    c, shape = any_device.capabilities, ProductShape("s8s8", "q8to", 128, 128, 9)
    assert {one.tile for one in registers.candidates(c, TILES)} == {*TILES}
    for largest, numbers, chosen in (
        ("4x4", {"4x4": 100}, "4x4"),
        ("8x8", {"8x8": 300, "4x8": 50, "4x4": 100}, "4x8"),
        ("4x8", {"8x8": 10, "4x8": 100, "4x4": 50}, "4x4"),
    ):
        with preferred({"tile": largest, "register_tile_percent": CostTable(numbers)}):
            assert registers.default(c, shape).tile == chosen


@pytest.mark.parametrize("m4", [1, 2, 3, 4, 5, 8, 9, 1000])
def test_an_adreno_never_gets_8x8_nor_4x16(m4: int, any_device: Device) -> None:
    facts = capabilities(any_device, vendor_id=ADRENO)
    assert not {(s.local_x, s.local_y) for s in registers.candidates(facts, TILES)} & {(8, 8), (4, 16)}
    setting = registers.default(facts, ProductShape("s8s8", "q8to", m4, 4, 20))
    assert (setting.local_x, setting.local_y) in {(64, 1), (32, 2), (16, 4)}


@pytest.mark.parametrize("vendor", [MALI, VIDEOCORE])
def test_a_mali_and_a_videocore_get_the_narrow_tile(vendor: int, any_device: Device) -> None:
    facts = capabilities(any_device, vendor_id=vendor)
    assert registers._results(registers.default(facts, ProductShape("s8s8", "q8to", 100, 100, 9)).tile) <= 16


def test_a_tile_without_a_number_is_named(any_device: Device) -> None:
    with preferred({"tile": "1x1"}), pytest.raises(SpecError, match="1x1 is missing in register_tile"):
        registers.default(any_device.capabilities, SHAPE)


def test_the_smallest_limits_leave_workgroups_of_up_to_128(any_device: Device) -> None:
    found = registers.candidates(capabilities(any_device, **SMALLEST_LIMITS), TILES)
    assert {s.local_x * s.local_y for s in found} == {64, 128}


@pytest.mark.parametrize(
    "setting", [Setting("4x4", 64, 1), Setting("8x8", 16, 16), Setting("4x8", 4, 16)], ids=str
)
def test_a_setting_changes_no_bit(setting: Setting, device: Device) -> None:
    x, w = GEMM
    q = QParams(0.1, 5)
    for path in ("portable", "dot_u8u8"):
        with picked(setting):
            got = vkq.linear(x, w, 0.3, x_qparams=q, y_qparams=q, path=path, device=device)
        assert np.array_equal(got, reference.linear(x, w, x=q, w_scale=0.3, y=q))
