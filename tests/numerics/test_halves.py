"""Tests of float16 operators that have fewer steps than the float32 operators: their bits are those of the
float32 results rounded to float16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vkq.numerics import halves
from vkq.numerics.described import REAL, applied
from vkq.numerics.elementary import from_half, halved, to_half
from vkq.numerics.steps import Array, Computed, Number

EVERY = np.arange(65536, dtype=np.uint32)


def real(bits: Array) -> Computed:
    found = from_half(Computed(bits, "u"))
    assert isinstance(found, Computed)
    return found


def bits_of(x: Number) -> Array:
    found = to_half(x)
    assert isinstance(found, Computed)
    return found.array


def pairs(seed: int, count: int) -> tuple[Computed, Computed]:
    """Return random pairs of float16 numbers. Half of the pairs have similar magnitudes."""
    r = np.random.default_rng(seed)
    first = r.integers(0, 65536, count, np.uint32)
    near = (first + r.integers(0, 3000, count, np.uint32)) ^ (r.integers(0, 2, count, np.uint32) << 15)
    second = np.where(np.arange(count) % 2, r.integers(0, 65536, count, np.uint32), near & 0xFFFF)
    return real(first), real(second.astype(np.uint32))


@pytest.mark.parametrize("op", halves.OPERATORS)
def test_fewer_steps(op: str) -> None:
    """Float16 operators have the bits of the float32 results rounded to float16. Functions of one operand are
    tested for every float16."""
    operands: tuple[Any, ...] = (real(EVERY),) if op == "Sigmoid" else pairs(len(op), 1 << 20)
    with np.errstate(all="ignore"):
        want = REAL[op]({}, *operands)
        np.testing.assert_array_equal(bits_of(applied(op, {}, "float16", *operands)), bits_of(want))


@pytest.mark.parametrize("op", sorted(halves.EXACT))
def test_results_that_need_no_rounding(op: str) -> None:
    """Results of these operators on float16 numbers are float16 numbers, so they need no rounding."""
    one, two = pairs(len(op), 1 << 16)
    operands = (one, two) if op in ("Max", "Min") else (real(EVERY),)
    a: dict[str, Any] = {}
    if op == "Clip":
        operands, a = (one, real(np.uint32([0xB123])), real(np.uint32([0x4001]))), {"bounds": ("min", "max")}
    with np.errstate(all="ignore"):
        found = applied(op, a, "float16", *operands)
        rounded = halved(found)
    assert isinstance(found, Computed)
    assert isinstance(rounded, Computed)
    np.testing.assert_array_equal(found.array, rounded.array)
    np.testing.assert_array_equal(np.signbit(found.array), np.signbit(rounded.array))


def test_a_rounded_value_is_converted_once() -> None:
    """A value that was already rounded to float16 has the same float16 bits as the unrounded value."""
    x = Computed(np.float32([1.0004883, 65519.9, 65520.0, -1e-9, 3.1e-5, np.nan]))
    with np.errstate(all="ignore"):
        rounded = halved(x)
        assert rounded.unrounded is x
        assert x.unrounded is None
        plain = Computed(rounded.array)  # type: ignore[attr-defined]
        assert bits_of(rounded).tolist() == bits_of(x).tolist() == bits_of(plain).tolist()
