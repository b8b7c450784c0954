"""``vkq.onnx.InferenceSession``: a model on a device, used as ONNX Runtime's."""

from __future__ import annotations

import dataclasses
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..device.meanwhile import meanwhile
from ..device.profiles import profiles
from ..errors import ArgumentError, ModelError, UnsupportedModelError
from ..graph.device.layers import prepare
from ..graph.executable import Executable, refusals
from ..graph.graph import Array, Graph
from ..layout.glsl import glsl_includes
from ..runtime.device import Device
from ..runtime.opened import default_device
from ..runtime.programs import Progress
from ..shader.catalog import catalog
from .batch import BatchCheck
from .feed import NodeArg, alike, array_of, checked_feed, checked_shapes, columns, groups, trial_shapes
from .prepared import MAY_BE_CONSTANT, ON_DEVICE, Executables, Prepared, as_constants, hosted, known
from .protobuf import messages
from .reader import Model, read
from .report import Report, explain, told
from .whole import Whole

AHEAD = 1  # batches that `map` has begun when it waits for one


class InferenceSession:
    """A quantized ONNX model on a Vulkan device, with ONNX Runtime's bytes.

    Args:
        model: a path, bytes, or an onnx.ModelProto.
        device: a `vkq.Device`, an index, part of a name, or None for the default device.
        fallback: "onnxruntime" runs on the CPU what the device cannot, with one warning; None refuses it.
        constant_inputs: inputs whose values count as constants, such as a weight that is an input: each new
            value prepares the model again. So do inputs whose numbers decide a shape, and int64, int32, bool
            and float16 inputs without a fallback where the device cannot take what is computed of them.

    Token ids, masks and positions are data: int64 is int32 on the device, and numbers that would leave it, or
    the rows that the model reads by them, are refused.
    Where ONNX Runtime's CPU provider computes in integers (with ``session.qdqisint8allowed=1``, which fuses
    int8 activations on every machine), the results are its bytes; elsewhere the correctly rounded result.
    ``run`` takes any shapes that the model allows; each set of shapes is prepared once, with weights shared.
    Sessions may be used from several threads, and pickled: they open their device again where they are
    unpickled. The first run of a set of shapes makes the pipelines, on all cores, and tells
    ``progress(made, of_how_many)`` as they come.

    Raises ModelError for a broken model, UnsupportedModelError with the list of nodes that cannot run.
    """

    FALLBACK = "onnxruntime"
    _begin: Callable[[], Any] = staticmethod(messages)  # what reading a model imports
    _parse: Callable[[Any], Model] = staticmethod(read)
    _whole: Callable[[Any, ModelError], Whole] = Whole

    @checked
    def __init__(
        self,
        model: Any,
        device: Device | int | str | None = None,
        fallback: str | None = None,
        constant_inputs: Sequence[str] = (),
        progress: Progress | None = None,
    ):
        if fallback not in (None, self.FALLBACK):
            raise ArgumentError(f"fallback is {fallback!r}; it must be None or {self.FALLBACK!r}")
        self._fallback = fallback
        self._progress = progress
        self._source = model if fallback else None
        self._which = device.name if isinstance(device, Device) else device
        reading = self._begin, lambda: self._read(model, constant_inputs), self._try
        with meanwhile(profiles, *reading, self._prepare):
            opened = _opened(device)
        if self._unread:
            self._unread.told()
        self._take(opened)

    def _read(self, model: Any, constant_inputs: Sequence[str]) -> None:
        self._unread: Whole | None = None
        try:
            self.model = self._parse(model)
        except ModelError as error:
            if not self._fallback:
                raise
            self._unread = self._whole(model, error)
            self.model = self._unread.model()
        known = [argument.name for argument in self.model.inputs]
        if unknown := [name for name in constant_inputs if name not in known]:
            raise ArgumentError(f"constant_inputs are {unknown}; the model's inputs are {known}")
        self._constant = {
            a.name for a in self.model.inputs if a.dtype not in ON_DEVICE or a.name in constant_inputs
        }

    def _try(self) -> None:
        """Refuses now, not at the first run, what cannot run; its graph is kept until then. A model with open
        sizes may want others than are tried: what is wrong with those is told where they are given."""
        self._trial: tuple[Mapping[str, Sequence[int]], Graph] | None = None
        if self._constant or self._unread:
            return
        # What a device cannot take may be constants of a run, or is the fallback's.
        few = {a.name for a in self.model.inputs if a.dtype in MAY_BE_CONSTANT}
        try:
            shapes = self.trial_shapes()
            graph, rest = known(self.model, shapes, bool(self._fallback or few))
            if not rest.nodes and not (few and not self._fallback and refusals(graph)):
                self._trial = shapes, graph
        except UnsupportedModelError:
            raise
        except ModelError as error:
            if all(isinstance(dim, int) for a in self.model.inputs for dim in a.shape):
                if not self._fallback:
                    raise
                self._unread = self._whole(self._source, error)

    def _prepare(self) -> None:
        """What the first run takes and no device is needed for."""
        catalog()
        glsl_includes()
        if self._trial and self._fallback is None:  # every node runs on the device
            prepare(self._trial[1])

    def _take(self, device: Device) -> None:
        self.device = device
        source, unread = self._source, self._unread
        whole = (lambda why: unread or self._whole(source, why).told()) if self._fallback else None
        self._executables = Executables(
            self.model, device, bool(self._fallback), self._constant, self._progress, whole
        )

    def __getstate__(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "_fallback": self._fallback,
            "_which": self._which,
            "_constant": self._constant,
            "_source": self._source,
            "_unread": self._unread,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._progress = self._trial = None
        self._take(_opened(self._which))

    # ------------------------------------------------------------------------------------------------- facts

    def get_inputs(self) -> list[NodeArg]:
        """What `run` takes."""
        return [NodeArg.of(argument) for argument in self.model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """What `run` gives."""
        return [NodeArg.of(argument) for argument in self.model.outputs]

    def trial_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes that the model takes: 1 for an open first axis, the first of TRIAL_SIZES that fits for
        others."""
        return trial_shapes(self.model)

    @checked
    def lowered(self, shapes: Mapping[str, Sequence[int]], given: Mapping[str, Array] | None = None) -> Graph:
        """The graph of vkq's operators for these shapes of the inputs; refused where a node cannot run.

        given: inputs of types that a device has not (int64, bool): they count as constants.
        """
        model = as_constants(self.model, given or {})
        if not given:
            checked_shapes(model.inputs, shapes)
        graph, rest = known(model, shapes, bool(self._fallback))
        if rest.nodes:
            raise ModelError(f"the model runs in stages, which no one graph shows: {rest.why}")
        return graph

    @checked
    def explain(self, shapes: Mapping[str, Sequence[int]] | None = None) -> Report:
        """Every node of the model for these shapes (by default `trial_shapes`, which a model with open sizes
        may refuse): vkq's operator, where it runs and why, its shaders; memory. Nothing is run."""
        chosen = checked_shapes(self.model.inputs, self.trial_shapes() if shapes is None else shapes)
        arrays = {a.name: np.broadcast_to(np.zeros((), a.dtype), chosen[a.name]) for a in self.model.inputs}
        executable = self._executable(arrays)
        sizes = ", ".join(f"{name} {list(shape)}" for name, shape in chosen.items())
        title = f"{self.model.name or 'model'} on {self.device.name}, {sizes}"
        report = explain(executable, self._executables.layers, title)
        if on_host := hosted(self.model, self._constant):
            note = told(len(on_host), self._constant)
            return dataclasses.replace(report, notes=(*report.notes, note))
        return report

    @checked
    def profile(self, input_feed: Mapping[str, npt.ArrayLike], runs: int = 1) -> list[tuple[str, str, float]]:
        """Return (node of the model, operator, microseconds on the device) for each operator: the median of
        *runs* runs, after one that warms caches. Raises DeviceError where the device has no timestamps."""
        arrays = self._checked(input_feed)
        given = {name: array for name, array in arrays.items() if name in self._constant}
        graph = self.lowered({name: array.shape for name, array in arrays.items()}, given)
        executable = Executable(graph, self.device, self._executables.layers, timestamps=True)
        executable.run(arrays)
        taken = []
        for _ in range(max(1, runs)):
            executable.run(arrays)
            taken.append(executable.times_us())
        times = [statistics.median(each) for each in zip(*taken, strict=True)]
        return [
            (node.source, node.label, us) for (node, _, _), us in zip(executable.steps, times, strict=True)
        ]

    # --------------------------------------------------------------------------------------------------- runs

    @checked
    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, npt.ArrayLike],
        run_options: Any = None,
    ) -> list[Array]:
        """The outputs of these names (all where None), for arrays by the inputs' names. As ONNX Runtime's;
        run options are taken and ignored."""
        arrays = self._checked(input_feed)
        results = self._executable(arrays).run(arrays)
        return [self._declared(name, results[name]) for name in self._names(output_names)]

    @checked
    def map(self, inputs: Iterable[Any], batch: int = 1) -> Iterator[Any]:
        """The first output for each of *inputs*, in order, while the next batch is uploaded and computed.

        inputs: arrays of the first input without the batch's axis (or dictionaries of them by name), any
        number. *batch* of them run together; the last batch may be smaller. They are copied once, into memory
        from which the device takes them by itself, when a batch is complete: what fills one array again and
        again needs a *batch* of 1, or copies. ArgumentError first where the output's axis 0 is not the batch.
        """
        if batch < 1:
            raise ArgumentError(f"batch is {batch}; it must be at least 1")
        if not self.model.inputs:
            raise ArgumentError("the model has no inputs; map needs one")
        return self._mapped(inputs, batch)

    def _mapped(self, inputs: Iterable[Any], batch: int) -> Iterator[Any]:
        first, output = self.model.inputs[0].name, self.model.outputs[0].name
        waiting: deque[Callable[[], Array]] = deque()
        check = BatchCheck(self.model, output, self._constant)
        for rows in (columns(group, first) for group in groups(inputs, batch)):
            waiting.append(self._begun(check(rows), output))
            if len(waiting) > AHEAD:
                yield from self._declared(output, waiting.popleft()())
        for finish in waiting:
            yield from self._declared(output, finish())

    def _begun(self, rows: Mapping[str, list[Array]], output: str) -> Callable[[], Array]:
        """A batch: what waits for the results, which are there already where it cannot run beside others."""
        if not self._constant:
            shapes = {name: np.broadcast_to(x[0], (len(x), *x[0].shape)) for name, x in rows.items()}
            executable = self._executable(self._checked(shapes))
            if isinstance(executable, Executable) and (lane := executable.lane(output)):
                lane.start([alike(name, rows[name]) for name in executable.graph.inputs])
                return lane.finish
        arrays = self._checked({name: np.stack(alike(name, x)) for name, x in rows.items()})
        results = self._executable(arrays).run(arrays)
        return lambda: results[output]

    def _declared(self, name: str, array: Array) -> Array:
        """A result in its type in the model, where a device holds it in another (bool, int64)."""
        dtype = next(a.dtype for a in self.model.outputs if a.name == name)
        return array.astype(dtype or array.dtype, copy=False)

    def _names(self, names: Sequence[str] | None) -> list[str]:
        known = [argument.name for argument in self.model.outputs]
        unknown = [name for name in names or () if name not in known]
        if unknown:
            raise ArgumentError(f"there are no outputs {unknown}; there are {known}")
        return list(names) if names else known

    def _checked(self, feed: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        if self._unread:  # ONNX Runtime looks itself: texts and sequences may be among them
            given: dict[str, Any] = {x: v if isinstance(v, list) else array_of(x, v) for x, v in feed.items()}
            return given
        return checked_feed(self.model.inputs, feed, self._constant)

    def _executable(self, arrays: Mapping[str, Array]) -> Prepared:
        shapes = {name: array.shape for name, array in arrays.items()}
        trial, self._trial = self._trial, None
        if self._unread:
            return self._unread
        return self._executables.of(arrays, trial[1] if trial and trial[0] == shapes else None)


def _opened(device: Device | int | str | None) -> Device:
    return device if isinstance(device, Device) else default_device() if device is None else Device(device)


load = InferenceSession  # by another name
