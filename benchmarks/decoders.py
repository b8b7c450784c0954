"""Time a Llama of 1.1 billion weights, with random 4-bit weights, beside PyTorch's fp16 on a CUDA GPU.

    python benchmarks/decoders.py [--dtype float32 float16] [--layers 16] [--block 128] [--keys 512 2048]
        [--prompt 512] [--compute float32 float16] [--kv-cache int8] [--torch] [--device NAME] [--json FILE]

The model has the nodes that onnxruntime-genai's model builder writes: 32 heads of 64, 8 heads of keys and
values, hidden size 2048, inner size 8192, 32,000 words. Its caches have as many tokens as the largest number
in --keys and --prompt. Activations and caches have the type --dtype. Rows are printed as JSON. In a row with
"what": "token", the times are those of one token, which is number `keys` of its text. In a row with "what":
"prompt", they are those of a prompt of `keys` tokens, with an empty cache.

`gpu_ms` is the median time between two timestamps around the recorded network. The other two times are wall
times of `vkq.onnx.LanguageModel` with a prompt of `keys` - 48 tokens: `wall_ms` is the median of a token,
with the choice of the token, and `first_wall_ms` goes from the start of the text to its first token. --torch
adds the same network in PyTorch: fp16 weights and caches, in a CUDA graph."""

import argparse
import dataclasses
import datetime
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import vkq
import vkq.onnx

MICROSOFT, RUNS, WARMING_S = "com.microsoft", 30, 0.5
HEADS, KV_HEADS, WIDTH, HIDDEN, INNER, WORDS = 32, 8, 64, 2048, 8192, 32000


@dataclasses.dataclass(frozen=True)
class Sizes:
    layers: int
    block: int  # weights along K that share a scale
    room: int  # length of the caches in tokens
    dtype: str


