"""Reads a .tflite file as a `Model`. The ONNX reader returns this class, too."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..errors import ModelError, UnsupportedModelError
from ..graph.graph import Graph, Spec
from ..onnx.inputs import TRIAL_SIZES
from ..onnx.reader import Model, needed
from ..onnx.tensors import BROKEN, Argument
from . import control, detections, elements, flags, images, layers, movement, parts, rearranged, sums
from .file import File, FileOperator, parse
from .lowering import Lowering, Unsupported, names_of
from .schema import ACTIVATIONS
from .sixteen import as_floats, has_sixteen

RULES: dict[str, Callable[[Lowering, FileOperator, str], None]] = {
    "CONV_2D": layers.conv,
    "DEPTHWISE_CONV_2D": layers.depthwise,
    "TRANSPOSE_CONV": layers.transpose_conv,
    "BATCH_MATMUL": layers.batch_matmul,
    "FULLY_CONNECTED": layers.fully_connected,
    **control.RULES,
    **detections.RULES,
    **elements.RULES,
    **flags.RULES,
    **images.RULES,
    **movement.RULES,
    **parts.RULES,
    **rearranged.RULES,
    **sums.RULES,
}


def read(
    model: Any, shapes: Mapping[str, Sequence[int]] | None = None, signature: str | None = None,
    apart: Collection[str] = (),
) -> Model:  # fmt: skip
    """Read a .tflite file from a path or bytes. *model* may also be a result of `parsed` or of this function.

    shapes: the shapes of inputs by name; the shapes in the file are the default. signature: the key of a
    signature or the name of a subgraph; by default the first subgraph is read. apart: operators that must not
    run on a device, by their numbers in the file ("#3").

    Raises ModelError if the file is not a valid .tflite model, OSError for a file that cannot be read.
    """
    if isinstance(model, Model):
        return model
    file = model if isinstance(model, File) else parsed(model, signature)
    return lowered(file, shapes, apart) if shapes else opened(file, apart)


@dataclasses.dataclass(frozen=True)
class OpenModel(Model):
    """A model with free dimensions. Paddings depend on the sizes of these dimensions, so the file is lowered
    again for each set of input shapes. ``read_for``: the shapes for which ``nodes`` was lowered."""

    file: File | None = None
    read_for: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    apart: Collection[str] = ()

    def _graph(self, shapes: Mapping[str, Sequence[int]]) -> Graph:
        wanted = {a.name: tuple(int(d) for d in shapes[a.name]) for a in self.inputs}
        if self.file is None or wanted == {name: self.read_for[name] for name in wanted}:
            return super()._graph(shapes)
        graph = lowered(self.file, {**self.read_for, **wanted}, self.apart)._graph(shapes)
        graph.constants |= {name: x for name, x in self.constants.items() if name in self.read_for}
        return graph


def opened(file: File, apart: Collection[str] = ()) -> Model:
    """Return a model that keeps the free dimensions of its file. The file is lowered for its own shapes, in
    which free dimensions have size 1. If this fails, the file is lowered for the first of TRIAL_SIZES that
    succeeds."""
    names = names_of(file)
    ends = [(names[n], file.tensors[n]) for n in file.inputs]
    if all(-1 not in tensor.signature for _, tensor in ends):
        return lowered(file, {}, apart)
    for size in (0, *TRIAL_SIZES):
        shapes = {
            name: tuple(
                d if s != -1 or not size else 1 if i == 0 else size
                for i, (s, d) in enumerate(zip(tensor.signature, tensor.shape, strict=True))
            )
            for name, tensor in ends
        }
        try:
            model = lowered(file, shapes, apart)
            break
        except ModelError as error:
            last = error
    else:
        raise last
    inputs, outputs = (
        tuple(_open(a, file.tensors[n].signature) for a, n in zip(some, numbers, strict=True))
        for some, numbers in ((model.inputs, file.inputs), (model.outputs, file.outputs))
    )
    return OpenModel(
        inputs, outputs, model.nodes, model.constants, 0, model.name, file=file, read_for=shapes, apart=apart
    )


def _open(argument: Argument, signature: Sequence[int]) -> Argument:
    """Return an input or output with a name for each free dimension, which is -1 in *signature*."""
    open_ = [s == -1 for s in signature] if len(signature) == len(argument.shape) else [False] * 8
    shape = tuple(f"{argument.name}.{i}" if open_[i] else d for i, d in enumerate(argument.shape))
    return dataclasses.replace(argument, shape=shape)


def parsed(model: Any, signature: str | None = None) -> File:
    """Parse a .tflite file (`parse`). Raises ModelError for every error in the file's content."""
    try:
        return parse(model, signature)
    except ModelError:
        raise
    except BROKEN as error:
        raise ModelError(f"the model is malformed: {type(error).__name__}: {error}") from error


