"""``vkq.onnx.InferenceSession``: a model on a device, with the interface of ONNX Runtime."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..device.overlap import overlapped
from ..device.profiles import profiles
from ..errors import ArgumentError, ModelError, UnsupportedModelError
from ..graph.device.layers import prepare
from ..graph.executable import Executable, refusals
from ..graph.graph import Array, Graph
from ..graph.resident import Repeated
from ..layout.glsl import glsl_includes
from ..runtime.device import Device
from ..runtime.opened import opened
from ..runtime.programs import Progress
from ..runtime.tensor import Tensor
from ..schemes.base import COMPUTE
from ..shader.catalog import catalog
from . import crossing
from .adapted import adapted, check_kv_cache
from .constant import MAY_BE_CONSTANT, ON_DEVICE
from .counters import host_bytes
from .cpu_model import CpuModel
from .initial import Initials
from .inputs import array_of, checked_feed, checked_shapes, trial_shapes
from .manners import Manners
from .mapped import Mapped
from .options import SessionOptions, asked_of
from .prepared import Executables, Prepared, as_constants, known
from .protobuf import messages
from .pytorch import given_as
from .reader import Model, read
from .report import Report, explain, host_notes
from .shared import shared


class InferenceSession(Manners):
    """A quantized ONNX model that runs on a Vulkan device.

    Args:
        model: a path, bytes, an onnx.ModelProto, or PyTorch's ONNXProgram or ExportedProgram.
        device: a `vkq.Device`, an index, part of a name, or None for the default device.
        fallback: "onnxruntime" runs unsupported nodes on the CPU, with one warning; None refuses the model.
        constant_inputs: names of inputs whose values count as constants (such as weights): each new value
            prepares the model again. Inputs that decide a shape count as constants, too. Without a fallback,
            so do integers and flags on which refused nodes depend (with a `ConstantInputWarning`).
        compute: "float16" computes products of float activations in float16 (`vkq.Linear`).
        kv_cache: "int8" stores past keys and values as int32 words of codes and scales. An element of a key
            or value vector changes by at most 1/253 of the vector's largest magnitude (docs/models.md).

    Token ids, masks and positions are data: int64 becomes int32 on the device. Values outside int32, and
    indices that are out of range, raise an error.
    Results equal ONNX Runtime's byte for byte if its CPU provider computes in integers (int8 activations on
    x86-64: with its option ``session.qdqisint8allowed=1``); docs/models.md bounds the error of other results.
    ``run`` accepts all shapes that the model allows. Each set of shapes is prepared once; all sets share
    weights. The first run of a set compiles pipelines, and calls ``progress(done, total)`` after each.
    Threads may share a session. Sessions may be pickled; unpickling opens the device again.

    ``sess_options``, ``providers`` and ``provider_options`` are ONNX Runtime's. Session options may also be
    the second argument, providers the third. "VulkanExecutionProvider" may name a device ("device_id");
    "CPUExecutionProvider" allows the fallback. One `IgnoredWarning` names all options that vkq ignores.

    Raises ModelError for a broken model, UnsupportedModelError with the list of nodes that cannot run.
    """

    FALLBACK = "onnxruntime"
    _begin: Callable[[], Any] = staticmethod(messages)  # imports the packages that reading a model needs
    _parse: Callable[[Any], Model] = staticmethod(read)
    _whole: Callable[[Any, ModelError], CpuModel] = CpuModel

    @checked
    def __init__(
        self,
        model: Any = None,
        device: Device | int | str | SessionOptions | None = None,
        fallback: str | Sequence[Any] | None = None,
        constant_inputs: Sequence[str] = (),
        progress: Progress | None = None,
        *,
        compute: str = COMPUTE[0],
        kv_cache: str | None = None,
        sess_options: Any = None,
        providers: Any = None,
        provider_options: Any = None,
        **more: Any,
    ):
        asked = asked_of(device, fallback, sess_options, providers, provider_options, self.FALLBACK, more)
        self._fallback, self._sizes, self._compute = asked.fallback, asked.sizes, compute
        self._kv_cache, self._progress, self._given = check_kv_cache(kv_cache), progress, (*constant_inputs,)
        self._which = asked.device.name if isinstance(asked.device, Device) else asked.device
        reading = self._begin, lambda: self._read(asked.given(model), constant_inputs), self._try
        with overlapped(profiles, *reading, self._prepare):
            chosen = opened(asked.device)
        if self._unread:
            self._unread.told()
        self._take(chosen)
        self._keep(asked)

    def _read(self, model: Any, constant_inputs: Sequence[str]) -> None:
        self._unread: CpuModel | None = None
        try:
            self.model = adapted(self._parse(model), self._sizes, self._kv_cache)
        except ModelError as error:
            if not self._spare:
                raise
            self._unread = self._whole(model, error)
            self.model = self._unread.model()
        self._source = model if self._fallback or self.model.overridable else None
        types = {a.name: a.stored or a.dtype for a in self.model.inputs}
        if unknown := [name for name in constant_inputs if name not in types]:
            raise ArgumentError(f"constant_inputs names {unknown}; the model's inputs are {list(types)}")
        self._constant = {x for x, d in types.items() if d not in ON_DEVICE or x in constant_inputs}

    def _try(self) -> None:
        """Lower the model for trial shapes, so that an unsupported model is refused now, and keep the graph
        for the first run. If dimensions are free, other errors wait until a run gives their sizes."""
        self._trial = None
        if self._constant or self._unread or not all(a.ranked for a in self.model.inputs):
            return
        # If the device refuses a node that reads one of these inputs, the input may count as a constant.
        few = {a.name for a in self.model.inputs if a.dtype in MAY_BE_CONSTANT or a.stored}
        try:
            shapes = self.trial_shapes()
            graph, rest = known(self.model, shapes, bool(self._fallback or few))
            if not rest.nodes and not (few and not self._fallback and refusals(graph)):
                self._trial = shapes, graph
        except UnsupportedModelError:
            raise
        except ModelError as error:
            if all(isinstance(dim, int) for a in self.model.inputs for dim in a.shape):
                if not self._spare:
                    raise
                self._unread = self._whole(self._source, error)

    def _prepare(self) -> None:
        """Do the part of the first run's work that needs no device."""
        catalog()
        glsl_includes()
        if self._trial and self._fallback is None:  # all nodes run on the device
            prepare(self._trial[1])

    def _take(self, device: Device) -> None:
        self.device = device
        self._initials = Initials[Manners](self.model.overridable)
        source, unread, made = self._source, self._unread, self._whole  # self would make a reference cycle
        whole = (lambda why: unread or made(source, why).told()) if self._spare else None
        self.model, layers = shared(self.model, device, self._compute)
        self._state = Executables(
            self.model, device, bool(self._fallback), self._constant, self._progress, whole, layers
        )

    def _reread(self, parse: Callable[[Any], Model], names: Sequence[str]) -> InferenceSession:
        """Return a session of the same model, read by *parse*; the inputs *names* also count as constants."""
        other, sizes = object.__new__(type(self)), self._sizes
        other._parse = lambda model: adapted(parse(model), sizes)
        more = self.device, self._fallback, [*self._given, *names]
        InferenceSession.__init__(other, self._source, *more, compute=self._compute, kv_cache=self._kv_cache)
        other._executables.counters = self._executables.counters
        return other

    def trial_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return input shapes that the model accepts: a free first dimension has size 1, all other free
        dimensions have the first of TRIAL_SIZES that fits."""
        return trial_shapes(self.model)

    @checked
    def lowered(self, shapes: Mapping[str, Sequence[int]], given: Mapping[str, Array] | None = None) -> Graph:
        """Return the graph of vkq's operators for these shapes; raises an error if a node cannot run.

        given: the arrays of inputs that count as constants, in the model's types (such as int64 or bool).
        """
        model = as_constants(self.model, given or {})
        if not given:
            checked_shapes(model.inputs, shapes)
        graph, rest = known(model, shapes, bool(self._fallback))
        if rest.nodes:
            raise ModelError(f"the model runs in stages, so it has no single graph: {rest.why}")
        return graph

    @checked
    def explain(self, shapes: Mapping[str, Sequence[int]] | None = None) -> Report:
        """Return a report on the memory and on every node: vkq's operator, where the node runs and why, and
        its shaders. Nothing is run. shapes: the shapes of the inputs; the default is `trial_shapes`, which a
        model with free dimensions may refuse."""
        chosen = checked_shapes(self.model.inputs, self.trial_shapes() if shapes is None else shapes)
        arrays = {a.name: np.broadcast_to(np.zeros((), a.dtype), chosen[a.name]) for a in self.model.inputs}
        executable = self._executable(arrays)
        sizes = ", ".join(f"{name} {list(shape)}" for name, shape in chosen.items())
        title = f"{self.model.name or 'model'} on {self.device.name}, {sizes}"
        report = explain(executable, self._executables.layers, title)
        return dataclasses.replace(report, notes=(*report.notes, *host_notes(self.model, self._constant)))

    @checked
    def profile(self, input_feed: Mapping[str, npt.ArrayLike], runs: int = 1) -> list[tuple[str, str, float]]:
        """Return (node of the model, operator, median microseconds on the device in *runs* runs) for each
        operator. An earlier run warms caches. Raises DeviceError if the device has no timestamps."""
        arrays = self._checked(input_feed)
        given = {name: array for name, array in arrays.items() if name in self._constant}
        graph = self.lowered({name: array.shape for name, array in arrays.items()}, given)
        executable = Executable(graph, self.device, self._executables.layers, timestamps=True)
        taken = []
        for _ in range(1 + max(1, runs)):
            executable.run(arrays)
            taken.append(executable.times_us())
        times = [statistics.median(each) for each in zip(*taken[1:], strict=True)]
        return [
            (node.source, node.label, us) for (node, _, _), us in zip(executable.steps, times, strict=True)
        ]

    @checked
    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, npt.ArrayLike],
        run_options: Any = None,
        timeout: int | float | None = None,
        *,
        outputs: str = "host",
    ) -> list[Any]:
        """Run the model. Return the outputs *output_names* (all if None). input_feed: arrays by input name.

        An input may be a `vkq.Tensor` on the session's device (with int32 for int64, and uint8 for bool). The
        tensor stays there. Values that have bounds, such as token ids, are read back to be checked.

        run_options: with ``only_execute_path_to_fetches``, only the requested outputs are computed.
        timeout: seconds after which TimedOutError is raised. The device finishes the run, and later runs of
        the session wait for it.
        outputs: "host": arrays; "device": Tensors, perhaps not computed yet; "torch": torch tensors.
        """
        call = given_as(outputs, self._call(output_names, input_feed, run_options, crossing.staying(outputs)))
        return call() if timeout is None else self._worker.within(call, timeout, "run")

    def _call(
        self,
        names: Sequence[str] | None,
        feed: Any,
        options: Any,
        stay: Collection[str] | None = (),
        targets: Mapping[str, Tensor] | None = None,
        repeated: Repeated | None = None,
    ) -> Callable[[], list[Any]]:
        """Check the arguments, and return a function that runs the model. Outputs in *stay* (all if None)
        become Tensors: those of *targets*, by output name, or new ones."""
        if self._state and (fed := self._initials.fed(feed, self._reread)):
            return fed._call(names, feed, options, stay, targets, repeated)
        chosen, values = self._names(names), self._checked(feed)
        there, counters = chosen if stay is None else stay, self._executables.counters
        crossing.check_can_stay(self.model.outputs, there)
        self._run_options(options)
        only = crossing.asked_alone(options, chosen, self.model.outputs)

        def call() -> list[Any]:
            made = self._executable(values, only)
            results = crossing.run(made, self.device, values, chosen, there, targets or {}, repeated)
            counters.ran(host_bytes(values.values()), host_bytes(results[name] for name in chosen))
            return [self._declared(name, results[name]) for name in chosen]

        return call if self._profiled is None else lambda: self._timed(call)

    @checked
    def map(
        self, inputs: Iterable[Any], batch: int = 1, output_names: Sequence[str] | None = None
    ) -> Iterator[Any]:
        """Yield the first output for each of *inputs*, in order, while the next batch is uploaded and
        computed. With *output_names*, yield a list of these outputs instead (of all outputs if it is []).

        inputs: any number of arrays for the first input, or of dictionaries of arrays by input name. Each is
        one element of a batch, with a batch axis of length 1 or without a batch axis. Results have no batch
        axis. *batch* elements run together; the last batch may be smaller. Arrays are copied when a batch is
        complete: a producer that reuses an array must copy it, unless *batch* is 1.
        Raises ArgumentError before the first run if axis 0 of an output is not the batch.
        """
        if batch < 1:
            raise ArgumentError(f"batch is {batch}; it must be at least 1")
        if not self.model.inputs:
            raise ArgumentError("the model has no inputs; map needs one")
        names = self._names(output_names) if output_names is not None else [self.model.outputs[0].name]
        own = self._checked, self._executable, self._declared, self._executables.counters
        lists = Mapped(self.model, names, self._constant, *own)(inputs, batch)
        return lists if output_names is not None else (one for (one,) in lists)

    def _checked(self, feed: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        if self._unread:  # ONNX Runtime checks the inputs: they may be texts or sequences
            given: dict[str, Any] = {x: v if isinstance(v, list) else array_of(x, v) for x, v in feed.items()}
            return given
        return checked_feed(self.model.inputs, feed, self._constant, self.device)

    def _executable(self, arrays: Mapping[str, Array], only: frozenset[str] | None = None) -> Prepared:
        executables, (known, graph), self._trial = self._executables, self._trial or (None, None), None
        shapes = {name: array.shape for name, array in arrays.items() if not self._unread}
        return self._unread or executables.of(arrays, graph if known == shapes else None, only)
