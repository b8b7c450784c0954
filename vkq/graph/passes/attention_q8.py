"""Joins the four steps of 8-bit attention (matmul, add of a mask, softmax, matmul) to one node, which is one
dispatch where the device can."""

from __future__ import annotations

from ...kernels.attention_q8 import AttentionSteps
from ...numerics.qparams import QParams
from ...numerics.stored import signed
from ...problem.heads import ONE_EACH, TURNED
from ..graph import Graph, Node
from ..operators.movement import permutation
from .sweep import Sweep, swept


def join_attention(graph: Graph) -> Graph:
    """Join the steps of each attention whose values between nothing else reads."""
    return swept(graph, _visit, "matmul") if "softmax" in graph.kinds else graph


def _visit(sweep: Sweep, node: Node) -> bool:
    a, (name, table) = node.attributes, _before_table(sweep, node.inputs[0])
    softmax = _alone(sweep, name, "softmax")
    if softmax is None or not a.get("rows") or a["y"] is None:
        return False
    scores, mask, sums, mask_first = _scores(sweep, softmax.inputs[0])
    known = _softmax(sweep, softmax)
    values, of_v = _values(sweep, node.inputs[1])
    if scores is None or known is None or not values:
        return False
    b, litert = scores.attributes, "litert" in softmax.attributes
    of_q, of_k, _ = b.get("heads", ONE_EACH)
    products = (b["a"], b["b"], b["y"]), (a["a"], a["b"], a["y"])
    steps = AttentionSteps(products[0], sums, known, products[1], mask_first, litert, table)
    if len(steps.dtypes) > 1:  # as single nodes, some of these run on no device
        return False
    sweep.emit(
        "attention_q8", [*scores.inputs, values, *([mask] if mask else [])], node.outputs[0], node.source,
        steps=steps, heads=(of_q, of_k, of_v, a.get("heads", ONE_EACH)[2]),
    )  # fmt: skip
    return True


def _before_table(sweep: Sweep, name: str) -> tuple[str, bytes | None]:
    """Return the value before a lookup of weights and the stored bytes of its table; the value itself and
    None without one."""
    made = _alone(sweep, name, "lookup")
    if made is None:
        return name, None
    table = made.attributes["table"]
    if table.ndim != 1 or sweep.specs[made.inputs[0]].dtype != table.dtype.name:
        return name, None
    return made.inputs[0], signed(table).tobytes()


def _alone(sweep: Sweep, name: str, *ops: str) -> Node | None:
    """Return the node of these operators that makes a value with one reader."""
    return sweep.producer(name, *ops) if sweep.uses.get(name) == 1 else None


def _softmax(sweep: Sweep, node: Node) -> tuple[QParams, QParams] | None:
    """Return the parameters of an 8-bit softmax along the last axis with a referee's bytes; else None."""
    a, rank = node.attributes, len(sweep.specs[node.inputs[0]].shape)
    if a["y"] is None or a["axis"] % rank != rank - 1 or not (a["onnxruntime"] or "litert" in a):
        return None
    return a["x"], a["y"]


def _scores(
    sweep: Sweep, name: str
) -> tuple[Node | None, str, tuple[QParams, QParams, QParams] | None, bool]:  # fmt: skip
    """Return the product that makes the scores, the mask that is added to them ("": none), the sum's
    parameters, and whether the mask is its first operand."""
    added = _alone(sweep, name, "add")
    if added is None or added.attributes.get("activation") is not None:
        return _product(sweep, name), "", None, False
    a = added.attributes
    for i, own in enumerate(added.inputs):
        made = _product(sweep, own)
        if made is not None and sweep.specs[own].shape == sweep.specs[name].shape:
            return made, added.inputs[1 - i], (a["a"], a["b"], a["y"]), i == 1
    return None, "", None, False


def _product(sweep: Sweep, name: str) -> Node | None:
    """Return the product of 8-bit rows with 8-bit rows that makes a value with one reader."""
    made = _alone(sweep, name, "matmul")
    if made is None or not made.attributes.get("rows") or made.attributes["y"] is None:
        return None
    return made if made.attributes.get("heads", ONE_EACH)[2] == 1 else None


def _values(sweep: Sweep, name: str) -> tuple[str, int]:
    """Return the values whose columns are the rows *name*, and how many of their heads lie side by side; ""
    if no node turned them."""
    made = sweep.producer(name, "permute", "Transpose")
    if made is None:
        return "", 1
    if made.op == "permute":
        a = made.attributes
        given, shape = sweep.specs[made.inputs[0]].shape, tuple(a["shape"])
        wide = len(given) == 3 and len(shape) == 4 and given == (*shape[:2], shape[2] * shape[3])
        turned = tuple(a["perm"]) == TURNED and tuple(a["to"]) == tuple(shape[i] for i in TURNED)
        return (made.inputs[0], shape[2]) if wide and turned else ("", 1)
    rank = len(sweep.specs[name].shape)
    rows = (*range(rank - 2), rank - 1, rank - 2)
    return (made.inputs[0], 1) if tuple(permutation(made, rank)) == rows else ("", 1)