def lowered(file: File, shapes: Mapping[str, Sequence[int]], apart: Collection[str] = ()) -> Model:
    """Return the model with all operators of the file lowered. Operators in *apart*, and operators that
    cannot be lowered, become ``foreign`` nodes."""
    sixteen = has_sixteen(file)
    try:
        low = Lowering(file := as_floats(file) if sixteen else file, lower=_lower)
    except BROKEN as error:
        raise ModelError(f"the model is malformed: {type(error).__name__}: {error}") from error
    inputs = tuple(_input(low, number, shapes) for number in file.inputs)
    made = set(file.inputs)
    for operator in file.operators:
        low.source = str(operator)
        if again := made.intersection(operator.outputs) or [n for n in operator.outputs if n in low.arrays]:
            raise ModelError(
                f"{operator}: {low.names[min(again)]!r} exists already; each value must be made once"
            )
        made.update(operator.outputs)
        _add(low, operator, operator.place in apart)
    if sixteen and (left := [node for node in low.nodes if node.op == "foreign"]):
        node = left[0]
        why = f"{node.attributes['op']} {node.source}: {node.attributes['why']}, in a model with int16"
        why += " activations (16x8)"
        raise UnsupportedModelError(why, [why])
    low.source = "the model's results"
    _name_results(low)
    outputs = tuple(
        Argument(low.names[n], low.specs[low.names[n]].dtype, low.specs[low.names[n]].shape)
        for n in file.outputs
    )
    nodes = needed(low.nodes, outputs)
    read_by = {name for node in nodes for name in (*node.inputs, *node.outputs)}
    read_by |= {argument.name for argument in outputs}
    constants = {name: array for name, array in low.constants.items() if name in read_by}
    return Model(inputs, outputs, tuple(nodes), constants, 0, file.name)


def _name_results(low: Lowering) -> None:
    """Give each result of the model the name of its tensor, by renaming the output of the node that computes
    it. If the value is an input, or already has the name of another result, add an Identity instead."""
    results = {low.last_of(number): low.names[number] for number in low.file.outputs}
    renamed: dict[str, str] = {}
    made = {node.outputs[0] for node in low.nodes if len(node.outputs) == 1}
    for name, wanted in results.items():
        if name in made:
            renamed[name], low.specs[wanted] = wanted, low.specs[name]
    for i, node in enumerate(low.nodes):
        inputs, outputs = (tuple(renamed.get(x, x) for x in names) for names in (node.inputs, node.outputs))
        low.nodes[i] = dataclasses.replace(node, inputs=inputs, outputs=outputs)
    for number in dict.fromkeys(low.file.outputs):
        name = low.last_of(number)
        if renamed.get(name, name) != low.names[number]:
            low.emit("Identity", [renamed.get(name, name)], low.names[number])


def _input(low: Lowering, number: int, shapes: Mapping[str, Sequence[int]]) -> Argument:
    tensor, name = low.file.tensors[number], low.names[number]
    if tensor.why or number in low.arrays:
        raise ModelError(f"the input {tensor.name!r} cannot be read: {tensor.why or 'it is a constant'}")
    shape = tuple(int(d) for d in shapes.get(name, tensor.shape))
    low.plain[number] = name
    low.specs[name] = Spec(tensor.dtype, shape).check(f"input {name!r}")
    return Argument(name, tensor.dtype, shape)


CONTROL = ("CALL", "CALL_ONCE")  # operators that run another subgraph and are never lowered


def _lower(low: Lowering, operator: FileOperator) -> None:
    """Lower an operator. Raises Unsupported if a device cannot run it."""
    rule = RULES.get(operator.op)
    for number in (*operator.inputs, *operator.outputs):
        if number >= 0:
            low.tensor(number)
    if operator.op in CONTROL:
        raise Unsupported(f"{operator.op} runs another subgraph of the file; only WHILE and IF may")
    if rule is None:
        raise Unsupported(f"vkq does not know the operator {operator.op}")
    code = operator.options.get("fused_activation_function", 0)
    if code not in ACTIVATIONS:
        raise ModelError(f"{operator}: there is no activation {code}")
    rule(low, operator, ACTIVATIONS[code])


def _add(low: Lowering, operator: FileOperator, apart: bool) -> None:
    try:
        if apart:
            raise Unsupported("a device cannot run the operator with these types or options")
        _lower(low, operator)
    except Unsupported as why:
        low.foreign(operator, str(why))
    except ModelError:
        raise
    except BROKEN as error:
        raise ModelError(f"{operator}: {type(error).__name__}: {error}") from error
