"""Tests of device features that fail the probe. Kernels do not use a failed feature, and return the same
bytes as with the feature. Reports name the feature."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import vkq
from tests.device.reported import reported
from vkq.cli import main
from vkq.device import verdict
from vkq.device.refused import FEATURES, believed, refused
from vkq.kernels.gemm import viewable
from vkq.probe import features, selftest
from vkq.runtime.device import Device
from vkq.runtime.recording import Recording
from vkq.select import path as select


@contextmanager
def failed(device: Device, monkeypatch: pytest.MonkeyPatch, *tests: str) -> Iterator[Device]:
    """Context manager: open the device again, as if these tests of the probe had failed."""
    c = device.capabilities
    known = selftest.report(device)
    says = dataclasses.replace(known, failures={**known.failures, **{t: f"{t}: 1 of 9 wrong" for t in tests}})
    with monkeypatch.context() as patch:
        patch.setitem(verdict._reports, c.key, says)
        with vkq.Device(c.index) as opened:
            yield opened


def layers(device: Device) -> dict[str, tuple[Callable[..., Any], tuple[int, ...]]]:
    """Return layers and their input shapes. On lavapipe, some layers read texels and some use subgroup
    shuffles."""
    rng = np.random.default_rng(7)
    weight = rng.integers(-128, 128, (37, 75)).astype(np.int8)
    image = rng.integers(-128, 128, (12, 8, 3, 3)).astype(np.int8)
    q = vkq.QParams(0.02, 3)
    fixed: dict[str, Any] = {"w_scale": 0.01, "device": device}
    return {
        "int8": (vkq.Linear(weight, x_qparams=q, y_qparams=q, **fixed), (33, 75)),
        "int8, one row": (vkq.Linear(weight, x_qparams=q, y_qparams=q, **fixed), (1, 75)),
        "float32": (vkq.Linear(weight, **fixed), (9, 75)),
        "convolution": (vkq.Conv2d(image, padding=1, x_qparams=q, y_qparams=q, **fixed), (1, 8, 12, 20)),
        "float32 convolution": (vkq.Conv2d(image, padding=1, **fixed), (1, 8, 12, 20)),
    }


def results(device: Device) -> tuple[dict[str, bytes], set[str]]:
    """Return (layer -> the bytes of its result, names of the shaders that ran)."""
    rng, found, shaders = np.random.default_rng(8), {}, set()
    for name, (layer, shape) in layers(device).items():
        values = rng.integers(-20, 20, shape)
        found[name] = layer(values.astype(np.int8 if "int8" in name or name == "convolution" else np.float32))
        shaders |= set(layer.explain(shape).variants)  # type: ignore[attr-defined]
    return {name: np.asarray(y).tobytes() for name, y in found.items()}, shaders


def test_a_failed_feature_is_done_without_and_the_bytes_stay(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On lavapipe, layers use texels and shuffles. If the probe refuses these features, the layers do not
    use them, and return the same bytes."""
    want, before = results(device)
    takes_both = "llvmpipe" in device.name
    assert any("texels" in name or "lanes" in name for name in before) == takes_both
    for tests in (("texels",), ("shuffles",), ("texels", "shuffles", "matrices")):
        with failed(device, monkeypatch, *tests) as opened:
            got, shaders = results(opened)
            texels = {name for name in shaders if "texels" in name or "lanes" in name}
            assert not texels or (tests == ("shuffles",) and not any("lanes" in name for name in texels))
            assert (tests != ("shuffles",)) or bool(texels) == takes_both, "the others go on"
        assert got == want, tests


def test_capabilities_lose_what_failed_alone(any_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    c = reported("adreno-740", index=any_device.capabilities.index)
    plain = verdict.verdict({}, {}, isolated=True)
    for test, texels, shuffles in (("texels", 0, 16), ("shuffles", 1 << 16, 0), ("matrices", 1 << 16, 16)):
        monkeypatch.setitem(verdict._reports, c.key, dataclasses.replace(plain, failures={test: "wrong"}))
        found = believed(c)
        assert min(found.properties["maxTexelBufferElements"], 1 << 16) == texels
        assert found.properties["supportedOperations"] & 16 == shuffles
        assert viewable(found, 16) == (texels > 0)
        assert found.key == c.key
    monkeypatch.setitem(verdict._reports, c.key, plain)
    assert believed(c) is c


def test_devices_and_explain_say_it(
    any_device: Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with failed(any_device, monkeypatch, "texels", "shuffles") as opened:
        layer, shape = layers(opened)["int8"]
        said = str(layer.explain(shape))  # type: ignore[attr-defined]
        assert "\n  without  texel buffers (texels: 1 of 9 wrong)\n" in said
        assert "\n  without  subgroup shuffles (shuffles: 1 of 9 wrong)\n" in said
        said = str(vkq.explain(vkq.ops.pool.max_pool2d, np.zeros((1, 4, 8, 8), np.int8), 2, device=opened))
        assert "\n  without texel buffers (texels: 1 of 9 wrong)\n" in said
        which = str(any_device.capabilities.index)
        assert main(["devices", "--device", which]) == 0
        assert "without texel buffers, which failed the self-test: texels: 1 of 9 wrong" in " ".join(
            capsys.readouterr().out.split()
        )
        assert main(["devices", "--device", which, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["devices"]
        assert row["refused"] == {FEATURES[t]: f"{t}: 1 of 9 wrong" for t in ("texels", "shuffles")}
    assert "without" not in str(layers(any_device)["int8"][0].explain((33, 75)))  # type: ignore[attr-defined]


def test_matrix_units_that_fail_are_refused_with_the_reason(
    any_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "lacking", lambda c: None)
    with failed(any_device, monkeypatch, "matrices") as opened:
        assert select.refusal(opened, "coopmat") == "matrices: 1 of 9 wrong"
        assert select.choose_path(opened).path != "coopmat"
    assert refused({"matrices": "wrong", "u8s8": "wrong"}) == {"matrix units": "wrong"}


@pytest.mark.parametrize(("test", "said"), [
    ("texels", "numbers wrong in run 2 of 3; number 0 is"),
    ("shuffles", "numbers wrong in run 1 of 3; number 0 is"),
])  # fmt: skip
def test_faults_are_seen(device: Device, monkeypatch: pytest.MonkeyPatch, test: str, said: str) -> None:
    """The probe finds two faults: texels that are stale from the second run on, and shuffles that read the
    next lane."""
    run, first = Recording.run, dict[int, Any]()
    targets: list[Any] = []
    record = Recording.dispatch

    def noted(self: Recording, program: Any, buffers: Any, push: Any, macs: int = 0) -> None:
        targets.append(list(buffers)[-1])
        record(self, program, buffers, push, macs)

    def faulty(self: Recording) -> None:
        run(self)
        target = targets[-1]
        raw = device.download(target, target.bytes).copy()
        if test == "texels":
            raw = first.setdefault(0, raw)
        else:
            raw = np.roll(raw.reshape(-1, 32), 1, axis=0).reshape(-1)
        device.upload(target, raw)

    assert features.stages(device)[test]() is None
    monkeypatch.setattr(Recording, "dispatch", noted)
    monkeypatch.setattr(Recording, "run", faulty)
    found = features.stages(device)[test]()
    assert found is not None
    assert said in found


def test_devices_without_the_features_are_not_asked(any_device: Device) -> None:
    old = reported("adreno-640")
    facts = {**old.properties, "maxTexelBufferElements": 0, "supportedOperations": 3}

    class Of:
        capabilities = dataclasses.replace(old, properties=facts)

    assert features.stages(Of()) == {}  # type: ignore[arg-type]
