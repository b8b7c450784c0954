"""Operands of products on matrix units of float16 and bfloat16: x as they read it, as a step of a plan, and
weights that are put together from words."""

from __future__ import annotations

import numpy as np

from ..layout.extent import Spec
from ..runtime.builder import Builder, Value
from ..shader.catalog import catalog
from .half_ways import WORDS_OUTPUTS
from .weights import Int32

RUN = 8  # halves of a uvec4
X_PARTS = 3  # of a float32 as bfloat16
WORDS_K = 64  # of weights of which 128 uvec4 lie beside each other


def halves(
    b: Builder, x: Value, images: int, groups: int, channels: int, plane: int, of: str = "images"
) -> Value:
    """float32 or float16 x as the kernels read it: see shaders/gemm/halves_q8csw.comp."""
    runs = -(-channels // RUN)
    count = images * groups * runs * plane
    y = b.new(Spec((4 * count,), "int32"))
    push: dict[str, int | float] = {
        "images": images, "groups": groups, "group_channels": channels, "runs": runs, "plane": plane,
    }  # fmt: skip
    b.dispatch(b.device.program(catalog().find("halves_q8csw__runs", x=x.spec.dtype, of=of)), [x, y], push)
    return y


def parts_of(b: Builder, x: Value, images: int, groups: int, channels: int, plane: int, of: str) -> Value:
    """float32 x as the kernels of bfloat16 read it: see shaders/gemm/parts_q8csw.comp."""
    runs = -(-channels // RUN)
    y = b.new(Spec((4 * X_PARTS * images * groups * runs * plane,), "int32"))
    push: dict[str, int | float] = {
        "images": images, "groups": groups, "group_channels": channels, "runs": runs, "plane": plane,
    }  # fmt: skip
    b.dispatch(b.device.program(catalog().find("parts_q8csw__runs", of=of)), [x, y], push)
    return y


def in_words(pairs: Int32, k: int) -> Int32:
    """Weights of so many k of each output, packed in pairs (kPackedInt8_32K), in the order of
    shaders/gemm/gemm_q8csw_words_coopmat.comp."""
    blocks = pairs.reshape(-1, k // WORDS_K, 2, 16, 2, 4)  # of 16 outputs; of 32 k, rows, halves, pairs
    blocks = np.pad(blocks, ((0, len(blocks) % 2), *((0, 0),) * 5))
    groups = blocks.reshape(-1, WORDS_OUTPUTS // 16, *blocks.shape[1:])
    return np.ascontiguousarray(groups.transpose(0, 2, 5, 4, 6, 3, 1)).reshape(-1)
