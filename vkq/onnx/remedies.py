"""Remedies for nodes that cannot run on a device: one sentence for each kind of refusal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..graph.graph import Graph, Node
from .reader import Model

FALLBACK = "fallback={0!r} (vkq run --fallback {0}) runs these on the CPU"
WIDE = (
    "int16, uint16: vkq has 8-bit activations: quantize the float model again, by `vkq quantize FLOAT.onnx -c"
    " PICTURES` or with activation_type=QuantType.QUInt8 in onnxruntime.quantization"
)
DOUBLE = "float64: export the model in float32 (PyTorch: model.float() before the export)"
WEIGHTED = "Conv", "ConvTranspose", "Gemm", "MatMul"
MOST_CUT = 8  # the message suggests to cut the model only if at most this many values cross the cut


def remedies(model: Model, graph: Graph, refused: Sequence[tuple[Node, str]]) -> list[str]:
    """Return remedies for the nodes in *refused*: changes of the model first, the fallback last."""
    fallback = FALLBACK.format("onnxruntime" if model.opset else "litert")  # a .tflite model has no opset
    return [*_mended(model, graph, refused), *_cut(model, [node for node, _ in refused]), fallback]


def _mended(model: Model, graph: Graph, refused: Sequence[tuple[Node, str]]) -> Iterator[str]:
    types = {
        graph.specs[name].dtype
        for node, _ in refused
        for name in (*node.inputs, *node.outputs)
        if name in graph.specs
    }
    if types & {"int16", "uint16"}:
        yield WIDE
    if "float64" in types:
        yield DOUBLE
    inputs = {argument.name for argument in model.inputs}
    weights = [
        node.inputs[1]
        for node, _ in refused
        if node.op in WEIGHTED and len(node.inputs) > 1 and node.inputs[1] in inputs
    ]
    if weights:
        names = list(dict.fromkeys(weights))
        yield f"weights that are inputs: constant_inputs={names} makes them constants, prepared once"


def _cut(model: Model, refused: Sequence[Node]) -> Iterator[str]:
    """Yield a sentence on how to cut the model before the refused nodes. Yield nothing if no result would
    remain for the device."""
    sources = {node.source for node in refused}
    tainted: set[str] = set()
    kept: list[Node] = []
    read: dict[str, None] = {}
    for node in model.nodes:
        if node.source in sources or not tainted.isdisjoint(node.inputs):
            tainted.update(name for name in node.outputs if name)
            read |= dict.fromkeys(node.inputs)
        else:
            kept.append(node)
    made = {name for node in kept for name in node.outputs if name}
    ends = dict.fromkeys(a.name for a in model.outputs if a.name in made)
    ends |= dict.fromkeys(name for name in read if name in made)
    if not model.opset or not ends or len(ends) > MOST_CUT:
        return
    inputs = _needed(model, kept, ends)
    ops = dict.fromkeys(str(node.attributes.get("op", node.op)) for node in refused)
    yield (
        f"to cut the model before {', '.join(ops)}:"
        f" onnx.utils.extract_model('MODEL.onnx', 'CUT.onnx', {inputs}, {list(ends)}) keeps"
        f" {len(kept)} of {len(model.nodes)} nodes; compute the others from its results"
    )


def _needed(model: Model, nodes: Sequence[Node], ends: dict[str, None]) -> list[str]:
    """Return the names of the model's inputs on which the values *ends* depend."""
    wanted = set(ends)
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            wanted.update(node.inputs)
    return [argument.name for argument in model.inputs if argument.name in wanted]
