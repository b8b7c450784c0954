"""Tests of products of two 8-bit activations: sums are exact, and results equal ONNX Runtime's
QLinearMatMul."""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import vkq
from vkq.numerics.requantize import multipliers, requantize
from vkq.ops import operand
from vkq.ops.matmul import _kernel, multiplied
from vkq.problem.heads import put_together
from vkq.select.path import Choice
from vkq.shader.spec import Variant

CASES = [
    ((5, 9), (9, 6)),
    ((1, 1), (1, 1)),
    ((2, 3, 17, 4), (2, 3, 4, 33)),
    ((3, 5, 8), (8, 2)),
    ((4, 1, 2, 70), (1, 3, 70, 5)),
]


def operands(shapes: tuple[tuple[int, ...], ...], dtype: str, seed: int = 0) -> list[np.ndarray]:
    random, low = np.random.default_rng(seed), -128 if dtype == "int8" else 0
    return [random.integers(low, low + 256, shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("shapes", CASES, ids=str)
def test_exact(device: vkq.Device, shapes: tuple[tuple[int, ...], ...], dtype: str) -> None:
    a, b = operands(shapes, dtype)
    zero = 3 if dtype == "int8" else 131
    aq, bq = vkq.QParams(0.05, zero, dtype), vkq.QParams(0.02, zero - 7, dtype)
    yq = vkq.QParams(0.1 * shapes[0][-1], zero + 2, dtype)
    acc = np.matmul(a.astype(np.int64) - aq.zero_point, b.astype(np.int64) - bq.zero_point)
    got = vkq.matmul(a, b, yq, a_qparams=aq, b_qparams=bq, device=device)
    np.testing.assert_array_equal(got, requantize(acc, multipliers(aq.scale, bq.scale, yq.scale)[0], yq))
    real = vkq.matmul(a, b, a_qparams=aq, b_qparams=bq, device=device)
    np.testing.assert_array_equal(real, acc.astype(np.float32) * multipliers(aq.scale, bq.scale)[0])


TILES = {  # shapes in which no block of four rows and columns spans two matrices -> the reason for the shape
    ((7, 1), (1, 3)): "K is 1; rows and columns end within a block",
    ((3, 8, 21), (3, 21, 4)): "a batch of matrices; K ends within a block",
    ((2, 1, 4, 64), (1, 2, 64, 12)): "operands that broadcast along batch axes",
    ((1, 33024), (33024, 5)): "sums near 2**31; many loop iterations",
}


def variants_of(form: str, patch: pytest.MonkeyPatch) -> list[Variant]:
    """Force this dot form for products. Return a list that will collect the variants of all programs used
    from now on."""
    patch.setattr("vkq.ops.matmul.without_matrices", lambda device: Choice("", form, "asked for"))
    taken: list[Variant] = []
    program = vkq.Device.program
    patch.setattr(
        vkq.Device, "program", lambda self, variant, *a: taken.append(variant) or program(self, variant, *a)
    )
    return taken


@pytest.mark.parametrize("zeros", [(-128, 127), (127, -128), (3, -4)])
@pytest.mark.parametrize("form", ["s8s8", "u8s8", "u8u8", "float"])
def test_every_form_of_a_dot_product(
    device: vkq.Device, form: str, zeros: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = variants_of(form, monkeypatch)
    # Plans are cached by scale, so each form of the dot product gets its own scale.
    scale = 0.01 * (5 + ["s8s8", "u8s8", "u8u8", "float"].index(form))
    aq, bq = vkq.QParams(scale, zeros[0]), vkq.QParams(0.02, zeros[1])
    for shapes, reason in TILES.items():
        a, b = operands(shapes, "int8", 7)
        acc = np.matmul(a.astype(np.int64) - zeros[0], b.astype(np.int64) - zeros[1])
        yq = vkq.QParams(float(np.abs(acc).max()) * 0.001 / 100, 5)
        got = vkq.matmul(a, b, yq, a_qparams=aq, b_qparams=bq, device=device)
        want = requantize(acc, multipliers(aq.scale, bq.scale, yq.scale)[0], yq)
        np.testing.assert_array_equal(got, want, err_msg=reason)
        real = vkq.matmul(a, b, a_qparams=aq, b_qparams=bq, device=device)
        want = acc.astype(np.float32) * multipliers(aq.scale, bq.scale)[0]
        np.testing.assert_array_equal(real, want, err_msg=reason)
    ran = {variant.name for variant in taken if variant.name.startswith("matmul")}
    kernels = {f"matmul_q8__row:{out}" for out in ("q8", "f32")}
    if form != "float":
        kernels = {f"matmul_q8__tile:{form}.{out}" for out in ("q8", "f32")}
    assert ran == kernels


def test_blocks_of_two_matrices_are_computed_by_rows(
    device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vkq.ops.matmul.without_matrices", lambda device: Choice("", "s8s8", "asked for"))
    for batch, m, n, kernel in ((1, 5, 7, "tile"), (2, 4, 8, "tile"), (2, 5, 8, "row"), (2, 4, 7, "row")):
        assert _kernel(device, "q8", batch, m, n)[0].shader == f"matmul_q8__{kernel}"


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_onnxruntime(any_device: vkq.Device, dtype: str) -> None:
    a, b = operands(((2, 7, 19), (2, 19, 11)), dtype, 5)
    aq, bq, yq = (vkq.QParams(s, z, dtype) for s, z in ((0.03, 5), (0.07, 100), (0.9, 17)))
    kind = helper.np_dtype_to_tensor_dtype(a.dtype)
    constants = {}
    for name, q in (("a", aq), ("b", bq), ("y", yq)):
        constants |= {f"{name}s": np.float32(q.scale), f"{name}z": np.array(q.zero_point, dtype)}
    node = helper.make_node("QLinearMatMul", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["y"])
    infos = [helper.make_tensor_value_info(n, kind, v.shape) for n, v in (("a", a), ("b", b))]
    result = helper.make_tensor_value_info("y", kind, None)
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    graph = helper.make_graph([node], "g", infos, [result], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"a": a, "b": b})
    np.testing.assert_array_equal(vkq.matmul(a, b, yq, a_qparams=aq, b_qparams=bq, device=any_device), want)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_long_k_wraps(device: vkq.Device, dtype: str) -> None:
    """Sums over a long K wrap modulo 2**32. K needs more loop iterations, of four elements each, than
    lavapipe allows."""
    a, b = operands(((2, 262_155), (262_155, 3)), dtype)
    q = vkq.QParams(0.25, 3, dtype)
    got = operand.apply("matmul", multiplied, {"x": a, "z": b}, (None, q, q, "wrap"), device, None, (dtype,))
    acc = ((a.astype(np.int64) - 3) @ (b.astype(np.int64) - 3)).astype(np.int32)
    np.testing.assert_array_equal(got, acc.astype(np.float32) * np.float32(1 / 16))


def test_refused(any_device: vkq.Device) -> None:
    q = vkq.QParams(0.1)
    a = np.zeros((2, 3), np.int8)
    with pytest.raises(vkq.ArgumentError, match="a's last axis must be as long"):
        vkq.matmul(a, a, a_qparams=q, b_qparams=q, device=any_device)
    with pytest.raises(vkq.ArgumentError, match="K is 33026; it must be at most 33025"):
        vkq.matmul(
            np.zeros((1, 33026), np.int8),
            np.zeros((33026, 1), np.int8),
            a_qparams=q,
            b_qparams=q,
            device=any_device,
        )
    with pytest.raises(vkq.ArgumentError, match="do not broadcast"):
        vkq.matmul(
            np.zeros((2, 2, 3), np.int8),
            np.zeros((3, 3, 1), np.int8),
            a_qparams=q,
            b_qparams=q,
            device=any_device,
        )
    with pytest.raises(vkq.DTypeError, match="make them the same"):
        vkq.matmul(a, a.T, vkq.QParams(0.1, 0, "uint8"), a_qparams=q, b_qparams=q, device=any_device)


HEADS = [(3, 1, 1), (1, 3, 1), (1, 1, 3), (3, 3, 3)]
SIZES = [(8, 12, 4), (4, 70, 8), (5, 8, 4)]  # whole blocks; a partial block of k; a partial block of rows


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("form", ["s8s8", "u8u8", "float"])
def test_heads_side_by_side(
    device: vkq.Device,
    form: str,
    heads: tuple[int, int, int],
    sizes: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Products are exact if operands or the result have concatenated heads. Operands are read and the
    result is written in place if no block of four spans two heads."""
    taken = variants_of(form, monkeypatch)
    (m, k, n), q = sizes, vkq.QParams(0.03 + 0.001 * len(form), 3)
    yq = vkq.QParams(2.0, -4)
    x, z = operands(((2, 3, m, k), (2, 3, n, k)), "int8", 11)
    acc = np.matmul(x.astype(np.int64) - 3, z.swapaxes(2, 3).astype(np.int64) - 3)
    want = put_together(requantize(acc, multipliers(q.scale, q.scale, yq.scale)[0], yq), heads[2])
    given = {"a": put_together(x, heads[0]), "b": put_together(z, heads[1])}

    def build(b: Any, a: Any, c: Any) -> Any:
        return multiplied(b, a, c, yq, q, q, rows=True, heads=heads)

    got = operand.apply(f"heads {form} {heads}", build, given, (), device, None, ("int8",))
    np.testing.assert_array_equal(got, want, strict=True)
    ran = {variant.shader for variant in taken}
    tiled = form != "float" and m % 4 == n % 4 == 0
    in_place = tiled and not any(many > 1 and size % 4 for many, size in zip(heads, (k, k, n), strict=True))
    assert ("move_q8__word" in ran) == (not in_place)
    assert f"matmul_q8__{'tile' if tiled else 'row'}" in ran
