"""Tests of com.microsoft's GroupQueryAttention on the device, compared with ONNX Runtime, for prompts,
single tokens and batches of several lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import vkq
import vkq.onnx
from tests.onnx.test_attention import BOUND
from tests.onnx.test_fused import normal
from tests.onnx.test_operators import MICROSOFT
from vkq.onnx.cpu import cpu_session

Arrays = dict[str, Any]
HEADS, KV_HEADS, WIDTH = 6, 2, 16
# Bound for float16 results of magnitude 4: vkq rounds once, ONNX Runtime also rounds q and k after the
# rotation.
HALF_BOUND = 2.0**-8


def compared(
    device: vkq.Device, node: Any, fed: Arrays, constants: Arrays, opset: int = 21
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return pairs of vkq's and ONNX Runtime's results of one node. Results have the type of the node's
    first input."""
    kind = helper.np_dtype_to_tensor_dtype(fed[node.input[0]].dtype)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in fed.items()
    ]
    results = [helper.make_tensor_value_info(name, kind, None) for name in node.output if name]
    stored = [numpy_helper.from_array(np.asarray(x), name) for name, x in constants.items()]
    graph = helper.make_graph([node], "g", infos, results, stored)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    session = vkq.onnx.InferenceSession(data, device)
    pairs = list(zip(session.run(None, fed), cpu_session(data, "comparing").run(None, fed), strict=True))
    assert all(got.shape == want.shape and got.dtype == want.dtype for got, want in pairs)
    return pairs


