"""Tests of ``kv_cache="int8"`` with MultiHeadAttention, ONNX's Attention, and attention written as MatMul,
Softmax and MatMul. The words equal the reference's bits on every driver, and results are within the bound of
docs/models.md."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import vkq
import vkq.onnx
from tests.onnx.test_adapted import ERROR, words
from tests.onnx.test_fused import normal
from tests.onnx.test_operators import MICROSOFT
from tests.onnx.written_out import INFO, Net
from vkq.check import graph as oracle
from vkq.numerics.attention_cache import unpacked, words_of

Arrays = dict[str, Any]
BATCH, HEADS, KV_HEADS, WIDTH = 2, 6, 2, 16


@dataclasses.dataclass
class Form:
    """A model of one attention: its nodes, its inputs (with float caches), and its number of key heads."""

    nodes: list[Any]
    fed: Arrays
    kv_heads: int = HEADS
    constants: list[Any] = dataclasses.field(default_factory=list)
    dims: tuple[Any, ...] = ("batch", "past", "total")

    def proto(self) -> onnx.ModelProto:
        infos = [INFO(x, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for x, v in self.fed.items()]
        kind = helper.np_dtype_to_tensor_dtype(self.fed["q"].dtype)
        results = [INFO(name, kind, None) for name in ("y", "nk", "nv")]
        graph = helper.make_graph(self.nodes, "g", infos, results, self.constants)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def past(held: int, kv_heads: int, seed: int = 3) -> Arrays:
    shape = BATCH, kv_heads, held, WIDTH
    return {x: normal(*shape, seed=i) for i, x in enumerate(("pk", "pv"), seed)} if held else {}


def microsoft(tokens: int, held: int, names: str = "", half: bool = False, **a: Any) -> Form:
    """Return a MultiHeadAttention. *names*: its optional inputs: bias (b), mask (m), values added to scores
    (a)."""
    fed = {x: normal(BATCH, tokens, HEADS * WIDTH, seed=i) for i, x in enumerate("qkv")}
    mask = np.int32([[0] + [1] * (held + tokens - 1), [1] * (held + tokens)])
    more = {"b": normal(3 * HEADS * WIDTH, seed=7), "m": mask}
    more["a"] = normal(1, HEADS, tokens, held + tokens, seed=8)
    fed |= {x: more[x] for x in names} | past(held, HEADS)
    if half:
        fed = {x: v.astype(np.float16) if v.dtype == np.float32 else v for x, v in fed.items()}
    inputs = [x if x in fed else "" for x in ("q", "k", "v", "b", "m", "a", "pk", "pv")]
    a = {"num_heads": HEADS, **a}
    return Form(
        [helper.make_node("MultiHeadAttention", inputs, ["y", "nk", "nv"], domain=MICROSOFT, **a)], fed
    )


def standard(tokens: int, held: int, flat: bool = False, mask: Any = None, **a: Any) -> Form:
    """Return an Attention of ONNX with six query heads that share two key heads. *flat*: q, k, v have three
    axes."""
    counts = zip("qkv", (HEADS, KV_HEADS, KV_HEADS), strict=True)
    shape = (BATCH, tokens, -1) if flat else (BATCH, -1, tokens, WIDTH)
    fed = {x: normal(BATCH * tokens * n * WIDTH, seed=i).reshape(shape) for i, (x, n) in enumerate(counts)}
    fed |= past(held, KV_HEADS) | ({} if mask is None else {"m": mask})
    inputs = [x if x in fed else "" for x in ("q", "k", "v", "m", "pk", "pv")]
    a |= {"q_num_heads": HEADS, "kv_num_heads": KV_HEADS} if flat else {}
    return Form([helper.make_node("Attention", inputs, ["y", "nk", "nv"], **a)], fed, KV_HEADS)


def written_out(tokens: int, held: int, style: str = "gpt2", half: bool = False) -> Form:
    """Return attention as torch's exporter writes it, in the form of `gpt2` or of `sdpa`."""
    net, kv_heads, kind = Net(), HEADS if style == "gpt2" else KV_HEADS, np.float16 if half else np.float32
    counts = zip("qkv", (HEADS, kv_heads, kv_heads), strict=True)
    fed = {x: normal(BATCH, tokens, n, WIDTH, seed=i) for i, (x, n) in enumerate(counts)}
    fed |= past(held, kv_heads)
    q, k, v = (net.op("Transpose", x, perm=(0, 2, 1, 3)) for x in "qkv")
    k = net.op("Concat", "pk", k, axis=-2, output="nk")
    v = net.op("Concat", "pv", v, axis=2, output="nv")
    if style == "sdpa":
        fed["m"] = normal(BATCH, 1, tokens, held + tokens, seed=9)
        fed["m"][:, :, 0, 1], fed["m"][0, 0, 0] = -np.inf, -np.inf
    y = (gpt2 if style == "gpt2" else sdpa)(net, q, k, v, kind, held + tokens)
    y = net.op("Transpose", y, perm=(0, 2, 1, 3))
    net.op("Reshape", y, net.constant(np.int64([0, 0, -1])), output="y")
    return Form(net.nodes, {x: one.astype(kind) for x, one in fed.items()}, kv_heads, net.constants)


