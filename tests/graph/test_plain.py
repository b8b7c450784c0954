"""Tests of operators that vkq rewrites as other operators: the device gives NumPy's bits, and results equal
ONNX Runtime's."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import vkq
import vkq.onnx
from vkq.graph.executable import refusals
from vkq.graph.passes import lower
from vkq.kernels.lines import MOST_ROUNDS
from vkq.onnx.reader import read

from .test_chains import FLOAT, compared, model, normal, op

INT64 = TensorProto.INT64
KINDS = {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64, np.dtype(np.float16): TensorProto.FLOAT16}


def checked(
    device: vkq.Device, nodes: Sequence[Any], inputs: dict[str, Any], results: dict[str, int],
    exact: bool = True, **constants: Any,
) -> list[np.ndarray]:  # fmt: skip
    """Check that the device, without a fallback, gives the bits of the graph in NumPy. Check that these
    results equal ONNX Runtime's (*exact*) or are within 2e-6 of them. Return the results."""
    data = model(list(nodes), inputs, results, **constants)
    got = compared(device, data, inputs)
    want = ort.InferenceSession(data.SerializeToString()).run(None, inputs)
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype
        if exact:
            np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)
    return got


def ids(seed: int, low: int, high: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, shape)


@pytest.mark.parametrize("known", [False, True], ids=["run", "constant"])
def test_gathers(device: vkq.Device, known: bool) -> None:
    """GatherElements and GatherND give ONNX Runtime's results for run-time and constant indices, also for
    negative ones."""
    x = normal(0, 3, 5, 7)
    cases = [
        (op("GatherElements", "x i", "y", axis=1), ids(1, -5, 5, 3, 4, 6)),
        (op("GatherElements", "x i", "y", axis=-1), ids(2, -7, 7, 2, 5, 9)),
        (op("GatherND", "x i", "y"), ids(3, -3, 3, 4, 2, 2)),
        (op("GatherND", "x i", "y", batch_dims=1), ids(4, -5, 5, 3, 6, 2)),
        (op("GatherND", "x i", "y"), ids(5, -3, 3, 4, 1)),
    ]
    for node, i in cases:
        inputs, more = ({"x": x}, {"i": i}) if known else ({"x": x, "i": i}, {})
        checked(device, [node], inputs, {"y": FLOAT}, **more)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("known", [False, True], ids=["run", "constant"])
def test_scatters(device: vkq.Device, reduction: str, known: bool) -> None:
    """Scatters give ONNX Runtime's results. With the reduction "none" each index occurs once, as ONNX
    requires. With the other reductions indices occur repeatedly, and are applied in order."""
    x = normal(6, 4, 5, 3)
    once = np.argsort(normal(7, 4, 5, 3), axis=1)[:, :4]
    often = once if reduction == "none" else ids(8, -5, 5, 4, 6, 3)
    rows = np.array([[3, 1], [0, 4], [2, -1]]) if reduction == "none" else ids(9, -4, 4, 7, 2)
    for node, i, shape in (
        (op("ScatterElements", "x i u", "y", axis=1, reduction=reduction), often, often.shape),
        (op("ScatterND", "x i u", "y", reduction=reduction), rows, (len(rows), 3)),
    ):
        inputs, more = {"x": x, "u": normal(10, *shape)}, {"i": i} if known else {}
        inputs |= {} if known else {"i": i}
        checked(device, [node], inputs, {"y": FLOAT}, **more)