class Net:
    """The nodes and constants of a decoder. All layers have the same 4-bit codes, because drawing a billion
    random numbers would take longer than all measurements. Each layer has its own copy of them in memory."""

    def __init__(self, sizes: Sizes):
        self.sizes, self.random = sizes, np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.drawn = self.random.integers(0, 256, HIDDEN * WORDS // 2, np.uint8)

    def constant(self, name: str, array: Any) -> str:
        array = array.astype(self.sizes.dtype) if array.dtype.kind == "f" else array
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def op(self, op: str, inputs: list[str], outputs: list[str], domain: str = "", **a: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, outputs, name=outputs[0], domain=domain, **a))
        return outputs[0]

    def linear(self, x: str, name: str, n: int, k: int) -> str:
        blocks = k // self.sizes.block
        codes = np.resize(self.drawn, (n, blocks, self.sizes.block // 2))
        inputs = [x, self.constant(f"{name}.qweight", codes)]
        inputs.append(self.constant(f"{name}.scales", self.random.uniform(0.5, 1, n * blocks) / 5 / k**0.5))
        a = {"K": k, "N": n, "bits": 4, "block_size": self.sizes.block, "accuracy_level": 0}
        return self.op("MatMulNBits", inputs, [f"{name}/output_0"], MICROSOFT, **a)

    def norm(self, x: str, skip: str, name: str) -> tuple[str, str]:
        """Add a normalization of x + *skip* (of x if *skip* is ""). Return (its result, the sum)."""
        scale = self.constant(f"{name}.weight", self.random.normal(1, 0.2, HIDDEN))
        if not skip:
            a = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
            return self.op("SimplifiedLayerNormalization", [x, scale], [f"{name}/output_0"], **a), x
        outputs = [f"{name}/output_0", "", "", f"{name}/output_3"]
        self.op("SkipSimplifiedLayerNormalization", [x, skip, scale], outputs, MICROSOFT, epsilon=1e-5)
        return outputs[0], outputs[-1]

    def layer(self, i: int, x: str, skip: str, masks: list[str]) -> tuple[str, str]:
        name = f"/model/layers.{i}"
        x, skip = self.norm(x, skip, f"{name}/input_layernorm")
        qkv = self.linear(x, f"{name}/attn/qkv_proj", (HEADS + 2 * KV_HEADS) * WIDTH, HIDDEN)
        past = [f"past_key_values.{i}.{part}" for part in ("key", "value")]
        present = [f"present.{i}.{part}" for part in ("key", "value")]
        attended = self.op(
            "GroupQueryAttention", [qkv, "", "", *past, *masks, "cos_cache", "sin_cache"],
            [f"{name}/attn/output_0", *present], MICROSOFT, num_heads=HEADS, kv_num_heads=KV_HEADS,
            scale=WIDTH**-0.5, local_window_size=-1, softcap=0.0, do_rotary=1, rotary_interleaved=0,
        )  # fmt: skip
        x = self.linear(attended, f"{name}/attn/o_proj", HIDDEN, HEADS * WIDTH)
        x, skip = self.norm(x, skip, f"{name}/post_attention_layernorm")
        gate, up = (self.linear(x, f"{name}/mlp/{p}_proj", INNER, HIDDEN) for p in ("gate", "up"))
        act = self.op("Sigmoid", [gate], [f"{name}/mlp/act_fn/Sigmoid"])
        act = self.op("Mul", [gate, act], [f"{name}/mlp/act_fn/Mul"])
        act = self.op("Mul", [act, up], [f"{name}/mlp/Mul"])
        return self.linear(act, f"{name}/mlp/down_proj", HIDDEN, INNER), skip

    def masks(self) -> list[str]:
        """Add nodes that compute the last token's position and the total length from the mask."""
        axis, one = self.constant("axis", np.array([1])), self.constant("one", np.array([1]))
        sums = self.op("ReduceSum", ["attention_mask", axis], ["mask/ReduceSum"], keepdims=1)
        last = self.op("Sub", [sums, one], ["mask/Sub"])
        index, shape = (
            self.constant("index", np.array(1)),
            self.op("Shape", ["attention_mask"], ["mask/Shape"]),
        )
        total = self.op("Gather", [shape, index], ["mask/Gather"], axis=0)
        made = {"seqlens_k": last, "total_seq_len": total}
        return [self.op("Cast", [x], [name], to=TensorProto.INT32) for name, x in made.items()]


def decoder(sizes: Sizes) -> onnx.ModelProto:
    net = Net(sizes)
    angles = np.arange(sizes.room)[:, None] / 10000.0 ** (np.arange(WIDTH // 2) * 2 / WIDTH)
    net.constant("cos_cache", np.cos(angles))
    net.constant("sin_cache", np.sin(angles))
    table = net.constant("embed.weight", np.resize(net.random.normal(0, 1, 1 << 20), (WORDS, HIDDEN)))
    x, skip = net.op("Gather", [table, "input_ids"], ["/model/embed_tokens"]), ""
    masks = net.masks()
    for i in range(sizes.layers):
        x, skip = net.layer(i, x, skip, masks)
    x, _ = net.norm(x, skip, "/model/final_norm")
    net.op("Identity", [net.linear(x, "/lm_head", WORDS, HIDDEN)], ["logits"])
    kind, info = helper.np_dtype_to_tensor_dtype(np.dtype(sizes.dtype)), helper.make_tensor_value_info
    inputs = [info(name, TensorProto.INT64, ["batch", name]) for name in ("input_ids", "attention_mask")]
    outputs = [info("logits", kind, ["batch", "input_ids", WORDS])]
    for i, part in itertools.product(range(sizes.layers), ("key", "value")):
        past, present = (["batch", KV_HEADS, f"{x}_length", WIDTH] for x in ("past", "total"))
        inputs.append(info(f"past_key_values.{i}.{part}", kind, past))
        outputs.append(info(f"present.{i}.{part}", kind, present))
    graph = helper.make_graph(net.nodes, "decoder", inputs, outputs, net.constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def write(folder: Path, sizes: Sizes) -> None:
    """Write the model, with weights as external data, and its genai_config.json."""
    onnx.save(
        decoder(sizes),
        folder / "model.onnx",
        save_as_external_data=True,
        location="weights",
        size_threshold=64,
    )
    past = {"past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"}
    present = {"present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}
    layers = {"filename": "model.onnx", "head_size": WIDTH, "num_hidden_layers": sizes.layers}
    layers |= {"num_key_value_heads": KV_HEADS, "inputs": past, "outputs": present}
    model = {"context_length": sizes.room, "decoder": layers, "eos_token_id": []}
    config = {"model": model, "search": {"past_present_share_buffer": True}}
    (folder / "genai_config.json").write_text(json.dumps(config))


def gpu_ms(session: vkq.onnx.InferenceSession, tokens: int, seen: int, room: int) -> dict[str, Any]:
    """Return the median time on the device for *tokens* tokens after *seen* earlier tokens, and the number of
    dispatches."""
    device = session.device
    feed: dict[str, Any] = {"input_ids": np.ones((1, tokens), np.int32)}
    feed["attention_mask"] = (np.arange(room)[None] < seen + tokens).astype(np.int32)
    for one in session.model.inputs:
        if one.name not in feed:
            feed[one.name] = np.zeros((1, KV_HEADS, room, one.shape[3]), one.dtype)
    network: Any = session._executable(feed)
    pasts = {}
    for name, tensor in network.inputs.items():
        tensor.write(feed[name])
        pasts[name.replace("past_key_values", "present")] = tensor
    results = [pasts[x].buffer if x in pasts else network.outputs[x].buffer for x in network.results]
    with device.record(marks=2) as recording:
        recording.mark()
        recording.barrier()
        recording.add(network.plan, [x.buffer for x in network.inputs.values()], results)
        recording.barrier()
        recording.mark()
    end = time.perf_counter() + WARMING_S
    times: list[float] = []
    while time.perf_counter() < end or len(times) < RUNS:
        recording.run()
        times += recording.mark_times_us()
    return {"gpu_ms": statistics.median(times[-RUNS:]) / 1e3, "dispatches": len(network.plan.variants)}


def wall_ms(model: vkq.onnx.LanguageModel, prompt: int, tokens: int = 40) -> dict[str, float]:
    """Return two wall times: the median of a generated token, and that of the prompt with the first token.
    Two texts are generated and the second is measured, because a GPU's clock takes a while to rise."""
    for _ in range(2):
        times, steps = [], model.generate([1] * prompt, tokens, stop=[])
        for _ in range(tokens):
            start = time.perf_counter()
            next(steps)
            times.append(1e3 * (time.perf_counter() - start))
    return {"wall_ms": statistics.median(times[-tokens // 2 :]), "first_wall_ms": times[0]}


def by_vkq(
    options: argparse.Namespace, device: vkq.Device, dtype: str, compute: str
) -> Iterator[dict[str, Any]]:
    room = max(*options.keys, *options.prompt)
    sizes = Sizes(options.layers, options.block, room, dtype)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), sizes)
        more = {"compute": compute, "kv_cache": options.kv_cache}
        start = time.perf_counter()
        with vkq.onnx.LanguageModel(folder, device, **more) as model:
            load_s = time.perf_counter() - start
            row = {"library": "vkq", **dataclasses.asdict(sizes), **more, "load_s": load_s}
            for keys in options.keys:
                took = gpu_ms(model.session, 1, keys - 1, room)
                yield row | {"what": "token", "keys": keys, **took, **wall_ms(model, keys - 48)}
            for tokens in options.prompt:
                yield row | {"what": "prompt", "keys": tokens, **gpu_ms(model.session, tokens, 0, room)}


def torch_layers(layers: int, room: int) -> Callable[[Any, int], Any]:
    """Return a function that computes the logits with PyTorch's operators, given the token ids and the number
    of tokens in the caches."""
    import torch
    from torch.nn import functional

    def drawn(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=torch.float16) / shape[-1] ** 0.5

    shapes = ((HEADS + 2 * KV_HEADS) * WIDTH, HIDDEN), (HIDDEN, HIDDEN), (2 * INNER, HIDDEN), (HIDDEN, INNER)
    weights = [[drawn(*shape) for shape in shapes] for _ in range(layers)]
    caches = [[drawn(1, KV_HEADS, room, WIDTH) for _ in range(2)] for _ in range(layers)]
    table, head, scale = drawn(WORDS, HIDDEN), drawn(WORDS, HIDDEN), drawn(HIDDEN)
    turn = torch.outer(torch.arange(room), 10000.0 ** -(torch.arange(WIDTH // 2) * 2 / WIDTH)).cuda()
    cos, sin = (torch.cat([f(turn)] * 2, 1).half() for f in (torch.cos, torch.sin))

    def norm(x: Any) -> Any:
        return functional.rms_norm(x, (HIDDEN,), scale, 1e-5)

    def rotated(x: Any, at: slice) -> Any:
        low, high = x.chunk(2, -1)
        return x * cos[at] + torch.cat((-high, low), -1) * sin[at]

    def forward(ids: Any, seen: int) -> Any:
        at, x = slice(seen, seen + ids.shape[1]), table[ids]
        for (qkv, out, up, down), (keys, values) in zip(weights, caches, strict=True):
            heads = (norm(x) @ qkv.T).view(1, ids.shape[1], -1, WIDTH).transpose(1, 2)
            q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), 1)
            keys[:, :, at], values[:, :, at] = rotated(k, at), v
            past = keys[:, :, : at.stop], values[:, :, : at.stop]
            y = functional.scaled_dot_product_attention(
                rotated(q, at), *past, is_causal=ids.shape[1] > 1, enable_gqa=True
            )
            x = x + y.transpose(1, 2).reshape(1, ids.shape[1], HIDDEN) @ out.T
            gate, wide = (norm(x) @ up.T).chunk(2, -1)
            x = x + (functional.silu(gate) * wide) @ down.T
        return norm(x) @ head.T

    return forward


def by_torch(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    import peers
    import torch

    room = max(*options.keys, *options.prompt)
    runs = [("token", n, 1, n - 1) for n in options.keys] + [("prompt", n, n, 0) for n in options.prompt]
    with torch.no_grad():
        forward = torch_layers(options.layers, room)
        for what, keys, tokens, seen in runs:
            ids = torch.ones((1, tokens), device="cuda", dtype=torch.int64)
            replay = peers.in_graph(lambda x, seen=seen: forward(x, seen), [ids])
            row = {"library": "torch", "layers": options.layers, "room": room, "dtype": "float16"}
            yield row | {"what": what, "keys": keys, "gpu_ms": peers.event_ms(replay)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", nargs="+", default=["float16"], choices=["float32", "float16"])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--keys", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--prompt", type=int, nargs="+", default=[512])
    parser.add_argument("--compute", nargs="+", default=["float32"], choices=["float32", "float16"])
    parser.add_argument("--kv-cache", default=None)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--device")
    parser.add_argument("--json")
    options = parser.parse_args()
    device = vkq.Device(options.device)
    pairs = itertools.product(options.dtype, options.compute)
    sides = [by_vkq(options, device, *pair) for pair in pairs]
    sides += [by_torch(options)] if options.torch else []
    rows = []
    for row in itertools.chain(*sides):
        rows.append(row)
        print(json.dumps(row), flush=True)
    if options.json:
        today = datetime.date.today().isoformat()
        found = {
            "date": today,
            "device": device.name,
            "driver": device.capabilities.driver,
            "rows": rows,
        }
        Path(options.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
