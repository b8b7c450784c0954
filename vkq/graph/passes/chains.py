"""Fuses neighbouring element-wise operators on floats, integers and flags into chains, which a device
computes in one dispatch (`vkq.kernels.chain`). `joined` then fuses chains with other neighbours.

A chain runs at the position of its last node. So it stops growing as soon as a node outside of the chain
reads one of its values. All results of a chain have one shape, to which its inputs broadcast."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ...kernels.chain import MOST_BUFFERS, fits
from ...numerics.described import takes
from ..graph import Array, Graph, Node, Spec
from ..operators import elementwise
from ..operators.elementwise import normalization
from .joined import join
from .links import BYTES, Element, Writer, element_of
from .sweep import Sweep, scalar, swept

VARIADIC = ("Max", "Min", "Sum")
MOST_LINKS = 64
# While a chain grows, it may exceed a kernel's maximum number of buffers by MORE. `_parts` splits a
# finished chain that still has too many buffers.
MORE = 2


def chain_elements(graph: Graph) -> Graph:
    """Replace element-wise operators by chains."""
    return _Chains(swept(graph, _plainer, *VARIADIC, "Mean", "Pow", "BatchNormalization", "where")).run()


def _plainer(sweep: Sweep, node: Node) -> bool:
    """Rewrite an operator as simpler operators:

    - Max, Min, Sum or Mean of more than two operands: binary operators
    - BatchNormalization: a product and a sum
    - a power of 0.5, 2 or 3: a square root or products
    - a selection between two 8-bit constants: a selection between integers"""
    if node.op == "where":
        return _selection(sweep, node)
    dtype = sweep.specs[node.inputs[0]].dtype if node.input(0) else ""
    if node.op in (*VARIADIC, "Mean") and len(node.inputs) > 2 and takes(node.op, dtype):
        total = node.inputs[0]
        for name in node.inputs[1:-1]:
            total = sweep.emit("Sum" if node.op == "Mean" else node.op, [total, name], source=node.source)
        if node.op != "Mean":
            sweep.emit(node.op, [total, node.inputs[-1]], node.outputs[0], node.source)
        else:
            total = sweep.emit("Sum", [total, node.inputs[-1]], source=node.source)
            count = sweep.constant(np.array(len(node.inputs), dtype), "count")
            sweep.emit("Div", [total, count], node.outputs[0], node.source)
        return True
    if node.op == "Pow" and dtype == sweep.specs[node.inputs[1]].dtype and takes("Pow", dtype):
        return _power(sweep, node, scalar(sweep.array(node.inputs[1])))
    parameters = [sweep.array(name) for name in node.inputs[1:5]]
    known = [array for array in parameters if array is not None]
    if node.op != "BatchNormalization" or len(known) < 4 or dtype not in ("float32", "float16"):
        return False
    shape = (-1, *(1,) * (len(sweep.specs[node.inputs[0]].shape) - 2))
    factor, addend = (value.astype(dtype).reshape(shape) for value in normalization(node, known))
    product = sweep.emit("Mul", [node.inputs[0], sweep.constant(factor, "factor")], source=node.source)
    sweep.emit("Add", [product, sweep.constant(addend, "addend")], node.outputs[0], node.source)
    return True


def _selection(sweep: Sweep, node: Node) -> bool:
    """Replace a selection between two 8-bit constants by a Where on integers and a Cast, which join the
    chain that computes the condition."""
    flags, result = sweep.specs[node.inputs[0]], sweep.specs[node.outputs[0]]
    numbers = [scalar(sweep.array(name)) for name in node.inputs[1:]]
    computed = flags.dtype == "bool" and sweep.producer(node.inputs[0], *elementwise.OPERATORS) is not None
    plain = node.attributes["a"] == node.attributes["b"] == node.attributes["y"]
    if not (computed and plain) or None in numbers or flags.shape != result.shape:
        return False
    names = [sweep.constant(np.array(number, np.int32), "number") for number in numbers]
    whole = sweep.emit("Where", [node.inputs[0], *names], source=node.source)
    sweep.emit("Cast", [whole], node.outputs[0], node.source, to=result.dtype)
    return True


def _power(sweep: Sweep, node: Node, exponent: float | None) -> bool:
    x, same = (
        node.inputs[0],
        sweep.specs[node.inputs[0]].shape
        == np.broadcast_shapes(sweep.specs[node.inputs[0]].shape, sweep.specs[node.inputs[1]].shape),
    )
    if exponent not in (0.5, 2, 3) or not same:
        return False
    if exponent == 0.5:
        sweep.emit("Sqrt", [x], node.outputs[0], node.source)
        return True
    square = sweep.emit("Mul", [x, x], node.outputs[0] if exponent == 2 else "", node.source)
    if exponent == 3:
        sweep.emit("Mul", [square, x], node.outputs[0], node.source)
    return True


@dataclasses.dataclass
class _Group:
    shape: tuple[int, ...]
    members: list[Element]
    open: bool = True

    @property
    def made(self) -> set[str]:
        return {one.node.outputs[0] for one in self.members}

    def merged(self, others: Sequence[_Group], element: Element) -> _Group:
        members = [one for group in (self, *others) for one in group.members]
        return _Group(self.shape, [*members, element])


class _Chains:
    def __init__(self, graph: Graph):
        self.graph, self.uses = graph, graph.uses()
        self.group_of: dict[str, _Group] = {}  # maps a value to the chain that computes it
        self.constants: dict[str, Array] = {}  # constants that this pass adds

    def run(self) -> Graph:
        place = {id(node): i for i, node in enumerate(self.graph.nodes)}
        for node in self.graph.nodes:
            element = element_of(self.graph, node)
            group = self._joined(element) if element is not None else None
            if element is not None and group is not None:
                group.members.sort(key=lambda one: place[id(one.node)])
                for name in group.made:
                    self.group_of[name] = group
            # A node outside of a chain reads a value of the chain: the chain must not grow any more.
            for name in node.inputs:
                other = self.group_of.get(name)
                if other is not None and other is not group:
                    other.open = False
        return self._written()

    def _joined(self, element: Element) -> _Group | None:
        """Return the chain to which a new node belongs: the node merged with all open chains whose results it
        reads. If one kernel cannot compute the merged chain, merge the node with only one of the open chains,
        trying the last one first. If that fails, too, the node alone is a chain. Return None if no kernel
        supports the node."""
        shape = self.graph.specs[element.node.outputs[0]].shape
        before: list[_Group] = []
        for name in element.node.inputs:
            group = self.group_of.get(name)
            if group is not None and group.open and group.shape == shape and group not in before:
                before.append(group)
        alone = _Group(shape, [element])
        if not self._fits(alone):
            return None
        for tried in (before, *([one] for one in reversed(before))):
            group = _Group(shape, []).merged(tried, element)
            if self._fits(group, MORE):
                return group
        return alone

    def _parts(self, members: list[Element]) -> list[_Group]:
        """Split the members of a chain into chains that fit a kernel."""
        for count in range(len(members), 0, -1):
            group = _Group(self.graph.specs[members[0].node.outputs[0]].shape, members[:count])
            if count == 1 or self._fits(group):
                return [group, *(self._parts(members[count:]) if members[count:] else [])]
        raise AssertionError("one member always fits")

    def _fits(self, group: _Group, more: int = 0) -> bool:
        """Return True if one kernel can compute a chain. *more*: by how many buffers the chain may exceed a
        kernel's maximum. A growing chain may still lose buffers: a value needs no buffer once all nodes
        that read it are in the chain."""
        inputs, results = self._ends(group)
        shapes = [self.graph.specs[name].shape for name in inputs]
        if len(inputs) + len(results) > MOST_BUFFERS + more or len(group.members) > MOST_LINKS or not inputs:
            return False
        return fits(shapes, group.shape)

    def _ends(self, group: _Group) -> tuple[list[str], list[str]]:
        """Return the names of the values that a chain reads from memory, and the names of the values that
        it writes."""
        made, inside = group.made, Counter(name for one in group.members for name in one.node.inputs if name)
        inputs = [name for name in inside if name not in made and not self._number(name)]
        results = [
            one.node.outputs[0]
            for one in group.members
            if self.uses[one.node.outputs[0]] > inside[one.node.outputs[0]]
        ]
        return inputs, results

    def _number(self, name: str) -> bool:
        """Return True if a value is a constant scalar, which the kernel stores as a literal."""
        array = self.graph.constants.get(name)
        return array is not None and array.size == 1

    # ----------------------------------------------------------------------------------------- the new graph

    def _written(self) -> Graph:
        specs = dict(self.graph.specs)
        nodes: list[Node] = []
        for whole in {id(group): group for group in self.group_of.values()}.values():
            for part in self._parts(whole.members):
                self.group_of.update(dict.fromkeys(part.made, part))
        for node in self.graph.nodes:
            group = self.group_of.get(node.outputs[0]) if node.outputs else None
            if group is None:
                nodes.append(node)
            elif group.members[-1].node is node:
                nodes.append(self._node(group))
        for node in nodes:
            if node.op == "chain":
                held = zip(node.outputs, node.attributes["gives"], strict=True)
                specs.update((name, Spec(dtype, node.attributes["shape"])) for name, dtype in held)
            elif any(specs[name].dtype == "bool" for name in node.outputs if name):
                for name in node.outputs:  # a Boolean input may have become uint8, and so the output
                    specs.pop(name, None)
        specs.update((name, Spec.of(array)) for name, array in self.constants.items())
        constants = {**self.graph.constants, **self.constants}
        graph = dataclasses.replace(self.graph, nodes=nodes, constants=constants, specs=specs)
        return join(graph)  # `join` infers the specs removed above

    def _node(self, group: _Group) -> Node:
        inputs, results = self._ends(group)
        writer = Writer(self.graph, inputs, [self._held(name) for name in inputs])
        for element in group.members:
            writer.add(element)
        given = [writer.result(name) for name in results]
        attributes = {
            "chain": writer.chain([number for number, _ in given]),
            "gives": tuple(dtype for _, dtype in given),
            "shape": group.shape,
            "ops": tuple(one.node.op for one in group.members),
        }
        stored = [self._stored(name) for name in inputs]
        return Node("chain", tuple(stored), tuple(results), attributes, group.members[-1].node.source)

    def _held(self, name: str) -> str:
        """Return the type in which a chain computes with an input. 8-bit values and computed Boolean values
        are converted to float32 without a scale."""
        dtype = self.graph.specs[name].dtype
        return (
            "float32" if dtype in BYTES or (dtype == "bool" and name not in self.graph.constants) else dtype
        )

    def _stored(self, name: str) -> str:
        """Return the name of the value that a chain reads from memory for its input *name*. For a Boolean
        constant, this is an int32 copy. For all other inputs, it is *name* itself."""
        array = self.graph.constants.get(name)
        if array is None or array.dtype != bool:
            return name
        self.constants[f"{name}/flags"] = array.astype(np.int32)
        return f"{name}/flags"
