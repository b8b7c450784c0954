"""Tests of attention that a model writes as separate nodes. It becomes one node, whose results equal its
NumPy steps bit for bit, and are close to ONNX Runtime's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import vkq
import vkq.onnx
from tests.kernels import emulated
from tests.onnx.networks import onnxruntime_results
from tests.onnx.test_operators import MICROSOFT, model
from tests.onnx.texts import Bert, quantized, text
from vkq.check import graph as oracle
from vkq.graph.executable import Executable
from vkq.graph.passes.attention import KEYS
from vkq.numerics.attention import Seen
from vkq.onnx.cpu import cpu_session
from vkq.select.path import half_refusal

LOW = np.finfo(np.float32).min
# Scores of magnitude 8 differ from ONNX Runtime's by at most 2 (16 + 8) 2^-24 * 8 = 2.3e-5. This is also the
# relative error of softmax weights, which multiply values of magnitude 3.
BOUND = 1e-4


def op(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def values(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuse attention of every size into one node."""
    monkeypatch.setattr("vkq.graph.passes.attention.SCORES_BYTES", 1)
    monkeypatch.setattr("vkq.graph.passes.attention.ROWS", 1)


def plain(middle: list[Any], softmax: str = "s") -> list[Any]:
    """Return the nodes of attention: q (2, 3, 7, 8), k (2, 3, 11, 8), v (2, 3, 11, 5). The nodes *middle*
    compute the softmax's input *softmax* from the scores "s0"."""
    return [
        op("Transpose", "k", "kt", perm=[0, 1, 3, 2]), op("MatMul", "q kt", "s0"), *middle,
        op("Softmax", softmax, "p", axis=-1), op("MatMul", "p v", "y"),
    ]  # fmt: skip


SEEN = np.tri(7, 11, 4, dtype=np.bool_)
WINDOW = SEEN & ~np.tri(7, 11, 0, dtype=np.bool_)
FED = {"q": values(1, 2, 3, 7, 8), "k": values(2, 2, 3, 11, 8), "v": values(3, 2, 3, 11, 5)}
PADDED = np.where(np.arange(11) < np.array([[9], [4]]), 0, LOW).astype(np.float32)[:, None, None]
CONSTANTS = {
    "c": np.float32(0.35), "root": np.float32(2.8), "zero": np.float32(0), "low": np.float32(-np.inf),
    "seen": SEEN, "hidden": ~SEEN[None, None], "triangle": np.where(SEEN, 0, LOW).astype(np.float32)[None],
    "window": WINDOW,
}  # fmt: skip
NOTHING, LAST = Seen(), Seen(True, 4)
FORMS: dict[str, tuple[list[Any], dict[str, np.ndarray], Seen]] = {
    "bare": (plain([], "s0"), {}, NOTHING),
    "scaled": (plain([op("Mul", "c s0", "s")]), {}, NOTHING),
    "divided, masked": (plain([op("Div", "s0 root", "t"), op("Add", "t m", "s")]), {"m": PADDED}, NOTHING),
    "a triangle added": (plain([op("Mul", "s0 c", "t"), op("Add", "triangle t", "s")]), {}, LAST),
    "flags": (plain([op("Mul", "s0 c", "t"), op("Where", "seen t low", "s")]), {}, LAST),
    "masked_fill": (plain([op("Where", "hidden low s0", "s")]), {}, LAST),
    "a window": (plain([op("Where", "window s0 low", "s")]), {}, Seen(True, 4, 4)),
    "flags of the run": (
        plain([op("Add", "s0 m", "t"), op("Where", "f t low", "s")]),
        {"m": values(4, 1, 3, 7, 11), "f": PADDED == 0},
        NOTHING,
    ),
    "two masks": (plain([op("Add", "s0 m", "t"), op("Add", "t triangle", "s")]), {"m": PADDED}, LAST),
}  # fmt: skip
GUARDED = [op("Add", "m s0", "s"), op("IsNaN", "p", "nan"), op("Where", "nan zero p", "w")]
EMPTY = np.where(np.arange(2)[:, None, None, None] == 1, -np.inf, PADDED).astype(np.float32)
FORMS["rows without a key"] = (  # as PyTorch writes it: 0 replaces NaN weights
    [*plain(GUARDED[:1])[:-1], *GUARDED[1:], op("MatMul", "w v", "y")], {"m": EMPTY}, NOTHING,
)  # fmt: skip


