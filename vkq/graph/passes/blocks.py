"""Replaces each product whose weight is dequantized in blocks along K by a com.microsoft.MatMulNBits node."""

from __future__ import annotations

import numpy as np

from ...errors import VkqError
from ...numerics.grouped import GROUPS, packed
from ..graph import Array, Node
from ..operators.groups import weight_of
from .products import real
from .sweep import Sweep


def in_blocks(sweep: Sweep, node: Node, transposed: bool) -> bool:
    """Replace a MatMul or Gemm by MatMulNBits. The constant matrix is (N, K) if *transposed*, else (K, N).

    Return False if vkq does not support the matrix. Blocks must run along K. Their size must be in `GROUPS`
    or be a multiple of the largest group."""
    made = sweep.producer(node.inputs[1], "DequantizeLinear")
    block = int(made.attributes.get("block_size", 0)) if made is not None else 0
    if made is None or not block or node.inputs[0] in sweep.constants:
        return False
    arrays = [sweep.array(made.input(i)) for i in range(3)]
    data, scale, zero = (array if transposed or array is None else array.T for array in arrays)
    if data is None or scale is None or data.ndim != 2 or not data.size or (zero is None and made.input(2)):
        return False
    n, k = data.shape
    if data.dtype.name not in ("int8", "uint8") or (zero is not None and zero.shape != scale.shape):
        return False
    if scale.shape != (n, -(-k // block)) or block % GROUPS[0] or block > max(k, GROUPS[-1]):
        return False  # also refused: a block longer than K, which would be padded with zeros
    product = _product(sweep, node, data, scale, zero, block)
    try:
        weight_of(product, sweep.constants)
    except VkqError:
        return False
    sweep.keep(product)
    return True


def _product(sweep: Sweep, node: Node, data: Array, scale: Array, zero: Array | None, block: int) -> Node:
    """Return a MatMulNBits that replaces *node*. Its codes have 4 bits if 4 bits suffice for all codes and
    zero points, else 8."""
    points, signed = np.zeros(scale.shape, data.dtype) if zero is None else zero, data.dtype == np.int8
    least = -8 if signed else 0
    small = all(((each >= least) & (each < least + 16)).all() for each in (data, points))
    bits, (n, k), name = 4 if small else 8, data.shape, node.inputs[1]
    middle = 1 << bits - 1
    codes, points = (
        np.ascontiguousarray(each).view(np.uint8) + np.uint8(middle if signed else 0)
        for each in (data, points)
    )
    codes = np.pad(codes, ((0, 0), (0, -k % block)))
    weight = packed(codes, bits).reshape(n, -(-k // block), -1)
    inputs = [
        sweep.constant(weight, f"{name}/blocks"),
        sweep.constant(np.ascontiguousarray(scale), f"{name}/scales"),
    ]
    usual = bool((points == middle).all())
    bias = real(sweep, node.input(2)) if node.input(2) else None
    inputs += ["" if usual else sweep.constant(packed(points, bits), f"{name}/points"), ""]
    inputs.append("" if bias is None else sweep.constant(bias.reshape(-1), f"{node.input(2)}/bias"))
    sizes = {"K": k, "N": n, "bits": bits, "block_size": block}
    return Node("MatMulNBits", (node.inputs[0], *inputs), node.outputs, sizes, node.source)
