"""Kernels that were tuned for one problem: taken by its layers alone, kept, and never trusted blindly."""

from pathlib import Path

import numpy as np
import pytest

import vkq
from vkq.check import tuning
from vkq.check.catalogue import check_of
from vkq.check.tuning import KernelTrial
from vkq.cli import main
from vkq.device.profiles import preferred
from vkq.select import kernels

NAME = "linear[M=40,K=32,N=48]"
STAGED = {"matrix product": "32x32 through shared memory"}
W = np.random.default_rng(3).integers(-127, 128, (48, 32)).astype(np.int8)


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tuned, and what is tuned is kept elsewhere."""
    monkeypatch.setattr(kernels.cache, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(kernels, "_tuned", {})


def taken(device: vkq.Device, rows: int = 40) -> tuple[str, ...]:
    layer = vkq.Linear(W, 0.01, x_qparams=vkq.QParams(0.1), path="portable", device=device)
    return layer.explain((rows, 32)).variants


def test_a_layer_takes_what_was_tuned_for_its_problem(software_device: vkq.Device) -> None:
    device = software_device
    usual = taken(device)
    assert "__staged" not in usual[0]
    kernels.store(device.capabilities, NAME, "q8ta_q8csw", STAGED)
    kernels.store(device.capabilities, NAME, "q8csw", {"matrix product": "a tile that is no more"})
    kernels._tuned.clear()  # as another process finds it
    assert taken(device) == ("gemm_q8ta_q8csw__staged:float.f32.32x32",)
    assert taken(device, 41) == (usual[0],)
    kernels.store(device.capabilities, "another", "q8csw", {})  # the default: nothing to keep
    assert len(kernels.stored(device.capabilities)) == 2
    with preferred({}):  # while candidates are measured
        assert taken(device) == usual
    assert kernels.says(kernels.stored(device.capabilities)[f"{NAME} q8csw"]) == {}
    next((kernels.cache.cache_dir() / "tune").glob("*kernels.json")).write_text("[]")
    kernels._tuned.clear()
    with pytest.warns(kernels.cache.CacheWarning):
        assert taken(device) == usual


def test_choices_of_another_process_are_kept(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which tuned for minutes, too, and ended first."""
    c = any_device.capabilities
    kernels.store(c, "first", "q8csw", STAGED)
    with monkeypatch.context() as other:
        other.setattr(kernels, "_tuned", {})
        kernels.store(c, "second", "q8csw", STAGED)
    kernels.store(c, "third", "q8csw", STAGED)
    want = {f"{name} q8csw": STAGED for name in ("first", "second", "third")}
    assert kernels.stored(c) == want
    kernels._tuned.clear()
    assert kernels.stored(c) == want


def test_every_family_is_measured_and_right(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each choice that makes another plan: of a product, of a convolution, of a weight in groups."""
    monkeypatch.setattr(tuning, "SAMPLE_US", 1.0)
    for name, kinds in (
        (f"{NAME}/seed=1", {"gemm_q8ta_q8csw__tiled", "gemm_q8ta_q8csw__staged"}),
        (
            "conv2d[N=1,IC=8,H=9,W=9,OC=32,KH=3,KW=3,padding=1]/seed=1",
            {"im2col_q8__gather", "conv2d_q8ta_q8csw__staged"},
        ),
        ("linear[M=19,K=64,N=12]/scheme=q4gsw", {"gemv_q4gsw__split", "gemm_q4gsw__staged"}),
    ):
        check = check_of(name)
        trials = tuning.tuned_kernels(device, check, "auto" if "q4gsw" in name else "portable")
        assert not [t.error for t in trials if t.error]
        assert all(t.time_us for t in trials)
        assert {v.partition(":")[0] for t in trials for v in t.variants} >= kinds
        assert len(trials) > 1
        assert (trials[0].choice, trials[0].name) == ({}, "default")


def test_the_best_is_worth_it_or_the_default_stays() -> None:
    def trial(choice: dict[str, str], time_us: float | None) -> KernelTrial:
        return KernelTrial(choice, ("v",), time_us)

    usual, other = trial({}, 10.0), trial(STAGED, 9.0)
    assert tuning.best_kernels([usual, other]) is other
    assert tuning.best_kernels([usual, trial(STAGED, 9.9)]) is usual
    assert tuning.best_kernels([trial({}, None), other]) is other  # the default is wrong
    assert tuning.best_kernels([usual]) is usual


def test_the_command_keeps_the_choice(
    software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, fast = KernelTrial({}, ("a",), 10.0), KernelTrial(STAGED, ("b",), 5.0)
    monkeypatch.setattr(tuning, "tuned_kernels", lambda *_: [slow, fast])
    name = f"{NAME}/seed=1,scheme=q8ta_q8csw"
    assert main(["tune", name, "--device", "llvmpipe", "--path", "portable", "--dry-run"]) == 0
    assert not kernels.stored(software_device.capabilities)
    assert main(["tune", name, "--device", "llvmpipe", "--path", "portable"]) == 0
    assert "* matrix product: 32x32 through shared memory" in capsys.readouterr().out
    assert kernels.stored(software_device.capabilities) == {f"{NAME} q8ta_q8csw": STAGED}