def test_a_cache(device: vkq.Device) -> None:
    """Scatters write rows of a cache at a run-time position, also for int64."""
    cache, row, at = normal(11, 2, 3, 9, 4), normal(12, 2, 3, 1, 4), np.array([[[[6]]]])
    nodes = [op("Expand", "at shape", "i"), op("ScatterElements", "cache i row", "y", axis=2)]
    inputs = {"cache": cache, "row": row, "at": at}
    checked(device, nodes, inputs, {"y": FLOAT}, shape=np.array(row.shape))
    inputs = {"x": ids(13, -9, 9, 5, 4), "i": np.array([[4], [0]]), "u": ids(14, -9, 9, 2, 4)}
    checked(device, [op("ScatterND", "x i u", "y")], inputs, {"y": INT64})


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64])
@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_rows_from_a_position_on(any_device: vkq.Device, mode: str, dtype: Any) -> None:
    """TensorScatter writes the new rows of each batch element from a run-time position on, without a loop
    over the rows. In the mode "circular", row 0 follows the last row. In the mode "linear", an input whose
    rows do not fit is an error."""
    x, u = normal(30, 2, 3, 40, 6).astype(dtype), normal(31, 2, 3, 7, 6).astype(dtype)
    nodes = [op("TensorScatter", "x u at", "y", axis=-2, mode=mode)]
    kind = {np.float32: FLOAT, np.float16: TensorProto.FLOAT16, np.int64: INT64}[dtype]
    inputs = {"x": x, "u": u, "at": np.array([0, 0])}
    session = vkq.onnx.InferenceSession(model(nodes, inputs, {"y": kind}).SerializeToString(), any_device)
    assert "place" in {node.op for node in session.lowered({k: v.shape for k, v in inputs.items()}).nodes}
    for at in ([0, 33], [12, 5], *([[39, 34]] if mode == "circular" else [])):
        want = x.copy()
        for i, first in enumerate(at):
            want[i][:, (first + np.arange(7)) % 40] = u[i]
        (y,) = session.run(None, inputs | {"at": np.array(at)})
        np.testing.assert_array_equal(y, want)
    if mode == "linear":
        with pytest.raises(vkq.VkqError, match="holds 3 to 34; this model takes 0 to 33"):
            session.run(None, inputs | {"at": np.array([3, 34])})


def test_one_hot(device: vkq.Device) -> None:
    for axis in (-1, 0, 1):
        nodes = [op("OneHot", "i depth values", "y", axis=axis)]
        inputs = {"i": np.array([[0, -1, 6], [2, 7, -9]]), "values": np.float32([-0.5, 2])}
        checked(device, nodes, inputs, {"y": FLOAT}, depth=np.array([7]))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_places(device: vkq.Device, dtype: Any) -> None:
    """ArgMax and ArgMin along any axis return the first or the last of equal values. Arithmetic and Gather
    can read the indices."""
    x = np.round(normal(15, 3, 9, 5)).astype(dtype)
    if dtype == np.int32:
        x += 1 << 30  # float32 does not represent these integers
    for kind in ("ArgMax", "ArgMin"):
        for axis, keep, last in ((0, 1, 0), (1, 0, 1), (-1, 0, 0)):
            checked(
                device, [op(kind, "x", "y", axis=axis, keepdims=keep, select_last_index=last)], {"x": x},
                {"y": INT64},
            )  # fmt: skip
    nodes = [op("ArgMax", "x", "a", axis=1, keepdims=0), op("Add", "a two", "b")]
    nodes.append(op("Gather", "table b", "y"))
    checked(device, nodes, {"x": x}, {"y": FLOAT}, two=np.array(2), table=normal(16, 11, 3))
    checked(device, [op("Hardmax", "x", "y", axis=1)], {"x": x.astype(np.float32)}, {"y": FLOAT})


@pytest.mark.parametrize("largest", [1, 0])
def test_top_k(device: vkq.Device, largest: int) -> None:
    """TopK gives ONNX Runtime's results. The cases have equal values, of which the first ones are
    returned, infinities, and a k of the whole axis."""
    x = np.round(normal(17, 3, 37, 5))
    x[0, 3], x[1, 5, 2] = np.inf, -np.inf
    for axis, k in ((1, 6), (0, 1), (-1, 5)):
        nodes = [helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=axis, largest=largest)]
        checked(device, nodes, {"x": x}, {"v": FLOAT, "i": INT64}, k=np.array([k]))
    nodes = [helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=1)]
    nodes.append(op("GatherElements", "x i", "y", axis=1))
    checked(device, nodes, {"x": x}, {"y": FLOAT}, k=np.array([4]))


