"""Tests of `LanguageModel`, which runs a model's folder token by token: it gives ONNX Runtime's tokens, and
returns text as soon as a character is complete."""

from __future__ import annotations

import itertools
import json
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

import vkq
import vkq.onnx
from tests.conftest import ROOT
from tests.onnx.language import Sizes, config, folder
from vkq.onnx.language import LONGEST, _Cache, _pieces

PROMPT = [5, 9, 100, 0, 7, 7, 1]
SIZES = Sizes()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("llama"), SIZES)


def by_onnx_runtime(path: Path, prompt: list[int], count: int) -> tuple[list[int], list[np.ndarray]]:
    """Return ONNX Runtime's most likely tokens, and the scores of each step, with growing caches."""
    session = onnxruntime.InferenceSession(str(path / "model.onnx"), providers=["CPUExecutionProvider"])
    names = [f"past_key_values.{i}.{part}" for part in ("key", "value") for i in range(SIZES.layers)]
    past, ids, seen = [np.zeros((1, SIZES.kv_heads, 0, SIZES.width), np.float32)] * len(names), prompt, 0
    tokens: list[int] = []
    scores: list[np.ndarray] = []
    for _ in range(count):
        seen += len(ids)
        fed = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, seen), np.int64)}
        made, *past = session.run(None, fed | dict(zip(names, past, strict=True)))
        scores.append(made[0, -1])
        ids = [int(scores[-1].argmax())]
        tokens += ids
    return tokens, scores


