"""Tests of ``kv_cache="int8"`` with GroupQueryAttention. The words of a cache equal the reference's bits on
every driver. The error of attention is within the stated bound. Misuse raises an error with a remedy."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import vkq
import vkq.onnx
from tests.onnx.language import Sizes, llama
from tests.onnx.test_fused import normal
from tests.onnx.test_grouped import tables
from tests.onnx.test_operators import MICROSOFT
from vkq.check import graph as oracle
from vkq.numerics.attention_cache import unpacked, words_of

Arrays = dict[str, Any]
HEADS, KV_HEADS, WIDTH = 6, 2, 16
ERROR = 0.5 + 2.0**-16  # greatest error of a cached number, in units of the scale
NAMES = ["q", "k", "v", "pk", "pv", "last", "total", "cos", "sin", "place", "bias", "sink"]


def model(fed: Arrays, constants: Arrays, dtype: Any = np.float32, **a: Any) -> bytes:
    """Return a model of one GroupQueryAttention. fed: its inputs, with float caches; constants: its
    initializers."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = [name if name in fed or name in constants else "" for name in NAMES]
    a = {"num_heads": HEADS, "kv_num_heads": KV_HEADS} | a
    node = helper.make_node("GroupQueryAttention", names, ["y", "nk", "nv"], domain=MICROSOFT, **a)
    infos = [
        helper.make_tensor_value_info(x, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for x, v in fed.items()
    ]
    results = [helper.make_tensor_value_info(x, kind, None) for x in node.output]
    stored = [numpy_helper.from_array(np.asarray(x), name) for name, x in constants.items()]
    graph = helper.make_graph([node], "g", infos, results, stored)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return data


def case(
    tokens: int, held: int, lengths: list[int], dtype: Any = np.float32, more: Arrays | None = None, **a: Any
) -> tuple[bytes, Arrays]:
    """Return a model and its inputs with float caches. A run appends *tokens* new tokens to caches with room
    for *held* tokens. *lengths*: the number of tokens of each batch element after the run."""
    batch = len(lengths)
    widths = zip("qkv", (HEADS, KV_HEADS, KV_HEADS), strict=True)
    fed = {x: normal(batch, tokens, n * WIDTH, seed=i).astype(dtype) for i, (x, n) in enumerate(widths)}
    if held:
        shape = batch, KV_HEADS, held, WIDTH
        fed |= {x: normal(*shape, seed=i).astype(dtype) for i, x in enumerate(("pk", "pv"), 3)}
    fed |= {"last": np.int32(lengths) - 1, **(more or {})}
    constants = {"total": np.int32(max(lengths)), **(tables(dtype) if a.get("do_rotary") else {})}
    return model(fed, constants, dtype, **a), fed


def words(x: np.ndarray) -> np.ndarray:
    """Quantize vectors of floats to the words of an int8 cache, by the plain formula."""
    wide = x.astype(np.float32)
    scale = np.abs(wide).max(-1, keepdims=True) / np.float32(127)
    codes = np.rint(wide / scale).astype(np.int8)
    pads = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 4)]
    return np.concatenate([np.pad(codes, pads).view(np.int32), scale.view(np.int32)], -1)


CASES: dict[str, tuple[tuple[int, int, list[int]], Arrays]] = {
    "a prompt": ((7, 0, [7]), {"do_rotary": 1}),
    "prompts of two lengths": ((7, 0, [7, 3]), {}),
    "a prompt into a buffer": ((5, 12, [5, 3]), {"do_rotary": 1}),
    "a token into a buffer": ((1, 12, [6, 4]), {"do_rotary": 1}),
    "the buffer's ends": ((1, 12, [12, 1]), {}),
    "several tokens into a buffer": ((3, 12, [8]), {"do_rotary": 1, "rotary_interleaved": 1}),
    "a cache that grows": ((3, 5, [8]), {"do_rotary": 1}),
    "a window": ((3, 9, [8]), {"local_window_size": 3}),
    "a scale": ((2, 4, [6]), {"scale": 0.3}),
    "float16": ((1, 12, [6, 4]), {"dtype": np.float16, "do_rotary": 1}),
    "a softcap": ((3, 9, [8, 5]), {"softcap": 2.0}),
    "a softcap and a window": ((1, 9, [9]), {"softcap": 0.7, "local_window_size": 2, "do_rotary": 1}),
    "a smooth softmax": ((7, 0, [7]), {"smooth_softmax": 1}),
    "sinks": ((1, 12, [6, 4]), {"more": {"sink": normal(HEADS, seed=8)}}),
    "a long cache": ((1, 300, [290, 20]), {"do_rotary": 0}),
    "a long window": ((2, 400, [383]), {"more": {"sink": normal(HEADS, seed=8)}, "local_window_size": 200}),
    "a bias": ((3, 5, [8]), {"more": {"bias": normal(1, HEADS, 3, 8, seed=9)}}),
}