def test_top_k_of_opset_9(any_device: vkq.Device) -> None:
    """Before opset 10, an attribute has the count."""
    x = normal(7, 4, 9)
    nodes = [helper.make_node("TopK", ["x"], ["v", "i"], k=3, axis=0)]
    data = model(nodes, {"x": x}, {"v": FLOAT, "i": INT64})
    data.opset_import[0].version, data.ir_version = 9, 4
    session = vkq.onnx.InferenceSession(data, any_device)
    want = ort.InferenceSession(data.SerializeToString()).run(None, {"x": x})
    for one, other in zip(session.run(None, {"x": x}), want, strict=True):
        np.testing.assert_array_equal(one, other)
    assert {row.where for row in session.explain().rows} == {"device"}


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("computed", [False, True])
def test_addend_of_a_product(any_device: vkq.Device, beta: float, computed: bool) -> None:
    """With beta 0, infinities of the addend have no effect, as in ONNX Runtime."""
    addend = np.float32([np.inf, np.nan, 1] if not beta else [3, 2, 1])
    matrix, feed = {"w": normal(8, 9, 3)}, {"x": normal(9, 4, 9)}
    inputs, constants = (feed | matrix, {}) if computed else (feed, matrix)
    data = model([op("Gemm", "x w c", "y", beta=beta)], inputs, {"y": FLOAT}, c=addend, **constants)
    (got,) = vkq.onnx.InferenceSession(data, any_device).run(None, inputs)
    np.testing.assert_allclose(got, feed["x"] @ matrix["w"] + (beta * addend if beta else 0), 1e-5, 1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_running_sums(device: vkq.Device, dtype: Any) -> None:
    """CumSum adds in ONNX Runtime's order. Positions computed from a mask are right, too."""
    x = normal(18, 2, 11, 3) if dtype == np.float32 else ids(18, 0, 2, 2, 11, 3)
    for axis, exclusive, reverse in ((1, 0, 0), (0, 1, 0), (-1, 0, 1), (1, 1, 1)):
        nodes = [op("CumSum", "x axis", "y", exclusive=exclusive, reverse=reverse)]
        checked(device, nodes, {"x": x}, {"y": KINDS[np.dtype(dtype)]}, axis=np.array(axis))
    if dtype == np.int64:
        nodes = [op("CumSum", "x axis", "s"), op("Sub", "s one", "p"), op("Mul", "p x", "y")]
        checked(device, nodes, {"x": x}, {"y": INT64}, axis=np.array(1), one=np.array(1))


@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMax", "ReduceMin"])
def test_reductions_of_whole_numbers(device: vkq.Device, kind: str) -> None:
    """Reductions of integers (masks, lengths) give ONNX Runtime's results along any axes. Reductions of
    flags are "any" and "all"."""
    x = ids(19, 0, 9, 3, 7, 5)
    for axes, keep in (([1], 0), ([0, 2], 1), ([-1], 1), ([0, 1, 2], 0)):
        nodes = [op(kind, "x axes", "y", keepdims=keep)]
        checked(device, nodes, {"x": x}, {"y": INT64}, axes=np.array(axes))
    long = ids(20, -9, 9, 2, 3, 67)  # a workgroup reduces a row of 64 values or more
    for axes in ([-1], [1, 2], [0, 1, 2]):
        checked(device, [op(kind, "x axes", "y")], {"x": long}, {"y": INT64}, axes=np.array(axes))
    nodes = [op("Cast", "x", "f", to=FLOAT), op("ReduceSum", "x axes", "s", keepdims=1)]
    nodes += [op("Cast", "s", "t", to=FLOAT), op("Div", "f t", "y")]
    checked(device, nodes, {"x": x}, {"y": FLOAT}, axes=np.array([1]))
    if kind != "ReduceSum":
        nodes = [
            op("Less", "x two", "b"),
            op("Cast", "b", "i", to=TensorProto.INT32),
            op(kind, "i axes", "r"),
        ]
        nodes.append(op("Cast", "r", "y", to=TensorProto.BOOL))
        inputs = {"x": normal(19, 3, 7, 5)}
        checked(device, nodes, inputs, {"y": TensorProto.BOOL}, axes=np.array([2]), two=np.float32(2))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("channels", [False, True])
def test_parameters_of_the_run(device: vkq.Device, dtype: Any, channels: bool) -> None:
    """Scales and zero points computed at run time give the bits of constant scales and zero points. There
    is one scale for all channels or one per channel; values include ties, saturated values, infinities
    and NaN."""
    rng = np.random.default_rng(40)
    scale = rng.uniform(0.05, 0.2, 5 if channels else ()).astype(np.float32)
    zero = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, scale.shape).astype(dtype)
    steps = rng.integers(-600, 600, (3, 5, 7)) / 2
    x = (steps * (scale[:, None] if channels else scale)).astype(np.float32)
    x[0, 0, :3] = np.inf, -np.inf, np.nan
    inputs = {"x": x, "scale": scale, "zero": zero}
    quantize = op("QuantizeLinear", "x scale zero", "q", axis=1)
    nodes = [quantize, op("DequantizeLinear", "q scale zero", "y", axis=1)]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    data = model(nodes, inputs, {"q": kind, "y": FLOAT})
    q, y = vkq.onnx.InferenceSession(data, device).run(None, inputs)
    constants = model(nodes, {"x": x}, {"q": kind, "y": FLOAT}, scale=scale, zero=zero)
    want_q, want_y = vkq.onnx.InferenceSession(constants, device).run(None, {"x": x})
    np.testing.assert_array_equal(q, want_q, strict=True)
    np.testing.assert_array_equal(y, want_y, strict=True)


