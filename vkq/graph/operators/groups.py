"""Products with weights in groups along K: com.microsoft's MatMulNBits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...errors import ModelError
from ...numerics.grouped import GroupedWeight
from ..graph import Array, Node, Spec
from .operator import Inputs, Operator

A, B, SCALES, ZERO_POINTS, G_IDX, BIAS = range(6)  # inputs


def weight_of(node: Node, constants: Mapping[str, Array]) -> GroupedWeight:
    """The weight of a node; raises VkqError with the numbers where vkq has no such weight."""
    given = [constants.get(node.input(i)) if node.input(i) else None for i in (B, SCALES, ZERO_POINTS)]
    n, k, block, bits = (int(node.attributes.get(name, 4)) for name in ("N", "K", "block_size", "bits"))
    if node.input(G_IDX) and not _neighbours(constants.get(node.input(G_IDX)), block):
        raise ModelError(f"{node}: its groups are permuted (g_idx); vkq takes neighbours along K")
    if any(node.input(i) and array is None for i, array in zip((B, SCALES, ZERO_POINTS), given, strict=True)):
        raise ModelError(f"{node}: its weight, scales and zero points must be constants")
    weight = GroupedWeight(given[0], given[1], given[2], bits)  # type: ignore[arg-type]
    if (weight.shape, weight.group) != ((n, k), block):
        raise ModelError(
            f"{node}: K={k}, N={n}, block_size={block}, and B is {weight}; K must be a multiple of"
            " block_size, so pad K with zeros and quantize again"
        )
    return weight


def _neighbours(groups: Array | None, block: int) -> bool:
    """Whether the group of each of K is that of its place."""
    return groups is not None and np.array_equal(groups, np.arange(groups.size) // block)


def _infer(x: Inputs) -> list[Spec]:
    shape, k = x.spec(A).shape, int(x.node.attributes["K"])
    if not shape or shape[-1] != k:
        raise ModelError(f"{x.node}: A has shape {shape} and K is {k}; its last axis must be K")
    return [Spec(x.spec(A).dtype, (*shape[:-1], int(x.node.attributes["N"])))]


OPERATORS: dict[str, Operator] = {"MatMulNBits": Operator("number", _infer)}