def tables(dtype: Any) -> Arrays:
    angles = np.arange(32)[:, None] / 10.0 ** (np.arange(WIDTH // 2) / 2)
    return {"cos": np.cos(angles).astype(dtype), "sin": np.sin(angles).astype(dtype)}


def grouped(
    device: vkq.Device, tokens: int, held: int, lengths: list[int], *, packed: bool = False,
    dtype: Any = np.float32, rotary: bool = True, more: Arrays | None = None, **a: Any,
) -> None:  # fmt: skip
    """Compare results with ONNX Runtime: *tokens* new tokens for each batch element, after a cache with room
    for *held* tokens. *lengths*: the length of each batch element afterwards."""
    batch, total = len(lengths), max(lengths)
    widths = (HEADS + 2 * KV_HEADS,) if packed else (HEADS, KV_HEADS, KV_HEADS)
    fed = {
        name: normal(batch, tokens, n * WIDTH, seed=i).astype(dtype)
        for i, (name, n) in enumerate(zip("qkv", widths, strict=False))
    }
    if held:
        fed |= {n: normal(batch, KV_HEADS, held, WIDTH, seed=i).astype(dtype) for i, n in enumerate("yz", 3)}
    fed |= {"last": np.int32(lengths) - 1, **(more or {})}
    constants = {"total": np.int32(total), **(tables(dtype) if rotary else {})}
    names = ["q", "k", "v", "y", "z", "last", "total", "cos", "sin", "place", "bias", "sink"]
    names = [name if name in fed or name in constants else "" for name in names]
    a |= {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": int(rotary)}
    node = helper.make_node("GroupQueryAttention", names, ["o", "py", "pz"], domain=MICROSOFT, **a)
    (y, want), *caches = compared(device, node, fed, constants)
    np.testing.assert_allclose(y, want, rtol=0, atol=BOUND if dtype == np.float32 else HALF_BOUND)
    for got, want in caches:
        assert got.shape[2] == max(held, total)
        for line, other, length in zip(got, want, lengths, strict=True):
            bound = 1e-6 if dtype == np.float32 else 2.0**-9  # a rotation rounds three times
            np.testing.assert_allclose(line[:, :length], other[:, :length], rtol=0, atol=bound)


PROMPTS = [(5, 0, [5]), (7, 0, [7, 3]), (5, 12, [5]), (5, 12, [5, 3])]
TOKENS = [(1, 5, [6]), (1, 12, [6]), (1, 12, [6, 4]), (1, 12, [12, 1]), (3, 5, [8]), (3, 12, [8])]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("sizes", PROMPTS + TOKENS)
def test_caches(device: vkq.Device, sizes: tuple[int, int, list[int]], packed: bool) -> None:
    """Results and caches agree with ONNX Runtime, both if the new tokens make the present cache longer
    than the past cache and if the two caches are equally long. Each batch element has its own length."""
    grouped(device, *sizes, packed=packed)


@pytest.mark.parametrize("sizes", [PROMPTS[3], TOKENS[2]])
def test_float16(device: vkq.Device, sizes: tuple[int, int, list[int]]) -> None:
    grouped(device, *sizes, dtype=np.float16)


@pytest.mark.parametrize("sizes", [(5, 12, [5]), (1, 12, [9]), (3, 12, [12])])
def test_a_cache_of_a_window(device: vkq.Device, sizes: tuple[int, int, list[int]]) -> None:
    """Attention with a window is also correct with a cache that has room for every token, as in models of
    which only some layers have windows."""
    grouped(device, *sizes, local_window_size=4, sliding_window_cache=1)


FORMS = {
    "window": {"local_window_size": 3},
    "softcap": {"softcap": 2.0},
    "scale": {"scale": 0.3},
    "interleaved": {"rotary_interleaved": 1},
    "no rotation": {"rotary": False},
    "smooth": {"smooth_softmax": 1},
}


@pytest.mark.parametrize("name", list(FORMS))
@pytest.mark.parametrize("sizes", [(7, 0, [7]), (3, 9, [8])])
def test_forms(device: vkq.Device, name: str, sizes: tuple[int, int, list[int]]) -> None:
    grouped(device, *sizes, **FORMS[name])


@pytest.mark.parametrize("name", ["place", "bias", "sink"])
def test_further_inputs(device: vkq.Device, name: str) -> None:
    """The node's optional inputs are used: position ids that do not continue the cache, an attention bias,
    and an attention sink for each head."""
    more = {
        "place": np.int64([[3, 4, 9]]),
        "bias": normal(1, HEADS, 3, 8, seed=9),
        "sink": normal(HEADS, seed=8),
    }
    grouped(device, 3, 5, [8], more={name: more[name]})


@pytest.mark.filterwarnings("ignore::vkq.onnx.constant.ConstantInputWarning")
def test_a_total_of_the_run(any_device: vkq.Device) -> None:
    """If the total length is an input, its value decides the length of the present cache in each run, and
    results agree with ONNX Runtime."""
    fed = {"q": normal(1, 1, 160), "y": normal(1, 2, 4, 16), "z": normal(1, 2, 4, 16)}
    node = helper.make_node(
        "GroupQueryAttention", ["q", "", "", "y", "z", "last", "total"], ["o", "py", "pz"],
        domain=MICROSOFT, num_heads=6, kv_num_heads=2,
    )  # fmt: skip
    for total in (5, 3):
        fed |= {"last": np.int32([total - 1]), "total": np.array(total, np.int32)}
        (y, want), (py, _), _ = compared(any_device, node, fed, {})
        assert py.shape[2] == max(total, 4)
        np.testing.assert_allclose(y, want, rtol=0, atol=BOUND)


@pytest.mark.parametrize(("tokens", "held", "last"), [(3, 9, [1]), (3, 9, [9]), (5, 0, [5]), (5, 0, [-1])])
def test_lengths_that_a_cache_cannot_have(
    any_device: vkq.Device, tokens: int, held: int, last: list[int]
) -> None:
    """Lengths that are shorter than the new tokens, or longer than the cache, are errors, so that no other
    token's keys are used."""
    fed = {"q": normal(1, tokens, 160), "last": np.int32(last)}
    fed |= {n: normal(1, 2, held, 16) for n in "yz"} if held else {}
    names = ["q", "", "", *("yz" if held else ("", "")), "last", "total"]
    node = helper.make_node(
        "GroupQueryAttention", names, ["o", "py", "pz"], domain=MICROSOFT, num_heads=6, kv_num_heads=2
    )
    with pytest.raises(vkq.ArgumentError, match=f"'last' holds {last[0]}"):
        compared(any_device, node, fed, {"total": np.int32(8 if held else tokens)})
    with pytest.raises(vkq.ModelError, match=f"seqlens_k holds {last[0]} to {last[0]}"):
        compared(any_device, node, fed, {"total": np.int32(8 if held else tokens), "last": fed.pop("last")})


def test_a_window_without_room_is_refused(any_device: vkq.Device) -> None:
    with pytest.raises(vkq.VkqError, match=r"does not support this form of .*GroupQueryAttention"):
        grouped(any_device, 1, 4, [5], local_window_size=4, sliding_window_cache=1)


def test_a_quantized_cache_is_refused(any_device: vkq.Device) -> None:
    fed = {"q": normal(1, 1, 160), "last": np.int32([0])}
    node = helper.make_node(
        "GroupQueryAttention", ["q", "", "", "", "", "last", "total"], ["o"], domain=MICROSOFT,
        num_heads=6, kv_num_heads=2, k_quant_type="PER_TENSOR",
    )  # fmt: skip
    with pytest.raises(vkq.VkqError, match="GroupQueryAttention"):
        compared(any_device, node, fed, {"total": np.int32(1)})
