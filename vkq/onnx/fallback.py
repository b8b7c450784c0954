"""What the device cannot run, on the CPU through ONNX Runtime: asked for by name, counted and told."""

from __future__ import annotations

import itertools
import sys
import threading
import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph.executable import Executable, refusals
from ..graph.graph import Array, Graph, Node
from ..runtime.device import Device
from ..runtime.programs import Progress
from .cpu import cpu_session
from .foreign import in_onnx
from .operators import MICROSOFT
from .tensors import NEWEST

OPSET = 21  # of the nodes that are handed to ONNX Runtime, of which the reader made newest forms


class FallbackWarning(UserWarning):
    """Nodes of a model run on the CPU."""


class Mixed:
    """A graph in parts, by turns on the device and on the CPU. Used as `Executable`."""

    def __init__(
        self, graph: Graph, device: Device, layers: dict[Hashable, Any], progress: Progress | None = None
    ):
        refused = {id(node): opset_of(node) for node, _ in refusals(graph)}
        self.graph = graph
        self.parts: list[tuple[bool, Graph, Callable[[Mapping[str, Array]], dict[str, Array]]]] = []
        for opset, part in partitions(graph, refused):
            cpu = _CpuPart(part, opset) if opset else None
            run = cpu.run if cpu else Executable(part, device, layers, progress=progress).run
            self.parts.append((opset > 0, part, run))
        self.cpu_nodes = len(refused)
        crossing = {name for cpu, part, _ in self.parts if cpu for name in (*part.inputs, *part.outputs)}
        self.crossing_bytes = sum(graph.specs[name].nbytes for name in crossing)
        self._lock = threading.Lock()
        self._results: dict[str, Array] = {}
        ops = sorted({str(node.attributes.get("op", node.op)) for node in graph.nodes if id(node) in refused})
        warnings.warn(
            f"{self.cpu_nodes} of {len(graph.nodes)} nodes run on the CPU through ONNX Runtime"
            f" ({', '.join(ops)});"
            f" {self.crossing_bytes} bytes cross in each run",
            FallbackWarning,
            stacklevel=_callers(),
        )

    def start(self, inputs: Mapping[str, Array]) -> None:
        """Runs everything: parts wait for each other."""
        given = {**self.graph.constants, **inputs}
        values = dict(given)
        for _, part, run in self.parts:
            values.update(run({name: values[name] for name in part.inputs}))
        # Results are the caller's to change: neither constants nor inputs themselves.
        self._results = {
            name: values[name].copy() if name in given else values[name] for name in self.graph.outputs
        }

    def finish(self) -> dict[str, Array]:
        """The results of the last `start`."""
        return self._results

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The results by name. Threads take turns."""
        with self._lock:
            self.start(inputs)
            return self.finish()


def _callers() -> int:
    """The stacklevel of a warning at the line that called vkq, however deep this is."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "vkq":
        level, frame = level + 1, frame.f_back
    return level


def _since(op: str, opset: int = NEWEST) -> int:
    """The opset of ai.onnx from which on an operator is as it is in *opset*; 0: there is none."""
    from onnx import defs

    try:
        return int(defs.get_schema(op, opset, "").since_version)
    except defs.SchemaError:
        return 0


def opset_of(node: Node) -> int:
    """The opset of ai.onnx in which a node is handed to ONNX Runtime: an operator that the reader does not
    know is as the model has it, which a newer opset may read otherwise, and some came later than `OPSET`."""
    op, own = node.op, None
    if op == "foreign":
        op, own = node.attributes["op"], node.attributes["opset"]
    form = _since(op, OPSET)
    if not form:
        return own or _since(op) or OPSET
    return OPSET if own is None or _since(op, own) == form else int(own)


def partitions(graph: Graph, refused: Mapping[int, int]) -> list[tuple[int, Graph]]:
    """(opset, or 0 for the device, part) in an order in which they can run: as many nodes as possible of one
    kind, then of the next. refused: what does not run on the device, with its opset."""
    left, have = list(graph.nodes), {*graph.inputs, *graph.constants}
    groups: list[tuple[int, list[Node]]] = []
    kinds = itertools.cycle((0, *sorted(set(refused.values()))))
    while left:
        group: list[Node] = []
        rest = []
        kind = next(kinds)
        for node in left:
            if refused.get(id(node), 0) == kind and all(name in have for name in node.inputs if name):
                group.append(node)
                have.update(node.outputs)
            else:
                rest.append(node)
        if group:
            groups.append((kind, group))
        left = rest
    return [(kind, _part(graph, group)) for kind, group in groups]


