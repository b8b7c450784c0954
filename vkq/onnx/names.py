"""Selects nodes of a model by name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..errors import ArgumentError, did_you_mean


def chosen(proto: Any, names: Collection[str]) -> list[str]:
    """Return the names of the nodes with a name in *names*, and of all nodes below them: ``/head`` includes
    ``/head/conv/Conv``.

    Raises ArgumentError for a name that no node has.
    """
    known = [node.name for node in proto.graph.node]
    found = []
    for name in names:
        nodes = [node for node in known if node == name or node.startswith(f"{name.rstrip('/')}/")]
        if not nodes:
            raise ArgumentError(f"the model has no node {name!r}{did_you_mean(name, known)}")
        found += nodes
    return list(dict.fromkeys(found))
