"""Tests of the probe's test of conversions between float16 and float32, and of the kernels that use them."""

from __future__ import annotations

import numpy as np
import pytest

import vkq
from vkq.device.verdict import verdict
from vkq.kernels.chain import Chain, Link
from vkq.kernels.chain_form import Form
from vkq.kernels.chain_shader import written
from vkq.numerics.elementary import from_halves, to_halves
from vkq.numerics.steps import Computed
from vkq.probe import conversions, selftest


class Converted(Computed):
    """A value of a device whose instructions convert as IEEE 754 says."""

    converts = True


def test_the_operations_have_the_bits_of_the_steps() -> None:
    """In NumPy, the conversion operations give the bits of the integer steps, for all float16 values and for
    float32 values of all kinds."""
    words = conversions.half_cases()[0] | conversions.half_cases()[1] << 16
    with np.errstate(all="ignore"):
        both = [from_halves(kind(words, "u")) for kind in (Converted, Computed)]
        for one, two in zip(*both, strict=True):
            np.testing.assert_array_equal(one.array, two.array)  # type: ignore[attr-defined]
        low, high = conversions.float_cases()
        found = [to_halves(kind(low), kind(high)) for kind in (Converted, Computed)]
        np.testing.assert_array_equal(*(x.array for x in found))  # type: ignore[attr-defined]


def test_cases() -> None:
    """The cases contain every float16 value in each half of a word, and each tie between two of them."""
    assert all(np.unique(row).size == 65536 for row in conversions.half_cases())
    for row in conversions.float_cases():
        size = np.unique(np.abs(row[np.isfinite(row)]))
        every = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
        assert np.isin((every[1:] + every[:-1]) / 2, size).all()
        assert np.isin(np.float32([65520, 2.0**-25, 3.4028235e38]), size).all()


def test_what_a_driver_does(device: vkq.Device) -> None:
    """lavapipe converts correctly. SwiftShader rounds some numbers below the normal range to the wrong
    neighbour, so its kernels convert in integers."""
    said = conversions.test(device)
    assert device.converts == (said is None)
    if "SwiftShader" in device.name:
        assert said is not None
        assert "rounding" in said
    elif "llvmpipe" in device.name:
        assert said is None


@pytest.mark.parametrize("name", ["widen", "narrow"])
@pytest.mark.parametrize("at", [0, 77777])
def test_one_wrong_bit_is_seen(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch, name: str, at: int
) -> None:
    true = conversions._execute

    def wrong(device: vkq.Device, which: str, *more: object) -> object:
        result = true(device, which, *more)  # type: ignore[arg-type]
        result[at] ^= 0x10 if which == name else 0
        return result

    monkeypatch.setattr(conversions, "_execute", wrong)
    said = conversions.test(any_device)
    assert said is not None
    assert ("rounding" in said) == (name == "narrow")


def test_a_device_that_fails_is_used_without_conversions() -> None:
    good = {"requantize": None, "requantize_soft": None}
    assert verdict({**good, "conversions": None}, {}, False).converts
    for results, failed in (({"conversions": "wrong"}, {}), ({}, {"conversions": "crashed"}), ({}, {})):
        found = verdict({**good, **results}, failed, False)
        assert (found.converts, found.failures) == (False, {})
    assert not selftest.Verdict({}, soft_float=False).converts


@pytest.mark.parametrize("converts", [False, True])
def test_kernels_use_instructions_only_if_they_may(converts: bool) -> None:
    chain = Chain(("float16",), (), (Link("Sigmoid", (0,), "float16", "float16"),), (1,))
    module = written(chain, Form(("own",), 0, 1, False, converts, False)).module()
    assert (b"GLSL.std.450" in module) == converts
