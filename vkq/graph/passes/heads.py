"""Fuses the nodes between a product and attention: Slices of the product's columns, rotary embeddings, and
the writes into the caches of keys and values. One ``heads`` node computes queries, keys and values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from ...errors import ModelError
from ...kernels.heads import fits
from ...numerics.heads import Order, Part
from ..graph import Graph, Node, Spec, in_order, unused
from ..operators.movement import neighbours, permutation
from .attended import FLOATS
from .sweep import without_dead

ENDS = ("place", "append_cache", "rotate")
HEADS_FIRST = (0, 2, 1, 3)  # the permutation between (batch, tokens, heads, d) and (batch, heads, tokens, d)


@dataclasses.dataclass
class FoundPart:
    """A part of the columns of a product, with the nodes that compute the part's result.

    - x: the name of the product, whose rows have *columns* elements
    - tokens: (batch, tokens)
    - end: the name of the part's result
    - nodes: the nodes that compute the result from x, the last one first
    - place: the index in the graph of the one of these nodes whose operator is in ENDS
    - angles: the names of cosines and sines, or ()
    - cache: the names of the start and the past cache, or ()"""

    part: Part
    x: str
    columns: int
    tokens: tuple[int, int]
    end: str
    nodes: list[Node]
    place: int
    angles: tuple[str, ...] = ()
    cache: tuple[str, ...] = ()
    interleaved: bool = False


def fuse_heads(graph: Graph) -> Graph:
    """Replace the nodes that split a product into heads, rotate them and write them into caches."""
    return graph if graph.kinds.isdisjoint(ENDS) else _Parts(graph).run()


class _Parts:
    def __init__(self, graph: Graph):
        self.graph, self.uses = graph, graph.uses()
        self.made = {name: (i, node) for i, node in enumerate(graph.nodes) for name in node.outputs if name}
        self.readers: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)

    def run(self) -> Graph:
        found, taken = list[FoundPart](), set[int]()
        for op in ENDS:  # in this order, so that a rotate before a place is added to the part of this place
            for i, node in enumerate(self.graph.nodes):
                one = self._found(i, node) if node.op == op and id(node) not in taken else None
                if one is not None:
                    found.append(one)
                    taken.update(map(id, one.nodes))
        groups = list[list[FoundPart]]()
        for one in sorted(found, key=lambda one: one.place):
            group = next((group for group in groups if self._joins(group, one)), None)
            if group is None:
                groups.append([one])
            else:
                group.append(one)
        for group in groups:  # sort the parts alike in all layers, so that the layers share a kernel
            group.sort(key=lambda one: one.part.first)
        moved = [g for g in groups if sum(node.op != "Reshape" for one in g for node in one.nodes) > 1]
        return self._written(moved) if moved else self.graph

    # ------------------------------------------------------------------------------------------------- parts

    def _found(self, i: int, node: Node) -> FoundPart | None:
        shape = self.graph.specs[node.inputs[2 if node.op == "place" else 0]].shape
        if node.op == "place":
            past, start, updates = node.inputs
            heads = shape[0], shape[2], shape[1], shape[3]
            walk = self._walk().back(updates, heads, True, self.uses[updates] == 1)
            return self._part(walk, i, heads, node.outputs[0], "cache", [node], (start, past))
        heads = shape[0], shape[1], shape[2], shape[3]
        if node.op == "append_cache":
            walk = self._walk().back(node.inputs[0], heads, False)
            return None if walk.rotation else self._part(walk, i, heads, node.inputs[0], "tokens", [])
        end, after = node.outputs[0], list[Node]()
        order: Order = "tokens"
        while order == "tokens" and (reader := self._only_reader(end)) is not None:
            if reader.op == "Transpose" and tuple(permutation(reader, 4)) == HEADS_FIRST:
                order = "heads"
            elif reader.op != "Cast" or after or reader.attributes["to"] != "float16":
                break
            after.insert(0, reader)
            end = reader.outputs[0]
        return self._part(self._walk().back(node.outputs[0], heads, False), i, heads, end, order, after)

    def _walk(self) -> _Walk:
        return _Walk(self.graph, self.made, self.uses)

    def _part(
        self, walk: _Walk, i: int, heads: tuple[int, int, int, int], end: str, order: Order,
        after: Sequence[Node], cache: tuple[str, ...] = (),
    ) -> FoundPart | None:  # fmt: skip
        """Return the part that *walk* found, or None if the kernel does not support it. *after*: the nodes
        after the value at which the walk began, the last one first."""
        specs, turn = self.graph.specs, walk.rotation
        angles = turn.inputs[1:] if turn is not None else ()
        interleaved = turn is not None and bool(turn.attributes["interleaved"])
        part = Part(walk.first, *heads[2:], turn is not None, specs[end].dtype, order)
        pairs = specs[angles[0]].shape[3] if angles else 0
        types = {specs[walk.name].dtype, part.dtype}
        known = walk.known and walk.name not in self.graph.constants and types <= set(FLOATS)
        if not known or not fits(part, walk.columns, pairs, interleaved):
            return None
        nodes = [*after, *walk.nodes]
        return FoundPart(part, walk.name, walk.columns, heads[:2], end, nodes, i, angles, cache, interleaved)

    def _only_reader(self, name: str) -> Node | None:
        """Return the node that reads a value, or None if the value has no reader or several."""
        readers = self.readers.get(name, [])
        return readers[0] if self.uses[name] == len(readers) == 1 else None

    # ------------------------------------------------------------------------------------------------ groups

    def _joins(self, group: Sequence[FoundPart], one: FoundPart) -> bool:
        """Return True if one node can compute the parts of a group and *one*."""
        first, every = group[0], [*group, one]
        if (first.x, first.columns) != (one.x, one.columns):
            return False
        angles = {(*map(self._known, each.angles), each.interleaved) for each in every if each.angles}
        starts = {(each.cache[0], self._rows(each)) for each in every if each.cache}
        if len(angles) > 1 or len(starts) > 1:
            return False
        ends, least = {each.end for each in every}, min(each.place for each in every)
        waiting, seen = [name for each in every for name in (*each.angles, *each.cache)], set[str]()
        while waiting:
            name = waiting.pop()
            if name in ends:  # an input of the new node would depend on its results
                return False
            place, node = self.made.get(name, (-1, None))
            if node is not None and place >= least and name not in seen:
                seen.add(name)
                waiting += [other for other in node.inputs if other]
        return True

    def _known(self, name: str) -> Hashable:
        """Return a key that is equal for equal constants, and for Reshapes of one value to one shape."""
        shape, array = self.graph.specs[name].shape, self.graph.constants.get(name)
        while (node := self.made.get(name, (0, None))[1]) is not None and node.op == "Reshape":
            name = node.inputs[0]
        return (array.dtype.str, shape, array.tobytes()) if array is not None else (name, shape)

    def _rows(self, one: FoundPart) -> int:
        return self.graph.specs[one.cache[1]].shape[2]

    # --------------------------------------------------------------------------------------------- the graph

    def _written(self, groups: Iterable[Sequence[FoundPart]]) -> Graph:
        graph, specs, constants = self.graph, dict(self.graph.specs), dict(self.graph.constants)
        made, taken, names = list[list[Node]](), set[str](), set(specs)
        for group in groups:
            first, x = group[0], group[0].x
            shape, new = (*first.tokens, first.columns), list[Node]()
            if specs[x].shape != shape:
                wanted, x = unused(f"{first.x}/shape", names), unused(f"{first.x}/rows", names)
                constants[wanted] = np.array(shape, np.int64)
                specs[wanted], specs[x] = Spec.of(constants[wanted]), Spec(specs[first.x].dtype, shape)
                new.append(Node("Reshape", (first.x, wanted), (x,), {"allowzero": 1}, first.nodes[-1].source))
            angles = next((one.angles for one in group if one.angles), ("", ""))
            start = next((one.cache[0] for one in group if one.cache), "")
            pasts = [one.cache[1] for one in group if one.cache]
            attributes = {
                "parts": tuple(one.part for one in group),
                "interleaved": any(one.interleaved for one in group),
            }
            inputs, ends = (x, *angles, start, *pasts), tuple(one.end for one in group)
            made.append([*new, Node("heads", inputs, ends, attributes, first.nodes[0].source)])
            taken.update(ends)
        left = [node for node in graph.nodes if taken.isdisjoint(node.outputs)]
        graph = dataclasses.replace(graph, nodes=left, constants=constants, specs=specs)
        try:
            nodes = in_order(self._placed(left, made), [*graph.inputs, *constants])
        except ModelError:  # the new nodes of two groups would depend on each other
            return self.graph
        return without_dead(dataclasses.replace(graph, nodes=nodes))

    def _placed(self, left: Sequence[Node], made: Sequence[Sequence[Node]]) -> list[Node]:
        """Return the nodes *left*. Insert each list in *made* before the first node that reads a result of
        the list."""
        waiting = {name: new for new in made for name in new[-1].outputs}
        nodes, done = list[Node](), set[int]()
        for node in left:
            for new in [waiting[name] for name in node.inputs if name in waiting]:
                nodes += new if id(new) not in done else []
                done.add(id(new))
            nodes.append(node)
        return [*nodes, *(node for new in made if id(new) not in done for node in new)]


class _Walk:
    """Follows a value back to the columns of a product.

    - name: the value that the walk has reached (float32 or float16), whose rows have *columns* elements
    - first: the column at which the part begins
    - nodes: the nodes that the walk has passed, the last one first
    - rotation: the rotate among these nodes, or None
    - known: False if the heads are not columns of the rows
    - follows: False if the walk must stop at *name*"""

    def __init__(self, graph: Graph, made: Mapping[str, tuple[int, Node]], uses: Mapping[str, int]):
        self.graph, self.made, self.uses = graph, made, uses
        self.name, self.follows, self.first, self.columns = "", True, 0, 0
        self.nodes, self.known = list[Node](), True
        self.rotation: Node | None = None

    def back(self, name: str, heads: tuple[int, int, int, int], turned: bool, follows: bool = True) -> _Walk:
        """Walk back from the value *name*. *heads*: the value's sizes (batch, tokens, heads, width).
        *turned*: True if heads come before tokens in the value's shape. *follows*: False if several nodes
        read the value."""
        batch, tokens, count, width = heads
        self.name, self.follows, self.columns = name, follows, count * width
        if turned and not self._take("Transpose"):
            self.known = min(tokens, count) == 1
        self._take("Cast")
        self.rotation = self._take("rotate")
        if self.rotation is not None:
            self._take("Cast")
        self._slice(batch * tokens)
        return self

    def _next(self, op: str) -> Node | None:
        """Skip Reshapes. Return the node that computes the value before them, or None if its operator is not
        *op*."""
        while (node := self._producer()) is not None and node.op == "Reshape":
            self._pass(node)
        return node if node is not None and node.op == op else None

    def _producer(self) -> Node | None:
        return self.made.get(self.name, (0, None))[1] if self.follows else None

    def _pass(self, node: Node) -> None:
        self.nodes.append(node)
        self.name = node.inputs[0]
        self.follows = self.uses[self.name] == 1

    def _take(self, op: str) -> Node | None:
        node = self._next(op)
        if node is None or self.graph.specs[node.inputs[0]].dtype not in FLOATS:
            return None
        if (
            op == "Transpose"
            and tuple(permutation(node, len(self.graph.specs[self.name].shape))) != HEADS_FIRST
        ):
            return None
        self._pass(node)
        return node

    def _slice(self, rows: int) -> None:
        """If a Slice of columns computes the value, which has *rows* rows, move on to the input of the
        Slice."""
        node = self._next("Slice")
        if node is None:
            return
        shape = self.graph.specs[node.inputs[0]].shape
        arrays = [self.graph.constants.get(one) if one else None for one in node.inputs[1:]]
        axis, part = neighbours(node, shape, arrays) or (-1, range(0))
        if axis == len(shape) - 1 and math.prod(shape[:-1]) == rows and len(part) == self.columns:
            self._pass(node)
            self.first, self.columns = part.start, shape[-1]
