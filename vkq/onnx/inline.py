"""Inlines the functions that a model defines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import ModelError
from .protobuf import package

# Maximum number of nodes of a model after inlining. Without a limit, a chain of functions that each call
# the next one ten times would fill the memory.
MOST_NODES = 100_000
DEEPEST = 64  # maximum depth of calls of functions within functions
Key = tuple[str, str]


def inlined(proto: Any) -> Any:
    """Return the model with its functions inlined. Raises ModelError if functions are recursive, call each
    other more than `DEEPEST` levels deep, or expand to more than `MOST_NODES` nodes."""
    bodies = {(f.domain, f.name): f.node for f in proto.functions}
    sizes: dict[Key, int] = {}

    def size(nodes: Iterable[Any], within: tuple[Key, ...]) -> int:
        return sum(one(node, within) for node in nodes)

    def one(node: Any, within: tuple[Key, ...]) -> int:
        key = (node.domain, node.op_type)
        branches = [graph for a in node.attribute for graph in ([a.g] if a.HasField("g") else a.graphs)]
        inside = sum(size(graph.node, within) for graph in branches)
        if key not in bodies:
            return 1 + inside
        if key in within or len(within) == DEEPEST:
            chain = " calls ".join(name for _, name in (*within[-5:], key))
            raise ModelError(
                f"the model's functions call themselves, or are nested more than {DEEPEST} deep: {chain}"
            )
        if key not in sizes:
            sizes[key] = size(bodies[key], (*within, key))
        return sizes[key] + inside

    count = size(proto.graph.node, ())
    if count > MOST_NODES:
        raise ModelError(f"the model's functions make {count} nodes; at most {MOST_NODES} are read")
    try:
        return package().inliner.inline_local_functions(proto)
    except Exception as error:  # onnx's errors have no common base class
        raise ModelError(f"the model's functions cannot be inlined: {str(error)[:200]}") from error