def gpt2(net: Net, q: str, k: str, v: str, kind: Any, keys: int) -> str:
    """Write attention in which scores are divided by sqrt(d) and a causal mask replaces hidden scores. The
    mask is sliced from a constant; Shape nodes compute the bounds of the slice."""
    lengths = [net.op("Gather", net.op("Shape", x), net.constant(np.int64(2))) for x in ("pk", k)]
    ends = [net.op("Unsqueeze", x, net.constant(np.int64([0]))) for x in lengths]
    flags = net.constant(np.tri(512, dtype=np.bool_)[None, None])
    rows = net.op("Slice", flags, *ends, net.constant(np.int64([2])))
    shown = net.op("Slice", rows, net.constant(np.int64([0])), ends[1], net.constant(np.int64([3])))
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=(0, 1, 3, 2)))
    scores = net.op("Div", scores, net.constant(kind(WIDTH**0.5)))
    scores = net.op("Where", shown, scores, net.constant(np.finfo(kind).min))
    return str(net.op("MatMul", net.op("Softmax", scores, axis=-1), v))


def sdpa(net: Net, q: str, k: str, v: str, kind: Any, keys: int) -> str:
    """Write attention in which the key heads are repeated, queries and keys are each multiplied by the root
    of the scale, a mask is added, and NaN weights are replaced by 0."""
    two, root = net.constant(np.int64([2])), net.constant(kind(WIDTH**-0.25))
    sizes = net.constant(np.int64([BATCH, KV_HEADS, HEADS // KV_HEADS, keys, WIDTH]))
    many = net.constant(np.int64([BATCH, HEADS, keys, WIDTH]))
    k, v = (net.op("Expand", net.op("Unsqueeze", x, two), sizes) for x in (k, v))
    k, v = (net.op("Reshape", x, many) for x in (k, v))
    k = net.op("Mul", net.op("Transpose", k, perm=(0, 1, 3, 2)), root)
    scores = net.op("Add", net.op("MatMul", net.op("Mul", q, root), k), "m")
    weights = net.op("Softmax", scores, axis=-1)
    weights = net.op("Where", net.op("IsNaN", weights), net.constant(kind(0)), weights)
    return str(net.op("MatMul", weights, v))


FLAGS = np.random.default_rng(1).random((BATCH, 1, 3, 8)) < 0.7
FORMS = {
    "microsoft": microsoft(3, 5),
    "microsoft, causal": microsoft(3, 5, unidirectional=1),
    "microsoft, one token": microsoft(1, 140, "b", unidirectional=1),
    "microsoft, masked": microsoft(3, 5, "bma", scale=0.3, unidirectional=1),
    "microsoft, a prompt": microsoft(4, 0, "m", unidirectional=1),
    "microsoft, float16": microsoft(3, 5, "b", True),
    "standard": standard(3, 5),
    "standard, causal": standard(3, 5, is_causal=1),
    "standard, rows": standard(3, 5, True, is_causal=1, softcap=2.0),
    "standard, added": standard(3, 5, mask=normal(3, 8, seed=5)),
    "standard, flags": standard(3, 5, True, FLAGS, scale=0.3),
    "standard, a prompt": standard(4, 0, is_causal=1),
    "written out": written_out(3, 5),
    "written out, one token": written_out(1, 150),
    "written out, float16": written_out(3, 5, "sdpa", half=True),
    "written out, shared heads": written_out(3, 5, "sdpa"),
    "written out, a long cache": written_out(2, 300, "sdpa"),
}  # fmt: skip
FORBIDDEN = {"foreign", "MatMul", "Softmax", "attention", "unpack_cache", "Transpose"}


def prepared(form: Form) -> Arrays:
    return form.fed | {x: words(form.fed[x]) for x in ("pk", "pv") if x in form.fed}


@pytest.mark.parametrize("name", FORMS)
def test_words_and_results(device: vkq.Device, name: str) -> None:
    """The device's results and caches equal those of the graph in NumPy, bit for bit. The words of past
    tokens do not change, and new tokens are quantized by the plain formula. Results are within the bound of
    docs/models.md."""
    form, packed = FORMS[name], prepared(FORMS[name])
    y, *floats = vkq.onnx.InferenceSession(form.proto(), device).run(None, form.fed)
    session = vkq.onnx.InferenceSession(form.proto(), device, kv_cache="int8")
    got = session.run(None, packed)
    graph = session.lowered({x: v.shape for x, v in packed.items()})
    assert [node.op for node in graph.nodes].count("append_cache") == 2
    assert [node.op for node in graph.nodes].count("attention_int8") == 1
    turned = {"Transpose"} if name.startswith("standard") else set()  # its q, k, v, y have axis 1 for heads
    assert (FORBIDDEN - turned).isdisjoint({node.op for node in graph.nodes})
    want = oracle.run(graph, {x: v.view(np.uint8) if v.dtype == bool else v for x, v in packed.items()})
    for x, result in zip(("y", "nk", "nv"), got, strict=True):
        np.testing.assert_array_equal(result.view(np.uint8), want[x].astype(result.dtype).view(np.uint8))
    scales = []
    for new, whole, before in zip(got[1:], floats, ("pk", "pv"), strict=True):
        held = form.fed[before].shape[2] if before in form.fed else 0
        assert new.shape == (*whole.shape[:3], words_of(WIDTH))
        if held:
            np.testing.assert_array_equal(new[:, :, :held], packed[before])
        np.testing.assert_array_equal(new[:, :, held:], words(whole[:, :, held:]))
        scales.append(unpacked(new, WIDTH)[1])
    _within(form, got[0], y, scales, float(np.abs(floats[1]).max()))


def _within(form: Form, y: np.ndarray, want: np.ndarray, scales: list[np.ndarray], most: float) -> None:
    """Check the error of y: at most max(value scale) / 2 + (exp(2 delta) - 1) max|v|. A score moves by at
    most delta = scale * sum|q| * max(key scale) / 2."""
    a = helper.get_node_attr_value(form.nodes[0], "scale") if _has_scale(form.nodes[0]) else WIDTH**-0.5
    q = np.abs(form.fed["q"].astype(np.float32))
    q = q + (np.abs(form.fed["b"].astype(np.float32)).max() if "b" in form.fed else 0)
    delta = a * q.max() * WIDTH * scales[0].max() * ERROR
    bound = scales[1].max() * ERROR + np.expm1(2 * delta) * most
    error = np.abs(y.astype(np.float32) - want.astype(np.float32)).max()
    assert 0 < error <= bound
    assert error <= 0.03 * most  # measured for these cases; the bound covers the worst case


def _has_scale(node: Any) -> bool:
    return any(one.name == "scale" for one in node.attribute)


def test_replays(device: vkq.Device) -> None:
    """200 runs with caches that stay on the device give the same bits each time."""
    for name in ("microsoft, masked", "standard, rows", "written out, shared heads"):
        form = FORMS[name]
        session = vkq.onnx.InferenceSession(form.proto(), device, kv_cache="int8")
        held = {x: vkq.Tensor.from_numpy(v, device) for x, v in prepared(form).items() if x in ("pk", "pv")}
        first = [x.numpy().tobytes() for x in session.run(None, form.fed | held, outputs="device")]
        for _ in range(200):
            got = session.run(None, form.fed | held, outputs="device")
            assert [x.numpy().tobytes() for x in got] == first
        assert session.counters["shapes_prepared"] == 1


def growing(form: Form) -> onnx.ModelProto:
    """Return the model with variable numbers of tokens and past tokens."""
    proto = form.proto()
    for info in proto.graph.input:
        axis = 1 if info.name in "qkv" else 2
        info.type.tensor_type.shape.dim[axis].dim_param = "past" if info.name.startswith("p") else "tokens"
    return proto


@pytest.mark.parametrize("name", ["microsoft, causal", "standard, rows", "written out"])
def test_a_growing_cache(any_device: vkq.Device, name: str) -> None:
    """Three tokens run at once with empty caches, then one by one, each with the caches of the previous run.
    Both ways give the same words, and results within 1e-5."""
    form = FORMS[name]
    session = vkq.onnx.InferenceSession(growing(form), any_device, kv_cache="int8")
    fed = {x: form.fed[x] for x in "qkv"}
    empty = np.zeros((BATCH, form.kv_heads, 0, words_of(WIDTH)), np.int32)
    whole = session.run(None, fed | {"pk": empty, "pv": empty})
    caches: list[Any] = [empty, empty]
    for i in range(3):
        one = {x: v[:, i : i + 1] for x, v in fed.items()}
        y, *caches = session.run(None, one | dict(zip(("pk", "pv"), caches, strict=True)), outputs="device")
        np.testing.assert_allclose(y.numpy(), whole[0][:, i : i + 1], rtol=0, atol=1e-5)
    for cache, want in zip(caches, whole[1:], strict=True):
        np.testing.assert_array_equal(cache.numpy(), want)


def other_values(form: Form) -> onnx.ModelProto:
    """Return the model with attention values (v and its cache pv) half as wide as the keys."""
    proto = form.proto()
    for info in proto.graph.input:
        if info.name in ("v", "pv"):
            info.type.tensor_type.shape.dim[-1].dim_value //= 2
    return proto


def another_reader(form: Form, cache: str) -> onnx.ModelProto:
    proto = form.proto()
    proto.graph.node.append(helper.make_node("Neg", [cache], ["other"]))
    proto.graph.output.append(INFO("other", 1, None))
    return proto


@pytest.mark.parametrize(
    ("proto", "match"),
    [
        (other_values(FORMS["microsoft"]), "its keys have 16 numbers and its values 8; both must have"),
        (other_values(FORMS["standard"]), "its keys have 16 numbers and its values 8; both must have"),
        (another_reader(FORMS["microsoft"], "pk"), "Neg.* reads a cache; leave kv_cache out"),
        (another_reader(FORMS["standard"], "nv"), "Neg.* reads a cache; leave kv_cache out"),
        (another_reader(FORMS["written out"], "pk"), "this form: Neg .* reads the cache"),
        (another_reader(FORMS["written out, shared heads"], "pk"), "Neg.* reads a cache; leave kv_cache out"),
        (another_reader(FORMS["written out"], "nk"), r"does not support this form: \w+ .* reads the cache"),
        (another_reader(FORMS["written out, shared heads"], "nv"), r"this form: \w+ .* reads the cache"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("fallback", [None, "onnxruntime"])
def test_forms_that_are_refused(
    any_device: vkq.Device, proto: onnx.ModelProto, match: str, fallback: str | None
) -> None:
    """A model is refused if keys and values have different sizes, or if another node reads a cache. The
    fallback does not change this."""
    with pytest.raises(vkq.ModelError, match=match):
        vkq.onnx.InferenceSession(proto, any_device, fallback, kv_cache="int8").explain()


def test_causal_queries_elsewhere(any_device: vkq.Device) -> None:
    """Causal queries that are not the last tokens of the cache are refused."""
    form = microsoft(3, 5, unidirectional=1)
    form.fed |= {x: normal(BATCH, 4, HEADS * WIDTH) for x in "kv"}
    with pytest.raises(vkq.ModelError, match="its 3 causal queries begin at position 5 of 9 keys"):
        vkq.onnx.InferenceSession(form.proto(), any_device, kv_cache="int8").explain()


def test_values_times_a_number(any_device: vkq.Device) -> None:
    """A model that multiplies the values of the cache by a number is refused. (A factor of the keys is
    allowed: it becomes part of the scale.)"""
    proto = written_out(3, 5, "sdpa").proto()
    last = next(node for node in reversed(proto.graph.node) if node.op_type == "MatMul")
    place = list(proto.graph.node).index(last)
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(2), "two"))
    proto.graph.node.insert(place, helper.make_node("Mul", [last.input[1], "two"], ["twice"]))
    last.input[1] = "twice"
    with pytest.raises(vkq.ModelError, match="kv_cache='int8' does not support this form"):
        vkq.onnx.InferenceSession(proto, any_device, kv_cache="int8").explain()


def test_one_tensor_for_both(any_device: vkq.Device) -> None:
    """com.microsoft's Attention stores keys and values in one tensor. With int8 caches this operator is
    refused, and the error lists the operators that are allowed."""
    fed = {"q": normal(2, 5, 19), "w": normal(19, 78), "b": normal(78), "c": normal(2, 2, 2, 3, 13)}
    node = helper.make_node("Attention", ["q", "w", "b", "", "c"], ["y", "nk"], domain=MICROSOFT, num_heads=2)
    form = Form([node, helper.make_node("Identity", ["q"], ["nv"])], fed)
    with pytest.raises(
        vkq.ModelError,
        match=r"MultiHeadAttention, ONNX's Attention, and of a Concat.*no attention with such a cache",
    ):
        vkq.onnx.InferenceSession(form.proto(), any_device, kv_cache="int8")


def test_caches_of_floats(any_device: vkq.Device) -> None:
    """Float caches raise an error in a session with int8 caches, and int8 words raise an error in a
    session with float caches. The errors name the option."""
    form = FORMS["written out"]
    plain = vkq.onnx.InferenceSession(form.proto(), any_device)
    packed = vkq.onnx.InferenceSession(form.proto(), any_device, kv_cache="int8")
    with pytest.raises(vkq.DTypeError, match=r"must be int32; with kv_cache='int8'"):
        packed.run(None, form.fed)
    with pytest.raises(vkq.DTypeError, match=r"must be float32; caches of a session with kv_cache='int8'"):
        plain.run(None, prepared(form))
    open_ = vkq.onnx.InferenceSession(growing(form), any_device, kv_cache="int8")
    with pytest.raises(vkq.ArgumentError, match=r"pk.*it must be \[2, 6, .*, 5\]"):
        open_.run(None, prepared(form) | {"pk": np.zeros((2, 6, 5, 4), np.int32)})