EQUATIONS = {
    "bhid,bhjd->bhij": [(2, 3, 5, 4), (2, 3, 7, 4)],
    "bhij,bhjd->bhid": [(2, 3, 5, 7), (2, 3, 7, 4)],
    "nchw,nc->nhw": [(2, 3, 4, 5), (2, 3)],
    "...ij,...jk": [(2, 3, 4), (1, 4, 5)],
    "ij->ji": [(3, 5)],
    "iij->ij": [(4, 4, 3)],
    "ij->": [(3, 5)],
    "i,j->ij": [(3,), (5,)],
    "ijk,ijk->ik": [(2, 3, 5), (2, 3, 5)],
    "ab,bc,cd->ad": [(3, 4), (4, 5), (5, 2)],
    "bnc,mc->bmn": [(2, 3, 4), (5, 4)],
}


@pytest.mark.parametrize("equation", list(EQUATIONS))
def test_einsum(device: vkq.Device, equation: str) -> None:
    """Einsum becomes matrix products, and is close to NumPy's float64 result."""
    inputs = {f"x{i}": normal(20 + i, *shape) for i, shape in enumerate(EQUATIONS[equation])}
    data = model([op("Einsum", " ".join(inputs), "y", equation=equation)], inputs, {"y": FLOAT})
    (got,) = vkq.onnx.InferenceSession(data, device).run(None, inputs)
    want = np.einsum(equation, *(x.astype(float) for x in inputs.values()))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5)


def transformed(device: vkq.Device, node: Any, x: np.ndarray, opset: int, **constants: Any) -> np.ndarray:
    """Run a Fourier transform on the device without a fallback. Check that the result is close to ONNX
    Runtime's, and return it."""
    data = model([node], {"x": x}, {"y": KINDS[x.dtype]}, **constants)
    data.opset_import[0].version = opset
    (got,) = vkq.onnx.InferenceSession(data, device).run(None, {"x": x})
    (want,) = ort.InferenceSession(data.SerializeToString()).run(None, {"x": x})
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * np.abs(want).max() * np.log2(x.size))
    return got


def test_fourier_transforms(device: vkq.Device) -> None:
    """DFT is close to ONNX Runtime's for real and complex values, lengths that are no powers of two, each
    axis, padded and cut lengths, one-sided spectra, and the forms of opsets 17 and 20. The inverse restores
    the values."""
    real, complex_ = normal(36, 2, 7, 10, 1), normal(37, 2, 7, 10, 2)
    for x in (real, complex_):
        for axis in (1, 2):
            transformed(device, op("DFT", "x", "y", axis=axis), x, 17)
    transformed(device, op("DFT", "x n", "y", onesided=1), real, 17, n=np.array(9))
    transformed(device, op("DFT", "x n", "y"), complex_, 17, n=np.array(5))
    transformed(device, op("DFT", "x n axis", "y", onesided=1), real, 20, n=np.array(12), axis=np.array(-2))
    there = transformed(
        device, helper.make_node("DFT", ["x", "", "axis"], ["y"]), complex_, 20, axis=np.array(1)
    )
    back = transformed(
        device, helper.make_node("DFT", ["x", "", "axis"], ["y"], inverse=1), there, 20, axis=np.array(1)
    )
    np.testing.assert_allclose(back, complex_, rtol=0, atol=2e-6)
    for length in (10, 9):  # ONNX Runtime cannot invert one-sided spectra
        half = transformed(device, op("DFT", "x n", "y", onesided=1), real, 20, n=np.array(length))
        node = op("DFT", "x n", "y", onesided=1, inverse=1)
        data = model([node], {"x": half}, {"y": FLOAT}, n=np.array(length))
        (back,) = vkq.onnx.InferenceSession(data, device).run(None, {"x": half})
        np.testing.assert_allclose(back, real[:, :, :length], rtol=0, atol=2e-6)


