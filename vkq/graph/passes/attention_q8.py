"""Fuses the four steps of 8-bit attention (matmul, addition of a mask, softmax, matmul) into one node. The
node is one dispatch if the device supports it."""

from __future__ import annotations

from ...kernels.attention_steps import AttentionSteps
from ...numerics.qparams import QParams
from ...numerics.stored import signed
from ...problem.heads import ONE_EACH, TURNED
from ..graph import Graph, Node
from ..operators.movement import permutation
from .columns import sliced
from .sweep import Sweep, swept


def join_attention(graph: Graph) -> Graph:
    """Fuse the steps of each attention into one node, if the values between the steps have no other
    readers."""
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
    # Without a fused kernel the steps run as separate dispatches, some of which refuse mixed types.
    if len(steps.dtypes) > 1:
        return False
    operands, heads = [*scores.inputs, values], (of_q, of_k, of_v, a.get("heads", ONE_EACH)[2])
    columns = None
    if min(heads) > 1:
        operands, columns = _columns(sweep, operands)
    sweep.emit(
        "attention_q8", [*operands, *([mask] if mask else [])], node.outputs[0], node.source, steps=steps,
        heads=heads, columns=columns,
    )  # fmt: skip
    return True


def _columns(sweep: Sweep, operands: list[str]) -> tuple[list[str], tuple[range, ...] | None]:
    """Return (operands, columns). An operand that is a Slice of columns is replaced by the input of the
    Slice. *columns* has the range of columns to read of each operand; it is None if no operand is a Slice. A
    lookup after a Slice becomes a lookup of the Slice's whole input, because the kernel reads columns only
    from stored values."""
    found = []
    for name in operands:
        table = sweep.producer(name, "lookup")
        own = _part(sweep, table.inputs[0] if table and "axis" not in table.attributes else name)
        if own is None:
            found.append((name, range(sweep.specs[name].shape[-1])))
        elif table is None:
            found.append(own)
        else:
            whole = [own[0], *table.inputs[1:]]
            found.append((sweep.emit("lookup", whole, "", table.source, **table.attributes), own[1]))
    names = [name for name, _ in found]
    return names, None if names == operands else tuple(own for _, own in found)


def _part(sweep: Sweep, name: str) -> tuple[str, range] | None:
    """If a Slice of consecutive columns computes the value, return (the input of the Slice, the range of
    these columns), else None."""
    made = sweep.producer(name, "Slice")
    found = sliced(sweep, made) if made else None
    last = len(sweep.specs[name].shape) - 1
    return (made.inputs[0], found[1]) if made and found and found[0] == last else None


def _before_table(sweep: Sweep, name: str) -> tuple[str, bytes | None]:
    """If a lookup computes the attention weights *name*, return (the lookup's input, the bytes of its table),
    else (*name*, None)."""
    made = _alone(sweep, name, "lookup")
    if made is None:
        return name, None
    table = made.attributes["table"]
    if table.ndim != 1 or sweep.specs[made.inputs[0]].dtype != table.dtype.name:
        return name, None
    return made.inputs[0], signed(table).tobytes()


def _alone(sweep: Sweep, name: str, *ops: str) -> Node | None:
    """Return the node that computes a value. Return None if the node's operator is not in *ops*, or if the
    value has several readers."""
    return sweep.producer(name, *ops) if sweep.uses.get(name) == 1 else None


def _softmax(sweep: Sweep, node: Node) -> tuple[QParams, QParams] | None:
    """Return the parameters (x, y) of a softmax along the last axis whose bytes must equal ONNX Runtime's
    or LiteRT's; None for any other softmax."""
    a, rank = node.attributes, len(sweep.specs[node.inputs[0]].shape)
    if a["y"] is None or a["axis"] % rank != rank - 1 or not (a["onnxruntime"] or "litert" in a):
        return None
    return a["x"], a["y"]


def _scores(
    sweep: Sweep, name: str
) -> tuple[Node | None, str, tuple[QParams, QParams, QParams] | None, bool]:  # fmt: skip
    """Return (product, mask, parameters, mask first). *product*: the node that computes the scores. *mask*:
    the value that is added to the scores, or "". *parameters*: those of the addition's operands and of its
    sum; None without a mask. *mask first*: True if the mask is the addition's first operand."""
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
    """Return the product of two 8-bit activations that computes a value. Return None if another operator
    computes the value, or if the value has several readers."""
    made = _alone(sweep, name, "matmul")
    if made is None or not made.attributes.get("rows") or made.attributes["y"] is None:
        return None
    return made if made.attributes.get("heads", ONE_EACH)[2] == 1 else None


def _values(sweep: Sweep, name: str) -> tuple[str, int]:
    """If *name* is a transpose, return (the value before it, the number of heads side by side in a row of
    this value), else ("", 1)."""
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