def compared(device: vkq.Device, data: bytes, fed: dict[str, np.ndarray], bound: float = BOUND) -> Any:
    """Check that the device gives the bits of the fused node's NumPy steps, and that the result is within
    *bound* of ONNX Runtime's. Return the fused node."""
    session = vkq.onnx.InferenceSession(data, device)
    (got,) = session.run(None, fed)
    (want,) = cpu_session(data, "comparing").run(None, fed)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=0, atol=bound)
    graph = session.lowered({name: x.shape for name, x in fed.items()})
    held = {name: x.view(np.uint8) if x.dtype == np.bool_ else x for name, x in fed.items()}
    np.testing.assert_array_equal(got, oracle.run(graph, held)[graph.outputs[0]].astype(got.dtype))
    (node,) = [node for node in graph.nodes if node.op == "attention"]
    assert not {"rows", "MatMul", "Softmax"} & {node.op for node in graph.nodes}
    return node


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", FORMS)
def test_forms(device: vkq.Device, name: str) -> None:
    nodes, more, seen = FORMS[name]
    read = {x for one in nodes for x in one.input}
    data = model(nodes, FED | more, {x: c for x, c in CONSTANTS.items() if x in read}, "float32")
    node = compared(device, data, FED | more)
    assert node.attributes["seen"] == seen
    assert (len(node.inputs) == 4) == bool(more)
    assert node.attributes["guarded"] == ("IsNaN" in {one.op_type for one in nodes})


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("window", "low", "positions"), [(0, 0, True), (4, 0, True), (4, 3, True), (0, -1, False)]
)
def test_masks_by_positions_of_the_run(device: vkq.Device, window: int, low: int, positions: bool) -> None:
    """If a mask hides the keys after each query's position, the fused node reads the positions instead of
    the mask. If a position may be negative, a query may attend to no key, and the node reads the mask as a
    bias."""
    mask = [op("Max", "at least", "a"), op("Min", "a most", "place"), op("LessOrEqual", "key place", "f")]
    if window:
        mask += [
            op("Sub", "place wide", "first"),
            op("Greater", "key first", "near"),
            op("And", "f near", "g"),
        ]
    mask += [op("Where", f"{'g' if window else 'f'} s0 lowest", "s")]
    fed = FED | {"at": np.array([[3], [7]], np.int32) + np.arange(7, dtype=np.int32)}
    fed["at"] = fed["at"].reshape(2, 1, 7, 1)
    constants = {
        "least": np.int32(low), "most": np.int32(10), "key": np.arange(11, dtype=np.int32),
        "wide": np.int32(window), "lowest": LOW,
    }  # fmt: skip
    if not window:
        del constants["wide"]
    node = compared(device, model(plain(mask), fed, constants, "float32"), fed)
    assert (len(node.inputs) == 5) == positions
    assert node.attributes["seen"] == (Seen(True, 0, window) if positions else Seen())