def test_spectrograms(device: vkq.Device) -> None:
    """STFT is close to ONNX Runtime's with and without a window, one-sided and two-sided, and if samples
    remain after the last frame."""
    x, window = normal(38, 2, 61, 1), np.hanning(16).astype(np.float32)
    step, length = np.array(5), np.array(16)
    node = op("STFT", "x step window", "y")
    got = transformed(device, node, x, 17, step=step, window=window)
    assert got.shape == (2, 10, 9, 2)
    np.testing.assert_array_equal(transformed(device, node, x[:, :, 0], 17, step=step, window=window), got)
    frame = x[1, 15:31, 0].astype(np.float64) * window
    want = np.fft.rfft(frame)
    np.testing.assert_allclose(got[1, 3, :, 0] + 1j * got[1, 3, :, 1], want, rtol=0, atol=1e-5)
    for one_sided in (0, 1):
        node = helper.make_node("STFT", ["x", "step", "", "length"], ["y"], onesided=one_sided)
        transformed(device, node, x, 17, step=step, length=length)
    node, complex_ = op("STFT", "x step window length", "y", onesided=0), normal(39, 1, 40, 2)
    data = model([node], {"x": complex_}, {"y": FLOAT}, step=step, window=window, length=length)
    (spectra,) = vkq.onnx.InferenceSession(data, device).run(None, {"x": complex_})
    signal = complex_[0].astype(np.float64) @ (1, 1j)
    want = np.array([np.fft.fft(signal[first : first + 16] * window) for first in range(0, 25, 5)])
    np.testing.assert_allclose(spectra @ (1, 1j), want[None], rtol=0, atol=1e-5)
    if tuple(map(int, ort.__version__.split(".")[:2])) > (1, 30):  # 1.30 reads beyond the window
        transformed(device, node, complex_, 17, step=step, window=window, length=length)
    data = model([op("STFT", "x step window", "y")], {"x": x, "window": window}, {"y": FLOAT}, step=step)
    (again,) = vkq.onnx.InferenceSession(data, device).run(None, {"x": x, "window": window})
    np.testing.assert_allclose(again, got, rtol=0, atol=1e-5)


def test_norms(device: vkq.Device) -> None:
    x = normal(30, 3, 5, 7)
    x[1, 2] = 0
    for p in (1, 2):
        checked(device, [op("LpNormalization", "x", "y", axis=-1, p=p)], {"x": x}, {"y": FLOAT}, exact=False)
    image = normal(31, 2, 7, 3, 5)
    for size in (3, 5):
        nodes = [op("LRN", "x", "y", size=size, alpha=0.2, beta=0.6, bias=1.5)]
        checked(device, nodes, {"x": image}, {"y": FLOAT}, exact=False)
    nodes = [helper.make_node("LayerNormalization", ["x", "s", "b"], ["y", "m", "d"], axis=1)]
    results = {"y": FLOAT, "m": FLOAT, "d": FLOAT}
    checked(device, nodes, {"x": image}, results, exact=False, s=normal(32, 7, 3, 5), b=normal(33, 7, 3, 5))


def test_triangles(device: vkq.Device) -> None:
    x = normal(34, 2, 5, 7)
    for upper, k in ((1, 0), (0, -2), (1, 3)):
        nodes = [op("Trilu", "x k", "y", upper=upper)]
        checked(device, nodes, {"x": x}, {"y": FLOAT}, k=np.array(k))


