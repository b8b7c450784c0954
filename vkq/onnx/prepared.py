"""A model prepared for one set of input shapes. It runs in one of three ways: on the device, in parts on the
device and the CPU, or in stages. Each stage is planned as soon as its shapes are known."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ModelError, UnsupportedModelError
from ..graph.executable import Executable, RefusedNode, listed, refusals
from ..graph.graph import Array, Graph
from ..graph.passes import lower
from ..graph.passes.constants import Rest
from ..log import LOG
from ..runtime.device import Device
from ..runtime.plan import Resident
from ..runtime.programs import Progress
from ..turns import Turns
from .constant import ON_DEVICE, blamed, warn_of
from .counters import Counters
from .cpu_model import CpuModel
from .fallback import Mixed, left_alone, warn
from .inputs import held
from .part import CpuPart, split
from .reader import Model, fixed
from .remedies import remedies
from .shared import Layers
from .tensors import Argument

KEPT_SHARE = 8  # all cached shapes together may use 1 / KEPT_SHARE of the device's memory
MOST_KEPT = 4096  # maximum number of cached shapes, because a cached shape also uses host memory


class Executables:
    """The executables of one model, which share all weights. There is one for each combination of input
    shapes, values of the inputs in *constant*, and outputs to compute. layers: the cache of layers, if
    sessions share weights. whole: called with the error if the model cannot run even in parts; returns a
    CpuModel.
    """

    def __init__(
        self,
        model: Model,
        device: Device,
        fallback: bool,
        constant: set[str],
        progress: Progress | None = None,
        whole: Callable[[ModelError], CpuModel] | None = None,
        layers: Layers | None = None,
    ):
        self.model, self.device, self.whole = model, device, whole
        self.layers = Layers() if layers is None else layers
        self.layers.users.add(self)
        self.kept: OrderedDict[Hashable, Prepared] = OrderedDict()
        self.counters = Counters()
        self.constant = constant  # names of the inputs whose values count as constants
        self._fallback, self._progress = fallback, progress
        self._blamed: dict[str, str] = {}  # inputs in `constant` that no warning has named, and why
        heap = max(kind.heap_bytes for kind in device.capabilities.memory_types)
        # Maximum bytes of all cached shapes. The newest shape always stays, and its weights do not count.
        self.limit = heap // KEPT_SHARE
        self._lock = Turns("preparing a model")  # acquire this lock before the lock of `layers`

    def of(
        self, arrays: Mapping[str, Array], lowered: Graph | None = None, only: frozenset[str] | None = None
    ) -> Prepared:
        """Return the executable for the types and shapes of *arrays*; make it if it is not cached.
        *lowered*: the graph for these shapes, if the caller has it. *only*: the outputs to compute (None:
        all outputs)."""
        # Raises an error in a forked child, where a thread that the child lacks may hold a lock forever.
        self.device.queue.check_between()
        with self._lock:
            while True:
                key = only, self._key(arrays)
                found = self.kept.get(key)
                if found is not None:
                    self.counters.prepared(hit=True)
                else:
                    began = time.monotonic()
                    with self.layers.lock:
                        found = self._made(arrays, lowered if only is None else None, only)
                    if found is None:  # the key differs, because more inputs count as constants now
                        continue
                    self._count(arrays, time.monotonic() - began)
                    self.kept[key] = found
                    self._forget()
                self.kept.move_to_end(key)
                # inputs for which int32 would overflow on the device become constants, so that the host
                # computes
                if isinstance(found, CpuModel) or not (large := found.graph.overflowing(arrays)):
                    return found
                self.constant |= large

    def _count(self, arrays: Mapping[str, Array], seconds: float) -> None:
        self.counters.prepared(hit=False)
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        LOG.info("%s prepared for %s in %.3f s", self.model.name or "model", shapes, seconds)

    def _forget(self) -> None:
        """Drop the least recently used shapes until all use at most `limit` bytes. Keep the newest."""
        newest = next(reversed(self.kept.values()))
        weights = {id(x) for x in _memory(newest)[1]}  # the weights of the newest shape do not count
        known, total, sizes = set(weights), 0, list[int]()
        for one in reversed(self.kept.values()):
            own, residents = _memory(one)
            new = {id(x): x.bytes for x in residents if id(x) not in known}
            known |= new.keys()
            total += own + sum(new.values())
            sizes.append(total)
        fit = sum(total <= self.limit for total in sizes[:MOST_KEPT])
        for _ in range(len(self.kept) - max(fit, 1)):
            self.kept.popitem(last=False)

    def _key(self, arrays: Mapping[str, Array]) -> Hashable:
        shapes = ((name, array.shape) for name, array in arrays.items())
        types = {argument.name: argument.dtype for argument in self.model.inputs}
        given = ((x, np.asarray(v, types[x]).tobytes()) for x, v in arrays.items() if x in self.constant)
        return (*shapes, *given)

    def _made(
        self, arrays: Mapping[str, Array], lowered: Graph | None, only: frozenset[str] | None
    ) -> Prepared | None:
        """Return a new executable, or None if inputs were added to `constant`, which must be constants."""
        model = as_constants(self.model, {x: v for x, v in arrays.items() if x in self.constant})
        if only is not None:
            model = dataclasses.replace(model, outputs=tuple(a for a in model.outputs if a.name in only))
        try:
            while True:
                try:
                    return self._planned(model, arrays) if lowered is None else self.one(lowered)
                except RefusedNode as error:  # leave the node to ONNX Runtime
                    if not self._fallback:
                        raise
                    model, lowered = left_alone(model, error), None
        except ModelError as error:
            if self.whole is None:
                raise
            return self.whole(error)

    def _planned(self, model: Model, arrays: Mapping[str, Array]) -> Prepared | None:
        graph, rest = known(model, {name: array.shape for name, array in arrays.items()}, True)
        more = rest.needed & {argument.name for argument in model.inputs}
        if not more and not self._fallback:
            more = set(found := blamed(model, graph, rest))
            self._blamed |= found
        if more:
            self.constant |= more
            return None
        refuse(model, graph, rest, self._fallback)
        warn_of(self._blamed, self.model)
        return Staged(self, model, graph, rest) if rest.nodes else self.one(graph)

    def one(self, graph: Graph) -> Executable | Mixed:
        """Return the executable of a graph with known shapes; refused nodes run on the CPU."""
        if refusals(graph):
            more = self.layers, self.model.constants, self._progress, self.whole
            return Mixed(graph, self.device, *more)
        return Executable(graph, self.device, self.layers, progress=self._progress)

    def after(self, model: Model, constant: set[str]) -> Executables:
        """Return the executables of *model*, a later stage. They share the layers and the settings of this
        object."""
        more = self.device, self._fallback, constant, self._progress, None, self.layers
        made = Executables(model, *more)
        # A later stage belongs to this session, so it does not count as a second user of the layers.
        self.layers.users.discard(made)
        return made


def as_constants(model: Model, given: Mapping[str, Array]) -> Model:
    """Return the model with the inputs in *given* replaced by constants of the declared types."""
    types = {argument.name: argument.dtype for argument in model.inputs}
    return fixed(model, {name: np.asarray(x, types[name]) for name, x in given.items()}) if given else model


def known(model: Model, shapes: Mapping[str, Sequence[int]], fallback: bool) -> tuple[Graph, Rest]:
    """Return (graph, rest). *graph* has the nodes that can be planned for these shapes, as vkq's operators;
    *rest* has all others. Without a fallback, raise UnsupportedModelError if the device refuses nodes."""
    graph, rest = model.known(shapes)
    graph = lower(graph)
    refuse(model, graph, rest, fallback)
    return graph, rest


def refuse(model: Model, graph: Graph, rest: Rest, fallback: bool) -> None:
    """Without a fallback, raise UnsupportedModelError with remedies if nodes cannot run on the device."""
    refused = [] if fallback else refusals(graph)
    refused += [] if fallback else [(node, rest.why.removeprefix(f"{node}: ")) for node in rest.found]
    if refused:
        total = len(graph.nodes) + len(rest.nodes)
        raise UnsupportedModelError(
            "\n".join([listed(graph, refused, total), *remedies(model, graph, refused)]),
            [f"{node}: {why}" for node, why in refused],
        )


class Staged:
    """A model in stages, with the interface of `Executable`. The first stage is planned in advance. Then the
    CPU runs the nodes whose result shapes depend on run-time values. Once these shapes are known, the rest of
    the model is planned as the next stage."""

    def __init__(self, executables: Executables, model: Model, graph: Graph, rest: Rest):
        self.graph, self.rest = graph, rest
        self.first = executables.one(graph) if graph.outputs else None
        self.found, self.later = split(rest)
        self.part = self._on_cpu(executables.layers, model) if self.found else None
        self._executables, self._model = executables, model
        self._results = [argument.name for argument in model.outputs]
        self._lock = Turns("running a model")
        self._then: dict[Hashable, Executables] = {}  # the next stage, by dtypes and ranks of its inputs
        self._whole: CpuModel | None = None

    def _on_cpu(self, layers: dict[Hashable, Any], model: Model) -> CpuPart:
        try:
            part = CpuPart.open(self.graph, self.found, layers, model.constants)
        except ModelError as error:
            raise ModelError(f"{self.rest.why}; {error}") from error
        ops = ", ".join(sorted({str(node.attributes["op"]) for node in self.found}))
        total = len(self.graph.nodes) + len(self.rest.nodes)
        warn(
            f"{len(self.found)} of {total} nodes run on the CPU through ONNX Runtime ({ops}); the nodes after"
            " them are planned once their shapes are known"
        )
        return part

    @property
    def cpu_nodes(self) -> int:
        """The number of nodes that run on the CPU in the first stage and directly after it."""
        return len(self.found) + (self.first.cpu_nodes if isinstance(self.first, Mixed) else 0)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run all stages, and return the results by name. Plan the stages after the first if necessary."""
        with self._lock:
            values = {**self._model.constants, **inputs}
            if self.first is not None:
                values |= self.first.run({name: inputs[name] for name in self.graph.inputs})
            if self.part is not None:
                values |= self.part.run(values)
            if self.later and self._whole is None:
                try:
                    values |= self._rest(values)
                except ModelError as error:
                    if self._executables.whole is None:
                        raise
                    self._whole = self._executables.whole(error)
            if self._whole is not None:
                return self._whole.run(inputs)
            return {name: values[name] for name in self._results}

    def _rest(self, values: Mapping[str, Any]) -> dict[str, Array]:
        more = {one.name for one in self._model.inputs} & self.rest.needed - self._executables.constant
        # If a stage runs no node, every following stage would have the same remaining nodes, without end.
        if len(self.later) == len(self._model.nodes) and not more:
            raise ModelError(self.rest.why)
        # The constants of the first stage include the sizes that the shapes of its inputs decide.
        fixed = {*self._model.constants, *self.graph.constants, *(x for n in self.later for x in n.outputs)}
        read = dict.fromkeys(name for node in self.later for name in node.inputs)
        inputs = [name for name in read if name and name not in fixed]
        if lists := [name for name in inputs if not isinstance(values[name], np.ndarray)]:
            raise ModelError(f"{lists[0]!r} is a sequence, but the nodes after it take only tensors")
        key = tuple((values[name].dtype, values[name].ndim) for name in inputs)
        if (then := self._then.get(key)) is None:
            then = self._then[key] = self._executables.after(*self._following(inputs, values))
        given = {x: values[x] if x in then.constant else held(x, values[x]) for x in inputs}
        return then.of(given).run(given)

    def _following(self, names: Sequence[str], values: Mapping[str, Any]) -> tuple[Model, set[str]]:
        """Return (the remaining nodes as a model with the inputs *names*, the names of the inputs whose
        values count as constants)."""
        m = self._model
        made = {name for node in self.later for name in node.outputs}
        read = {name for node in self.later for name in node.inputs} - made
        constants = {x: values[x] for x in read if x in m.constants or x in self.graph.constants}
        inputs = tuple(self._argument(name, values[name]) for name in names)
        results = tuple(argument for argument in m.outputs if argument.name in made)
        model = Model(inputs, results, tuple(self.later), constants, m.opset, m.name)
        numbers = {a.name for a in inputs if a.name in self.rest.needed or a.dtype not in ON_DEVICE}
        return model, numbers

    def _argument(self, name: str, value: Array) -> Argument:
        """Declare an input of the next stage, with the rank of *value* and a symbolic size for each axis."""
        flags = name in self.graph.specs and self.graph.specs[name].dtype == "bool"
        declared = next((a.stored or a.dtype for a in self._model.inputs if a.name == name), value.dtype.name)
        return Argument(name, "bool" if flags else declared, tuple(f"{name}.{i}" for i in range(value.ndim)))


Prepared = Executable | Mixed | Staged | CpuModel


def _memory(made: Prepared) -> tuple[int, list[Resident]]:
    """Return (the bytes that only this executable uses, the constants that other executables may share).
    Later stages do not count: their `Executables` have a limit of their own."""
    if isinstance(made, Staged):
        return _memory(made.first) if made.first else (0, [])
    return (0, []) if isinstance(made, CpuModel) else made.memory_of_its_own()
