"""Fuses chains and functions of rows with their neighbours.

A function of rows is a reduction, softmax or normalization. Its kernel can also compute a cheap chain before
the function (`prologues`), and after the function a chain, a quantize and a dequantize, in this order. A
Transpose of 8-bit rows and a Reshape before or after the Transpose become one movement (permute). A permute
that merges the heads of a product is removed, because the product can write its heads side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...kernels.move import pixels_as_rows
from ...kernels.row_form import RESULT
from ...problem.heads import ONE_EACH, SWAPPED, together
from ..graph import Graph, Node
from ..operators.movement import permutation
from .links import BYTES
from .prologues import MOST_BUFFERS, storable, way_of, with_prologue
from .rows import by_last_axis, whole_words
from .sweep import Sweep


def join(graph: Graph) -> Graph:
    """Fuse neighbours, as the module's docstring describes, if the value between them has no other reader."""
    ops = {"rows", "chain", "quantize", "dequantize"} if "rows" in graph.kinds else set()
    if any(spec.dtype in BYTES for spec in graph.specs.values()):
        ops |= {"Transpose", "Reshape"}
    return Sweep(graph).run(_Joined(graph.uses()).visit, ops)


class _Joined:
    def __init__(self, uses: dict[str, int]):
        self.uses = uses

    def visit(self, sweep: Sweep, node: Node) -> bool:
        if node.op in ("Transpose", "Reshape"):
            return self._moved(sweep, node)
        if node.op == "rows":
            return with_prologue(sweep, node, self.uses)
        if node.op == "dequantize":
            return self._real(sweep, node)
        made = next((found for name in node.inputs if (found := self._rows(sweep, name)) is not None), None)
        if made is None:
            return False
        return _quantized(sweep, node, made) if node.op == "quantize" else _chained(sweep, node, made)

    def _rows(self, sweep: Sweep, name: str) -> Node | None:
        """Return the function of rows that computes a value. Return None in these cases:

        - another operator computes the value, or the value has several readers
        - the function already quantizes its results
        - the function's rows are not along the last axis"""
        made = sweep.producer(name, "rows") if self.uses[name] == 1 else None
        if made is None or name != made.outputs[0] or "y" in made.attributes:
            return None
        return made if by_last_axis(sweep, made) else None

    def _real(self, sweep: Sweep, node: Node) -> bool:
        """Let a function of rows dequantize its own quantized results, if the dequantize node is their only
        reader."""
        made = sweep.producer(node.inputs[0], "rows") if self.uses[node.inputs[0]] == 1 else None
        if made is None or made.attributes.get("y") != node.attributes["x"]:
            return False
        return _extended(sweep, node, made, (), real=True)

    def _moved(self, sweep: Sweep, node: Node) -> bool:
        """Replace a Transpose and a Reshape by a permute if they split or merge attention heads, or turn
        pixels into rows. Other Transposes of images stay, because images have their own kernels."""
        source = node.inputs[0]
        made = sweep.producer(source, "Reshape" if node.op == "Transpose" else "Transpose")
        spec = sweep.specs[source]
        if made is None or self.uses[source] > 1 or spec.dtype not in BYTES or len(spec.shape) > 4:
            return False
        given, to = sweep.specs[made.inputs[0]].shape, sweep.specs[node.outputs[0]].shape
        turned = made if node.op == "Reshape" else node
        shape = given if node.op == "Reshape" else spec.shape
        perm = tuple(permutation(turned, len(shape)))
        image = len(given if node.op == "Transpose" else to) == 4
        if image and not (node.op == "Transpose" and pixels_as_rows(given, shape, perm, to)):
            return False
        if node.op == "Reshape" and self._put_together(sweep, node, made.inputs[0], perm):
            return True
        sweep.emit("permute", made.inputs[:1], node.outputs[0], node.source, shape=shape, perm=perm, to=to)
        return True

    def _put_together(self, sweep: Sweep, node: Node, source: str, perm: tuple[int, ...]) -> bool:
        """Replace a product and the permute that merges its heads by a product whose result has the heads
        side by side."""
        made, shape = sweep.producer(source, "matmul"), sweep.specs[source].shape
        if made is None or self.uses[source] > 1 or perm != SWAPPED or shape[1] == 1:
            return False
        whole, to = together(shape, shape[1]), sweep.specs[node.outputs[0]].shape
        if to not in (whole, (whole[0] * whole[1], whole[2])):
            return False
        heads = (*made.attributes.get("heads", ONE_EACH)[:2], shape[1])
        attributes = {**made.attributes, "heads": heads}
        name = sweep.emit(
            "matmul", made.inputs, node.outputs[0] if to == whole else "", made.source, **attributes
        )
        if to != whole:
            sweep.reshape(name, to, node.outputs[0], node.source)
        return True


def _quantized(sweep: Sweep, node: Node, made: Node) -> bool:
    if not whole_words(sweep, node.inputs[0]) or sweep.specs[node.inputs[0]].dtype != "float32":
        return False
    return _extended(sweep, node, made, (), y=node.attributes["y"])


def _chained(sweep: Sweep, node: Node, made: Node) -> bool:
    """Fuse the chain *node* into the function of rows *made*, which computes one of the chain's inputs.
    Return False if the kernel of *made* cannot read the chain's other inputs or store the chain's result."""
    chain, shape, result = node.attributes["chain"], sweep.specs[made.outputs[0]].shape, made.outputs[0]
    others = [name for name in node.inputs if name != result]
    ways = [
        RESULT if name == result else way_of(sweep, name, dtype, shape)
        for name, dtype in zip(node.inputs, chain.inputs, strict=True)
    ]
    alone = len(node.outputs) == 1 and storable(node.attributes["gives"][0], shape)
    if "chain" in made.attributes or None in ways or not alone or node.attributes["shape"] != shape:
        return False
    if len(made.inputs) + len(others) + len(made.outputs) > MOST_BUFFERS:
        return False
    return _extended(sweep, node, made, others, chain=chain, operands=tuple(ways))


def _extended(sweep: Sweep, node: Node, made: Node, others: Sequence[str], **attributes: Any) -> bool:
    """Replace *node*, and the function of rows *made* that *node* reads, by one function of rows with the
    additional inputs *others* and attributes. Return False if *made* has a second result and *others* are
    computed after *made*: nodes before *node* may read the second result."""
    outputs = (*node.outputs, *made.outputs[1:])
    more = {**made.attributes, **attributes}
    new = Node("rows", (*made.inputs, *others), outputs, more, node.source or made.source)
    if len(outputs) > 1:
        return set(others).isdisjoint(outputs) and sweep.replace(made, new)
    sweep.keep(new)
    return True
