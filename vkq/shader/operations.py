"""The operations of OpSpecConstantOp on 32-bit integers and bools that vkq computes."""

from __future__ import annotations

from collections.abc import Callable


def _shifted(a: int, b: int) -> int:
    if not 0 <= b < 32:
        raise ValueError(f"a shift by {b}")
    return a << b


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


OPERATIONS: dict[int, Callable[..., int]] = {  # {opcode: function that computes its result}
    113: lambda a: a,
    114: lambda a: a,
    124: lambda a: a,
    126: lambda a: -a,
    128: lambda a, b: a + b,
    130: lambda a, b: a - b,
    132: lambda a, b: a * b,
    134: lambda a, b: a // b,
    135: _truncated,
    137: lambda a, b: a % b,
    138: lambda a, b: a - b * _truncated(a, b),
    139: lambda a, b: a % b,
    164: lambda a, b: a == b,
    165: lambda a, b: a != b,
    166: lambda a, b: a | b,
    167: lambda a, b: a & b,
    168: lambda a: 1 - a,
    169: lambda condition, a, b: a if condition else b,
    170: lambda a, b: a == b,
    171: lambda a, b: a != b,
    172: lambda a, b: a > b,
    173: lambda a, b: a > b,
    174: lambda a, b: a >= b,
    175: lambda a, b: a >= b,
    176: lambda a, b: a < b,
    177: lambda a, b: a < b,
    178: lambda a, b: a <= b,
    179: lambda a, b: a <= b,
    194: lambda a, b: (a & 0xFFFFFFFF) >> b,
    195: lambda a, b: a >> b,
    196: _shifted,
    197: lambda a, b: a | b,
    198: lambda a, b: a ^ b,
    199: lambda a, b: a & b,
    200: lambda a: ~a,
}