def _part(graph: Graph, nodes: list[Node]) -> Graph:
    """The nodes as a graph of their own: its results are what others read."""
    made = {name for node in nodes for name in node.outputs if name}
    read = {name for node in nodes for name in node.inputs if name}
    own = {id(node) for node in nodes}
    elsewhere = {name for node in graph.nodes if id(node) not in own for name in node.inputs} | {
        *graph.outputs
    }
    constants = {name: graph.constants[name] for name in read if name in graph.constants}
    inputs = sorted(read - made - set(constants))
    outputs = sorted(made & elsewhere)
    specs = {name: graph.specs[name] for name in (*inputs, *constants, *made)}
    return Graph(inputs, outputs, nodes, constants, specs)


class _CpuPart:
    """Nodes in ONNX's words, in a session of ONNX Runtime."""

    def __init__(self, part: Graph, opset: int):
        self.outputs = part.outputs
        self.session = cpu_session(_proto(part, opset).SerializeToString(), "fallback='onnxruntime'")

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            results: list[Array] = self.session.run(self.outputs, dict(inputs))
        except Exception as error:  # a class of its own for each kind of failure
            raise ModelError(f"ONNX Runtime cannot run its part: {str(error)[:500]}") from error
        return dict(zip(self.outputs, results, strict=True))


def _proto(part: Graph, opset: int) -> Any:
    import onnx
    from onnx import helper

    def info(name: str) -> Any:
        spec = part.specs[name]
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)), spec.shape
        )

    constants = [onnx.numpy_helper.from_array(array, name) for name, array in part.constants.items()]
    nodes = [one for node in part.nodes for one in (*_flags(part, node), _node(node, part, opset))]
    _name_once(nodes)
    domains = {node.domain for node in nodes} - {""}
    graph = helper.make_graph(
        nodes, "part", [info(name) for name in part.inputs], [info(name) for name in part.outputs], constants
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in sorted(domains))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _name_once(nodes: list[Any]) -> None:
    """Of nodes that stand for one of the model's only the first has its name: ONNX Runtime takes no name
    twice, but none as often as one likes."""
    named: set[str] = set()
    for node in nodes:
        if node.name in named:
            node.name = ""
        named.add(node.name)


MICROSOFTS = ("QuickGelu", "MatMulNBits")  # of the graph's operators, those of its domain
LOGIC = ("And", "Or", "Xor", "Not")


def _is_flag(part: Graph, node: Node, name: str) -> bool:
    """Whether an input is flags, which come from the device as uint8."""
    takes = node.op in LOGIC or (node.op == "Where" and name == node.inputs[0])
    return takes and part.specs[name].dtype == "uint8"


def _flags(part: Graph, node: Node) -> list[Any]:
    """Casts of a node's flags to bool."""
    from onnx import TensorProto, helper

    names = sorted({name for name in node.inputs if name and _is_flag(part, node, name)})
    bool_ = TensorProto.BOOL
    return [helper.make_node("Cast", [x], [f"{node.outputs[0]}/{x}/bool"], to=bool_) for x in names]


def _node(node: Node, part: Graph, opset: int) -> Any:
    """A node of the graph as ONNX has it."""
    from onnx import defs, helper

    op, domain, attributes = node.op, "", node.attributes
    if op == "foreign":
        op, domain, attributes = attributes["op"], attributes["domain"], attributes["attributes"]
    elif op in ("quantize", "dequantize") or op.islower():
        raise ModelError(f"{node}: it can run neither on the device nor in ONNX Runtime")
    elif op in MICROSOFTS:
        domain = MICROSOFT
    if domain == "":
        known = defs.get_schema(op, opset, domain).attributes
        attributes = {key: value for key, value in attributes.items() if key in known}
    given = in_onnx(attributes)
    inputs = [f"{node.outputs[0]}/{x}/bool" if x and _is_flag(part, node, x) else x for x in node.inputs]
    return helper.make_node(op, inputs, node.outputs, name=node.source, domain=domain, **given)
