"""Tests of com.microsoft's Attention and MultiHeadAttention on the device, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import vkq
import vkq.onnx
from tests.onnx.test_fused import both, normal
from tests.onnx.test_operators import MICROSOFT, model
from vkq.onnx.cpu import cpu_session

MASK = np.int32([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])  # the second text is padded at its end
# Scores of magnitude 8 differ from ONNX Runtime's by at most 2 (19 + 4) 2^-24 * 8 = 2.2e-5. This is also the
# relative error of softmax weights, which multiply values of magnitude 3.
BOUND = 1e-4


@pytest.mark.parametrize("names", ["xwbm", "xwb", "xwb--a", "xwbm-a", "xw-m"])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention(device: vkq.Device, names: str, unidirectional: int) -> None:
    """Attention without a cache is within BOUND of ONNX Runtime, bidirectional and causal, with two heads
    of 13 elements."""
    fed = {"x": normal(2, 5, 19), "m": MASK, "a": normal(2, 2, 5, 5, seed=3)}
    fed = {name: array for name, array in fed.items() if name in names}
    constants = {"w": normal(19, 78, seed=1) / 5, "b": normal(78, seed=2)}
    a = {"num_heads": 2, "unidirectional": unidirectional}
    ((y, want),) = both(device, "Attention", fed, constants, names, **a)
    np.testing.assert_allclose(y, want, rtol=0, atol=BOUND)


@pytest.mark.parametrize("names", ["qkv", "qkvb", "qkvbm", "qkv-ma", "qkv--a"])
def test_multi_head_attention(device: vkq.Device, names: str) -> None:
    """MultiHeadAttention of three queries and five keys is within BOUND of ONNX Runtime."""
    fed = {"q": normal(2, 3, 26), "k": normal(2, 5, 26, seed=1), "v": normal(2, 5, 26, seed=2)}
    fed |= {"m": MASK, "a": normal(1, 2, 3, 5, seed=3)}
    fed = {name: array for name, array in fed.items() if name in names}
    ((y, want),) = both(
        device, "MultiHeadAttention", fed, {"b": normal(78, seed=4)}, names, num_heads=2, scale=0.3
    )
    np.testing.assert_allclose(y, want, rtol=0, atol=BOUND)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_padding_to_the_left(device: vkq.Device, unidirectional: int) -> None:
    """With padding at the start, the first tokens attend only to hidden keys. Their scores -10000 + x are
    rounded to 2^-10, so softmax weights have this relative error, and results are close to ONNX Runtime's."""
    fed, a = {"x": normal(2, 5, 19), "m": MASK[:, ::-1].copy()}, {"unidirectional": unidirectional}
    constants = {"w": normal(19, 78, seed=1) / 5, "b": normal(78, seed=2)}
    ((y, want),) = both(device, "Attention", fed, constants, "xwbm", num_heads=2, **a)
    np.testing.assert_allclose(y, want, rtol=0, atol=4 * 2**-10)


def test_causal_multi_head_attention(device: vkq.Device) -> None:
    fed = {name: normal(2, 5, 26, seed=i) for i, name in enumerate("qkv")}
    ((y, want),) = both(device, "MultiHeadAttention", fed, {}, "qkv", num_heads=2, unidirectional=1)
    np.testing.assert_allclose(y, want, rtol=0, atol=BOUND)


@pytest.mark.parametrize("form", ["ends", "ends and starts", "queries", "widths"])
def test_masks_and_widths(device: vkq.Device, form: str) -> None:
    """Attention is within BOUND for masks that give each text's end, its end and start, or a flag for each
    query and key, and for values that are wider than keys."""
    masks = {
        "ends": np.int32([5, 3]),
        "ends and starts": np.int32([5, 4, 0, 2]),
        "queries": np.tril(np.ones((2, 5, 5), np.int32)),
    }
    fed = {"x": normal(2, 5, 19), "m": masks.get(form, MASK)}
    widths = [26, 26, 34] if form == "widths" else [26, 26, 26]
    constants = {"w": normal(19, sum(widths), seed=1) / 5, "b": normal(sum(widths), seed=2)}
    ((y, want),) = both(device, "Attention", fed, constants, "xwbm", num_heads=2, qkv_hidden_sizes=widths)
    np.testing.assert_allclose(y, want, rtol=0, atol=BOUND)