def test_reversed_lines(device: vkq.Device) -> None:
    for time in (0, 1):
        nodes = [op("ReverseSequence", "x lengths", "y", time_axis=time, batch_axis=1 - time)]
        x = normal(35, 5, 4, 3) if time == 0 else normal(35, 4, 5, 3)
        checked(device, nodes, {"x": x, "lengths": np.array([1, 5, 3, 4])}, {"y": FLOAT})


def test_indices_beyond_an_axis(any_device: vkq.Device) -> None:
    """Indices beyond an axis raise an error with the allowed range: constant indices at load, run-time
    indices in the run."""
    x, u = normal(36, 3, 5), normal(37, 1, 5)
    for nodes in (
        [op("GatherElements", "x i", "y", axis=0)],
        [op("ScatterElements", "x i u", "y", axis=0)],
        [op("Transpose", "i", "t", perm=[1, 0]), op("GatherND", "x t", "y")],
    ):
        inputs = {"x": x, "u": u, "i": np.array([[0, 2, -3, 1, 1]])}
        inputs = {name: inputs[name] for name in "xui" if any(name in node.input for node in nodes)}
        session = vkq.onnx.InferenceSession(model(nodes, inputs, {"y": FLOAT}), any_device)
        session.run(None, inputs)
        with pytest.raises(vkq.ArgumentError, match="input 'i' holds 0 to 3; this model takes -3 to 2"):
            session.run(None, inputs | {"i": np.array([[0, 3, 0, 0, 0]])})
    data = model([op("GatherND", "x i", "y")], {"x": x}, {"y": FLOAT}, i=np.array([[0, 5]]))
    with pytest.raises(vkq.ModelError, match=r"indices go from 0 to 5; the axes have sizes \(3, 5\)"):
        vkq.onnx.InferenceSession(data, any_device)


def test_what_is_too_long_stays_as_it_is() -> None:
    """A TopK whose loop is longer than some drivers allow is refused, and the refusal names TopK."""
    x = np.zeros((1, MOST_ROUNDS + 1), np.float32)
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "i"])]
    data = model(nodes, {"x": x}, {"y": FLOAT}, k=np.array([3]))
    (found,) = refusals(lower(read(data).at({"x": x.shape})))
    assert found[0].attributes["op"] == "TopK"


