"""Tests of the probe that finds which words of a matrix each invocation holds. The tests use emulated matrix
units, for which the order of the words is known."""

import numpy as np
import pytest

import vkq
from tests.kernels import emulated
from vkq.probe import words
from vkq.probe.matrices import advertised_half


@pytest.mark.parametrize(("shape", "subgroup"), [("16x16x16", 32), ("16x8x16", 32), ("16x8x16", 16)])
def test_order(shape: str, subgroup: int, strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is correct, also while a recording is open; the second call returns the cached order."""
    monkeypatch.setattr(words, "_found", {})
    emulated.emulate(strict_device, monkeypatch, shape, form="f16", subgroup=subgroup)
    matrices = advertised_half(strict_device.capabilities)[0]
    with strict_device.record() as recording:
        found = words.order(strict_device, matrices)
    assert not recording.dispatches
    elements = np.arange(subgroup)[:, None] + np.arange(0, matrices.m * matrices.n, subgroup)
    rows = elements // matrices.n * 8  # in emulated.glsl an element has the words of its row of W
    np.testing.assert_array_equal(found, (rows[..., None] + np.arange(8)).reshape(subgroup, -1))
    assert words.order(strict_device, matrices) is found


def test_weights_lie_in_order() -> None:
    blocks = np.arange(256, dtype=np.int32)  # two matrices of 128 words
    found = np.stack([np.arange(4), np.arange(127, 123, -1)]).astype(np.int32)
    want = [0, 1, 2, 3, 127, 126, 125, 124, 128, 129, 130, 131, 255, 254, 253, 252]
    assert words.in_order(blocks, found).reshape(-1).tolist() == want
