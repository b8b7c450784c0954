"""Inputs whose values count as constants because a device cannot compute with them: the host computes with
them, again for each new value."""

from __future__ import annotations

from collections.abc import Mapping

from ..graph.executable import refusals
from ..graph.graph import Graph, Node
from ..graph.passes.constants import Rest
from .fallback import caller_warned
from .reader import Model

# Types of inputs that a device computes with. The values of inputs of other types count as constants.
ON_DEVICE = ("int8", "uint8", "float32", "bool", "float16", "int32", "int64")
# Types of inputs whose values count as constants only if the device cannot run nodes that depend on them.
MAY_BE_CONSTANT = ("float16", "bool", "int32", "int64")


class ConstantInputWarning(UserWarning):
    """Warning: the values of an input count as constants, so each new value prepares the model again."""


def blamed(model: Model, graph: Graph, rest: Rest) -> dict[str, str]:
    """Return the inputs that may count as constants and decide the first node that cannot run on a device,
    each with this node and the reason. Later nodes may be refused because of this one. *graph*: the lowered
    graph. *rest*: the nodes that cannot be planned."""
    reasons = [(node, f"{node}: {why}") for node, why in refusals(graph)]
    reasons += [(node, rest.why) for node in rest.found]
    may_be = {
        argument.name for argument in model.inputs if argument.dtype in MAY_BE_CONSTANT or argument.stored
    }
    made = {name: node for node in (*graph.nodes, *rest.nodes) for name in node.outputs}
    for node, why in reasons if may_be else ():
        if names := _read(node, made) & may_be:
            return dict.fromkeys(names, why)
    return {}


def _read(node: Node, made: Mapping[str, Node]) -> set[str]:
    """Return the names of all values on which a node depends."""
    seen, waiting = set[str](), list(node.inputs)
    while waiting:
        name = waiting.pop()
        if name and name not in seen:
            seen.add(name)
            waiting += made[name].inputs if name in made else ()
    return seen


def warn_of(found: dict[str, str], model: Model) -> None:
    """Warn that the inputs in *found*, a result of `blamed`, count as constants, and clear *found*."""
    if not found:
        return
    names, (why, *more) = sorted(found), dict.fromkeys(found.values())
    found.clear()
    others = f" (and {len(more)} more)" * bool(more)
    fallback = "onnxruntime" if model.opset else "litert"  # a .tflite model has no opset
    caller_warned(
        f"{why}{others}. So the values of {names} count as constants: the host computes what depends"
        f" on them alone, and each new value prepares the model again."
        f" fallback={fallback!r} runs such nodes on the CPU instead; constant_inputs={names} accepts this"
        " without a warning",
        ConstantInputWarning,
    )
