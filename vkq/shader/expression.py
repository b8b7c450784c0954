"""The integer expressions of a shader description: dispatch size, local size, shared memory."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from vkq.errors import ArgumentError

MAX_LENGTH = 500
MOST_KEPT = 4096  # maximum number of cached expressions; all shaders have some hundred
# A number followed by letters, such as 1if, which Python would parse with a warning.
_GLUED = re.compile(r"\b\d+[^\W\d]")


def ceil_div(a: int, b: int) -> int:
    """Return the quotient rounded up: ``ceil_div(7, 4) == 2``."""
    return -(-a // b)


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}
_FUNCTIONS: dict[str, tuple[Callable[..., int], range]] = {  # name -> (function, allowed argument counts)
    "ceil_div": (ceil_div, range(2, 3)),
    "min": (min, range(2, 10)),
    "max": (max, range(2, 10)),
}


@dataclass(frozen=True)
class Expression:
    """An integer expression: names, integers, ``+ - * // %``, ``ceil_div(a, b)``, ``min`` and ``max``. Any
    other text raises ``ArgumentError``.

    >>> Expression("ceil_div(m, 4 * TILE)").evaluate({"m": 9, "TILE": 1})
    3
    """

    text: str

    def __post_init__(self) -> None:
        _parse(self.text)

    @property
    def names(self) -> frozenset[str]:
        """The names that must have a value."""
        return _names(self.text)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Return the value of the expression. Raises ``ArgumentError`` for a name without a value or a
        division by zero."""
        missing = sorted(self.names - values.keys())
        if missing:
            raise ArgumentError(
                f"'{self.text}' needs a value for '{missing[0]}'; given are: {', '.join(values)}."
            )
        try:
            return _evaluate(_parse(self.text), values)
        except ZeroDivisionError:
            given = ", ".join(f"{name}={values[name]}" for name in sorted(self.names))
            raise ArgumentError(f"'{self.text}' divides by zero with {given}.") from None


@lru_cache(MOST_KEPT)  # cached, because each dispatch needs the names
def _names(text: str) -> frozenset[str]:
    functions = {id(node.func) for node in ast.walk(_parse(text)) if isinstance(node, ast.Call)}
    nodes = (node for node in ast.walk(_parse(text)) if isinstance(node, ast.Name))
    return frozenset(node.id for node in nodes if id(node) not in functions)


@lru_cache(MOST_KEPT)
def _parse(text: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise ArgumentError(f"an expression of {len(text)} characters; at most {MAX_LENGTH} are allowed.")
    try:
        if _GLUED.search(text):
            raise SyntaxError
        tree = ast.parse(text.strip(), mode="eval").body
        _check(tree, text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"'{text}' is not an expression such as 'ceil_div(m, 4) * 2'.") from error
    return tree


def _check(node: ast.expr, text: str) -> None:
    """Refuse every construct that ``_evaluate`` does not support."""
    if isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and type(node.value) is int):
        return
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        children = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        children = [node.operand]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        counts = _FUNCTIONS.get(node.func.id, (None, range(0)))[1]
        if len(node.args) not in counts:
            raise ArgumentError(
                f"'{text}' calls {node.func.id} with {len(node.args)} arguments; the functions are"
                " ceil_div(a, b), min(a, b, ...) and max(a, b, ...)."
            )
        children = node.args
    else:
        raise ArgumentError(
            f"'{text}' holds '{ast.unparse(node)}'; allowed are names, integers, + - * // %, ceil_div, min"
            " and max."
        )
    for child in children:
        _check(child, text)


def _evaluate(node: ast.expr, values: Mapping[str, int]) -> int:
    if isinstance(node, ast.Name):
        return int(values[node.id])
    if isinstance(node, ast.Constant):
        return int(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)](_evaluate(node.left, values), _evaluate(node.right, values))
    if isinstance(node, ast.UnaryOp):
        return -_evaluate(node.operand, values)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        function = _FUNCTIONS[node.func.id][0]
        return function(*(_evaluate(argument, values) for argument in node.args))
    assert isinstance(node, ast.UnaryOp)
    return -_evaluate(node.operand, values)
