"""Tests of the kernels that a device gets, and of the printed reasons, for the capabilities that drivers
report."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from vkq.device import profiles
from vkq.device.profiles import profile
from vkq.errors import SpecError
from vkq.kernels import gemv
from vkq.kernels.auto_programs import auto_programs
from vkq.kernels.gemm import staged_tile
from vkq.select import registers
from vkq.select.registers import ProductShape

from .reported import NAMES, reported

XCLIPSE, INTEL, UNKNOWN = 0x144D, 0x8086, 0x1010
DEVICES = {name: reported(name) for name in NAMES} | {
    # No report of these devices is stored: use another device's capabilities with this vendor id or type.
    "xclipse": reported("radv-gfx1030", vendor_id=XCLIPSE, device_type="integrated"),
    "intel": reported("lavapipe", vendor_id=INTEL, device_type="integrated"),
    "jetson": reported("nvidia-h200", device_type="integrated"),
    "unknown": reported("lavapipe", vendor_id=UNKNOWN, device_type="integrated"),
}
LARGE = ProductShape("s8s8", "q8to", 1024, 1024, 1024)
# device: (name of the rule, tile in shared memory, largest register tile, maximum rows of a GEMV)
TAKEN = {
    "adreno-640": ("Qualcomm Adreno without a packed dot product", None, "4x4", 4),
    "adreno-650": ("Qualcomm Adreno 6xx", None, "4x8", 4),
    "adreno-740": ("Qualcomm Adreno", None, "4x8", 4),
    "adreno-750": ("Qualcomm Adreno 750", None, "4x8", 4),
    "mali-g52": ("Arm Mali", None, "4x4", 4),
    "mali-g610": ("Arm Mali", None, "4x4", 4),
    "videocore-4.2": ("Broadcom VideoCore", None, "4x4", 1),
    "videocore-7.1": ("Broadcom VideoCore", None, "4x4", 1),
    "xclipse": ("Samsung Xclipse", "64x64", "4x8", 4),
    "radv-gfx1030": ("AMD", "64x64", "4x8", 28),
    "radv-gfx1100": ("AMD", "64x64", "4x8", 28),
    "intel": ("Intel", "64x64", "4x8", 4),
    "nvidia-h200": ("NVIDIA, discrete", "64x64", "4x8", 28),
    "jetson": ("NVIDIA", "64x64", "4x8", 4),
    "lavapipe": ("Mesa's lavapipe", None, "8x8", 2),
    "swiftshader": ("CPU", None, "8x8", 2),
    "unknown": ("default", None, "4x8", 4),
}


def test_every_device_is_in_the_table() -> None:
    assert TAKEN.keys() == DEVICES.keys()


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_taken_and_why(name: str) -> None:
    """Each device gets the rule, tiles and GEMV rows of TAKEN. Without a choice by tuning, a large product
    uses a register tile as large as the profile's, and a workgroup size that the profile does not avoid."""
    c, (rule, staged, tile, rows) = DEVICES[name], TAKEN[name]
    known = profile(c)
    assert known.names[-1] == rule
    assert staged_tile(c, LARGE.m4, LARGE.n4) == staged
    setting = registers.default(c, LARGE)
    assert known.tile == tile
    assert registers._results(setting.tile) == registers._results(tile)
    assert setting.local_x * setting.local_y == registers.INVOCATIONS
    assert (setting.local_x, setting.local_y) not in known.avoid_local
    assert gemv.max_rows(c) == rows
    where = f"{staged} through shared memory" if staged else f"{tile} in registers"
    where += ", operands as texels" if name in ("adreno-650", "lavapipe") else ""
    assert known.reason.startswith(f"{rule}: tiles of {where}; ")
    assert known.whys[-1] in known.reason


@pytest.mark.parametrize("name", TAKEN)
def test_what_pools_sums_transposition_and_quantization_take(name: str) -> None:
    """Pools load a whole window at once on devices where this was measured to be faster. Quantization loads
    16 channels first on devices where loops are slow. Sums and transpositions have the same kernels on all
    devices."""
    c = DEVICES[name]
    found = {each.layer: each for each in auto_programs(c)}
    assert found["add"].variant.name == "binary_q8__word:add.same"
    assert found["add"].constants["SURE"] is True
    windows = {"LOCAL_X": 128, "KERNEL": 3, "STRIDE": 2, "ASIDE": 3} if name == "nvidia-h200" else {}
    for layer, kernel in (("average pool", "avg_pool_q8__pixels"), ("max pool", "max_pool_q8__pixels")):
        pool = found[layer]
        assert pool.variant.name == f"{kernel}:4w4c"
        assert pool.constants == pool.variant.constants(windows)
    transpose = found["transpose"]
    assert transpose.variant.name == "transpose_q8__pixels:4w4c"
    order = {f"ORDER_{i}": axis for i, axis in enumerate((0, 2, 3, 1))}
    assert transpose.constants == {"LOCAL_X": 64, **order}
    assert found["quantize"].constants["LOAD_AHEAD"] == (name in {"lavapipe", "swiftshader"})
    discrete = c.device_type == "discrete"
    assert (profile(c).mean_invocations > 128) == discrete
    said = " ".join(profile(c).whys)
    assert ("windows read at once" in said) == (name == "nvidia-h200")
    assert ("a loop costs more than registers" in said) == (c.device_type == "cpu")


def test_an_h200_is_what_it_was_measured_with() -> None:
    known = profile(DEVICES["nvidia-h200"])
    assert (known.gemv_rows_float, known.gemv_invocations) == (16, 512)
    assert known.macs_per_dispatch == 1 << 40
    assert not known.wide_barriers
    assert not known.avoid_local


@pytest.mark.parametrize("channel_blocks", [1, 2, 4, 8, 100])
def test_an_adreno_never_gets_8x8_nor_4x16(channel_blocks: int) -> None:
    known, wide = profile(DEVICES["adreno-740"]), min(8, channel_blocks)
    x, y = known.local(wide, 64, channel_blocks)
    assert x * y == 64
    assert (x, y) not in {(8, 8), (4, 16)}
    assert profile(DEVICES["radv-gfx1030"]).local(wide, 64, channel_blocks) == (wide, 64 // wide)


def test_every_rule_has_a_reason_and_a_source() -> None:
    for rule in profiles.profiles():
        assert rule.why
        assert rule.source
        known = {name for c in DEVICES.values() for name in c.facts}
        assert rule.facts.keys() <= known, f"{rule.name} asks for facts that no device has"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  wide_barriers: false\n", "", "lacks wide_barriers"),
        ("device_type: cpu", "device_type: toaster", "no device type toaster"),
        ("[[8, 8], [4, 16]]", "[[8, 8, 1]]", "two numbers"),
        ("[0x06000000, 0x06ffffff]", "[6]", "the first and the last of a generation"),
        ("registers: few", "registers: 64", "text is needed"),
        ("registers: few", "registers: none", "it must be one of few, some, enough, plenty"),
        ("gemv_rows: 28", "gemv_rows: many", "a whole number is needed"),
    ],
)
def test_a_broken_file_is_refused_by_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    text = profiles.FILE.read_text()
    assert old in text
    broken = tmp_path / "profiles.yaml"
    broken.write_text(text.replace(old, new, 1))
    monkeypatch.setattr(profiles, "FILE", broken)
    with pytest.raises(SpecError, match=message):
        profiles.profiles.__wrapped__()


def test_a_profile_is_one_value_for_a_device() -> None:
    c = DEVICES["mali-g52"]
    assert profile(c) is profile(dataclasses.replace(c, name="another"))
