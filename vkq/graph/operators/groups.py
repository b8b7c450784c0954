"""Products with weights in groups along K: com.microsoft's MatMulNBits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...errors import ModelError
from ...numerics.grouped import GROUPS, GroupedWeight, unpacked
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
    codes, scales, points = _in_parts(given, bits, block)
    weight = GroupedWeight(codes, scales, points, bits)  # type: ignore[arg-type]
    if (weight.shape, weight.group) != ((n, k), min(block, GROUPS[-1])):
        raise ModelError(
            f"{node}: K={k}, N={n}, block_size={block}, and B is {weight}; B must have N rows of"
            " K / block_size blocks, which may be rounded up where A is float32"
        )
    return weight


def _in_parts(given: list[Array | None], bits: int, block: int) -> list[Array | None]:
    """Codes, scales and zero points with larger blocks as several groups that share scale and zero point; as
    they are, to be refused in words, where their sizes do not fit."""
    codes, scales, points = given
    parts, rest = divmod(block, GROUPS[-1])
    if codes is None or scales is None or parts < 2 or rest or codes.ndim != 3 or not codes.size:
        return given
    n, blocks, size = codes.shape
    if points is not None and points.dtype == np.uint8 and points.size == n * -(-blocks * bits // 8):
        points = unpacked(points.reshape(n, -1), bits)[:, :blocks].astype(scales.dtype)
    each = [x for x in (scales, points) if x is not None]
    if size * 8 != block * bits or any(x.size != n * blocks for x in each):
        return given
    shared = [None if x is None else np.repeat(x.reshape(n, blocks), parts, 1) for x in (scales, points)]
    return [codes.reshape(n, blocks * parts, -1), *shared]


def _neighbours(groups: Array | None, block: int) -> bool:
    """Whether the group of each of K is that of its place."""
    return groups is not None and np.array_equal(groups, np.arange(groups.size) // block)


def _infer(x: Inputs) -> list[Spec]:
    shape, k = x.spec(A).shape, int(x.node.attributes["K"])
    if not shape or shape[-1] != k:
        raise ModelError(f"{x.node}: A has shape {shape} and K is {k}; its last axis must be K")
    return [Spec(x.spec(A).dtype, (*shape[:-1], int(x.node.attributes["N"])))]


OPERATORS: dict[str, Operator] = {"MatMulNBits": Operator("number", _infer)}
