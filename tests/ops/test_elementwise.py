"""Tests of add, sub and mul on the device: results equal the reference bit for bit for every shape, every
layout and every pair of bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import vkq
from vkq import QParams, Tensor
from vkq.kernels.binary import BinaryFormula, arithmetic, stored_table
from vkq.layout.extent import BLOCKED, IMAGE, MATRIX
from vkq.layout.pack import activation_layouts
from vkq.numerics.elementwise import Array, BinaryOp, binary, fused_multiply_add
from vkq.numerics.qparams import QDType
from vkq.ops import elementwise, operand
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run

from ..referees import ort_ops

OPS: list[BinaryOp] = ["add", "sub", "mul"]
SHAPES = {  # shapes of (a, b) -> reason for the case
    ((4, 5), (4, 5)): "equal shapes: the flat kernel; five words take vectors for eight",
    ((2, 5, 9, 7), (2, 5, 9, 7)): "images with padding lanes in channels and width",
    ((1,), (1,)): "one element",
    ((2, 5, 3, 7), (1, 5, 1, 1)): "a bias per channel",
    ((1, 6, 1, 1), (2, 6, 3, 5)): "the same with a and b swapped",
    ((2, 5, 3, 7), (2, 1, 3, 7)): "a mask that broadcasts along the axis of lanes (channels)",
    ((2, 1, 3, 7), (1, 5, 1, 1)): "a and b both broadcast",
    ((2, 5, 3, 7), (7,)): "b has fewer axes, and becomes an image",
    ((2, 5, 3, 7), ()): "a scalar",
    ((3, 5, 6), (3, 1, 6)): "leading axes that merge differently in a and b",
    ((3, 4, 1), (3, 1, 6)): "a column times a row, with three axes",
    ((2, 3, 4, 2, 5), (4, 1, 5)): "five axes, two of which merge",
    ((1, 257), (6, 1)): "a row and a column, unaligned",
}


def random_case(
    rng: np.random.Generator, dtype: QDType, shapes: tuple[tuple[int, ...], ...]
) -> tuple[list, list[QParams]]:
    info = np.iinfo(dtype)
    arrays = [rng.integers(info.min, info.max + 1, shape).astype(dtype) for shape in shapes]
    points = [
        int(rng.choice([info.min, info.max, int(rng.integers(info.min, info.max + 1))])) for _ in range(3)
    ]
    return arrays, [QParams(float(2 ** rng.uniform(-6, 0)), point, dtype) for point in points]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_every_shape(device: vkq.Device, op: BinaryOp, dtype: QDType) -> None:
    rng = np.random.default_rng(10)
    for shapes, reason in SHAPES.items():
        (a, b), (qa, qb, qy) = random_case(rng, dtype, shapes)
        got = getattr(vkq, op)(a, b, qy, a_qparams=qa, b_qparams=qb, device=device)
        want = binary(op, a, b, qa, qb, qy)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want, err_msg=f"{shapes}: {reason}")


@pytest.mark.parametrize("op", OPS)
def test_every_pair_of_bytes_near_ties(device: vkq.Device, op: BinaryOp) -> None:
    """add, sub and mul of every pair of bytes are exact with scales that give ties (powers of two), with
    ratios close to ties, and with scales so far apart that only the lookup table is exact."""
    values = np.arange(-128, 128).astype(np.int8)
    a, b = (np.ascontiguousarray(v) for v in np.meshgrid(values, values))
    tensors = [Tensor.from_numpy(v, device) for v in (a, b)]
    cases = [
        (0.5, 0.25, 1.0),
        (0.1, 0.3, 0.7),
        (0.03, 0.05, 0.1),
        (1.0, 1.0, 3.0),
        (2.0**-20, 1.0, 0.01),
        (1e30, 1e-30, 1.0),
        (1e-37, 1e37, 1e-30),
    ]
    used = set()
    for i, scales in enumerate(cases):
        qa, qb, qy = (QParams(s, z) for s, z in zip(scales, (3 * i, -5 * i, 7 * i - 20), strict=True))
        want = binary(op, a, b, qa, qb, qy)
        used.add(arithmetic(op, qa, qb, qy).variant)
        for form in ("auto", "table"):
            specs, options = [t.spec for t in tensors], (op, qa, qb, qy, None, form)
            got = run(operand.planned(device, elementwise.combined, specs, options), tensors)
            np.testing.assert_array_equal(got.numpy(), want, err_msg=f"{form} {scales}")
    assert used == {"mul" if op == "mul" else "add", "table"}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("soft", [False, True])
def test_every_product_where_ties_are_frequent(
    device: vkq.Device, dtype: QDType, soft: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of all pairs of bytes are exact, although one in 28 is a tie. Devices whose float rounding
    is not trusted read ties from a table (the soft form)."""
    if soft:
        monkeypatch.setattr(device, "_soft_float", True)
    values = np.arange(256, dtype=np.uint8).view(dtype)
    a, b = (np.ascontiguousarray(v) for v in np.meshgrid(values, values))
    qa, qb, qy = QParams(0.05, 3, dtype), QParams(0.05, 7, dtype), QParams(0.07, 5, dtype)
    got = vkq.mul(a, b, qy, a_qparams=qa, b_qparams=qb, device=device)
    np.testing.assert_array_equal(got, binary("mul", a, b, qa, qb, qy))


