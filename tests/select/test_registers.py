"""Tests of the settings of register-tile kernels: the rules of the profiles apply, and no setting changes a
result."""

from __future__ import annotations

import numpy as np
import pytest

import vkq
from vkq import QParams, reference
from vkq.device.profiles import preferred
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


@pytest.mark.parametrize(
    ("m4", "n4", "setting"),
    [
        (288, 32, Setting("8x8", 8, 8)),
        (100, 1, Setting("4x4", 8, 8)),
        (1, 100, Setting("4x8", 64, 1)),
        (3, 100, Setting("4x8", 64, 1)),
        (784, 6, Setting("4x4", 8, 8)),  # from MobileNetV2: the fastest of all settings on lavapipe
        (3136, 4, Setting("4x4", 8, 8)),  # workgroups four tiles wide take 1.02 to 2 times this time
        (196, 8, Setting("4x4", 8, 8)),
    ],
)
def test_the_default_wastes_little(m4: int, n4: int, setting: Setting, software_device: Device) -> None:
    """The default setting leaves few lanes idle: wide tiles and large workgroups are chosen only if the
    product fills them."""
    assert registers.default(software_device.capabilities, ProductShape("s8s8", "q8to", m4, n4, 9)) == setting


@pytest.mark.parametrize(
    ("m4", "n4", "setting"),
    [
        (
            196,
            32,
            Setting("8x8", 16, 4),
        ),  # 784 rows are padded to 800; unpadded tiles of 4x8 take 1.15 times as long as 8x8
        (13, 128, Setting("8x8", 64, 1)),  # 49 rows; tiles of 4x8 take 1.11 times as long
        (1, 100, Setting("4x8", 64, 1)),  # 4 rows, as many as a tile of 4x8 has
    ],
)
def test_lavapipe_pads_a_little_for_the_widest_tile(m4: int, n4: int, setting: Setting) -> None:
    """lavapipe uses the widest tile even if this needs a little padding. The expected setting was the
    fastest of all in `vkq tune --regret`."""
    shape = ProductShape("s8s8", "q8to", m4, n4, 512)
    assert registers.default(reported("lavapipe"), shape) == setting


def test_narrow_workgroups_are_slow_on_lavapipe_alone() -> None:
    """A workgroup four tiles wide pads 144 columns the least. It is slow on lavapipe, and the fastest on
    SwiftShader."""
    shape = ProductShape("u8s8", "q8to", m4=784, n4=36, k4=6)
    assert registers.default(reported("swiftshader"), shape) == Setting("4x8", 4, 16)
    assert registers.default(reported("lavapipe"), shape).local_x == 8


@pytest.mark.parametrize("m4", [1, 2, 3, 4, 5, 8, 9, 1000])
def test_an_adreno_never_gets_8x8_nor_4x16(m4: int, any_device: Device) -> None:
    facts = capabilities(any_device, vendor_id=ADRENO)
    assert not {(s.local_x, s.local_y) for s in registers.candidates(facts, TILES)} & {(8, 8), (4, 16)}
    setting = registers.default(facts, ProductShape("s8s8", "q8to", m4, 4, 20))
    assert (setting.local_x, setting.local_y) in {(64, 1), (32, 2), (16, 4)}


@pytest.mark.parametrize("vendor", [MALI, VIDEOCORE])
def test_a_mali_and_a_videocore_get_the_narrow_tile(vendor: int, any_device: Device) -> None:
    facts = capabilities(any_device, vendor_id=vendor)
    assert registers.default(facts, ProductShape("s8s8", "q8to", 100, 100, 9)) == Setting("4x4", 8, 8)


def test_a_tile_without_a_number_is_named(any_device: Device) -> None:
    with preferred({"tile": "1x1"}), pytest.raises(SpecError, match="1x1 has no number in register_tile"):
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
