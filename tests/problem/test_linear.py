from __future__ import annotations

import pytest

from vkq.errors import ArgumentError, DTypeError
from vkq.problem.linear import LinearProblem


def test_linear_sizes():
    p = LinearProblem.of((2, 3, 64), (32, 64))
    assert (p.m, p.n, p.k, p.lead) == (6, 32, 64, (2, 3))
    assert (p.x_shape, p.weight_shape, p.y_shape) == ((2, 3, 64), (32, 64), (2, 3, 32))
    assert (p.gemm_m, p.gemm_n, p.gemm_k, p.macs) == (6, 32, 64, 6 * 32 * 64)
    assert p.bytes() == 6 * 64 + 32 * 64 + 6 * 32
    assert p.bytes(4, 1, 4) == 4 * 6 * 64 + 32 * 64 + 4 * 6 * 32
    assert LinearProblem(6, 32, 64).y_shape == (6, 32)


def test_linear_of_a_vector_and_of_nothing():
    assert LinearProblem.of((64,), (32, 64)).y_shape == (32,)
    assert LinearProblem.of((64,), (32, 64)).m == 1
    assert LinearProblem.of((0, 64), (32, 64)).y_shape == (0, 32)
    assert LinearProblem.of((5, 0), (32, 0)).y_shape == (5, 32)
    assert LinearProblem.of((5, 7), (0, 7)).macs == 0


def test_linear_refuses():
    with pytest.raises(ArgumentError) as error:
        LinearProblem.of((8, 64), (128, 96))
    assert (
        str(error.value)
        == "linear: x has K=64 (shape (8, 64)) but weight has K=96 (shape (128, 96)); their last axes must be"
        " equal."
    )
    with pytest.raises(ArgumentError, match=r"weight has 3 axes \(shape \(1, 2, 3\)\); it must have 2"):
        LinearProblem.of((2, 3), (1, 2, 3))
    with pytest.raises(ArgumentError, match="x has no axes"):
        LinearProblem.of((), (2, 3))
    with pytest.raises(ArgumentError, match="M is -1; it must be at least 0"):
        LinearProblem(-1, 2, 3)
    with pytest.raises(DTypeError, match=r"N is 2.0 \(float\); it must be an integer"):
        LinearProblem(1, 2.0, 3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"leading dims are \(2, 2\) but M=3"):
        LinearProblem(3, 2, 3, (2, 2))
