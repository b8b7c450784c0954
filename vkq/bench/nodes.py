"""Count the operations and bytes of each node of a model, and format tables of the nodes' times."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkq.bench.fitted import clipped
from vkq.bench.result import NodeTime
from vkq.graph.graph import Graph, Node
from vkq.graph.operators.quantized import CONV, TRANSPOSED, options
from vkq.problem.conv2d import Conv2dProblem
from vkq.problem.linear import LinearProblem
from vkq.problem.transposed import TransposedConv2dProblem

# The table shows this number of nodes, those with the largest (time - floor). --wide shows all nodes.
SHOWN = 20


def work_of(graph: Graph, node: Node) -> tuple[int, int]:
    """Return (number of operations, two per multiply-add; number of bytes of all inputs and results)."""
    names = [name for name in (*node.inputs, *node.outputs) if name]
    return 2 * _macs(graph, node), sum(graph.specs[name].nbytes for name in names)


def _macs(graph: Graph, node: Node) -> int:
    shapes = [graph.specs[name].shape if name else () for name in node.inputs]
    if node.op == "conv2d":
        return Conv2dProblem.of(shapes[0], shapes[1], **options(node, CONV)).macs
    if node.op == "conv_transpose2d":
        return TransposedConv2dProblem.of(shapes[0], shapes[1], **options(node, TRANSPOSED)).macs
    if node.op == "linear":
        return LinearProblem.of(shapes[0], shapes[1]).macs
    if node.op == "matmul":
        return math.prod(graph.specs[node.outputs[0]].shape) * shapes[0][-1]
    return 0


def tables(nodes: Sequence[NodeTime], columns: int | None, wide: bool) -> list[str]:
    """Return the lines of two tables: kernels sorted by time, and nodes sorted by (time - floor). With
    *wide*, return full lines and all nodes; else cut lines at *columns* and list `SHOWN` nodes."""
    if not nodes:
        return []
    total = sum(node.time_us for node in nodes) or 1.0
    floor = sum(node.floor_us for node in nodes)
    lines = [
        f"node by node {total:,.1f} us in {sum(len(node.kernels) for node in nodes)} dispatches;"
        f" floors {floor:,.1f} us",
        f"{'us':>11} {'share':>6} {'times':>5}  kernel",
    ]
    kernels: dict[str, list[float]] = {}
    for node in nodes:
        for kernel, us in zip(node.kernels, node.times_us, strict=True):
            kernels.setdefault(kernel.split(":")[0], []).append(us)
    for kernel, times in sorted(kernels.items(), key=lambda one: -sum(one[1])):
        lines.append(f"{sum(times):11,.1f} {sum(times) / total:6.1%} {len(times):5}  {kernel}")
    lines.append(f"{'us':>11} {'floor us':>9} {'lost':>6}  node")
    worst = sorted(nodes, key=lambda node: node.floor_us - node.time_us)
    for node in worst if wide else worst[:SHOWN]:
        said = f"{node.node}: {node.operator} {node.shapes}: {' + '.join(node.kernels)}"
        lost = (node.time_us - node.floor_us) / total
        line = f"{node.time_us:11,.1f} {node.floor_us:9,.1f} {lost:6.1%}  {said}"
        lines.append(clipped(line, None if wide else columns))
    left = len(worst) - SHOWN
    return lines + ([f"{left} more nodes: --wide shows all"] if left > 0 and not wide else [])