@pytest.mark.usefixtures("always")
def test_on_matrix_units(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 attention uses float16 matrix units only with compute="float16"."""
    if half_refusal(strict_device):
        emulated.emulate(strict_device, monkeypatch, "16x16x16", form="f16")
    shapes = {"q": (1, 2, 16, 16), "k": (1, 2, 20, 16), "v": (1, 2, 20, 16)}
    fed = {name: values(i, *shape) for i, (name, shape) in enumerate(shapes.items())}
    data = model(plain([], "s0"), fed, {}, "float32")
    for compute, shader in (("float16", "attention__coopmat"), ("float32", "attention__tiles")):
        session = vkq.onnx.InferenceSession(data, strict_device, compute=compute)
        (row,) = [row for row in session.explain().rows if row.operator == "attention"]
        assert [name.partition(":")[0] for name in row.shaders] == [shader]
        if compute == "float16":
            (want,) = cpu_session(data, "comparing").run(None, fed)
            np.testing.assert_allclose(session.run(None, fed)[0], want, atol=4e-3)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_operands_lie_as_they_are(device: vkq.Device, dtype: str) -> None:
    """Attention reads and writes (batch, tokens, heads, elements), and several heads share keys: neither a
    Transpose nor an Expand of keys remains."""
    fed = {"q": values(1, 2, 7, 32), "k": values(2, 2, 7, 16), "v": values(3, 2, 7, 16)}
    fed = {name: x.astype(dtype) for name, x in fed.items()}
    nodes = [op("Reshape", "q qs", "q4"), op("Transpose", "q4", "qt", perm=[0, 2, 1, 3])]
    for x, perm in (("k", [0, 1, 3, 2]), ("v", None)):
        nodes += [op("Reshape", f"{x} ks", f"{x}4"), op("Transpose", f"{x}4", f"{x}t", perm=[0, 2, 1, 3])]
        nodes += [op("Unsqueeze", f"{x}t two", f"{x}5"), op("Expand", f"{x}5 many", f"{x}m")]
        nodes += [op("Reshape", f"{x}m heads", f"{x}h")]
        nodes += [op("Transpose", f"{x}h", f"{x}x", perm=perm)] if perm else []
    nodes += [
        op("MatMul", "qt kx", "s"), op("Softmax", "s", "p", axis=-1), op("MatMul", "p vh", "o"),
        op("Transpose", "o", "t", perm=[0, 2, 1, 3]), op("Reshape", "t flat", "y"),
    ]  # fmt: skip
    shapes = {
        "qs": [0, 0, 4, 8], "ks": [0, 0, 2, 8], "two": [2], "many": [2, 2, 2, 7, 8], "heads": [2, 4, 7, 8],
        "flat": [0, 0, 32],
    }  # fmt: skip
    constants = {name: np.array(shape) for name, shape in shapes.items()}
    data = model(nodes, fed, constants, dtype)
    node = compared(device, data, fed, BOUND if dtype == "float32" else 2e-2)
    assert node.attributes["axes"][:3] == ((0, 2, 1, 3),) * 3
    graph = vkq.onnx.InferenceSession(data, device).lowered({name: x.shape for name, x in fed.items()})
    kinds = {one.op for one in graph.nodes}
    assert not kinds & {"Expand", "Tile", "Gather", "Transpose", "chain"}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("reshaped", [False, True])
def test_a_result_that_is_rounded(device: vkq.Device, reshaped: bool) -> None:
    """Attention computed in float32, whose result is converted to float16, stores float16."""
    fed = {"q": values(1, 2, 4, 7, 8), "k": values(2, 2, 4, 8, 9), "v": values(3, 2, 4, 9, 8)}
    nodes = [op("MatMul", "q k", "s"), op("Softmax", "s", "p", axis=-1), op("MatMul", "p v", "o")]
    nodes += [op("Transpose", "o", "t", perm=[0, 2, 1, 3]), op("Reshape", "t flat", "r")] * reshaped
    nodes.append(op("Cast", "r" if reshaped else "o", "y", to=TensorProto.FLOAT16))
    data = model(nodes, fed, {"flat": np.array([0, 0, 32])} if reshaped else {}, "float16")
    assert compared(device, data, fed, 2e-3).attributes["dtype"] == "float16"
    graph = vkq.onnx.InferenceSession(data, device).lowered({name: x.shape for name, x in fed.items()})
    assert [one.op for one in graph.nodes] == ["attention", *["Reshape"] * reshaped]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["Attention", "MultiHeadAttention", "three axes"])
def test_operators_of_exporters(device: vkq.Device, kind: str) -> None:
    if kind == "Attention":
        fed = {"q": values(1, 1, 4, 6, 8), "k": values(2, 1, 2, 6, 8), "v": values(3, 1, 2, 6, 8)}
        data = model([op("Attention", "q k v", "y", is_causal=1)], fed, {}, "float32", opset=23)
    elif kind == "MultiHeadAttention":
        fed = {x: values(i, 2, 6, 16) for i, x in enumerate("qkv")}
        nodes = [op(kind, "q k v", "y", domain=MICROSOFT, num_heads=2, unidirectional=1)]
        data = model(nodes, fed, {}, "float32")
    else:
        fed = {x: values(i, 6, 9, 8) for i, x in enumerate("qkv")}
        nodes = [op("Transpose", "k", "kt", perm=[0, 2, 1]), *plain([op("Mul", "s0 c", "s")])[1:]]
        data = model(nodes, fed, {"c": np.float32(0.3)}, "float32")
    node = compared(device, data, fed)
    assert node.attributes["seen"].causal == (kind != "three axes")


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", ["read twice", "a factor behind", "a weak mask", "a factor of the run"])
def test_other_forms_stay(device: vkq.Device, name: str) -> None:
    middle, fed = {
        "read twice": ([op("Identity", "s0", "s")], FED),
        "a factor behind": ([op("Add", "s0 m", "t"), op("Mul", "t c", "s")], FED | {"m": PADDED}),
        "a weak mask": ([op("Where", "seen s0 weak", "s")], FED),
        "a factor of the run": ([op("Mul", "s0 m", "s")], FED | {"m": values(5, 1)}),
    }[name]
    nodes = plain(middle)
    if name == "read twice":
        nodes[-1:] = [
            op("MatMul", "p v", "z"),
            op("ReduceMax", "p", "high", keepdims=0),
            op("Add", "z high", "y"),
        ]
    read = {x for one in nodes for x in one.input}
    constants = {x: c for x, c in (CONSTANTS | {"weak": np.float32(-1e4)}).items() if x in read}
    data = model(nodes, fed, constants, "float32")
    session = vkq.onnx.InferenceSession(data, device)
    want = cpu_session(data, "comparing").run(None, fed)[0]
    np.testing.assert_allclose(session.run(None, fed)[0], want, rtol=0, atol=BOUND)
    graph = session.lowered({x: a.shape for x, a in fed.items()})
    assert "attention" not in {node.op for node in graph.nodes}


@pytest.mark.usefixtures("always")
def test_quantized_attention_keeps_its_bytes(any_device: vkq.Device, tmp_path: Path) -> None:
    data, fed = quantized(Bert(1).model(), tmp_path), text(2, 7)
    session = vkq.onnx.InferenceSession(data, any_device)
    np.testing.assert_array_equal(session.run(None, fed)[0], onnxruntime_results(data, fed)[0])
    kinds = {node.op for node in session.lowered({name: x.shape for name, x in fed.items()}).nodes}
    assert "attention" not in kinds
    assert "attention_q8" in kinds


@pytest.mark.usefixtures("always")
def test_products_of_dequantized_numbers_stay(any_device: vkq.Device) -> None:
    """Attention whose q and k are dequantized is not fused, because other passes may make its products
    integer products. Results are compared with float64, because ONNX Runtime computes them in another
    way."""
    fed = {f"{x}8": (FED[x] * 30).astype(np.int8) for x in "qk"} | {"v": FED["v"]}
    nodes = [op("DequantizeLinear", f"{x}8 c", x) for x in "qk"] + plain([op("Mul", "s0 c", "s")])
    session = vkq.onnx.InferenceSession(model(nodes, fed, {"c": np.float32(0.05)}, "float32"), any_device)
    q, k = (fed[f"{x}8"] * 0.05 for x in "qk")
    weights = np.exp(q @ k.swapaxes(2, 3) * 0.05)
    want = weights / weights.sum(-1, keepdims=True) @ fed["v"]
    np.testing.assert_allclose(session.run(None, fed)[0], want, rtol=0, atol=BOUND)
    graph = session.lowered({name: x.shape for name, x in fed.items()})
    assert "attention" not in {node.op for node in graph.nodes}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_one_token_of_a_decoder(any_device: vkq.Device, dtype: str) -> None:
    """Attention of one query to at least KEYS keys is fused. Several workgroups compute parts of the
    keys, and a second dispatch joins the parts."""
    for keys in (KEYS - 1, KEYS):
        fed = {"q": values(1, 2, 4, 1, 32), "k": values(2, 2, 2, keys, 32), "v": values(3, 2, 2, keys, 24)}
        fed = {name: x.astype(dtype) for name, x in fed.items()}
        data = model([op("Attention", "q k v", "y")], fed, {}, dtype, opset=24)
        session = vkq.onnx.InferenceSession(data, any_device)
        graph = session.lowered({name: x.shape for name, x in fed.items()})
        fused = "attention" in {node.op for node in graph.nodes}
        assert fused == (keys == KEYS)
        ran = Executable(graph, any_device, {}).plan.variants
        joins = [name for name in ran if name.startswith("attention__join:24")]
        assert len(joins) == fused
        (y,), (want,) = session.run(None, fed), oracle.run(graph, fed).values()
        if fused:
            np.testing.assert_array_equal(y, want.reshape(y.shape))
        q, k, v = (fed[name].astype(np.float64) for name in "qkv")
        k, v = np.repeat(k, 2, 1), np.repeat(v, 2, 1)
        weights = np.exp(q @ k.swapaxes(2, 3) / np.sqrt(32))
        real = weights / weights.sum(-1, keepdims=True) @ v
        np.testing.assert_allclose(y, real, rtol=0, atol=1e-5 if dtype == "float32" else 1e-3)


def test_long_contexts_take_little_memory(any_device: vkq.Device) -> None:
    """Causal attention over 4,096 tokens and 32 heads is fused, and stores neither scores nor mask: no
    value has more than 64 MiB. Small attention is not fused."""

    def causal(tokens: int) -> vkq.onnx.InferenceSession:
        fed = {x: np.broadcast_to(np.float32(0), (1, 32 if x == "q" else 8, tokens, 64)) for x in "qkv"}
        data = model([op("Attention", "q k v", "y", is_causal=1)], fed, {}, "float32", opset=23)
        return vkq.onnx.InferenceSession(data, any_device)

    session = causal(4096)
    (row,) = [row for row in session.explain().rows if row.operator == "attention"]
    assert "2147483648 bytes of scores" in row.why
    assert row.shaders[0].startswith("attention__tiles:64.64.32x32")
    graph = session.lowered(session.trial_shapes())
    plan = Executable(graph, any_device, {}).plan
    sizes = [size for _, size in plan.scratch.values()] + [x.bytes for x in plan.constants.values()]
    assert max([*sizes, *(spec.nbytes for spec in (*plan.inputs, *plan.results))]) <= 1 << 26
    small = causal(64)
    assert "attention" not in {row.operator for row in small.explain().rows}
