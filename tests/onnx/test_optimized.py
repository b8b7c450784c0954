"""Tests of BERT, ViT and GPT-2 (`written_out`), as exported and after ONNX Runtime's transformer optimizer:
both forms run entirely on the device."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import vkq
import vkq.onnx
from tests.onnx import written_out
from tests.onnx.test_attention import BOUND
from vkq.onnx.cpu import cpu_session

FUSED = {
    "bert": {"Attention": 2, "SkipLayerNormalization": 4, "BiasGelu": 2},
    "vit": {"Attention": 2, "SkipLayerNormalization": 4, "BiasGelu": 2},
    "gpt2": {"Attention": 2, "SkipLayerNormalization": 4, "FastGelu": 2, "EmbedLayerNormalization": 1},
}


def optimized(name: str) -> bytes:
    data = (Path(__file__).parent / "optimized" / f"{name}.onnx").read_bytes()
    found = Counter(node.op_type for node in onnx.ModelProto.FromString(data).graph.node)
    assert {op: found[op] for op in FUSED[name]} == FUSED[name]
    return data


def check(device: vkq.Device, data: bytes, feeds: list[dict[str, Any]], bound: float = BOUND) -> None:
    session, other = vkq.onnx.InferenceSession(data, device), cpu_session(data, "comparing")
    for fed in feeds:
        for got, want in zip(session.run(None, fed), other.run(None, fed), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(got, want, rtol=0, atol=bound)
    shapes = {name: x.shape for name, x in feeds[-1].items()}
    assert {row.where for row in session.explain(shapes).rows} == {"device"}


def feeds(name: str) -> list[dict[str, Any]]:
    random = np.random.default_rng(3)
    if name == "vit":
        return [{"pixel_values": random.normal(0, 1, (1, 3, 12, 12)).astype(np.float32)}]
    if name == "bert":
        ids, kinds = (random.integers(0, n, (3, 9)) for n in (100, 2))
        mask = (np.arange(9) < np.array([[9], [4], [1]])).astype(np.int64)
        return [{"input_ids": ids, "token_type_ids": kinds, "attention_mask": mask}]
    made = []
    for batch, past, tokens in ((2, 0, 5), (2, 5, 1), (1, 6, 3)):
        mask = np.ones((batch, past + tokens), np.float32)
        mask[0, :2] = 0 if batch > 1 else 1  # the first text is padded at its start
        fed = {"input_ids": random.integers(0, 100, (batch, tokens)), "attention_mask": mask}
        fed["position_ids"] = np.broadcast_to(np.arange(past, past + tokens), (batch, tokens)).copy()
        shape = 2, batch, written_out.HEADS, past, written_out.WIDTH // written_out.HEADS
        made.append(fed | {f"past_{i}": random.normal(0, 1, shape).astype(np.float32) for i in range(2)})
    return made


@pytest.mark.parametrize("name", list(FUSED))
def test_fused(device: vkq.Device, name: str) -> None:
    """Results of optimized models are within BOUND of ONNX Runtime. GPT-2's bound is larger, because its
    first rows attend only to hidden keys, whose scores (-10000 + x) are rounded to 2^-10."""
    check(device, optimized(name), feeds(name), 2.0**-8 if name == "gpt2" else BOUND)


@pytest.mark.parametrize("name", list(FUSED))
def test_every_step_a_node(device: vkq.Device, name: str) -> None:
    data = getattr(written_out, name)().SerializeToString()
    check(device, data, feeds(name), 2.0**-8 if name == "gpt2" else BOUND)
