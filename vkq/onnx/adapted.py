"""Changes to a model that session options ask for: fixed sizes and int8 caches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ArgumentError, ModelError
from ..graph.graph import Node, Spec
from ..graph.operators.operator import Inputs
from ..numerics.attention_cache import words_of
from .reader import Model
from .tensors import Argument

KV_CACHES = ("int8",)
FLOAT_HINT = "; caches of a session with kv_cache='int8' are int32 words: give them to such sessions alone"
INT8_HINT = (
    "; with kv_cache='int8' it holds the words that earlier runs of such a session return, or zeros; open a"
    " session without kv_cache for caches of floats"
)
GROUPED = "GroupQueryAttention"
PAST, PRESENT = (3, 4), (1, 2)  # inputs and results of GROUPED that are caches


def check_kv_cache(kv_cache: str | None) -> str | None:
    """Return *kv_cache*, an argument of a session. Raises ArgumentError if it is unknown."""
    if kv_cache not in (None, *KV_CACHES):
        raise ArgumentError(f"InferenceSession: kv_cache is {kv_cache!r}; it must be 'int8' or None")
    return kv_cache


def adapted(model: Model, sizes: Mapping[str, int], kv_cache: str | None = None) -> Model:
    """Return the model with the named open sizes fixed and with caches of this kind. Errors about the type of
    a cache state which sessions read such a cache."""
    model = _resized(model, sizes) if sizes else model
    return _hinted(model, FLOAT_HINT) if kv_cache is None else _with_int8_caches(model)


def _resized(model: Model, sizes: Mapping[str, int]) -> Model:
    def of(arguments: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(dataclasses.replace(a, shape=tuple(sizes.get(d, d) for d in a.shape)) for a in arguments)

    known = {dim for argument in model.inputs for dim in argument.shape if isinstance(dim, str)}
    if unknown := sorted(set(sizes) - known):
        raise ArgumentError(f"free dimensions {unknown} are fixed; the model's are {sorted(known)}")
    return dataclasses.replace(model, inputs=of(model.inputs), outputs=of(model.outputs))


def _with_int8_caches(model: Model) -> Model:
    """Return the model with the caches of every GroupQueryAttention as int32 words
    (`vkq.numerics.attention_cache`). Raises ModelError if it has none, or if other nodes read or compute
    them."""
    caches, nodes = set[str](), list[Node]()
    inputs, results = ({a.name for a in arguments} for arguments in (model.inputs, model.outputs))
    for node in model.nodes:
        own = _caches(node)
        if own and own - inputs - results:
            raise ModelError(
                f"{node}: {sorted(own - inputs - results)} are inside the model; with kv_cache='int8' past"
                " keys and values must be its inputs, and present ones its results; leave kv_cache out"
            )
        caches |= own
        more = {"int8_cache": True, "infer": _open_specs}
        nodes.append(dataclasses.replace(node, attributes={**node.attributes, **more}) if own else node)
    others = [node for node in model.nodes if not caches.isdisjoint(node.inputs) and not _caches(node)]
    if others or not caches:
        why = f"{others[0]} reads a cache" if others else f"the model has no {GROUPED} with a cache"
        raise ModelError(
            f"{model.name or 'model'}: kv_cache='int8' stores the caches that only {GROUPED} of"
            f" com.microsoft reads; {why}; leave kv_cache out"
        )

    def of(arguments: Sequence[Argument]) -> tuple[Argument, ...]:
        return tuple(_words(a) if a.name in caches else a for a in arguments)

    words = dataclasses.replace(model, inputs=of(model.inputs), outputs=of(model.outputs), nodes=tuple(nodes))
    return _hinted(words, INT8_HINT)


def _hinted(model: Model, hint: str) -> Model:
    """Add this hint to the model's inputs that are caches."""
    past = {name for node in model.nodes if _caches(node) for name in map(node.input, PAST)}
    inputs = tuple(dataclasses.replace(a, hint=hint) if a.name in past else a for a in model.inputs)
    return dataclasses.replace(model, inputs=inputs) if past else model


def _caches(node: Node) -> set[str]:
    """Return the names of a node's past and present keys and values; none for other operators."""
    a = node.attributes
    if node.op != "foreign" or (a["domain"], a["op"]) != ("com.microsoft", GROUPED):
        return set()
    present = (node.outputs[i] for i in PRESENT if i < len(node.outputs))
    return {name for name in (*map(node.input, PAST), *present) if name}


def _words(argument: Argument) -> Argument:
    """Return the argument of a cache as an argument of words; if the size of a head is open, it stays
    open."""
    shape = argument.shape
    if shape and isinstance(shape[-1], int):
        shape = (*shape[:-1], words_of(shape[-1]))
    return dataclasses.replace(argument, dtype="int32", shape=shape)


def _open_specs(x: Inputs) -> list[Spec]:
    """Raise OpenShape: `formed` gives the specs of this node's results when the number of keys (input 6) is
    known."""
    x.array(6)
    raise ModelError(f"{x.node}: the number of keys is missing")