@pytest.mark.parametrize("name", CASES)
def test_words_and_results(device: vkq.Device, name: str) -> None:
    """The device's results and caches equal those of the graph in NumPy, bit for bit. The words of past
    tokens do not change. New keys and values are within half a quantization step of the float caches, and
    results are within the bound of docs/models.md."""
    sizes, a = CASES[name]
    data, fed = case(*sizes, **a)
    plain = vkq.onnx.InferenceSession(data, device).run(None, fed)
    packed = fed | {x: words(fed[x]) for x in ("pk", "pv") if x in fed}
    session = vkq.onnx.InferenceSession(data, device, kv_cache="int8")
    got = session.run(None, packed)
    graph = session.lowered({x: v.shape for x, v in packed.items()})
    want = oracle.run(graph, packed)
    for x, y in zip(("y", "nk", "nv"), got, strict=True):
        np.testing.assert_array_equal(y.view(np.uint8), want[x].astype(y.dtype).view(np.uint8))
    assert {node.op for node in graph.nodes} >= {"append_cache", "attention_int8"}
    assert not set(graph.bounds) & {"pk", "pv"}  # a bound would make each run read the caches back
    tokens, held, lengths = sizes
    scales = []
    for new, old, before in zip(got[1:], plain[1:], ("pk", "pv"), strict=True):
        assert new.shape == (len(lengths), KV_HEADS, max(held, max(lengths)), words_of(WIDTH))
        codes, scale = unpacked(new, WIDTH)
        rounded = 2.0**-10 * np.abs(old).max() if old.dtype == np.float16 else 0  # rotated keys are float16
        for i, length in enumerate(lengths):
            error = np.abs(codes[i] * scale[i][..., None] - old[i])[:, :length]
            assert (error <= scale[i][:, :length, None] * ERROR + rounded).all()
            if held:
                first = length - tokens if tokens != max(lengths) else 0
                end = first + tokens
                np.testing.assert_array_equal(new[i, :, end:held], packed[before][i, :, end:])
                np.testing.assert_array_equal(new[i, :, :first], packed[before][i, :, :first])
        scales.append(scale)
    within(got[0], plain[0], fed, scales, np.abs(plain[2].astype(np.float32)).max(), a)


def within(
    y: np.ndarray, want: np.ndarray, fed: Arrays, scales: list[np.ndarray], most: Any, a: Arrays
) -> None:
    """Check the error of y: at most max(value scale) / 2 + (exp(2 delta) - 1) max|v|. A score moves by at
    most delta = scale * sum|q| * max(key scale) / 2. A rotation multiplies sum|q| by at most sqrt(2)."""
    q = np.abs(fed["q"].astype(np.float32)).reshape(*fed["q"].shape[:2], HEADS, WIDTH).sum(-1).max()
    delta = a.get("scale", WIDTH**-0.5) * q * 2**0.5 * scales[0].max() * ERROR
    bound = scales[1].max() * ERROR + np.expm1(2 * delta) * most
    error = np.abs(y.astype(np.float32) - want.astype(np.float32)).max()
    assert 0 < error <= bound
    assert error <= 0.03 * most  # measured for these cases; the bound covers the worst case