def sums_in_float32(a: Array, b: Array, numbers: BinaryFormula) -> Iterator[Array]:
    """Yield every result that a device with rounding to nearest even may compute by the formula: a device
    may fuse each product with its sum, and may add the operands in either order."""
    ra, rb, offset = (np.float32(v) for v in (numbers.ra, numbers.rb, numbers.offset))
    for x, rx, z, rz in ((a, ra, b, rb), (b, rb, a, ra)):
        for inner in (z * rz + offset, fused_multiply_add(z, rz, offset)):
            yield x * rx + inner
            yield fused_multiply_add(x, rx, inner)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_numbers_of_a_sum_that_need_no_table(dtype: QDType) -> None:
    """For at least 22 of 24 random sets of scales and zero points, `arithmetic` reports that a sum needs no
    table (`sure`). For these sets, all results of `sums_in_float32` are the exact bytes."""
    rng, values, moved = np.random.default_rng(3), np.arange(-128, 128), 128 * (dtype == "uint8")
    a, b = (v.astype(np.float32) for v in np.meshgrid(values, values))
    sure = 0
    for _ in range(24):
        scales, zeros = np.exp(rng.uniform(np.log(0.005), np.log(0.2), 3)), rng.integers(-128, 128, 3)
        qa, qb, qy = (QParams(float(s), int(z) + moved, dtype) for s, z in zip(scales, zeros, strict=True))
        numbers = arithmetic("add", qa, qb, qy)
        assert not numbers.sure(soft_float=True)
        if numbers.sure(soft_float=False):
            sure += 1
            want = stored_table("add", qa, qb, qy, None)
            for value in sums_in_float32(a, b, numbers):
                np.testing.assert_array_equal(np.clip(np.rint(value), -128, 127), want)
    assert sure >= 22


