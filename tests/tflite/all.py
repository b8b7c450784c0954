"""All models of one operator, by the operator's name and a number."""

from __future__ import annotations

import numpy as np

from . import moves, operators, shaped

OPERATORS = {**operators.OPERATORS, **moves.MORE, **shaped.SHAPED}
# uint8 is no form of them that both take
INT8_ALONE = ("DEPTHWISE_CONV_2D", "ELU", "ABS", "HARD_SWISH", "HARD_SWISH-beyond", "EXP", "LOG")


def operator_case(op: str, seed: int) -> operators.Case:
    """The model and inputs of this number."""
    rng = np.random.default_rng([seed, *op.encode()])
    return OPERATORS[op](rng, "uint8" if seed % 3 == 2 and op not in INT8_ALONE else "int8")
