"""Translates WHILE and IF, which run other subgraphs of the file. Constants and shapes must determine the
number of iterations, or the branch."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ModelError
from .file import FileOperator, parse
from .lowering import Lowering, Unsupported
from .movement import Rule
from .sixteen import is_sixteen

MOST_ITERATIONS = 256  # maximum number of iterations of a WHILE
MOST_OPERATORS = 1 << 16  # maximum number of operators in all iterations and branches


def _subgraph(low: Lowering, number: int) -> Lowering:
    """Return a lowering of subgraph *number* whose inputs have no values yet. It adds nodes and constants to
    those of *low*."""
    if number not in low.below:
        file = parse(bytes(low.file.data), number)
        if number in (one.file.subgraph for one in (*low.above, low)):
            raise ModelError(f"{low.source}: subgraph {number} runs itself")
        if any(map(is_sixteen, file.tensors)):
            raise Unsupported(f"subgraph {number} has int16 activations (16x8); only the first one may")
        low.below[number] = sub = Lowering(
            file, low.nodes, low.constants, low.specs, lower=low.lower, above=(*low.above, low)
        )
        sub.taken, sub.most = low.taken, low.most
    sub = low.below[number]
    sub.arrays = {i: t.data for i, t in enumerate(sub.file.tensors) if t.data is not None}
    sub.plain, sub.first = (
        {n: x for n, x in names.items() if n in sub.arrays} for names in (sub.plain, sub.first)
    )
    sub.room = low.room
    return sub


def _run(low: Lowering, operator: FileOperator, number: int, given: Sequence[str]) -> list[str]:
    """Emit the operators of subgraph *number* for the values *given* of its inputs, and return the names of
    its results."""
    sub = _subgraph(low, number)
    if len(sub.file.inputs) != len(given):
        raise ModelError(
            f"{operator}: subgraph {number} is given {len(given)} values; it takes {len(sub.file.inputs)}"
        )
    for tensor, name in zip(sub.file.inputs, given, strict=True):
        sub.give(tensor, name)
    whole = (*low.above, low)[0]
    whole.ran += 1 + len(sub.file.operators)
    if whole.ran > MOST_OPERATORS:
        raise Unsupported(f"it runs more than {MOST_OPERATORS} operators, the most that vkq unrolls")
    for one in sub.file.operators:
        sub.source = f"{one} in {low.source}"
        sub.lower(sub, one)
    low.room = sub.room
    return [sub.last_of(tensor) for tensor in sub.file.outputs]


def _given(low: Lowering, operator: FileOperator, results: Sequence[str]) -> None:
    if len(results) != len(operator.outputs):
        raise ModelError(
            f"{operator}: its subgraph has {len(results)} results; there must be {len(operator.outputs)}"
        )
    for y, name in zip(operator.outputs, results, strict=True):
        low.give(y, name)


def repeat(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower WHILE. Its body is emitted once for each iteration, so constants and shapes must determine the
    condition, as in a loop over the steps of a sequence."""
    condition, body = (operator.options.get(f"{name}_subgraph_index", 0) for name in ("cond", "body"))
    values = [low.last_of(n) for n in operator.inputs]
    for _ in range(MOST_ITERATIONS + 1):
        (go_on,) = _run(low, operator, condition, values) or [""]
        if go_on not in low.constants or low.constants[go_on].size != 1:
            raise Unsupported("the number of its iterations depends on data; it must follow from shapes")
        if not low.constants[go_on].all():
            return _given(low, operator, values)
        values = _run(low, operator, body, values)
    raise Unsupported(f"it has more than {MOST_ITERATIONS} iterations, the most that vkq unrolls")


def choose(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower IF. Constants and shapes must determine its condition."""
    decided = bool(low.array(operator.inputs[0], "condition").all())
    number = operator.options.get("then_subgraph_index" if decided else "else_subgraph_index", 0)
    given = [low.last_of(n) for n in operator.inputs[1:]]
    _given(low, operator, _run(low, operator, number, given))


RULES: dict[str, Rule] = {"WHILE": repeat, "IF": choose}