@pytest.mark.parametrize(
    ("scales", "sure"), [((0.5, 0.25, 1.0), True), ((0.03, 0.05, 0.1), False), ((1e30, 1e-30, 1.0), True)]
)
def test_the_table_is_asked_only_where_a_sum_may_need_it(
    device: vkq.Device, scales: tuple[float, float, float], sure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reads the table only if the formula may be wrong for some pair of bytes, which depends on
    the scales. Sums are exact with and without the table."""
    asked = []
    make = device.program
    monkeypatch.setattr(device, "program", lambda v, c, *more: asked.append(c["SURE"]) or make(v, c, *more))
    values = np.arange(-128, 128).astype(np.int8)
    a, b = (np.ascontiguousarray(v) for v in np.meshgrid(values, values))
    qa, qb, qy = (QParams(s, z) for s, z in zip(scales, (3, -6, 7), strict=True))
    got = vkq.add(a, b, qy, a_qparams=qa, b_qparams=qb, device=device)
    np.testing.assert_array_equal(got, binary("add", a, b, qa, qb, qy))
    assert asked == [sure]


def test_rounding_of_the_device_cannot_decide(device: vkq.Device) -> None:
    """Where the shader uses the float formula, every rounding gives the exact byte. For the few other sums
    (near ties), it reads the table, because the formula may be wrong there, even in float64."""
    values = np.arange(-128, 128).astype(np.int8)
    a, b = (np.ascontiguousarray(v) for v in np.meshgrid(values, values))
    rng = np.random.default_rng(14)
    wrong, trusted = 0, []
    for _ in range(8):
        step = float(rng.uniform(0.01, 1))
        qa, qb = (
            QParams(step * int(rng.integers(1, 64)) / 30, int(rng.integers(-128, 128))) for _ in range(2)
        )
        qy = QParams(step, 3)
        exact = binary("add", a, b, qa, qb, qy)
        numbers = arithmetic("add", qa, qb, qy)
        value = a.astype(np.float64) * numbers.ra + b.astype(np.float64) * numbers.rb + numbers.offset
        doubtful = np.abs(value - np.rint(value)) > numbers.safe
        differs = np.clip(np.rint(value), -128, 127) != exact
        assert not (differs & ~doubtful).any()
        wrong += int(differs.sum())
        for value in sums_in_float32(a, b, numbers):
            value = np.clip(value, -128, 127)
            trust = np.abs(value - np.rint(value)) <= numbers.exact
            assert (np.rint(value) == exact)[trust].all()
            trusted.append(float(trust.mean()))
        np.testing.assert_array_equal(vkq.add(a, b, qy, a_qparams=qa, b_qparams=qb, device=device), exact)
    assert wrong > 0
    assert 0.95 < min(trusted) < max(trusted) == 1


@pytest.mark.parametrize("name", [one.name for one in activation_layouts()])
def test_every_layout(device: vkq.Device, name: str) -> None:
    rng = np.random.default_rng(11)
    for shapes in (
        ((2, 6, 5, 7), (2, 6, 5, 7)),
        ((2, 6, 5, 7), (1, 6, 1, 1)),
        ((2, 1, 5, 1), (2, 6, 5, 7)),
        ((1, 1, 1, 7), (2, 6, 5, 1)),
    ):
        (a, b), (qa, qb, qy) = random_case(rng, "int8", shapes)
        ta, tb = (Tensor.from_numpy(x, device, name, q) for x, q in ((a, qa), (b, qb)))
        got = vkq.add(ta, tb, qy)
        assert (got.layout, got.qparams) == (name, qy)
        np.testing.assert_array_equal(got.numpy(), binary("add", a, b, qa, qb, qy), err_msg=str(shapes))


def test_layouts_that_differ(device: vkq.Device) -> None:
    rng = np.random.default_rng(12)
    (a, b), (qa, qb, qy) = random_case(rng, "uint8", ((1, 5, 4, 6), (1, 5, 4, 6)))
    ta = Tensor.from_numpy(a, device, "kPackedInt8_4C", qa)
    tb = Tensor.from_numpy(b, device, "kPackedInt8_4W4C", qb)
    np.testing.assert_array_equal(vkq.mul(ta, tb, qy).numpy(), binary("mul", a, b, qa, qb, qy))


@pytest.mark.parametrize("activation", ["relu", "relu6", (-1.0, 2.5)])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_activation(device: vkq.Device, activation: object, dtype: QDType) -> None:
    (a, b), _ = random_case(np.random.default_rng(13), dtype, ((6, 50), (6, 50)))
    middle = 128 if dtype == "uint8" else 0
    qa, qb, qy = (
        QParams(0.1, middle - 5, dtype),
        QParams(0.07, middle + 9, dtype),
        QParams(0.11, middle + 3, dtype),
    )
    for op in OPS:
        got = getattr(vkq, op)(a, b, qy, a_qparams=qa, b_qparams=qb, activation=activation, device=device)
        want = binary(op, a, b, qa, qb, qy, activation)
        np.testing.assert_array_equal(got, want)
        assert (want != binary(op, a, b, qa, qb, qy)).any()


def test_a_residual_sum_of_a_tensor_with_itself(device: vkq.Device) -> None:
    x, q = np.arange(-60, 60).astype(np.int8).reshape(2, 60), QParams(0.25, 4)
    tensor = Tensor.from_numpy(x, device, qparams=q)
    np.testing.assert_array_equal(
        vkq.add(tensor, tensor, q).numpy(), np.clip(2 * x.astype(int) - 4, -128, 127)
    )


def test_tables_made_while_recording_serve_later_calls(any_device: vkq.Device) -> None:
    """A table that is made while recording serves later calls: it is uploaded at once and is no part of the
    recording."""
    with vkq.Device(any_device.name, staging=True) as device:
        a = np.arange(-50, 50).astype(np.int8).reshape(4, 25)
        q, y = QParams(0.5), QParams(0.75, 1)
        tensor = Tensor.from_numpy(a, device, qparams=q)
        with device.record() as recording:
            recorded = vkq.add(tensor, tensor, y)
        want = binary("add", a, a, q, q, y)
        np.testing.assert_array_equal(vkq.add(tensor, tensor, y).numpy(), want)
        recording.run()
        np.testing.assert_array_equal(recorded.numpy(), want)


def test_empty(device: vkq.Device) -> None:
    q = QParams(1.0)
    for shapes in (((0, 4), (0, 4)), ((3, 0, 4), (1, 4)), ((1, 1), (2, 0))):
        a, b = (np.zeros(shape, np.int8) for shape in shapes)
        assert vkq.add(a, b, q, a_qparams=q, b_qparams=q, device=device).shape == np.broadcast_shapes(*shapes)


def test_far_overflow_saturates_upwards(device: vkq.Device) -> None:
    """Sums with |value| >= 2^31 saturate at the bound of their sign, as in the ONNX standard. ONNX Runtime
    may give the lower bound instead, because its conversion to int32 wraps."""
    a = np.array([[127, -128]], np.int8)
    qa, qy = QParams(1e10), QParams(1.0)
    got = vkq.add(a, a, qy, a_qparams=qa, b_qparams=qa, device=device)
    np.testing.assert_array_equal(got, [[127, -128]])
    inputs = [a, *ort_ops.parameters(qa), a, *ort_ops.parameters(qa), *ort_ops.parameters(qy)]
    assert ort_ops.run("QLinearAdd", inputs, "int8").tolist() in ([[-128, -128]], [[127, -128]])


def test_refusals(device: vkq.Device) -> None:
    q, u = QParams(1.0), QParams(1.0, 0, "uint8")
    a = np.zeros((2, 3), np.int8)
    with pytest.raises(vkq.ArgumentError, match=r"a has shape \(2, 3\) and b \(2, 4\)"):
        vkq.add(a, np.zeros((2, 4), np.int8), q, a_qparams=q, b_qparams=q, device=device)
    with pytest.raises(vkq.ArgumentError, match="b carries no qparams"):
        vkq.mul(a, a, q, a_qparams=q, device=device)
    with pytest.raises(vkq.DTypeError, match="one type"):
        vkq.add(a, a.view(np.uint8), q, a_qparams=q, b_qparams=u, device=device)
    with pytest.raises(vkq.DTypeError, match="a has dtype float32"):
        vkq.add(a.astype(np.float32), a, q, a_qparams=q, b_qparams=q, device=device)
    with pytest.raises(vkq.ArgumentError, match="was quantized with"):
        vkq.add(Tensor.from_numpy(a, device, qparams=q), a, q, a_qparams=QParams(2.0), b_qparams=q)
    with pytest.raises(vkq.ArgumentError, match="5 separate axes"):
        vkq.add(
            np.zeros((2, 3, 1, 2, 5), np.int8),
            np.zeros((3, 4, 1, 5), np.int8),
            q,
            a_qparams=q,
            b_qparams=q,
            device=device,
        )


@pytest.mark.parametrize("shape", [(1, 5, 35), (3, 1, 35), (1, 1, 35), (1, 35)])
def test_rows_of_channels_stay_in_their_layout(device: vkq.Device, shape: tuple[int, ...]) -> None:
    """add, sub and mul of rows in kPackedInt8_16C and an operand that broadcasts to them give
    kPackedInt8_16C."""
    rng = np.random.default_rng(9)
    whole = (3, 5, 35)[-len(shape) :]
    a, b = (rng.integers(-128, 128, size).astype(np.int8) for size in (whole, shape))
    q, other, y = QParams(0.1, 3), QParams(0.2, -4), QParams(0.3, 5)
    for op in OPS:
        given = [Tensor.from_numpy(x, device, BLOCKED, qparams=one) for x, one in ((a, q), (b, other))]
        got = getattr(vkq, op)(*given, y)
        assert got.layout == BLOCKED
        np.testing.assert_array_equal(got.numpy(), binary(op, a, b, q, other, y))


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "layout", "variant"),
    [
        ((3, 8, 20), (8, 20), MATRIX, "same"),
        ((1, 4, 7), (5, 4, 7), MATRIX, "same"),
        ((2, 3, 4, 5), (1, 1, 4, 5), MATRIX, "same"),
        ((3, 6, 20), (6, 20), MATRIX, "broadcast"),
        ((2, 3, 4, 5), (2, 1, 4, 5), MATRIX, "broadcast"),
        ((2, 8, 4), (2, 1, 4), MATRIX, "broadcast"),
        ((3, 8, 20), (1, 8, 1), MATRIX, "broadcast"),
        ((2, 4, 4, 5), (1, 4, 4, 5), IMAGE, "4w4c"),
    ],
    ids=str,
)
def test_repeated_blocks_of_rows(
    device: vkq.Device, a_shape: tuple[int, ...], b_shape: tuple[int, ...], layout: str, variant: str
) -> None:
    """The variant for equal shapes, which reads whole vectors, also computes operands that broadcast only
    along leading axes, if the repeated rows fill blocks."""
    rng, (q, other, y) = np.random.default_rng(10), (QParams(0.1, 3), QParams(0.2, -4), QParams(0.3, 5))
    a, b = (rng.integers(-128, 128, size).astype(np.int8) for size in (a_shape, b_shape))
    tensors = [Tensor.from_numpy(x, device, layout, qparams=one) for x, one in ((a, q), (b, other))]
    for op, name in (("add", "add"), ("sub", "add"), ("mul", "mul")):
        builder = Builder(device)
        made = elementwise.combined(builder, *(builder.input(one.spec) for one in tensors), op, q, other, y)
        plan = builder.plan(made)
        assert f"binary_q8__word:{name}.{variant}" in plan.variants
        np.testing.assert_array_equal(run(plan, tensors).numpy(), binary(op, a, b, q, other, y))
