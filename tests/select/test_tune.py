"""Settings of the matrix product: vendor rules, the tuned cache, and that none changes a result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import vkq
from vkq import QParams, cache, reference
from vkq.device.profiles import preferred
from vkq.errors import SpecError
from vkq.runtime.device import Device
from vkq.select import tune
from vkq.select.tune import ProductShape, Setting

from ..ops.doctored import SMALLEST_LIMITS, capabilities

ADRENO, MALI, VIDEOCORE = 0x5143, 0x13B5, 0x14E4
SHAPE = ProductShape("s8s8", "q8to", m4=3, n4=4, k4=20)
GEMM = (
    (np.arange(9 * 77) % 251 - 125).astype(np.int8).reshape(9, 77),
    (np.arange(16 * 77) % 239 - 119).astype(np.int8).reshape(16, 77),
)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing is tuned."""
    (tmp_path / "spirv").symlink_to(cache.cache_dir() / "spirv")
    monkeypatch.setenv("VKQ_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tune, "_tuned", {})
    return tmp_path


@pytest.mark.parametrize(
    ("m4", "n4", "setting"),
    [
        (288, 32, Setting("8x8", 8, 8)),
        (100, 1, Setting("4x4", 4, 16)),
        (1, 100, Setting("4x8", 64, 1)),
        (3, 100, Setting("4x8", 64, 1)),
        (784, 6, Setting("4x4", 8, 8)),  # MobileNetV2: measured to be the fastest of all on lavapipe
        (3136, 4, Setting("4x4", 4, 16)),
        (196, 8, Setting("4x4", 8, 8)),
    ],
)
def test_the_default_wastes_little(m4: int, n4: int, setting: Setting, software_device: Device) -> None:
    """Wide tiles where they are full, and workgroups that the product fills."""
    assert tune.default(software_device.capabilities, ProductShape("s8s8", "q8to", m4, n4, 9)) == setting


@pytest.mark.parametrize("m4", [1, 2, 3, 4, 5, 8, 9, 1000])
def test_an_adreno_never_gets_8x8_nor_4x16(m4: int, any_device: Device) -> None:
    facts = capabilities(any_device, vendor_id=ADRENO)
    assert not {(s.local_x, s.local_y) for s in tune.candidates(facts)} & {(8, 8), (4, 16)}
    setting = tune.default(facts, ProductShape("s8s8", "q8to", m4, 4, 20))
    assert (setting.local_x, setting.local_y) in {(64, 1), (32, 2), (16, 4)}


@pytest.mark.parametrize("vendor", [MALI, VIDEOCORE])
def test_a_mali_and_a_videocore_get_the_narrow_tile(vendor: int, any_device: Device) -> None:
    facts = capabilities(any_device, vendor_id=vendor)
    assert tune.default(facts, ProductShape("s8s8", "q8to", 100, 100, 9)) == Setting("4x4", 8, 8)


def test_a_tile_without_a_number_is_named(any_device: Device) -> None:
    with preferred({"tile": "8x4"}), pytest.raises(SpecError, match="8x4 has no number in register_tile"):
        tune.default(any_device.capabilities, SHAPE)


def test_the_smallest_limits_leave_workgroups_of_up_to_128(any_device: Device) -> None:
    found = tune.candidates(capabilities(any_device, **SMALLEST_LIMITS))
    assert {s.local_x * s.local_y for s in found} == {64, 128}


@pytest.mark.parametrize(
    "setting", [Setting("4x4", 64, 1), Setting("8x8", 16, 16), Setting("4x8", 4, 16)], ids=str
)
def test_a_setting_changes_no_bit(setting: Setting, device: Device) -> None:
    x, w = GEMM
    q = QParams(0.1, 5)
    for path in ("portable", "dot_u8u8"):
        with tune.forced(setting):
            got = vkq.linear(x, w, 0.3, x_qparams=q, y_qparams=q, path=path, device=device)
        assert np.array_equal(got, reference.linear(x, w, x=q, w_scale=0.3, y=q))


def test_a_tuned_setting_is_used_for_its_bucket_and_survives_the_process(
    software_device: Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting("8x8", 32, 2)
    tune.store(software_device.capabilities, {SHAPE: setting})
    monkeypatch.setattr(tune, "_tuned", {})  # as another process would find it
    assert tune.choose_setting(software_device, SHAPE) == setting
    assert (
        tune.choose_setting(software_device, ProductShape("s8s8", "q8to", 4, 3, 32)) == setting
    )  # the same powers of two
    assert tune.choose_setting(software_device, ProductShape("s8s8", "f32", 3, 4, 20)) != setting
    x, w = GEMM
    layer = vkq.Linear(
        w, 0.3, x_qparams=QParams(0.1), y_qparams=QParams(0.1), path="dot_s8s8", device=software_device
    )
    assert layer.explain(x.shape).variants == ("gemm_q8ta_q8csw__texels:s8s8.q8to.8x8",)


def test_settings_tuned_before_are_kept(any_device: Device, fresh: Path) -> None:
    other = ProductShape("u8u8", "f32", 100, 100, 100)
    tune.store(any_device.capabilities, {SHAPE: Setting("4x4", 64, 1)})
    tune.store(any_device.capabilities, {other: Setting("8x8", 64, 1)})
    assert tune.stored(any_device.capabilities) == {
        SHAPE.bucket: Setting("4x4", 64, 1),
        other.bucket: Setting("8x8", 64, 1),
    }


def test_settings_of_another_process_are_kept(
    any_device: Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which tuned for minutes, too, and ended first."""
    shapes = [ProductShape("s8s8", "q8to", 1 << i, 4, 4) for i in range(3)]
    setting, c = Setting("4x4", 64, 1), any_device.capabilities
    tune.store(c, {shapes[0]: setting})
    with monkeypatch.context() as other:
        other.setattr(tune, "_tuned", {})
        tune.store(c, {shapes[1]: setting})
    tune.store(c, {shapes[2]: setting})
    want = {shape.bucket: setting for shape in shapes}
    assert tune.stored(c) == want
    tune._tuned.clear()
    assert tune.stored(c) == want


def test_a_stored_setting_that_the_device_cannot_run_is_ignored_with_a_warning(
    any_device: Device, fresh: Path
) -> None:
    facts = any_device.capabilities
    bad = {"tile": "16x16", "local_x": 8, "local_y": 8}, {"tile": "4x4", "local_x": 64, "local_y": 4096}
    path = tune._path(facts)
    cache.write(path, json.dumps({SHAPE.bucket: bad[0], "other": bad[1]}).encode())
    with pytest.warns(cache.CacheWarning) as said:
        assert tune.choose_setting(any_device, SHAPE) == tune.default(facts, SHAPE)
    assert ["no tile 16x16" in str(said[0].message), "4096 is above" in str(said[1].message)] == [True, True]


def test_a_damaged_file_is_ignored_with_a_warning(any_device: Device, fresh: Path) -> None:
    tune.store(any_device.capabilities, {SHAPE: Setting("8x8", 32, 2)})
    path = tune._path(any_device.capabilities)
    path.write_bytes(path.read_bytes()[:-3])
    tune._tuned.clear()
    with pytest.warns(cache.CacheWarning):
        assert tune.choose_setting(any_device, SHAPE) == tune.default(any_device.capabilities, SHAPE)


@pytest.mark.parametrize(
    "text",
    [b"[]", b"{", b'{"a": 1}', b'{"a": {"tile": "4x4"}}', b'{"a": {"tile": 4, "local_x": 1, "local_y": 1}}',
     b'{"a": {"tile": "4x4", "local_x": true, "local_y": 1}}',
     b'{"a": {"tile": "4x4", "local_x": ' + b"1" * 5000 + b', "local_y": 1}}'],
)  # fmt: skip
def test_a_sealed_file_of_another_form_is_ignored_with_a_warning(
    text: bytes, any_device: Device, fresh: Path
) -> None:
    cache.write(tune._path(any_device.capabilities), text)
    with pytest.warns(cache.CacheWarning, match="is ignored and made again: "):
        assert tune.choose_setting(any_device, SHAPE) == tune.default(any_device.capabilities, SHAPE)
