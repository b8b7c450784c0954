"""Tests of LiteRT's fixed-point multiplication by 32-bit operations, compared with integers of any size."""

from __future__ import annotations

import numpy as np
import pytest

from vkq.numerics.described import applied, array_of, number_of
from vkq.numerics.fixed import coded
from vkq.tflite.arithmetic import by_fixed, fixed_multiplier


@pytest.mark.parametrize("up", [False, True])
def test_fixed_product(up: bool) -> None:
    """The product is correct for ties of both signs, the extremes of int32, and multipliers and shifts of
    all sizes."""
    rng = np.random.default_rng(3)
    reals = [0.0, 0.5, 0.25, 1.0, 3 / 8, *(10 ** rng.uniform(-9, 2, 40)).tolist()]
    for real in reals:
        whole, shift = fixed_multiplier(real)
        most = 2**31 - 1 if real < 0.5 else int(2**29 / real)
        x = np.array([*range(-70, 70), most, -most, *rng.integers(-most, most, 500)], np.int32)
        numbers = [number_of(np.asarray(v, np.int32)) for v in (x, whole, coded(shift, up))]
        got = array_of(applied("fixed_point", {}, "int32", *numbers), "int32")
        np.testing.assert_array_equal(got, by_fixed(x, whole, shift, up))


def test_halves() -> None:
    """The tie -2.5 is rounded to -3 (away from zero) or, with *up*, to -2."""
    whole, shift = fixed_multiplier(0.5 / 2)
    assert by_fixed(np.array([-10, 10]), whole, shift).tolist() == [-3, 3]
    assert by_fixed(np.array([-10, 10]), whole, shift, up=True).tolist() == [-2, 3]
