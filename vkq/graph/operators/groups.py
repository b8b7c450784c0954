"""MatMulNBits of com.microsoft: a matrix product whose weights have a scale for each group along K."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import ModelError
from ...numerics.grouped import BITS, GROUPS, GroupedWeight, packed, unpacked
from ..graph import Array, Node, Spec
from .operator import Inputs, Operator

A, B, SCALES, ZERO_POINTS, G_IDX, BIAS = range(6)  # indices of the inputs of MatMulNBits


def weight_of(node: Node, constants: Mapping[str, Array]) -> GroupedWeight:
    """Return the weight of a node; raise VkqError if vkq does not support the weight."""
    codes, scales, points = (
        constants.get(node.input(i)) if node.input(i) else None for i in (B, SCALES, ZERO_POINTS)
    )
    n, k, block, bits = sizes_of(node)
    if block < 1:
        raise ModelError(f"{node}: block_size={block}; it must be at least 1")
    if bits not in (2, *BITS):
        raise ModelError(f"{node}: bits={bits}; it must be 2, 4 or 8")
    if node.input(G_IDX) and not _neighbours(constants.get(node.input(G_IDX)), block):
        raise ModelError(f"{node}: its groups are permuted (g_idx); they must be consecutive along K")
    if codes is None or scales is None or (node.input(ZERO_POINTS) and points is None):
        raise ModelError(f"{node}: its weight, scales and zero points must be constants")
    wanted = n, -(-k // block), block * bits // 8
    if codes.shape != wanted:
        raise ModelError(
            f"{node}: B has shape {codes.shape}; with N={n}, K={k}, bits={bits} and block_size={block} it"
            f" must be {wanted}: N, blocks along K (the last one may be partly used), bytes per block"
        )
    if bits == 2 and codes.dtype == np.uint8:
        (codes, points), bits = _of_four_bits(node, codes, points), 4
    if block > GROUPS[-1] and block % GROUPS[-1] == 0:
        codes, scales, points = _in_groups(node, k, bits, codes, scales, points)
    return GroupedWeight(codes, scales, points, bits, k)


def _of_four_bits(node: Node, codes: Array, points: Array | None) -> list[Array]:
    """Widen 2-bit codes and zero points to 4 bits; float zero points stay unchanged."""
    n, blocks, _ = codes.shape
    if points is None:
        # the code 2 is the default zero point of 2-bit codes
        points = np.full((n, -(-blocks // 4)), 0b10101010, np.uint8)
    if points.dtype == np.uint8:
        if points.size != n * -(-blocks // 4):
            raise ModelError(
                f"{node}: zero_points has shape {points.shape}; packed 2-bit zero points must"
                f" have shape {(n, -(-blocks // 4))}, or be flat"
            )
        points = packed(unpacked(points.reshape(n, -1), 2)[:, :blocks], 4)
    return [packed(unpacked(codes, 2), 4), points]


def sizes_of(node: Node) -> tuple[int, int, int, int]:
    """Return the attributes N, K, block_size and bits (4 by default)."""
    for name in ("N", "K", "block_size"):
        if name not in node.attributes:
            raise ModelError(f"{node}: its attribute {name} is missing")
    n, k, block = (int(node.attributes[name]) for name in ("N", "K", "block_size"))
    return n, k, block, int(node.attributes.get("bits", 4))


def _in_groups(node: Node, k: int, bits: int, codes: Array, scales: Array, points: Array | None) -> list[Any]:
    """Divide each block of codes into groups of the largest supported size. Each group gets the scale and the
    zero point of its block. Groups beyond K, which have only padding, are dropped."""
    n, blocks, size = codes.shape
    if points is not None and points.dtype == np.uint8 and points.size == n * -(-blocks * bits // 8):
        points = unpacked(points.reshape(n, -1), bits)[:, :blocks].astype(scales.dtype)
    for name, array in (("scales", scales), ("zero_points", points)):
        if array is not None and array.size != n * blocks:
            raise ModelError(
                f"{node}: {name} has shape {array.shape}; there must be one for each of {blocks} blocks in"
                f" {n} rows of B"
            )
    groups, parts = -(-k // GROUPS[-1]), size * 8 // bits // GROUPS[-1]
    shared = [
        None if array is None else np.repeat(array.reshape(n, blocks), parts, 1)[:, :groups]
        for array in (scales, points)
    ]
    return [codes.reshape(n, blocks * parts, -1)[:, :groups], *shared]


def _neighbours(groups: Array | None, block: int) -> bool:
    """Return True if *groups* (the input g_idx) assigns index i along K to group i // *block*, for every
    i."""
    return groups is not None and np.array_equal(groups, np.arange(groups.size) // block)


def _infer(x: Inputs) -> list[Spec]:
    shape, (n, k, _, _) = x.spec(A).shape, sizes_of(x.node)
    if not shape or shape[-1] != k:
        raise ModelError(f"{x.node}: A has shape {shape} and K is {k}; its last axis must be K")
    return [Spec(x.spec(A).dtype, (*shape[:-1], n))]


OPERATORS: dict[str, Operator] = {"MatMulNBits": Operator("number", _infer)}
