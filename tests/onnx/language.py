"""A Llama with random weights, with the nodes, names and files that onnxruntime-genai's model builder
writes (int4, for the CPU)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import vkq

MICROSOFT = "com.microsoft"


@dataclasses.dataclass(frozen=True)
class Sizes:
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    width: int = 16
    inner: int = 96
    words: int = 101
    context: int = 128
    block: int = 32
    dtype: str = "float32"
    packed: bool = True  # one product computes q, k and v
    symmetric: bool = False
    gathered: bool = False  # the embedding table is quantized, too


class _Net:
    def __init__(self, sizes: Sizes):
        self.sizes, self.random = sizes, np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, array: Any) -> str:
        array = np.asarray(array)
        array = array.astype(self.sizes.dtype) if array.dtype.kind == "f" else array
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def op(self, op: str, inputs: list[str], outputs: list[str] | str, domain: str = "", **a: Any) -> str:
        outputs = [outputs] if isinstance(outputs, str) else outputs
        self.nodes.append(helper.make_node(op, inputs, outputs, name=outputs[0], domain=domain, **a))
        return outputs[0]

    def quantized(self, n: int, k: int, size: float = 1.0) -> vkq.GroupedWeight:
        w = self.random.normal(0, size / np.sqrt(k), (n, k)).astype(np.float32)
        return vkq.quantize_weight(w, group=self.sizes.block, bits=4, symmetric=self.sizes.symmetric)

    def linear(self, x: str, name: str, n: int, k: int, size: float = 1.0) -> str:
        w = self.quantized(n, k, size)
        inputs = [x, self.constant(f"{name}.qweight", w.packed)]
        inputs.append(self.constant(f"{name}.scales", w.scale.reshape(-1).astype(np.float32)))
        if w.zero_point is not None:
            inputs.append(self.constant(f"{name}.qzeros", w.zero_point.reshape(-1)))
        a = {"K": k, "N": n, "bits": 4, "block_size": self.sizes.block, "accuracy_level": 0}
        return self.op("MatMulNBits", inputs, f"{name}/output_0", MICROSOFT, **a)

    def norm(self, x: str, skip: str, name: str, last: bool = False) -> tuple[str, str]:
        """Add a normalization of x + *skip*, or of x if *skip* is "". Return (the normalized value, the
        sum)."""
        scale = self.constant(f"{name}.weight", self.random.normal(1, 0.2, self.sizes.hidden))
        if not skip:
            a = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
            return self.op("SimplifiedLayerNormalization", [x, scale], f"{name}/output_0", **a), x
        outputs = [f"{name}/output_0"] if last else [f"{name}/output_0", "", "", f"{name}/output_3"]
        self.op("SkipSimplifiedLayerNormalization", [x, skip, scale], outputs, MICROSOFT, epsilon=1e-5)
        return outputs[0], outputs[-1]


def _reformatted(net: _Net) -> tuple[str, str]:
    """Add nodes that compute the last token's position and the total length from the attention mask. Return
    the names of both."""
    axis, one = net.constant("axis", np.array([1])), net.constant("one", np.array([1]))
    sums = net.op("ReduceSum", ["attention_mask", axis], "mask/ReduceSum", keepdims=1)
    last = net.op("Cast", [net.op("Sub", [sums, one], "mask/Sub")], "seqlens_k", to=TensorProto.INT32)
    index = net.constant("index", np.array(1))
    total = net.op(
        "Gather", [net.op("Shape", ["attention_mask"], "mask/Shape"), index], "mask/Gather", axis=0
    )
    return last, net.op("Cast", [total], "total_seq_len", to=TensorProto.INT32)


def _layer(net: _Net, i: int, x: str, skip: str, masks: tuple[str, str]) -> tuple[str, str]:
    s, name = net.sizes, f"/model/layers.{i}"
    x, skip = net.norm(x, skip, f"{name}/input_layernorm")
    q_width, kv_width = s.heads * s.width, s.kv_heads * s.width
    if s.packed:
        qkv = [net.linear(x, f"{name}/attn/qkv_proj", q_width + 2 * kv_width, s.hidden, 2), "", ""]
    else:
        sizes = {"q": q_width, "k": kv_width, "v": kv_width}
        qkv = [net.linear(x, f"{name}/attn/{p}_proj", n, s.hidden, 2) for p, n in sizes.items()]
    past = [f"past_key_values.{i}.{kind}" for kind in ("key", "value")]
    present = [f"present.{i}.{kind}" for kind in ("key", "value")]
    attended = net.op(
        "GroupQueryAttention", [*qkv, *past, *masks, "cos_cache", "sin_cache"],
        [f"{name}/attn/output_0", *present], MICROSOFT, num_heads=s.heads, kv_num_heads=s.kv_heads,
        scale=float(s.width**-0.5), local_window_size=-1, softcap=0.0, do_rotary=1, rotary_interleaved=0,
    )  # fmt: skip
    x = net.linear(attended, f"{name}/attn/o_proj", s.hidden, q_width)
    x, skip = net.norm(x, skip, f"{name}/post_attention_layernorm")
    gate, up = (net.linear(x, f"{name}/mlp/{p}_proj", s.inner, s.hidden) for p in ("gate", "up"))
    act = net.op("Mul", [gate, net.op("Sigmoid", [gate], f"{name}/mlp/act_fn/Sigmoid")], f"{name}/mlp/act_fn")
    return net.linear(
        net.op("Mul", [act, up], f"{name}/mlp/Mul"), f"{name}/mlp/down", s.hidden, s.inner
    ), skip


def llama(s: Sizes = Sizes()) -> onnx.ModelProto:
    net = _Net(s)
    angles = np.arange(s.context)[:, None] / 10000.0 ** (np.arange(s.width // 2) * 2 / s.width)
    net.constant("cos_cache", np.cos(angles))
    net.constant("sin_cache", np.sin(angles))
    if s.gathered:
        w = net.quantized(s.words, s.hidden, 8)
        table = [net.constant("embed.qweight", w.packed.reshape(s.words, -1)), "input_ids"]
        table.append(net.constant("embed.scales", w.scale.astype(np.float32)))
        table += [] if w.zero_point is None else [net.constant("embed.qzeros", w.zero_point)]
        a = {"bits": 4, "block_size": s.block, "gather_axis": 0, "quantize_axis": 1}
        x = net.op("GatherBlockQuantized", table, "/model/embed_tokens", MICROSOFT, **a)
    else:
        table = [net.constant("embed.weight", net.random.normal(0, 1, (s.words, s.hidden))), "input_ids"]
        x = net.op("Gather", table, "/model/embed_tokens")
    masks, skip = _reformatted(net), ""
    for i in range(s.layers):
        x, skip = _layer(net, i, x, skip, masks)
    x, _ = net.norm(x, skip, f"/model/layers.{s.layers}/final_norm", last=True)
    logits = net.linear(x, "/lm_head", s.words, s.hidden, 4)
    net.op("Identity", [logits], "logits")
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(s.dtype))
    info = helper.make_tensor_value_info
    inputs = [info("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"])]
    inputs.append(info("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"]))
    outputs = [info("logits", kind, ["batch_size", "sequence_length", s.words])]
    for part in ("key", "value"):
        for i in range(s.layers):
            shapes = (
                ["batch_size", s.kv_heads, f"{n}_sequence_length", "kv_cache_dim"] for n in ("past", "total")
            )
            past, present = shapes
            inputs.append(info(f"past_key_values.{i}.{part}", kind, past))
            outputs.append(info(f"present.{i}.{part}", kind, present))
    graph = helper.make_graph(net.nodes, "main_graph", inputs, outputs, net.constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def config(s: Sizes) -> dict[str, Any]:
    """Return the content of genai_config.json."""
    names = {"past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"}
    results = {"present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": "model.onnx", "head_size": s.width, "hidden_size": s.hidden,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **names},
        "outputs": {"logits": "logits", **results}, "num_attention_heads": s.heads,
        "num_hidden_layers": s.layers, "num_key_value_heads": s.kv_heads,
    }  # fmt: skip
    model = {
        "bos_token_id": 1, "context_length": s.context, "decoder": decoder, "eos_token_id": [2, 3],
        "pad_token_id": 0, "type": "llama", "vocab_size": s.words,
    }  # fmt: skip
    search = {
        "do_sample": False, "early_stopping": True, "max_length": s.context, "min_length": 0, "num_beams": 1,
        "past_present_share_buffer": True, "repetition_penalty": 1.0, "temperature": 1.0, "top_k": 1,
        "top_p": 1.0,
    }  # fmt: skip
    return {"model": model, "search": search}


def folder(path: Path, s: Sizes = Sizes()) -> Path:
    """Write the model's folder, with weights as external data."""
    onnx.save(
        llama(s), path / "model.onnx", save_as_external_data=True, location="model.onnx.data",
        size_threshold=64,
    )  # fmt: skip
    (path / "genai_config.json").write_text(json.dumps(config(s), indent=4))
    return path
