"""Tests of choices that were tuned for one problem: they are stored in a file, and only layers with this
problem use them. Damaged files are ignored."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import vkq
from vkq import cache
from vkq.device import tuner
from vkq.device.profiles import preferred
from vkq.select import registers

NAME = "linear[M=40,K=32,N=48]"
STAGED = {"matrix product": "32x32 through shared memory"}
REGISTERS = {registers.KIND: "4x4, workgroup 16x4"}
W = np.random.default_rng(3).integers(-127, 128, (48, 32)).astype(np.int8)


def tune_apart(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Forget all tuned choices, and store new choices in *folder*, where other tests do not find them."""
    for kind in ("spirv", "probe"):
        (folder / kind).symlink_to(cache.cache_dir() / kind)
    monkeypatch.setenv("VKQ_CACHE_DIR", str(folder))
    monkeypatch.setattr(tuner, "_stores", {})


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Apply `tune_apart` with a temporary folder."""
    tune_apart(monkeypatch, tmp_path)
    return tmp_path


def taken(device: vkq.Device, rows: int = 40) -> tuple[str, ...]:
    layer = vkq.Linear(W, 0.01, x_qparams=vkq.QParams(0.1), path="portable", device=device)
    return layer.explain((rows, 32)).variants


def test_a_layer_takes_what_was_tuned_for_its_problem(software_device: vkq.Device, fresh: Path) -> None:
    """A layer uses the choice that is stored for its problem. It uses the default for another number of rows,
    inside a block with other choices, and after the stored choice was removed."""
    device, c = software_device, software_device.capabilities
    usual = taken(device)
    assert "__staged" not in usual[0]
    tuner.store(c, NAME, "q8ta_q8csw", STAGED)
    tuner._stores.clear()  # forget tuned choices, as in another process
    assert taken(device) == ("gemm_q8ta_q8csw__staged:float.f32.32x32",)
    assert taken(device, 41) == (usual[0],)
    with preferred({}):  # inside the block, tuned choices are not used
        assert taken(device) == usual
    tuner.store(c, NAME, "q8ta_q8csw", REGISTERS)
    assert taken(device) == ("gemm_q8ta_q8csw__texels:float.f32.4x4",)
    tuner.store(c, NAME, "q8ta_q8csw", {})  # the default is not stored
    assert (taken(device), tuner.stored(c).problems) == (usual, {})


@pytest.mark.parametrize(
    "choice",
    [{"matrix product": "a tile that is no more"}, {registers.KIND: "16x16, workgroup 8x8"}, {"no": "kind"}],
)
def test_what_is_no_more_chooses_nothing(
    choice: dict[str, str], software_device: vkq.Device, fresh: Path
) -> None:
    """A stored choice that names an unknown kind, or an option that no longer exists, gives the default."""
    usual = taken(software_device)
    tuner.store(software_device.capabilities, NAME, "q8ta_q8csw", choice)
    assert taken(software_device) == usual


def test_choices_of_another_process_are_kept(
    any_device: vkq.Device, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storing a choice keeps the choices that another process stored in the meantime."""
    c = any_device.capabilities
    tuner.store(c, "first", "q8csw", STAGED)
    with monkeypatch.context() as other:
        other.setattr(tuner, "_stores", {})
        tuner.store(c, "second", "q8csw", STAGED)
    tuner.store(c, "third", "q8csw", STAGED)
    want = {f"{name} q8csw": STAGED for name in ("first", "second", "third")}
    assert tuner.stored(c).problems == want
    tuner._stores.clear()
    assert tuner.stored(c).problems == want


@pytest.mark.parametrize(
    "damage", [b"[]", b"{", b'{"a": 1}', b'{"families": null, "problems": {"b": {"c": 4}}}', None]
)
def test_a_file_of_another_form_is_ignored_with_a_warning(
    damage: bytes | None, any_device: vkq.Device, fresh: Path
) -> None:
    """A store file that has other JSON, or was truncated, counts as empty and gives a warning."""
    c = any_device.capabilities
    tuner.store(c, "p", "q8csw", STAGED)
    path = tuner._path(c)
    if damage is None:
        path.write_bytes(path.read_bytes()[:-3])
    else:
        cache.write(path, damage)
    tuner._stores.clear()
    with pytest.warns(cache.CacheWarning):
        assert tuner.stored(c) == tuner.Store()


def test_each_kind_has_its_turn() -> None:
    """`legal` yields each choice once: first the default, then in turn the next option of each kind and the
    next candidate of each family."""
    found = list(tuner.legal({"a": ["a1", "a2", "a3"], "b": ["b1"]}))
    assert found[:2] == [{}, {"a": "a2"}]
    assert {"a": "a3"} in found[3:]
    assert {"b": "b1"} not in found, "it is the default's"
    names = [json.dumps(choice) for choice in found]
    assert len(names) == len(set(names))
    for family in tuner.tuned_families():
        assert all({family.name: name} in found for name in family.candidates)


def test_what_is_picked_comes_first_and_what_is_ranked_is_noted() -> None:
    """`ranked` moves the option of the active choice to the front, and `watched` records each ranking."""
    assert tuner.ranked("k", [3, 1, 2]) == [3, 1, 2]
    with preferred(tuner.says({"k": "2"})), tuner.watched() as seen:
        assert tuner.ranked("k", [3, 1, 2]) == [2, 3, 1]
        assert tuner.ranked("other", [3, 1]) == [3, 1]
        assert tuner.is_asked("anything")
    assert seen == {"k": ["3", "1", "2"], "other": ["3", "1"]}
    assert not tuner.is_asked("k")
    assert list(islice(tuner.legal(seen), 3)) == [{}, {"k": "1"}, {"other": "1"}]