@pytest.mark.parametrize("held", [0, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_a_cache_of_attention(device: vkq.Device, held: int, masked: bool) -> None:
    """Attention with GPT-2's cache is within BOUND of ONNX Runtime: one input holds the past keys and
    values, one result the present ones. Attention is causal, also over the past."""
    fed = {"x": normal(2, 5, 19), "c": normal(2, 2, 2, held, 13, seed=3)}
    if masked:
        fed["m"] = np.int32([[0] * 2 + [1] * (held + 3), [1] * (held + 5)])
    constants = {"w": normal(19, 78, seed=1) / 5, "b": normal(78, seed=2)}
    names = "xwbmc" if masked else "xwb-c"
    (y, want), (present, other) = both(
        device, "Attention", fed, constants, names, "yp", num_heads=2, unidirectional=1
    )
    np.testing.assert_allclose(y, want, rtol=0, atol=4 * 2**-10 if masked else BOUND)
    np.testing.assert_allclose(present, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("names", ["qkv---yz", "qkvbmayz"])
def test_a_cache_of_multi_head_attention(device: vkq.Device, names: str) -> None:
    """MultiHeadAttention with two past keys is within BOUND. The present keys are the past keys and the new
    ones."""
    fed = {"q": normal(2, 3, 26), "k": normal(2, 3, 26, seed=1), "v": normal(2, 3, 26, seed=2)}
    fed |= {"m": MASK, "a": normal(1, 2, 3, 5, seed=3), "b": normal(78, seed=4)}
    fed |= {"y": normal(2, 2, 2, 13, seed=5), "z": normal(2, 2, 2, 13, seed=6)}
    fed = {name: array for name, array in fed.items() if name in names}
    (y, want), *caches = both(
        device, "MultiHeadAttention", fed, {}, names, "opr", num_heads=2, unidirectional=1
    )
    np.testing.assert_allclose(y, want, rtol=0, atol=BOUND)
    for got, want in caches:
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("op", ["Attention", "MultiHeadAttention"])
def test_float16(device: vkq.Device, op: str) -> None:
    """float16 results are close to ONNX Runtime's float32 results for the same values. (ONNX Runtime's CPU
    provider has no float16 Attention.) The bound: q, k and v of magnitude 4 are rounded to 2^-9, these errors
    add up over the 13 terms of a score, and results are rounded once."""
    fed = (
        {"x": normal(2, 5, 19)}
        if op == "Attention"
        else {n: normal(2, 5, 26, seed=i) for i, n in enumerate("qkv")}
    )
    constants = {"w": normal(19, 78, seed=1) / 5, "b": normal(78, seed=2)} if op == "Attention" else {}
    half, wide = (
        [{name: x.astype(np.float16).astype(dtype) for name, x in of.items()} for of in (fed, constants)]
        for dtype in (np.float16, np.float32)
    )
    names = ["x", "w", "b"] if op == "Attention" else ["q", "k", "v"]
    node = helper.make_node(op, names, ["y"], domain=MICROSOFT, num_heads=2)
    (want,) = cpu_session(model([node], *wide, "float32"), "comparing").run(None, wide[0])
    (got,) = vkq.onnx.InferenceSession(model([node], *half, "float16"), device).run(None, half[0])
    assert got.dtype == np.float16
    bound = 2.0**-9 if op == "MultiHeadAttention" else 13**0.5 * 4 * 2.0**-9
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=0, atol=bound)


@pytest.mark.parametrize("form", ["all in q", "k and v in k", "by head"])
def test_packed_multi_head_attention(device: vkq.Device, form: str) -> None:
    """MultiHeadAttention also reads q, k and v packed in one tensor, k and v packed in one tensor, and k
    and v with an axis of heads (from an encoder). Results equal those of separate operands. ONNX Runtime's
    CPU provider cannot read packed operands."""
    q, k, v = (normal(2, 5, 2, 13, seed=i) for i in range(3))
    apart = {name: x.reshape(2, 5, 26) for name, x in zip("qkv", (q, k, v), strict=True)}
    ((plain, want),) = both(device, "MultiHeadAttention", apart, {}, "qkv", num_heads=2)
    fed = {
        "all in q": {"q": np.stack([q, k, v], axis=3)},
        "k and v in k": {"q": apart["q"], "k": np.stack([k, v], axis=3)},
        "by head": {"q": apart["q"], "k": k.swapaxes(1, 2), "v": v.swapaxes(1, 2)},
    }[form]
    node = helper.make_node("MultiHeadAttention", list(fed), ["y"], domain=MICROSOFT, num_heads=2)
    session = vkq.onnx.InferenceSession(model([node], fed, {}, "float32"), device)
    np.testing.assert_array_equal(session.run(None, fed)[0], plain)
    np.testing.assert_allclose(plain, want, rtol=0, atol=BOUND)


@pytest.mark.parametrize("case", ["rotary", "heads", "megatron"])
def test_other_forms_are_left_to_the_fallback(any_device: vkq.Device, case: str) -> None:
    """The fallback runs forms that vkq refuses: built-in rotary embeddings, heads that do not divide the
    width, and masks of four axes."""
    fed: dict[str, Any] = {"x": normal(2, 5, 19)}
    constants: dict[str, Any] = {"w": normal(19, 96), "b": normal(96), "m": np.ones((2, 1, 8, 8), np.int32)}
    a = {"num_heads": 5 if case == "heads" else 2, "do_rotary": int(case == "rotary")}
    inputs = ["x", "w", "b", "m"] if case == "megatron" else ["x", "w", "b"]
    node = helper.make_node("Attention", inputs, ["y"], domain=MICROSOFT, **a)
    with pytest.raises(vkq.VkqError):
        vkq.onnx.InferenceSession(model([node], fed, constants, "float32"), any_device)


def fused_encoder(width: int = 64) -> bytes:
    """Return an encoder of two layers as ONNX Runtime's optimizer writes it, for any batch and length."""
    random, constants, nodes = np.random.default_rng(0), dict[str, np.ndarray](), list[Any]()

    def c(name: str, *shape: int) -> str:
        constants[name] = (random.normal(0, 0.2, shape) + (name[0] == "g")).astype(np.float32)
        return name

    def add(op: str, inputs: list[str], *outputs: str, **a: Any) -> None:
        nodes.append(helper.make_node(op, inputs, outputs, domain="" if op == "MatMul" else MICROSOFT, **a))

    tables = [c("w", 100, width), c("p", 64, width), c("e", 2, width), c("g", width), c("b", width)]
    add("EmbedLayerNormalization", ["ids", "segments", *tables, "mask"], "x0", "count")
    for i, gelu in enumerate(("FastGelu", "BiasGelu")):
        x, end = f"x{i}", f"x{i + 1}"
        projection = [c(f"wq{i}", width, 3 * width), c(f"bq{i}", 3 * width)]
        add("Attention", [x, *projection, "mask"], f"a{i}", num_heads=4)
        add("MatMul", [f"a{i}", c(f"wo{i}", width, width)], f"o{i}")
        norms = [[c(f"{k}{i}{n}", width) for k in "gbc"] for n in range(2)]
        add("SkipLayerNormalization", [f"o{i}", x, *norms[0]], f"n{i}")
        add("MatMul", [f"n{i}", c(f"wu{i}", width, 4 * width)], f"u{i}")
        add(gelu, [f"u{i}", c(f"bu{i}", 4 * width)], f"h{i}")
        add("MatMul", [f"h{i}", c(f"wd{i}", 4 * width, width)], f"d{i}")
        add("SkipLayerNormalization", [f"d{i}", f"n{i}", *norms[1]], end)
    kinds = [helper.make_tensor_value_info(n, 6, ["batch", "tokens"]) for n in ("ids", "segments", "mask")]
    result = helper.make_tensor_value_info("x2", 1, ["batch", "tokens", width])
    stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", kinds, [result], stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def test_a_fused_encoder(device: vkq.Device) -> None:
    """The encoder runs entirely on the device, for alternating lengths, within BOUND of ONNX Runtime."""
    data, random = fused_encoder(), np.random.default_rng(1)
    session, other = vkq.onnx.InferenceSession(data, device), cpu_session(data, "comparing")
    for batch, tokens in ((1, 7), (2, 12), (1, 7)):
        shape = batch, tokens
        fed = {"ids": random.integers(0, 100, shape), "segments": random.integers(0, 2, shape)}
        fed = {name: x.astype(np.int32) for name, x in fed.items()} | {"mask": np.ones(shape, np.int32)}
        fed["mask"][-1, -3:] = 0
        got, want = session.run(None, fed)[0], other.run(None, fed)[0]
        np.testing.assert_allclose(got, want, rtol=0, atol=BOUND)