def test_an_odd_width(any_device: vkq.Device) -> None:
    """A head of 6 numbers takes two words of codes. The last two bytes of the second word are 0."""
    r = np.random.default_rng(0)
    fed = {"q": r.normal(size=(1, 2, 18)).astype(np.float32), "last": np.int32([3])}
    fed |= {x: r.normal(size=(1, 1, 2, 6)).astype(np.float32) for x in ("pk", "pv")}
    data = model(fed, {"total": np.int32(4)}, num_heads=1, kv_num_heads=1)
    plain = vkq.onnx.InferenceSession(data, any_device).run(None, fed)
    session = vkq.onnx.InferenceSession(data, any_device, kv_cache="int8")
    y, key, _ = session.run(None, fed | {x: words(fed[x]) for x in ("pk", "pv")})
    assert key.shape == (1, 1, 4, 3)
    assert (key.view(np.int8)[..., 6:8] == 0).all()
    np.testing.assert_array_equal(key, words(plain[1]))
    np.testing.assert_allclose(y, plain[0], rtol=0, atol=0.1)


def test_a_total_of_the_run(any_device: vkq.Device) -> None:
    """If the number of keys is a model input, the session prepares the model again for each new number.
    Results equal those of a model in which this number is a constant."""
    data, fed = case(1, 4, [5])
    proto = onnx.load_from_string(data)
    del proto.graph.initializer[:]
    proto.graph.input.append(helper.make_tensor_value_info("total", onnx.TensorProto.INT32, []))
    session = vkq.onnx.InferenceSession(proto, any_device, kv_cache="int8")
    packed = fed | {x: words(fed[x]) for x in ("pk", "pv")}
    for total in (5, 3):
        more = {"last": np.int32([total - 1]), "total": np.array(total, np.int32)}
        got = session.run(None, packed | more)
        assert got[1].shape[2] == max(total, 4)
        fixed = vkq.onnx.InferenceSession(case(1, 4, [total])[0], any_device, kv_cache="int8")
        want = fixed.run(None, packed | {"last": more["last"]})
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)


def decode(session: Any, sizes: Sizes, room: int, tokens: list[int]) -> list[tuple[np.ndarray, list[Any]]]:
    """Run tokens one by one, with caches for *room* keys that stay on the device. Return the logits and the
    caches after each token."""
    names = [f"{i}.{part}" for i in range(sizes.layers) for part in ("key", "value")]
    dtype = next(a.dtype for a in session.model.inputs if a.name == f"past_key_values.{names[0]}")
    width = words_of(sizes.width) if dtype == "int32" else sizes.width
    past: list[Any] = [np.zeros((1, sizes.kv_heads, room, width), dtype)] * len(names)
    found = []
    for i, token in enumerate(tokens):
        fed = {"input_ids": np.array([[token]]), "attention_mask": (np.arange(room)[None] <= i).astype(int)}
        fed |= {f"past_key_values.{name}": x for name, x in zip(names, past, strict=True)}
        results = ["logits", *(f"present.{name}" for name in names)]
        scores, *past = session.run(results, fed, outputs="device")
        found.append((scores.numpy(), past))
    return found


SIZES, TOKENS, ROOM = Sizes(), [5, 9, 100, 0, 7, 7, 1, 44, 3, 8], 64


@pytest.fixture(scope="module")
def llama_bytes() -> bytes:
    data: bytes = llama(SIZES).SerializeToString()
    return data


def test_a_decoder(device: vkq.Device, llama_bytes: bytes) -> None:
    """The logits of a decoder with int8 caches are near those with float caches. The cache takes 20 bytes for
    16 numbers. All lengths use the same prepared shapes."""
    session = vkq.onnx.InferenceSession(llama_bytes, device, kv_cache="int8")
    floats = decode(vkq.onnx.InferenceSession(llama_bytes, device), SIZES, ROOM, TOKENS)
    got = decode(session, SIZES, ROOM, TOKENS)
    assert session.counters["shapes_prepared"] == 1
    vectors = SIZES.kv_heads * ROOM
    assert {x.nbytes for x in got[-1][1]} == {vectors * (SIZES.width + 4)}
    assert {x.nbytes for x in floats[-1][1]} == {vectors * SIZES.width * 4}
    errors = [np.abs(a - b).max() for (a, _), (b, _) in zip(got, floats, strict=True)]
    assert 0 < max(errors) <= 0.03 * max(np.abs(b).max() for b, _ in floats)
    assert [a.argmax() for a, _ in got] == [b.argmax() for b, _ in floats]


