"""The models of one operator each, by the operator's name and a seed."""

from __future__ import annotations

import numpy as np

from . import chosen, largest, moves, narrow, operators, shaped, ties

OPERATORS = {
    **operators.OPERATORS, **moves.MORE, **shaped.SHAPED, **chosen.CHOSEN, **ties.TIES, **narrow.NARROW,
    **largest.LARGEST,
}  # fmt: skip
# Operators without a uint8 form in LiteRT or in vkq.
INT8_ALONE = (
    "DEPTHWISE_CONV_2D", "ELU", "ELU-ties", "ABS", "SQRT", "HARD_SWISH", "HARD_SWISH-beyond", "EXP", "LOG",
    "RESIZE_BILINEAR-computed", "L2_NORMALIZATION",
    *narrow.NARROW,
)  # fmt: skip


def operator_case(op: str, seed: int) -> operators.Case:
    """Return the operator's model and inputs for this seed. Every third seed gives a uint8 model if the
    operator has one."""
    rng = np.random.default_rng([seed, *op.encode()])
    return OPERATORS[op](rng, "uint8" if seed % 3 == 2 and op not in INT8_ALONE else "int8")
