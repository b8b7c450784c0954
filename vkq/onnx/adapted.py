"""Applies two session options to a model: sizes of free dimensions, and int8 key-value caches."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence
from typing import Any, NoReturn

from ..errors import ArgumentError, ModelError
from ..graph.graph import Node, Spec, unused
from ..graph.operators.operator import Inputs
from ..numerics.attention_cache import words_of
from .formed import APPEND, written
from .reader import Model
from .tensors import Argument
from .unknown_operators import unknown

KV_CACHES = ("int8",)
FLOAT_HINT = "; caches of a session with kv_cache='int8' are int32 words: give them only to such sessions"
INT8_HINT = (
    "; with kv_cache='int8' it holds the words that earlier runs of such a session return, or zeros; open a"
    " session without kv_cache for caches of floats"
)
CONCAT = "Concat"
# PAST: for an operator, the indices of the inputs with past keys and values. PRESENT: the indices of the
# results with present keys and values. com.microsoft's Attention and QAttention have no entry: they store
# keys and values in one tensor, so each new token would copy the whole cache.
PAST = {
    ("com.microsoft", "GroupQueryAttention"): (3, 4),
    ("com.microsoft", "MultiHeadAttention"): (6, 7),
    ("", "Attention"): (4, 5),
}
PRESENT = (1, 2)
FORMS = ("GroupQueryAttention", "MultiHeadAttention", "ONNX's Attention")
FLOATS = ("float32", "float16")


def check_kv_cache(kv_cache: str | None) -> str | None:
    """Return *kv_cache*, an argument of a session. Raises ArgumentError if its value is not supported."""
    if kv_cache not in (None, *KV_CACHES):
        raise ArgumentError(f"InferenceSession: kv_cache is {kv_cache!r}; it must be 'int8' or None")
    return kv_cache


def adapted(model: Model, sizes: Mapping[str, int], kv_cache: str | None = None) -> Model:
    """Return the model with fixed sizes, and with int8 caches if *kv_cache* is "int8". *sizes* maps the names
    of free dimensions to their sizes. Each cache input gets a hint for error texts, which says which sessions
    accept the cache."""
    model = _resized(model, sizes) if sizes else model
    if kv_cache is not None:
        return _with_int8_caches(model)
    ends = _Ends.of(model)
    return _hinted(model, FLOAT_HINT, {name for node in model.nodes for name in _caches(node, ends).past})


def _resized(model: Model, sizes: Mapping[str, int]) -> Model:
    def of(arguments: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(dataclasses.replace(a, shape=tuple(sizes.get(d, d) for d in a.shape)) for a in arguments)

    known = {dim for argument in model.inputs for dim in argument.shape if isinstance(dim, str)}
    if unknown := sorted(set(sizes) - known):
        raise ArgumentError(f"the model lacks the free dimensions {unknown}; it has {sorted(known)}")
    return dataclasses.replace(model, inputs=of(model.inputs), outputs=of(model.outputs))


def _with_int8_caches(model: Model) -> Model:
    """Return the model with caches of int32 words (`vkq.numerics.attention_cache`). Raises ModelError if no
    attention operator has a supported cache, or if a cache is neither an input nor a result of the
    model."""
    ends = _Ends.of(model)
    found = [_caches(node, ends) for node in model.nodes]
    caches = {name for own in found for name in (*own.past, *own.present)}
    for node, own in zip(model.nodes, found, strict=True):
        if inside := {*own.past, *own.present} - set(ends.inputs) - ends.results:
            raise ModelError(
                f"{node}: {sorted(inside)} are inside the model; with kv_cache='int8' past keys and"
                " values must be inputs of the model, and present ones its results; leave kv_cache out"
            )
    if not caches:
        _refuse(model, "the model has no attention with such a cache")
    nodes = _Adapting(model, ends, caches).nodes(found)

    def of(arguments: Sequence[Argument]) -> tuple[Argument, ...]:
        return tuple(_words(a) if a.name in caches else a for a in arguments)

    words = dataclasses.replace(model, inputs=of(model.inputs), outputs=of(model.outputs), nodes=nodes)
    return _hinted(words, INT8_HINT, {name for own in found for name in own.past})


def _hinted(model: Model, hint: str, past: Container[str]) -> Model:
    """Return the model with *hint* as the hint of every input whose name is in *past* (`Argument.hint`)."""
    inputs = tuple(dataclasses.replace(a, hint=hint) if a.name in past else a for a in model.inputs)
    return dataclasses.replace(model, inputs=inputs)


def _refuse(model: Model, why: str) -> NoReturn:
    raise ModelError(
        f"{model.name or 'model'}: kv_cache='int8' supports the caches of {', '.join(FORMS)}, and of a"
        f" {CONCAT} of past and new keys or values; {why}; leave kv_cache out"
    )


@dataclasses.dataclass(frozen=True)
class _Ends:
    """The inputs of a model by name, and the names of its results."""

    inputs: Mapping[str, Argument]
    results: set[str]

    @classmethod
    def of(cls, model: Model) -> _Ends:
        return cls({a.name: a for a in model.inputs}, {a.name for a in model.outputs})


@dataclasses.dataclass(frozen=True)
class _Caches:
    """The names of a node's past and present keys and values."""

    past: tuple[str, ...] = ()
    present: tuple[str, ...] = ()