def test_replays(device: vkq.Device) -> None:
    """200 runs with caches that stay on the device give the same bits."""
    data, fed = case(*CASES["a token into a buffer"][0], do_rotary=1)
    session = vkq.onnx.InferenceSession(data, device, kv_cache="int8")
    held = {x: vkq.Tensor.from_numpy(words(fed[x]), device) for x in ("pk", "pv")}
    first = [x.numpy().tobytes() for x in session.run(None, fed | held, outputs="device")]
    for _ in range(200):
        assert [x.numpy().tobytes() for x in session.run(None, fed | held, outputs="device")] == first
    assert session.counters["shapes_prepared"] == 1


def test_one_buffer(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """With IOBinding, a run writes the present caches over the past caches, and allocates no memory for a
    copy."""
    data, fed = case(1, 300, [6, 4])
    session = vkq.onnx.InferenceSession(data, device, kv_cache="int8")
    want = session.run(None, fed | {x: words(fed[x]) for x in ("pk", "pv")})
    held = {x: vkq.Tensor.from_numpy(words(fed[x]), device) for x in ("pk", "pv")}
    binding = session.io_binding()
    for x in fed:
        if x in held:
            binding.bind_ortvalue_input(x, held[x])
        else:
            binding.bind_cpu_input(x, fed[x])
    binding.bind_output("y")
    for x, y in (("pk", "nk"), ("pv", "nv")):
        binding.bind_ortvalue_output(y, held[x])
    sizes, allocate = [], device.allocate
    monkeypatch.setattr(device, "allocate", lambda size: sizes.append(size) or allocate(size))
    session.run_with_iobinding(binding)
    assert sizes
    assert max(sizes) < held["pk"].nbytes
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), want[0])
    for x, expected in zip(held.values(), want[1:], strict=True):
        np.testing.assert_array_equal(x.numpy(), expected)


def test_a_cache_in_two_inputs(any_device: vkq.Device) -> None:
    """One tensor is both past keys and past values, and the present keys are written to it. Results equal
    those with two tensors: the tensor is not overwritten while it is read."""
    data, fed = case(1, 12, [6, 4])
    session = vkq.onnx.InferenceSession(data, any_device, kv_cache="int8")
    want = session.run(None, fed | dict.fromkeys(("pk", "pv"), words(fed["pk"])))
    both = vkq.Tensor.from_numpy(words(fed["pk"]), any_device)
    got = session._call(None, fed | {"pk": both, "pv": both}, None, None, {"nk": both})()  # type: ignore[arg-type]
    for x, expected in zip(got, want, strict=True):
        np.testing.assert_array_equal(x.numpy(), expected)
    assert got[1] is both


def test_options_are_kept(any_device: vkq.Device, llama_bytes: bytes) -> None:
    """A pickled session keeps its kv_cache. Another session of the same model has its own kv_cache."""
    session = vkq.onnx.InferenceSession(llama_bytes, any_device, kv_cache="int8")
    again, plain = pickle.loads(pickle.dumps(session)), vkq.onnx.InferenceSession(llama_bytes, any_device)
    runs = [decode(one, SIZES, ROOM, TOKENS[:2])[-1] for one in (session, again)]
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    types = {a.name: a.type for a in session.get_inputs() if "past" in a.name}
    assert set(types.values()) == {"tensor(int32)"}
    assert {a.type for a in plain.get_inputs() if "past" in a.name} == {"tensor(float)"}


def test_caches_of_other_sessions(any_device: vkq.Device, llama_bytes: bytes) -> None:
    """A cache of a session with another kv_cache raises an error that names the option, whether the cache is
    on the host or on the device."""
    plain = vkq.onnx.InferenceSession(llama_bytes, any_device)
    packed = vkq.onnx.InferenceSession(llama_bytes, any_device, kv_cache="int8")
    caches = [decode(one, SIZES, ROOM, TOKENS[:1])[0][1] for one in (plain, packed)]
    fed = {"input_ids": np.array([[5]]), "attention_mask": np.ones((1, ROOM), int)}
    names = [a.name for a in plain.get_inputs() if "past" in a.name]
    for session, given, match in (
        (packed, caches[0], r"float32.*must be int32; with kv_cache='int8' it holds the words that"),
        (plain, caches[1], r"int32.*must be float32; caches of a session with kv_cache='int8' are int32"),
    ):
        for one in (given, [x.numpy() for x in given]):
            with pytest.raises(vkq.DTypeError, match=match):
                session.run(None, fed | dict(zip(names, one, strict=True)))


