"""Tests that compiler statistics cover the programs that layers use."""

from __future__ import annotations

import pytest

from vkq.device.profiles import profile
from vkq.kernels import grouped
from vkq.kernels.auto_programs import auto_programs, form
from vkq.runtime.program import refusals
from vkq.select import registers

from ..device.reported import NAMES, reported

FLOATS = ("gemm_q8csw__lanes", "conv2d_q8csw__lanes", "conv2d_q8csw__depthwise")
FORMS = {
    "adreno-640": "float", "adreno-650": "u8s8", "adreno-740": "u8s8", "adreno-750": "u8s8",
    "mali-g52": "float", "mali-g610": "float", "videocore-4.2": "float", "videocore-7.1": "float",
    "radv-gfx1030": "s8s8", "radv-gfx1100": "s8s8", "nvidia-h200": "s8s8", "lavapipe": "float",
    "swiftshader": "float",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_device_has_a_program_for_every_layer(name: str) -> None:
    c = reported(name)
    found = {each.layer: each for each in auto_programs(c)}
    assert form(c) == FORMS[name]
    staged = any("staged" in each.variant.name for each in found.values())
    assert staged == (name in {"radv-gfx1030", "radv-gfx1100", "nvidia-h200"})
    assert not any(refusals(v.variant, v.variant.constants(v.constants), c) for v in found.values())
    assert {"add", "average pool", "linear 1x1000x2048", "depthwise 3x3 C32 112x112 stride 1"} <= found.keys()


def test_a_videocore_takes_gemv_for_one_row_alone() -> None:
    found = {each.layer: each.variant.name for each in auto_programs(reported("videocore-7.1"))}
    assert found["linear 1x1000x2048"] == "gemv_q8ta_q8csw__split:float.1.q8to"
    assert found["linear 4x1000x2048"] == "gemm_q8ta_q8csw__tiled:float.q8to.4x4"


@pytest.mark.parametrize("name", NAMES)
def test_only_a_videocore_takes_two_rows_of_a_float_product(name: str) -> None:
    """A VideoCore, and no other device, uses register tiles of two rows (2x4) for float products. Its
    direct convolution uses tiles of four rows, which do not spill registers."""
    c = reported(name)
    found = {each.layer: each.variant for each in auto_programs(c)}
    small = found["float32 linear 49x2048x512"].axes.get("tile") == "2x4"
    narrow = registers.default(c, registers.ProductShape(registers.FLOATS, "f32", 2, 1, 64))
    assert small == (narrow.tile == "2x4") == name.startswith("videocore")
    if small:
        assert found["float32 conv 3x3 C64 56x56"].axes["tile"] == "4x4"
        assert found["float32 depthwise 3x3 C32 112x112"].axes["tile"] == "4x1"


@pytest.mark.parametrize("name", NAMES)
def test_phones_take_weights_in_groups_a_word_after_the_other(name: str) -> None:
    """GPUs of phones and VideoCores read grouped weights one word at a time. A Mali and a VideoCore
    compute one row at a time, because four rows, as on other devices, spill registers."""
    found = {each.layer: each for each in auto_programs(reported(name))}
    few, many = (found[f"float32 linear {shape}, 4 bits"] for shape in ("1x4096x4096", "49x2048x512"))
    small = name.startswith(("mali", "videocore"))
    assert few.constants.get("IN_TURN", False) == (small or name.startswith("adreno"))
    if many.variant.shader == few.variant.shader:
        assert many.variant.axes["rows"] == ("1" if small else "4")
    one = found["float32 linear 1x4096x4096"]
    if name in ("nvidia-h200", "lavapipe"):
        assert one.variant.shader == ("gemv_q8csw__ahead" if name == "nvidia-h200" else FLOATS[0])
    else:
        assert one.constants["UNROLL"] == (2 if name.startswith("videocore") else 4)


def test_a_long_k_is_known_before_compiling() -> None:
    found = {each.layer: each.constants for each in auto_programs(reported("mali-g52"))}
    assert found["conv 3x3 C512 7x7"]["LONG_K"] is True
    assert found["conv 3x3 C64 56x56"]["LONG_K"] is False


@pytest.mark.parametrize("name", NAMES)
def test_an_adreno_6xx_with_packed_dot_products_and_lavapipe_read_texels(name: str) -> None:
    shaders = {each.variant.shader for each in auto_programs(reported(name))}
    assert ("gemm_q8ta_q8csw__texels" in shaders) == (name in ("adreno-650", "lavapipe"))
    for kernel in ("gemv_q8ta_q8csw__texels", *FLOATS):
        assert (kernel in shaders) == (name == "lavapipe")


@pytest.mark.parametrize("name", NAMES)
def test_pools_and_transpositions_are_those_of_the_device(name: str) -> None:
    """An H200 reads the whole 3x3 window of a pool at once, because it has many registers; other devices do
    not. The constants of a transposition are the same on all devices."""
    found = {each.layer: dict(each.constants) for each in auto_programs(reported(name))}
    known = {"LOCAL_X": 128, "KERNEL": 3, "STRIDE": 2, "ASIDE": 3, "THREADS": 1}
    any_window = {"LOCAL_X": 64, "KERNEL": 0, "STRIDE": 1, "ASIDE": 0, "THREADS": 1}
    pool = known if name == "nvidia-h200" else any_window
    assert found["max pool"] == pool
    assert found["average pool"] == {**pool, "SURE": False, "SOFT_FLOAT": False}
    assert found["transpose"] == {"LOCAL_X": 64, "ORDER_0": 0, "ORDER_1": 2, "ORDER_2": 3, "ORDER_3": 1}


@pytest.mark.parametrize("name", NAMES)
def test_no_kernel_has_a_workgroup_that_the_device_avoids(name: str) -> None:
    c = reported(name)
    sizes = {(each.constants.get("LOCAL_X"), each.constants.get("LOCAL_Y", 1)) for each in auto_programs(c)}
    assert not sizes & profile(c).avoid_local


@pytest.mark.parametrize("name", NAMES)
def test_columns_of_a_workgroup_of_one_row(name: str) -> None:
    """A product of one row and 250 column blocks: on AMD a workgroup has at least four column blocks, so
    that it reads half of each cache line of 128 bytes. A CPU does not split the sum over k."""
    found = {each.layer: each.constants for each in auto_programs(reported(name))}
    known = {"radv": (4, 64), "lavapipe": (16, 1), "swiftshader": (16, 1)}
    one = found["linear 1x1000x2048"]
    assert (one["LOCAL_X"], one["LOCAL_Y"]) == known.get(name.partition("-")[0], (2, 128))


# Expected choices of each device, in this order: the number of blocks of k that a GEMV reads at once;
# whether direct convolutions read one channel at a time; whether 16 channels are quantized at once; the
# workgroup of a depthwise convolution of 32 channels; the tile for 8 rows of 4-bit weights.
ADRENO, MALI = (4, False, False, (2, 32), None), (4, False, False, (8, 8), None)
VIDEOCORE, CPU = (2, True, False, (8, 8), None), (4, False, True, (8, 8), None)
LARGE, UNCOUNTED = ((4, False, False, (8, 8), tile) for tile in ("32x32x4", "32x32x2"))
SMALL = {
    **dict.fromkeys(("adreno-640", "adreno-650", "adreno-740", "adreno-750"), ADRENO),
    **dict.fromkeys(("mali-g52", "mali-g610"), MALI),
    **dict.fromkeys(("videocore-4.2", "videocore-7.1"), VIDEOCORE),
    **dict.fromkeys(("lavapipe", "swiftshader"), CPU),
    **dict.fromkeys(("radv-gfx1030", "radv-gfx1100"), UNCOUNTED),  # their number of cores is unknown
    "nvidia-h200": LARGE,
}


@pytest.mark.parametrize("name", NAMES)
def test_the_forms_of_small_kernels_are_those_of_the_device(name: str) -> None:
    c = reported(name)
    found = {each.layer: each.constants for each in auto_programs(c)}
    depthwise = found["depthwise 3x3 C32 112x112 stride 1"]
    forms = (
        found["linear 1x1000x2048"]["UNROLL"],
        found["grouped 3x3 C128 56x56 in 32 groups"]["IN_TURN"],
        found["quantize"]["LOAD_AHEAD"],
        (depthwise["LOCAL_X"], depthwise["LOCAL_Y"]),
        grouped.staged_tile(c, "4", 8, 4096),
    )
    assert forms == SMALL[name]
