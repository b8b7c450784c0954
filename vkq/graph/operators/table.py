"""The table of all graph operators."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ModelError, VkqError
from ..graph import Array, Node, Spec
from . import attention, chains, elementwise, groups, heads, movement, number, quantized, rows, scatter
from .operator import Inputs, Operator

TABLE: dict[str, Operator] = {
    **attention.OPERATORS,
    **elementwise.OPERATORS,
    **movement.OPERATORS,
    **number.OPERATORS,
    **quantized.OPERATORS,
    **groups.OPERATORS,
    **chains.OPERATORS,
    **rows.OPERATORS,
    **scatter.OPERATORS,
    **heads.OPERATORS,
}


def infer(node: Node, specs: Sequence[Spec | None], arrays: Sequence[Array | None]) -> list[Spec]:
    """Return the specs of a node's results. Every error message names the node."""
    row = TABLE.get(node.op)
    if row is None:
        raise ModelError(f"{node}: there is no operator {node.op}")
    if row.most is not None and len(specs) > row.most:
        raise ModelError(f"{node}: it has {len(specs)} inputs; {node.op} takes at most {row.most}")
    try:
        found = [spec.check(str(node)) for spec in row.infer(Inputs(node, specs, arrays))]
    except ModelError:
        raise
    except KeyError as error:  # of the node's attributes
        raise ModelError(f"{node}: its attribute {error} is missing") from error
    except (VkqError, ValueError, TypeError, IndexError, ArithmeticError) as error:
        raise ModelError(f"{node}: {str(error).removeprefix(f'{node}: ')}") from error
    if any(node.outputs[len(found) :]):
        raise ModelError(f"{node}: it has {len(node.outputs)} results; {node.op} gives {len(found)}")
    return found


def compute(node: Node, arrays: Sequence[Array | None]) -> list[Array]:
    """Return the results of a node, computed in NumPy. Every error message names the node."""
    row = TABLE[node.op].compute
    if row is None:
        raise ModelError(f"{node}: {node.op} is not computed ahead of time")
    try:
        found = row(node, arrays)
    except ModelError:
        raise
    except (VkqError, KeyError, ValueError, TypeError, IndexError, AssertionError, ArithmeticError) as error:
        raise ModelError(f"{node}: {type(error).__name__}: {error}") from error
    if found is None:
        raise ModelError(f"{node}: {node.op} is not computed ahead of time")
    return list(found)
