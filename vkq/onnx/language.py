"""A language model that generates text token by token, with its key-value cache on the device."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..errors import ArgumentError, ModelError
from ..graph.resident import Repeated
from ..numerics.attention_cache import words_of
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..schemes.base import COMPUTE
from .genai import read_genai
from .options import RunOptions
from .session import InferenceSession

ONLY = RunOptions(only_execute_path_to_fetches=True)
LONGEST = 512  # maximum number of prompt tokens that one run reads
LEAST = 64  # minimum length of a cache. Lengths are powers of two, so the model is prepared for few shapes.


class LanguageModel:
    """A decoder in a folder that onnxruntime-genai's model builder wrote: ``genai_config.json``, the model
    that this file names, and ``tokenizer.json``. Only methods that use text read the tokenizer, with the
    package ``tokenizers``.

    device, fallback, compute, kv_cache: as in `InferenceSession`. compute="float16" makes long prompts of
    float32 models faster on GPUs with matrix units. An int8 cache takes about a quarter of the memory of a
    float32 cache, or half of a float16 cache; docs/models.md bounds the error of each attention operator.

    Raises ModelError if the folder has another format, or if the model has inputs other than token ids, mask,
    positions and past keys and values.
    """

    @checked
    def __init__(
        self,
        folder: str | os.PathLike[str],
        device: Device | int | str | None = None,
        fallback: str | None = None,
        *,
        compute: str = COMPUTE[0],
        kv_cache: str | None = None,
    ):
        self.folder = Path(folder)
        self.config = read_genai(self.folder)
        self.session = InferenceSession(
            self.config.model, device, fallback, compute=compute, kv_cache=kv_cache
        )
        self._cache_width = words_of(self.config.width) if kv_cache else self.config.width
        c, self._inputs = self.config, {a.name: a for a in self.session.model.inputs}
        needed = {c.ids, c.mask, *c.past}
        if not needed <= set(self._inputs) or set(self._inputs) - needed - {c.places}:
            raise ModelError(
                f"{c.model}: its inputs are {sorted(self._inputs)}; a decoder takes {sorted(needed)} and may"
                f" take {c.places!r}"
            )
        self._words: Any = None

    @checked
    def generate(
        self,
        prompt: Sequence[int],
        count: int = 64,
        top_k: int = 1,
        temperature: float = 1.0,
        seed: int | None = None,
        stop: Sequence[int] | None = None,
    ) -> Iterator[int]:
        """Yield up to *count* tokens that follow *prompt*, each as soon as it is known.

        top_k: 1 selects the most likely token. Larger numbers draw from the top_k most likely tokens, with
        the softmax of score / *temperature* as probabilities; *seed* fixes the draws. stop: tokens that end
        the text and are not yielded (None: the end tokens of the model's configuration).
        """
        most = self.config.context
        if not len(prompt) or count < 0 or len(prompt) + count > most:
            raise ArgumentError(
                f"generate: the prompt has {len(prompt)} tokens and count is {count}; the prompt must"
                f" have at least 1, and both together at most {most}, the model's context_length"
            )
        if top_k < 1 or not temperature > 0:
            raise ArgumentError(
                f"generate: top_k is {top_k} and temperature {temperature}; top_k must be 1 or more,"
                " and temperature above 0"
            )
        if min(prompt) < 0 or (seed is not None and seed < 0):
            raise ArgumentError(
                f"generate: the smallest token is {min(prompt)} and seed is {seed}; neither may be negative"
            )
        ends = self.config.ends if stop is None else frozenset(stop)
        draw = _Draw(top_k, temperature, np.random.default_rng(seed))
        return self._tokens([int(token) for token in prompt], count, draw, ends)

    def _tokens(self, prompt: list[int], count: int, draw: _Draw, ends: frozenset[int]) -> Iterator[int]:
        cache = _Cache(self, len(prompt) + count)
        for piece in _pieces(len(prompt) - 1, bool(cache.room)):
            cache.done = piece.start
            cache.read(prompt[piece.start : piece.stop])
        token = prompt[-1]
        for _ in range(count):
            token = draw(cache.logits(token))
            if token in ends:
                return
            yield token

    @checked
    def write(
        self,
        prompt: str,
        count: int = 64,
        top_k: int = 1,
        temperature: float = 1.0,
        seed: int | None = None,
    ) -> Iterator[str]:
        """Yield the text that follows *prompt*, piece by piece. The other arguments are those of
        `generate`."""
        words = self.tokenizer
        tokens = self.generate(words.encode(prompt).ids, count, top_k, temperature, seed)
        return _texts(words, tokens)

    @property
    def tokenizer(self) -> Any:
        """The folder's tokenizer, an object of the package ``tokenizers``."""
        if self._words is None:
            try:
                from tokenizers import Tokenizer
            except ImportError as error:
                raise ImportError("text needs the package tokenizers: pip install tokenizers") from error
            path = self.folder / "tokenizer.json"
            if not path.is_file():
                raise ModelError(f"{path}: there is no such file; `generate` works without it, on tokens")
            self._words = Tokenizer.from_file(str(path))
        return self._words

    def close(self) -> None:
        """Free the memory on the device."""
        self.session.close()

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Cache:
    """The keys and values of all tokens so far, for a text of at most *length* tokens. In some models, past
    and present keys and values share a buffer. Such a buffer has its full length from the start, so that
    shapes never change."""

    def __init__(self, model: LanguageModel, length: int):
        self.model, self.config, self.done = model, model.config, 0
        room = max(LEAST, 1 << (length - 1).bit_length())
        self.room = min(room, self.config.context) if self.config.shares else 0
        shape, inputs = (1, self.config.heads, self.room, model._cache_width), model._inputs
        types, device = [inputs[name].dtype for name in self.config.past], model.session.device
        self.past: list[Any] = [] if self.room else [np.zeros(shape, dtype) for dtype in types]
        if self.room:  # each run overwrites the past keys and values with the present ones
            self.past = [Tensor(device, shape, dtype) for dtype in types]
            with device.operation() as recording:
                for x in self.past:
                    recording.fill(x.buffer, 0)
        self._logits: Tensor | None = None  # the logits of the last token, which the next run overwrites
        self._repeated = Repeated()

    def read(self, tokens: Sequence[int]) -> None:
        """Run the model on *tokens* and append their keys and values. The logits (tokens, vocabulary) are not
        computed: nothing reads them, and they would take much memory and time."""
        self._run(tokens, [])

    def logits(self, token: int) -> npt.NDArray[np.float32]:
        """Run the model on *token* and append the token's keys and values. Return the logits
        (vocabulary,)."""
        (self._logits,) = self._run([token], [self.config.logits])
        return np.asarray(self._logits.numpy()[0, -1], np.float32)

    def _run(self, tokens: Sequence[int], names: list[str]) -> list[Any]:
        """Run the model on *tokens* and append their keys and values. Return the outputs *names*."""
        c, start = self.config, self.done
        self.done += len(tokens)
        mask = np.zeros((1, self.room or self.done), np.int64)
        mask[:, : self.done] = 1
        feed: dict[str, Any] = {c.ids: np.array([tokens], np.int64), c.mask: mask}
        feed |= dict(zip(c.past, self.past, strict=True))
        if c.places in self.model._inputs:
            feed[c.places] = np.arange(start, self.done)[None]
        targets = dict(zip(c.present, self.past, strict=True)) if self.room else {}
        if self.room and names and self._logits is not None:
            targets[c.logits] = self._logits
        call = self.model.session._call([*names, *c.present], feed, ONLY, None, targets, self._repeated)
        results = call()
        self.past = results[len(names) :]
        return results[: len(names)]


class _Draw:
    """Chooses the next token from its scores: the most likely one, or a random one of the *top_k* most
    likely."""

    def __init__(self, top_k: int, temperature: float, random: np.random.Generator):
        self.top_k, self.temperature, self.random = top_k, temperature, random

    def __call__(self, scores: npt.NDArray[np.float32]) -> int:
        if self.top_k == 1:
            return int(scores.argmax())
        likeliest = np.argsort(-scores, kind="stable")[: self.top_k]
        wide = scores[likeliest].astype(np.float64)
        with np.errstate(over="ignore"):  # a quotient beyond float64 is -inf, whose weight is 0
            weights = np.exp((wide - wide.max()) / self.temperature)
        return int(self.random.choice(likeliest, p=weights / weights.sum()))


def _pieces(count: int, again: bool) -> Iterator[range]:
    """Yield the ranges of the first *count* tokens that the model reads in one run each, in order. Lengths
    are powers of two up to `LONGEST`, so that the model is prepared for few lengths.

    again: True if tokens may be read twice. Then the last range may overlap the previous one, because one
    longer run is faster than several short ones."""
    at = 0
    while left := count - at:
        size = min(LONGEST, 1 << (left - 1).bit_length())
        if not again or size > count:
            size = min(LONGEST, 1 << left.bit_length() - 1)
        at = min(at + size, count)
        yield range(at - size, at)


def _texts(words: Any, tokens: Iterator[int]) -> Iterator[str]:
    """Yield the text that each token adds. An incomplete character waits for the token that completes it."""
    known: list[int] = []
    told = ""
    for token in tokens:
        known.append(token)
        text = words.decode(known)
        if not text.endswith("\ufffd"):
            yield text[len(told) :]
            told = text
    if len(rest := words.decode(known)) > len(told):
        yield rest[len(told) :]