@pytest.mark.parametrize("shape", [(2, KV_HEADS, 12, 16), (2, KV_HEADS, 12, 4), (2, 1, 12, 5), (1, 2, 12, 5)])
def test_words_of_other_shapes(any_device: vkq.Device, shape: tuple[int, ...]) -> None:
    """A cache with a wrong number of heads or words raises an error that states the right shape. Lengths that
    do not fit the cache raise an error, too."""
    data, fed = case(1, 12, [6, 4])
    proto = onnx.load_from_string(data)
    for info in proto.graph.input:
        for i, dim in enumerate(info.type.tensor_type.shape.dim if info.name in ("pk", "pv") else ()):
            dim.dim_param = f"{info.name}{i}"
    session = vkq.onnx.InferenceSession(proto.SerializeToString(), any_device, kv_cache="int8")
    fed |= {x: np.zeros(shape, np.int32) for x in ("pk", "pv")}
    with pytest.raises(
        vkq.ModelError, match=r"'pk' has shape .*must be \(2, 2, keys, 5\), with 4 words for the codes"
    ):
        session.run(None, fed)
    fed |= {x: np.zeros((2, KV_HEADS, 12, 5), np.int32) for x in ("pk", "pv")}
    with pytest.raises(vkq.ArgumentError, match="'last' holds 12 to 12; this model takes 0 to 11"):
        session.run(None, fed | {"last": np.int32([12, 12])})
    fixed = vkq.onnx.InferenceSession(data, any_device, kv_cache="int8")
    with pytest.raises(vkq.ArgumentError, match=r"it must be \[2, 2, 12, 5\].*kv_cache='int8'"):
        fixed.run(None, fed | {"pk": np.zeros((2, KV_HEADS, 13, 5), np.int32)})


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"qk_output": 1}, "kv_cache='int8' does not support this form; leave kv_cache out"),
    ],
)
@pytest.mark.parametrize("fallback", [None, "onnxruntime"])
def test_forms_that_are_refused(
    any_device: vkq.Device, more: Arrays, match: str, fallback: str | None
) -> None:
    """An unsupported attribute is refused with kv_cache="int8", even if the fallback could run it with float
    caches."""
    data, _ = case(1, 12, [6], **more)
    with pytest.raises(vkq.ModelError, match=match):
        vkq.onnx.InferenceSession(data, any_device, fallback, kv_cache="int8").explain()


def test_models_that_are_refused(any_device: vkq.Device) -> None:
    """An unknown kv_cache raises an error. With "int8", a model is refused if another node reads its
    cache, if its present cache is not a result of the model, or if it has no cache."""
    data, _ = case(1, 12, [6])
    with pytest.raises(vkq.ArgumentError, match="kv_cache is 'int4'; it must be 'int8' or None"):
        vkq.onnx.InferenceSession(data, any_device, kv_cache="int4")
    proto = onnx.load_from_string(data)
    proto.graph.node.append(helper.make_node("Neg", ["pk"], ["other"]))
    proto.graph.output.append(helper.make_tensor_value_info("other", 1, None))
    with pytest.raises(vkq.ModelError, match=r"Neg.* reads a cache; leave kv_cache out"):
        vkq.onnx.InferenceSession(proto, any_device, "onnxruntime", kv_cache="int8")
    proto = onnx.load_from_string(data)
    del proto.graph.output[1:]
    with pytest.raises(vkq.ModelError, match=r"\['nk', 'nv'\] are inside the model"):
        vkq.onnx.InferenceSession(proto, any_device, kv_cache="int8")
    with pytest.raises(vkq.ModelError, match="the model has no attention with such a cache"):
        vkq.onnx.InferenceSession("examples/models/digits.onnx", any_device, kv_cache="int8")