RESIZES = [
    {"mode": "linear"}, {"mode": "cubic"}, {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
    {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    {"mode": "cubic", "coordinate_transformation_mode": "asymmetric"},
    {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    {"mode": "linear", "antialias": 1}, {"mode": "cubic", "antialias": 1},
    {"mode": "nearest", "coordinate_transformation_mode": "half_pixel_symmetric"},
]  # fmt: skip


@pytest.mark.parametrize("attributes", RESIZES, ids=lambda a: ".".join(map(str, a.values())))
def test_resizes(device: vkq.Device, attributes: dict[str, Any]) -> None:
    """Resize is close to ONNX Runtime's in 1-D, 2-D and 3-D. The 2-D case enlarges one axis and shrinks
    the other, to sizes that are not multiples of the input's."""
    x = normal(40, 2, 3, 7, 9)
    nodes = [op("Resize", "x none none sizes", "y", **attributes)]
    data = model(nodes, {"x": x}, {"y": FLOAT}, none=np.zeros(0, np.float32), sizes=np.array([2, 3, 11, 5]))
    (got,) = vkq.onnx.InferenceSession(data, device).run(None, {"x": x})
    (want,) = ort.InferenceSession(data.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5)  # coordinates up to 10 are rounded to float32
    nodes = [op("Resize", "x none none sizes", "y", **attributes, axes=[2])]
    for shape in ((2, 3, 9), (2, 3, 5, 4, 3)):
        data = model(nodes, {"x": normal(41, *shape)}, {"y": FLOAT}, none=np.zeros(0, np.float32), sizes=[7])
        compared(device, data, {"x": normal(41, *shape)})


def test_a_crop(device: vkq.Device) -> None:
    """Resize in the mode tf_crop_and_resize uses the fill value outside the image. With a
    keep_aspect_ratio_policy, one scale factor determines both sizes."""
    x, none = normal(42, 1, 1, 5, 6), np.zeros(0, np.float32)
    how = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.5}
    roi = np.float32([0, 0, 0.3, -0.2, 1, 1, 0.8, 1.1])
    nodes = [op("Resize", "x roi none sizes", "y", mode="linear", **how)]
    sizes = np.array([1, 1, 4, 8])
    data = model(nodes, {"x": x}, {"y": FLOAT}, roi=roi, none=none, sizes=sizes)
    (got,) = vkq.onnx.InferenceSession(data, device).run(None, {"x": x})
    (want,) = ort.InferenceSession(data.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5)
    for policy, shape in (("not_larger", (1, 1, 8, 9)), ("not_smaller", (1, 1, 10, 12))):
        more = {"axes": [2, 3], "keep_aspect_ratio_policy": policy, "mode": "linear"}
        nodes = [op("Resize", "x none none sizes", "y", **more)]
        data = model(nodes, {"x": x}, {"y": FLOAT}, none=none, sizes=np.array([10, 9]))
        assert compared(device, data, {"x": x})[0].shape == shape


def test_a_resize_between_quantized_values_has_bytes() -> None:
    """A linear Resize between quantized values stays one 8-bit operator with ONNX Runtime's bytes, and does
    not become a weighted sum of floats."""
    x = np.zeros((1, 2, 5, 6), np.float32)
    nodes = [
        op("QuantizeLinear", "x s z", "q"), op("DequantizeLinear", "q s z", "d"),
        op("Resize", "d none two", "r", mode="linear"), op("QuantizeLinear", "r s z", "p"),
        op("DequantizeLinear", "p s z", "y"),
    ]  # fmt: skip
    more = {"s": np.float32(0.5), "z": np.uint8(3), "none": np.zeros(0, np.float32)}
    data = model(nodes, {"x": x}, {"y": FLOAT}, two=np.float32([1, 1, 2, 2]), **more)
    ops = [node.op for node in lower(read(data).at({"x": x.shape})).nodes]
    assert ops == ["quantize", "Resize", "dequantize"]


@pytest.mark.parametrize("to", [TensorProto.INT8, TensorProto.UINT8], ids=["int8", "uint8"])
def test_casts_to_8_bits_wrap(device: vkq.Device, to: int) -> None:
    """A Cast to 8 bits truncates floats and keeps the lowest 8 bits of integers, as ONNX defines for integers
    and as ONNX Runtime does for floats, too. Numbers lie on both sides of the limits of both types."""
    x = np.float32([0, -0.9, -1, 127.9, 128, -128.5, -129, 255.9, 256, 300.7, 511, -255.5, -256, 70000, 1e6])
    nodes = [
        op("Neg", "x", "n"), op("Cast", "n", "y", to=to), op("Cast", "n", "i", to=TensorProto.INT32),
        op("Add", "i i", "j"), op("Cast", "j", "z", to=to),
    ]  # fmt: skip
    checked(device, nodes, {"x": x}, {"y": to, "z": to})


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_recurrent_layers(device: vkq.Device, kind: str, direction: str) -> None:
    """LSTM, GRU and RNN, with and without biases and initial state, are within 1e-5 of ONNX Runtime's after
    five steps in time."""
    steps, batch, inner, hidden = 5, 3, 7, 6
    d, g = 2 if direction == "bidirectional" else 1, {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    constants = {"w": normal(50, d, g * hidden, inner) / 4, "r": normal(51, d, g * hidden, hidden) / 4}
    inputs = {"x": normal(52, steps, batch, inner)}
    names = ["x", "w", "r"]
    for reset in (0, 1) if kind == "GRU" else (0,):
        if reset or kind == "RNN" or direction != "forward":
            constants["b"] = normal(53, d, 2 * g * hidden)
            inputs["h"] = normal(54, d, batch, hidden)
            names = ["x", "w", "r", "b", "", "h"]
        more = {"linear_before_reset": reset} if kind == "GRU" else {}
        results = ["y", "last"] + ["cell"] * (kind == "LSTM")
        nodes = [helper.make_node(kind, names, results, direction=direction, hidden_size=hidden, **more)]
        data = model(nodes, inputs, dict.fromkeys(results, FLOAT), **constants)
        got = vkq.onnx.InferenceSession(data, device).run(None, inputs)
        want = ort.InferenceSession(data.SerializeToString()).run(None, inputs)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("known", [False, True], ids=["run", "constant"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_sequences_of_several_lengths(device: vkq.Device, kind: str, known: bool) -> None:
    """After the end of a sequence, a recurrent layer gives zeros and keeps its state. Backwards, it begins
    at the end of the sequence. One sequence is whole, one has a single time step, one has none."""
    steps, batch, inner, hidden, g = 4, 4, 3, 5, {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    constants = {"w": normal(56, 2, g * hidden, inner) / 4, "r": normal(57, 2, g * hidden, hidden) / 4}
    inputs = {"x": normal(58, steps, batch, inner), "h": normal(59, 2, batch, hidden)}
    (constants if known else inputs)["lengths"] = np.int32([3, 4, 1, 0])
    results = ["y", "last"] + ["cell"] * (kind == "LSTM")
    names = ["x", "w", "r", "", "lengths", "h"]
    nodes = [helper.make_node(kind, names, results, direction="bidirectional", hidden_size=hidden)]
    data = model(nodes, inputs, dict.fromkeys(results, FLOAT), **constants)
    session = vkq.onnx.InferenceSession(data, device)
    want = ort.InferenceSession(data.SerializeToString()).run(None, inputs)
    for one, other in zip(session.run(None, inputs), want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert not session._constant


FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "clip": ("LSTM", {"clip": 0.2}),
    "peepholes": ("LSTM", {}),  # with input 7
    "coupled": ("LSTM", {"input_forget": 1}),
    "hard": ("LSTM", {"activations": ["HardSigmoid", "Tanh", "LeakyRelu"] * 2,
                      "activation_alpha": [0.3, 0.1, 0.2, 0.05], "activation_beta": [0.4]}),
    "gru": ("GRU", {"clip": 0.2}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_recurrent_layers(device: vkq.Device, form: str) -> None:
    """Clipped gates, peepholes, coupled gates and activations with parameters, which two directions read in
    turn."""
    kind, attributes = FORMS[form]
    steps, batch, inner, hidden, g = 3, 2, 3, 4, {"LSTM": 4, "GRU": 3}[kind]
    constants = {"w": normal(70, 2, g * hidden, inner), "r": normal(71, 2, g * hidden, hidden)}
    names = ["x", "w", "r", ""]
    if form == "peepholes":
        constants["p"] = normal(72, 2, 3 * hidden)
        names += ["", "", "", "p"]
    more = {"direction": "bidirectional", "hidden_size": hidden, **attributes}
    data = model([helper.make_node(kind, names, ["y", "last"], **more)], inputs := {
        "x": normal(73, steps, batch, inner)}, {"y": FLOAT, "last": FLOAT}, **constants)  # fmt: skip
    session = vkq.onnx.InferenceSession(data, device)
    want = ort.InferenceSession(data.SerializeToString()).run(None, inputs)
    for one, other in zip(session.run(None, inputs), want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert {row.where for row in session.explain().rows} == {"device"}


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grids(device: vkq.Device, mode: str, padding: str) -> None:
    """GridSample is close to ONNX Runtime's for points inside, outside and on the border of images that are
    not square."""
    x, grid = normal(60, 2, 3, 5, 7), normal(61, 2, 4, 9, 2) / 2
    for align in (0, 1):
        nodes = [op("GridSample", "x grid", "y", mode=mode, padding_mode=padding, align_corners=align)]
        data = model(nodes, {"x": x, "grid": grid}, {"y": FLOAT})
        (got,) = compared(device, data, {"x": x, "grid": grid})
        (want,) = ort.InferenceSession(data.SerializeToString()).run(None, {"x": x, "grid": grid})
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_convolution_of_constants(device: vkq.Device, name: str) -> None:
    """Conv and ConvTranspose of a constant by a constant weight run on the device."""
    shape = (4, 3, 2, 2) if name == "Conv" else (3, 4, 2, 2)
    constants = {"c": normal(0, 1, 3, 5, 5), "w": normal(1, *shape)}
    feed = {"x": normal(2, 1)}
    data = model([op(name, "c w", "k"), op("Add", "x k", "y")], feed, {"y": FLOAT}, **constants)
    (got,) = vkq.onnx.InferenceSession(data, device).run(None, feed)
    (want,) = ort.InferenceSession(data.SerializeToString()).run(None, feed)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-5)
