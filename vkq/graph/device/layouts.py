"""Chooses the layout of each value. If several layouts are possible, a node that reads the value decides.

Most convolutions and linear layers read only one layout, and the nodes between these layers keep the layout
of their input. Only these values can have any of several layouts (the image layouts in
`vkq.layout.extent.PIXELS`):

- quantized floats
- means of whole images
- reshaped values
- the inputs of convolutions that read several layouts"""

from __future__ import annotations

import heapq

from ...layout.extent import MATRIX
from .context import Context
from .layers import conv_of, linear_of

# KEEP: operators whose result has the layout of the first input. KEEP_WHOLE: operators of two operands
# whose result has the layout of the operand with the result's shape.
KEEP = ("Identity", "lookup", "MaxPool", "avg_pool2d", "Pad", "Concat", "Transpose")
KEEP_WHOLE = ("add", "sub", "mul")
# The number of operands whose layout matters, by operator; 1 for operators that are not listed.
OPERANDS = {**dict.fromkeys((*KEEP_WHOLE, "matmul"), 2), "attention_q8": 4}


def wanted(context: Context, name: str) -> str | None:
    """Find the first reader of the value *name* that supports only one layout, and return this layout. Return
    None if all readers support several layouts. If a reader's result has the layout of the value, the readers
    of this result count as readers of the value, too."""
    graph, found = context.graph, {name}
    # a heap of the indices of the nodes that read a value in ``found``
    waiting, last = context.places(name), -1
    while waiting:
        place = heapq.heappop(waiting)
        if place == last:  # a node that reads two values of ``found`` is twice in the heap
            continue
        node, last = graph.nodes[place], place
        reads = [one for one in node.inputs[: OPERANDS.get(node.op, 1)] if one in found]
        # the value is the layer's residual, which needs the layout of x
        if node.op == "linear" and node.input(3) in found:
            reads = [node.inputs[0]]
        if not reads or node.attributes.get("x", "") is None:  # x is float, and floats have no packed layout
            continue
        shape = graph.specs[reads[0]].shape
        if node.op in ("matmul", "attention_q8"):
            return MATRIX
        if node.op == "linear":
            return linear_of(context, node).input_layout(shape)
        if node.op == "conv2d":
            layouts = conv_of(context, node).input_layouts(shape)
            if len(layouts) == 1:
                return layouts[0]
        whole = node.op in KEEP_WHOLE and shape == graph.specs[node.outputs[0]].shape
        if whole or node.op in (*KEEP, "conv2d"):
            found.add(node.outputs[0])
            for reader in context.places(node.outputs[0]):
                heapq.heappush(waiting, reader)
    return None


def wanted_means(context: Context, name: str) -> str | None:
    """Return the layout that the readers of means (N, C, 1, 1) need.

    If the only reader reshapes the means to (N, C) for a matrix product, the layout is kPackedInt8_4H4W.
    Otherwise the layout is the result of `wanted`, or None if `wanted` returns kPackedInt8_4H4W."""
    graph = context.graph
    n, c, *_ = graph.specs[name].shape
    readers = context.readers(name)
    flat = readers[0].outputs[0] if len(readers) == context.uses[name] == 1 else name
    if graph.specs[flat].shape == (n, c) and readers[0].op == "Reshape" and wanted(context, flat) == MATRIX:
        return MATRIX
    found = wanted(context, name)
    return None if found == MATRIX else found
