"""Emulated 16-bit storage for devices without it: kernels that read and write float16 elements use 32-bit
words instead, and are otherwise unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import vkq
from vkq.runtime.program import Program
from vkq.shader.catalog import shaders_folder
from vkq.shader.compile import text
from vkq.shader.spec import Value, Variant

from ..ops import doctored
from . import rewritten

FEATURE = "storageBuffer16BitAccess"
WORDS = Path(__file__).with_name("sixteen_bits.glsl")


def provide(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the device emulated 16-bit storage."""
    if device.capabilities.features[FEATURE]:
        return
    make = device.program

    def program(
        variant: Variant, constants: Mapping[str, Value] | None = None, subgroup_size: int = 0
    ) -> Program:
        if FEATURE not in variant.requires:
            return make(variant, constants, subgroup_size)
        return _program(device, variant, variant.constants(constants or {}))

    monkeypatch.setattr(device, "capabilities", doctored.capabilities(device, **{FEATURE: True}))
    monkeypatch.setattr(device, "program", program)


def _program(device: vkq.Device, variant: Variant, values: dict[str, Value]) -> Program:
    source = text(variant).replace("#extension GL_EXT_shader_16bit_storage : require", "")
    before, found, after = source.replace("writeonly buffer Y", "buffer Y").partition("layout(local_size")
    return rewritten.program(device, variant, values, before + words() + found + after)


def words() -> str:
    """Return the GLSL text that replaces common/float_numbers.glslh."""
    return (shaders_folder() / "common" / "float16.glslh").read_text() + WORDS.read_text()


def check_rows(device: vkq.Device, layer: vkq.Linear, x: npt.NDArray[np.float32], variant: str) -> None:
    """Check that *layer* runs one kernel, *variant*, on float16 rows, and that the result equals the result
    for float32 rows of equal values, rounded to float16."""
    given = vkq.Tensor.from_numpy(x.astype(np.float16), device)
    assert layer.plan(given.spec).variants == (variant,)
    got = layer(given)
    assert got.dtype == "float16"
    with np.errstate(over="ignore"):  # values beyond 65504 become infinite
        want = layer(given.numpy().astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(got.numpy(), want)
