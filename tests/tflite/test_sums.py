"""Tests of running sums, reductions, largest elements, normalizations of rows and integer quotients: results
equal NumPy's, or are within 1e-6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import vkq
from vkq.tflite import InferenceSession

from .test_floats import numbers
from .writer import Writer

WHOLE = np.random.default_rng(5).integers(-99, 99, (4, 9)).astype(np.int32)
DIVISORS = np.array([1, -2, 3, -4, 5, 7, 9, -11, 13], np.int32)
REAL = numbers((4, 9))
TENTHS = np.rint(REAL * 50).astype(np.float32) * np.float32(0.1)  # quotients by 0.1 are near integers
IDS = np.array([[0, 3, -1], [4, 2, 9]], np.int32)
FLAGS = REAL > 1
LAST, FIRST = np.array([-1], np.int32), np.array([0], np.int32)


def _largest(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k].astype(np.int32)
    return np.take_along_axis(x, order, -1), order


def _log_softmax(x: np.ndarray) -> np.ndarray:
    return (x - x.max(-1, keepdims=True)) - np.log(
        np.exp(x.astype(np.float64) - x.max(-1, keepdims=True)).sum(-1, keepdims=True)
    )


def _exclusive_from_the_end(x: np.ndarray) -> np.ndarray:
    return np.cumsum(x[:, ::-1], 1)[:, ::-1] - x


def _hot(axis: int) -> np.ndarray:
    return np.moveaxis(np.where(IDS[..., None] == np.arange(5), np.float32(2), np.float32(-1)), -1, axis)


ROUGH = np.rint(REAL)  # has equal elements
NORMS = np.sqrt((REAL.astype(np.float64) ** 2).sum(-1, keepdims=True))
# id: (operator, arrays of inputs, constants, options table, options, results)
CASES: dict[str, tuple[str, Sequence[Any], Sequence[Any], str, dict[str, Any], Sequence[Any]]] = {
    "sums": ("CUMSUM", [WHOLE], [np.int32(-1)], "CumsumOptions", {}, [np.cumsum(WHOLE, 1, np.int32)]),
    "sums-back": (
        "CUMSUM", [ROUGH], [np.int32(1)], "CumsumOptions", {"exclusive": 1, "reverse": 1},
        [_exclusive_from_the_end(ROUGH)],
    ),
    "largest": ("TOPK_V2", [ROUGH], [np.int32(3)], "", {}, _largest(ROUGH, 3)),
    "largest-whole": (
        "TOPK_V2", [WHOLE[None] << 20], [np.int32(2)], "", {}, _largest(WHOLE[None] << 20, 2)
    ),
    "norm": ("L2_NORMALIZATION", [REAL], [], "L2NormOptions", {}, [REAL / NORMS]),
    "norm-zeros": ("L2_NORMALIZATION", [REAL * 0], [], "L2NormOptions", {}, [REAL * 0]),
    "log-softmax": ("LOG_SOFTMAX", [REAL], [], "", {}, [_log_softmax(REAL)]),
    "hot": (
        "ONE_HOT", [IDS], [np.int32(5), np.float32(2), np.float32(-1)], "OneHotOptions", {"axis": -1},
        [_hot(-1)],
    ),
    "hot-first": (
        "ONE_HOT", [IDS], [np.int32(5), np.float32(2), np.float32(-1)], "OneHotOptions", {"axis": 0},
        [_hot(0)],
    ),
    "sum": ("ADD_N", [WHOLE, WHOLE, DIVISORS + 0 * WHOLE], [], "", {}, [2 * WHOLE + DIVISORS]),
    "sum-alone": ("ADD_N", [REAL], [], "", {}, [REAL]),
    "quotient": ("FLOOR_DIV", [TENTHS], [np.float32(0.1)], "", {},
                 [np.floor(TENTHS.astype(np.float64) / np.float32(0.1))]),
    "quotient-whole": ("FLOOR_DIV", [WHOLE], [DIVISORS], "", {}, [WHOLE // DIVISORS]),
    "rest": ("FLOOR_MOD", [REAL], [DIVISORS.astype(np.float32)], "", {}, [np.mod(REAL, DIVISORS)]),
    "rest-whole": ("FLOOR_MOD", [WHOLE], [DIVISORS], "", {}, [WHOLE % DIVISORS]),
    "product": ("REDUCE_PROD", [REAL], [LAST], "ReducerOptions", {}, [REAL.astype(np.float64).prod(1)]),
    "any": ("REDUCE_ANY", [FLAGS], [LAST], "ReducerOptions", {"keep_dims": 1}, [FLAGS.any(1, keepdims=True)]),
    "all": ("REDUCE_ALL", [~FLAGS], [FIRST], "ReducerOptions", {}, [(~FLAGS).all(0)]),
    "sign": ("SIGN", [ROUGH], [], "", {}, [np.sign(ROUGH)]),
    "sign-whole": ("SIGN", [WHOLE], [], "", {}, [np.sign(WHOLE)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str, device: vkq.Device) -> None:
    op, arrays, constants, kind, options, wanted = CASES[name]
    w = Writer()
    inputs = [w.tensor(x.shape, x.dtype.name) for x in arrays]
    ends = [w.tensor(y.shape, "float32" if y.dtype == np.float64 else y.dtype.name) for y in wanted]
    w.operator(op, [*inputs, *(w.constant(c) for c in constants)], ends, kind, **options)
    session = InferenceSession(w.file(inputs, ends), device)
    feed = dict(zip([a.name for a in session.model.inputs], arrays, strict=True))
    for got, want in zip(session.run(None, feed), wanted, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    assert {row.where for row in session.explain().rows} == {"device"}


BATCHES = [((3, 5, 4), (3, 2), 1, 1), ((3, 5, 4, 2), (3, 6), 1, 2), ((3, 2, 4), (3, 2), 2, 2)]


@pytest.mark.parametrize(("shape", "ids", "batches", "axis"), BATCHES)
def test_gathered_in_batches(
    shape: tuple[int, ...], ids: tuple[int, ...], batches: int, axis: int, device: vkq.Device
) -> None:
    """Each element of a batch has indices of its own, also if another axis is between the batches and the
    gathered axis, and if it has only one index."""
    x = numbers(shape)
    at = np.random.default_rng(1).integers(0, shape[axis], ids).astype(np.int32)
    want = np.stack(
        [
            np.take(one, own, axis - batches)
            for one, own in zip(x.reshape(-1, *shape[batches:]), at.reshape(-1, *ids[batches:]), strict=True)
        ]
    )
    want = want.reshape(*shape[:batches], *want.shape[1:])
    w = Writer()
    ends = [w.tensor(shape, "float32"), w.tensor(ids, "int32"), w.tensor(want.shape, "float32")]
    w.operator("GATHER", ends[:2], ends[2:], "GatherOptions", 5, axis=axis, batch_dims=batches)
    (got,) = InferenceSession(w.file(ends[:2], ends[2:]), device).run(None, {"t0": x, "t1": at})
    np.testing.assert_array_equal(got, want)


def test_known_from_shapes(any_device: vkq.Device) -> None:
    """RANK, ZEROS_LIKE and RANGE follow from shapes and constants: the device only adds their results."""
    w = Writer()
    x, y = w.tensor((2, 3), "float32"), w.tensor((2, 3), "float32")
    rank, size, zeros, line, row = (
        w.tensor(shape, dtype)
        for shape, dtype in (
            ((), "int32"),
            ((), "float32"),
            ((2, 3), "float32"),
            ((3,), "float32"),
            ((3,), "float32"),
        )
    )
    some = w.tensor((2, 3), "float32")
    w.operator("RANK", [x], [rank])
    w.operator("CAST", [rank], [size], "CastOptions")
    w.operator("ZEROS_LIKE", [x], [zeros])
    w.operator("RANGE", [w.constant(np.float32(v)) for v in (1, 6, 2)], [line])
    w.operator("ADD", [line, size], [row], "AddOptions")
    w.operator("ADD", [zeros, row], [some], "AddOptions")
    w.operator("ADD", [x, some], [y], "AddOptions")
    session = InferenceSession(w.file([x], [y]), any_device)
    given = numbers((2, 3))
    np.testing.assert_array_equal(session.run(None, {"t0": given})[0], given + np.float32([3, 5, 7]))
    assert len(session.explain().rows) == 1