def _caches(node: Node, ends: _Ends) -> _Caches:
    """Return the caches of a node. Only an attention operator, or a Concat that appends to a cache, has
    caches."""
    if node.op == CONCAT:
        return _Caches(node.inputs[:1], node.outputs) if _appends(node, ends) else _Caches()
    a = node.attributes
    past = PAST.get((a["domain"], a["op"]), ()) if node.op == "foreign" else ()
    if not past:
        return _Caches()
    present = (node.outputs[i] for i in PRESENT if i < len(node.outputs))
    return _Caches(tuple(filter(None, map(node.input, past))), tuple(filter(None, present)))


def _appends(node: Node, ends: _Ends) -> bool:
    """Return True if a Concat appends new tokens to a cache. Such a Concat extends a model input (batch,
    heads, tokens, elements) along the tokens, and its result is a result of the model."""
    given = ends.inputs.get(node.inputs[0])
    if given is None or given.dtype not in FLOATS or len(given.shape) != 4 or len(node.inputs) != 2:
        return False
    return node.attributes["axis"] in (2, -2) and node.outputs[0] in ends.results


class _Adapting:
    """Rewrites the nodes of a model for int8 caches. An ``unpack_cache`` node makes the floats of a cache for
    two kinds of nodes:

    - a Shape, which needs their shape; constant folding removes both nodes
    - attention that is written as MatMul, Softmax and MatMul; `vkq.graph.passes.attention` fuses all of
      these nodes"""

    def __init__(self, model: Model, ends: _Ends, caches: set[str]):
        self.model, self.ends, self.caches = model, ends, caches
        self.made: list[Node] = []
        self.floats: dict[str, str] = {}  # maps a cache to its unpacked floats
        self._taken = {*ends.inputs, *(name for node in model.nodes for name in node.outputs)}

    def nodes(self, found: Sequence[_Caches]) -> tuple[Node, ...]:
        for node, own in zip(self.model.nodes, found, strict=True):
            if node.op == CONCAT and own.past:
                self._append(node)
                continue
            inputs = tuple(self._read(node, x) if x not in own.past else x for x in node.inputs)
            node = dataclasses.replace(node, inputs=inputs)
            more = {"int8_cache": True, "infer": _open_specs} if own.past or own.present else {}
            self.made.append(dataclasses.replace(node, attributes={**node.attributes, **more}))
        return tuple(self.made)

    def _append(self, node: Node) -> None:
        present = node.outputs[0]
        self.floats[present] = unused(f"{present}/floats", self._taken)
        both = Node(APPEND[1], node.inputs, (present, self.floats[present]), {}, node.source)
        more = {"int8_cache": True, "infer": _open_specs, "expand": written}
        made = unknown(both, APPEND[0], None)
        self.made.append(dataclasses.replace(made, attributes={**made.attributes, **more}))

    def _read(self, node: Node, name: str) -> str:
        """Return the value that *node* reads in place of *name*: for a cache, its unpacked floats."""
        if name not in self.caches or name in self.floats:
            return self.floats.get(name, name)
        shape = self.ends.inputs[name].shape if name in self.ends.inputs else ()
        if node.op != "Shape" or not shape or not isinstance(shape[-1], int):
            _refuse(self.model, f"{node} reads a cache")
        self.floats[name] = unused(f"{name}/floats", self._taken)
        self.made.append(
            Node("unpack_cache", (name,), (self.floats[name],), {"width": shape[-1]}, node.source)
        )
        return self.floats[name]


def _words(argument: Argument) -> Argument:
    """Return a cache input or result as int32 words: its last dimension becomes the number of words. A free
    last dimension stays free."""
    shape = argument.shape
    if shape and isinstance(shape[-1], int):
        shape = (*shape[:-1], words_of(shape[-1]))
    return dataclasses.replace(argument, dtype="int32", shape=shape)


def _open_specs(x: Inputs) -> list[Spec]:
    """Shape inference of a node with int8 caches. Always raise an error: OpenShape while the number of keys
    (input 6 of GroupQueryAttention) is unknown. Once it is known, `vkq.onnx.formed.written` replaces the
    node."""
    x.array(6)
    raise ModelError(f"{x.node}: the number of keys is missing")
