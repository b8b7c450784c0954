"""Tests of language models that onnxruntime-genai's model builder writes: they run entirely on the device,
for prompts and for single tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkq
import vkq.onnx
from tests.onnx.language import Sizes, llama
from vkq.onnx.cpu import cpu_session

FORMS = {
    "packed": Sizes(),
    "apart, symmetric, one layer": Sizes(packed=False, symmetric=True, layers=1),
    "quantized embeddings": Sizes(gathered=True),
    "float16": Sizes(dtype="float16"),
}

# Bounds of the difference between the scores of vkq and of ONNX Runtime, for scores of magnitude 16. float32:
# in each library, a sum of 96 products has an error of at most 100 * 2^-24 of the magnitude of its terms.
# float16: eight roundings with a relative error of 2^-11 each.
BOUND = {"float32": 2 * 16 * 100 * 2.0**-24, "float16": 16 * 8 * 2.0**-11}


def fed(sizes: Sizes, ids: list[int], past: list[np.ndarray], total: int) -> dict[str, Any]:
    """Return the model's inputs for the tokens *ids* after the caches *past*, with a mask of *total*
    tokens."""
    names = [f"past_key_values.{i}.{part}" for part in ("key", "value") for i in range(sizes.layers)]
    mask = np.ones((1, total), np.int64)
    return {"input_ids": np.int64([ids]), "attention_mask": mask, **dict(zip(names, past, strict=True))}


@pytest.mark.parametrize("name", list(FORMS))
def test_a_language_model(device: vkq.Device, name: str) -> None:
    """The difference of scores from ONNX Runtime's is at most BOUND for a prompt of 7 tokens, then for one
    token, one token and two tokens. Each run reads ONNX Runtime's caches."""
    sizes = FORMS[name]
    data = llama(sizes).SerializeToString()
    session, other = vkq.onnx.InferenceSession(data, device), cpu_session(data, "comparing")
    empty = np.zeros((1, sizes.kv_heads, 0, sizes.width), sizes.dtype)
    past, total = [empty] * 2 * sizes.layers, 0
    for ids in ([5, 9, 100, 0, 7, 7, 1], [3], [44], [8, 2]):
        total += len(ids)
        given = fed(sizes, ids, past, total)
        want, got = other.run(None, given), session.run(None, given)
        for y, expected in zip(got, want, strict=True):
            assert (y.shape, y.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(
                y.astype(np.float32), expected.astype(np.float32), rtol=0, atol=BOUND[sizes.dtype]
            )
        past = want[1:]
    shapes = {key: x.shape for key, x in given.items()}
    assert {row.where for row in session.explain(shapes).rows} == {"device"}