@pytest.mark.parametrize("again", [False, True])
def test_pieces_of_a_prompt(again: bool) -> None:
    """The pieces cover the prompt in order and have few lengths. With *again*, a piece may read tokens of
    the piece before it again, which reduces the number of runs."""
    assert list(_pieces(0, again)) == []
    for count in (1, 2, 3, 7, 64, 100, 255, 256, 257, 463, 1000):
        pieces = list(_pieces(count, again))
        assert all(len(piece) <= LONGEST and len(piece).bit_count() == 1 for piece in pieces)
        assert [pieces[0].start, pieces[-1].stop] == [0, count]
        for one, other in itertools.pairwise(pieces):
            assert other.start <= one.stop < other.stop
            assert again or other.start == one.stop
        assert not again or len(pieces) <= -(-count // LONGEST) + 1


def test_tokens_replay_one_recording(device: vkq.Device, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs for the first two tokens are not recorded. The run for the third token is recorded, and
    the runs for all further tokens replay this recording."""
    added, recorded = [], []
    add, record = vkq.Device.add, vkq.Device.record
    monkeypatch.setattr(vkq.Device, "add", lambda *args: added.append(1) or add(*args))
    monkeypatch.setattr(vkq.Device, "record", lambda *args: recorded.append(1) or record(*args))
    with vkq.onnx.LanguageModel(path, device) as model:
        steps = model.generate(PROMPT, 12, stop=[])
        fresh = [next(steps), next(steps)]  # the second run is the first with bound logits
        assert (len(recorded), len(fresh)) == (0, 2)
        before = len(added)
        assert len(list(steps)) == 10
    assert (len(added) - before, len(recorded)) == (0, 1)


def test_prompts_compute_no_logits(device: vkq.Device, path: Path) -> None:
    """Only the runs of one token compute logits. In the other runs, the last layer computes nothing but its
    keys and values."""
    with vkq.onnx.LanguageModel(path, device) as model:
        list(model.generate(range(1, 70), 2, stop=[]))
        found = {key[0]: one for key, one in model.session._executables.kept.items()}
    prompt = frozenset(model.config.present)
    assert found.keys() == {None, prompt}
    products = {
        only: [node.source for node in one.graph.nodes if node.op == "MatMulNBits"]
        for only, one in found.items()
    }
    last = f"/model/layers.{SIZES.layers - 1}/"
    left_out = {*products[None]} - {*products[prompt]}
    assert len(left_out) == 5
    assert all(source.startswith((f"{last}attn/o_proj", f"{last}mlp", "/lm_head")) for source in left_out)


def test_tokens_of_64_steps(device: vkq.Device, path: Path) -> None:
    """A model with 4-bit weights generates ONNX Runtime's 64 tokens. Only the first token prepares
    executables."""
    want, scores = by_onnx_runtime(path, PROMPT, 64)
    gaps = [float(np.diff(np.sort(one)[-2:])[0]) for one in scores]
    assert min(gaps) > 1e-3  # much more than the effect of another order of additions
    with vkq.onnx.LanguageModel(path, device) as model:
        found = []
        for token in model.generate(PROMPT, 64, stop=[]):
            found.append(token)
            if len(found) == 1:
                prepared = len(model.session._executables.kept)
        assert found == want
        assert len(model.session._executables.kept) == prepared
        assert list(model.generate(PROMPT, 64, stop=[])) == want  # again, with a new cache


def test_caches_that_grow(any_device: vkq.Device, path: Path, tmp_path: Path) -> None:
    """Caches grow if the model's configuration does not say that past and present share one buffer of
    fixed length. A text ends at the model's end tokens."""
    for name in ("model.onnx", "model.onnx.data"):
        (tmp_path / name).write_bytes((path / name).read_bytes())
    want, _ = by_onnx_runtime(path, PROMPT, 6)
    told = config(SIZES)
    told["search"]["past_present_share_buffer"] = False
    told["model"]["eos_token_id"] = want[5]
    (tmp_path / "genai_config.json").write_text(json.dumps(told))
    model = vkq.onnx.LanguageModel(tmp_path, any_device)
    assert list(model.generate(PROMPT, 20)) == want[:5]


@pytest.mark.parametrize("kv_cache", [None, "int8"])
def test_caches_stay_in_place(
    device: vkq.Device, path: Path, kv_cache: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with int8 caches, this model generates ONNX Runtime's 64 tokens. Int8 caches take 5 bytes where
    float32 caches take 16. A token allocates no cache, and only the first token needs preparation."""
    want, _ = by_onnx_runtime(path, PROMPT, 64)
    with vkq.onnx.LanguageModel(path, device, kv_cache=kv_cache) as model:
        caches = _Cache(model, 71).past
        assert not any(x.numpy().any() for x in caches)
        row = 4 * SIZES.width if kv_cache is None else SIZES.width + 4
        assert {x.nbytes for x in caches} == {SIZES.kv_heads * 128 * row}
        sizes, allocate = [], device.allocate
        monkeypatch.setattr(device, "allocate", lambda size: sizes.append(size) or allocate(size))
        tokens = model.generate(PROMPT, 64, stop=[])
        found, prepared = [next(tokens)], len(model.session._executables.kept)
        assert sum(size == caches[0].nbytes for size in sizes) == len(caches)
        sizes.clear()
        found += tokens
        assert sizes
        assert max(sizes) < caches[0].nbytes
        assert found == want
        assert len(model.session._executables.kept) == prepared


def test_half_precision(any_device: vkq.Device, path: Path) -> None:
    """`LanguageModel` accepts ``compute``. With "float16", its first scores are near those with
    "float32"."""
    scores = []
    for compute in ("float32", "float16"):
        with vkq.onnx.LanguageModel(path, any_device, compute=compute) as model:
            assert len(list(model.generate(PROMPT, 6, stop=[]))) == 6
            assert model.session._compute == compute
            (logits,) = _Cache(model, 8)._run(PROMPT, [model.config.logits])
            scores.append(logits.numpy())
    assert np.abs(scores[0] - scores[1]).max() < 0.02 * np.abs(scores[0]).max()
    with pytest.raises(vkq.VkqError, match="compute"):
        vkq.onnx.LanguageModel(path, any_device, compute="int8")


def test_int8_caches_that_grow(any_device: vkq.Device, path: Path, tmp_path: Path) -> None:
    """An int8 cache that grows with each token, and one in a buffer of fixed length, give equal tokens."""
    for name in ("model.onnx", "model.onnx.data"):
        (tmp_path / name).write_bytes((path / name).read_bytes())
    told = config(SIZES)
    told["search"]["past_present_share_buffer"] = False
    (tmp_path / "genai_config.json").write_text(json.dumps(told))
    found = [
        list(vkq.onnx.LanguageModel(folder, any_device, kv_cache="int8").generate(PROMPT, 6, stop=[]))
        for folder in (path, tmp_path)
    ]
    assert found[0] == found[1]


def test_drawn_tokens(any_device: vkq.Device, path: Path) -> None:
    """The seed determines the sampled tokens. With top_k = 3, 30 seeds sample each of the three most likely
    first tokens, and no other token."""
    model = vkq.onnx.LanguageModel(path, any_device)

    def drawn(seed: int, **a: Any) -> list[int]:
        return list(model.generate(PROMPT, 12, seed=seed, stop=[], **a))

    assert drawn(1, top_k=20) == drawn(1, top_k=20) != drawn(2, top_k=20)
    assert drawn(1, top_k=500, temperature=1e-4) == list(model.generate(PROMPT, 12, stop=[]))
    first = {
        next(model.generate(PROMPT, 1, top_k=3, temperature=5.0, seed=seed, stop=[])) for seed in range(30)
    }
    _, (scores,) = by_onnx_runtime(path, PROMPT, 1)
    assert first == set(np.argsort(-scores)[:3])


def test_text(
    any_device: vkq.Device, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The package tokenizers converts tokens to text. If a token is only a part of a character, text is
    returned when the character is complete."""

    class Bytes:
        """A fake tokenizer. Tokens are UTF-8 bytes; it decodes the model's tokens as repetitions of a
        two-byte character."""

        def encode(self, text: str) -> Any:
            return SimpleNamespace(ids=[ord(letter) for letter in text])

        def decode(self, tokens: list[int]) -> str:
            return b"".join(b"\xc3" if i % 2 == 0 else b"\xa9" for i in range(len(tokens))).decode(
                errors="replace"
            )

    model = vkq.onnx.LanguageModel(path, any_device)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match="pip install tokenizers"):
        model.write("A")
    fake = ModuleType("tokenizers")
    fake.Tokenizer = SimpleNamespace(from_file=lambda name: Bytes())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tokenizers", fake)
    with pytest.raises(vkq.ModelError, match=r"tokenizer\.json: there is no such file"):
        model.write("A")
    (path / "tokenizer.json").write_text("{}")
    assert list(model.write("AB", 5)) == ["é", "é", "\ufffd"]
    monkeypatch.setattr("vkq.runtime.opened._default", any_device)
    options = ["--count", "5", "--top-k", "3", "--kv-cache", "int8"]
    monkeypatch.setattr(sys, "argv", ["07_generate.py", str(path), "AB", *options])
    runpy.run_path(str(ROOT / "examples" / "07_generate.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("ABéé\ufffd\n3 pieces of text in ")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda c: c["model"].pop("decoder"), "'decoder' is missing"),
        (lambda c: c["model"]["decoder"].update(filename="../model.onnx"), "must be a file in the folder"),
        (lambda c: c["model"].update(context_length="long"), "context_length is long; it must be an integer"),
        (lambda c: c["model"]["decoder"].update(num_hidden_layers=10**9), "an integer from 1 to 4096"),
        (lambda c: c["model"]["decoder"].update(head_size=True), "head_size is True"),
        (lambda c: c["model"]["decoder"]["inputs"].update(past_key_names="%999999999d"), "contains %d once"),
        (lambda c: c["model"]["decoder"].update(num_hidden_layers=1), r"its inputs are .*past_key_values\.1"),
        (lambda c: c["model"]["decoder"]["inputs"].update(attention_mask="mask"), "a decoder takes .*'mask'"),
    ],
)
def test_wrong_folders_are_refused(
    any_device: vkq.Device, path: Path, tmp_path: Path, change: Any, match: str
) -> None:
    told = config(SIZES)
    change(told)
    for name in ("model.onnx", "model.onnx.data"):
        (tmp_path / name).write_bytes((path / name).read_bytes())
    with pytest.raises(vkq.ModelError, match="a language model is a folder"):
        vkq.onnx.LanguageModel(tmp_path, any_device)
    (tmp_path / "genai_config.json").write_text(json.dumps(told))
    with pytest.raises(vkq.ModelError, match=match):
        vkq.onnx.LanguageModel(tmp_path, any_device)


@pytest.mark.parametrize(
    ("prompt", "more", "match"),
    [
        ([], {}, "the prompt has 0 tokens"),
        ([1] * 100, {"count": 29}, "both together at most 128"),
        ([1], {"top_k": 0}, "top_k is 0"),
        ([1], {"temperature": 0.0}, r"temperature 0\.0"),
        ([101], {}, "'input_ids' holds 101"),
        ([1, 2, -102], {}, "the smallest token is -102"),
        ([1], {"top_k": 2, "seed": -1}, "seed is -1; neither may be negative"),
    ],
)
def test_wrong_prompts_are_refused(
    any_device: vkq.Device, path: Path, prompt: list[int], more: dict[str, Any], match: str
) -> None:
    model = vkq.onnx.LanguageModel(path, any_device)
    with pytest.raises(vkq.ArgumentError, match=match):
        list(model.generate(prompt, **more))


def test_extreme_temperatures(any_device: vkq.Device, path: Path) -> None:
    """Near 0, the most likely token is drawn. At infinity, the top_k tokens have equal probabilities."""
    model = vkq.onnx.LanguageModel(path, any_device)
    want = list(model.generate([1, 2], 6))
    assert list(model.generate([1, 2], 6, top_k=5, temperature=1e-310, seed=0)) == want
    tokens = list(model.generate([1, 2], 6, top_k=5, temperature=np.inf, seed=0))
    assert len(tokens) == 6
    assert tokens != want
