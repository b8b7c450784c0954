"""Exports a model to a file for libvkq. The graph is planned for each kind of device. The device at hand also
runs the graph, by its own plan and by the portable plan. These outputs are stored as the known answers, with
which libvkq compares its own results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._version import __version__
from ..device.reported import NAMES
from ..errors import ArgumentError
from ..graph.executable import Executable, add_nodes
from ..graph.graph import Graph
from ..layout.extent import CONTIGUOUS, Spec
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.plan import Plan, Step, whole_vectors
from ..runtime.program import Program, code
from ..runtime.transfer import copied, dense
from ..shader.compile import compiled, spirv
from ..shader.spec import TEXEL_BYTES
from .file import TYPES, Array, FilePlan, FileProgram, FileStep, Shaped, written
from .kinds import LEAST, PortableDevice, described

REPEATED = 1021  # maximum number of different values in a random input
PORTABLE, THIS = "portable", "this"
# Limits that libvkq can check on any device. A plan that needs another limit runs only on the device of the
# export.
KNOWN_LIMITS = (*LEAST, "vendorID", "deviceID", "subgroupSize")
# Properties of float arithmetic on which the shaders rely.
CONTROLS = ("shaderRoundingModeRTEFloat32", "shaderDenormPreserveFloat32")
FEATURES = (
    "shaderIntegerDotProduct", "maintenance4", "subgroupSizeControl", "computeFullSubgroups",
    "storageBuffer8BitAccess", "storageBuffer16BitAccess", "shaderFloat16", "shaderInt8",
    "vulkanMemoryModel", "vulkanMemoryModelDeviceScope", "cooperativeMatrix", "shaderInt64", "shaderInt16",
)  # fmt: skip


def exported(
    graphs: Sequence[Graph], device: Device, kinds: Sequence[str] = (THIS,)
) -> tuple[bytes, list[Shaped]]:
    """Return the bytes of a model's file, and the file's content. *graphs*: the lowered graph for each set of
    input shapes; libvkq loads the first set by default. Each graph is planned for each of *kinds*, and last
    for the portable device.

    A kind is "this" (the device at hand), a name of `vkq.device.reported`, the path of a file that `vkq
    devices --json` wrote on another device, or "portable" (no plan but the portable one). Plans with more
    needs come first, because libvkq uses the first plan whose needs are met. The known answer is the output
    for random inputs, computed on *device*. The portable plan has a known answer of its own, because float
    sums depend on the kernels.

    Raises ArgumentError for a kind that is none of these, and for an input or output of a type that is not in
    `vkq.player.file.TYPES`."""
    sets = [_shaped(graph, device, kinds) for graph in graphs]
    return written(f"vkq {__version__}", sets), sets


def _shaped(graph: Graph, device: Device, kinds: Sequence[str]) -> Shaped:
    feed = _inputs(graph)
    results = Executable(graph, device, {}).run(feed)
    inputs = [
        Array(name, graph.specs[name].dtype, x.shape, x.tobytes(), graph.bounds.get(name, Array.bounds))
        for name, x in feed.items()
    ]
    names = list(dict.fromkeys(graph.outputs))
    for name in names:
        if results[name].dtype.name not in TYPES:
            raise ArgumentError(
                f"export: output {name!r} is {results[name].dtype}; it must be one of {', '.join(TYPES)}"
            )
    outputs = [Array(x, results[x].dtype.name, results[x].shape) for x in names]
    answers = tuple(results[x].tobytes() for x in names)
    plans, real = [], device.capabilities
    for kind in dict.fromkeys(kind for kind in kinds if kind != PORTABLE):
        if kind == THIS:
            plans.append(_planned(graph, device, kind, names, answers))
        else:
            with described(real, kind) as absent:
                name = kind if kind in NAMES else Path(kind).stem
                plans.append(_planned(graph, absent, name, names, answers))
    plans.sort(key=_asks, reverse=True)
    with PortableDevice(real) as portable:
        results = Executable(graph, portable, {}).run(feed)
        answers = tuple(results[x].tobytes() for x in names)
        plans.append(_planned(graph, portable, PORTABLE, names, answers))
    return Shaped(inputs, outputs, plans)


def _inputs(graph: Graph) -> dict[str, npt.NDArray[Any]]:
    """Return random inputs: normal floats, and integers within their bounds. A large input repeats `REPEATED`
    values, so that it compresses well. REPEATED is prime, so rows and channels still differ."""
    random = np.random.default_rng(0)
    feed: dict[str, npt.NDArray[Any]] = {}
    for name in graph.inputs:
        spec = graph.specs[name]
        if spec.dtype not in TYPES:
            raise ArgumentError(
                f"export: input {name!r} is {spec.dtype}; it must be one of {', '.join(TYPES)}"
            )
        count = min(math.prod(spec.shape), REPEATED)
        if spec.dtype.startswith("float"):
            numbers = random.normal(0, 1, count).astype(spec.dtype)
        else:
            least, most = graph.bounds.get(name, (0, 100))
            info = np.iinfo(spec.dtype)
            low, high = (least, most) if spec.dtype == "int32" else (info.min, info.max)
            numbers = random.integers(low, high, count, spec.dtype, endpoint=True)
        feed[name] = np.resize(numbers, spec.shape)
    return feed


# ----------------------------------------------------------------------------------- one kind of device


def _planned(
    graph: Graph, device: Device, kind: str, names: Sequence[str], answers: tuple[bytes, ...]
) -> FilePlan:
    """Return the plan of a graph with row-major inputs and outputs. *names*: the outputs. *kind*: the kind
    of device that the plan is for."""
    b = Builder(device)
    with device.programs.together():
        values = {name: _dense_in(b, graph.specs[name]) for name in graph.inputs}
        add_nodes(graph, b, {}, values)
        found = {name: _dense_out(b, values[name]) for name in names if name not in graph.constants}
        plan = b.plan(*found.values())
    constants = {slot: resident.data().tobytes() for slot, resident in plan.constants.items()}
    results: list[int | bytes] = []
    for name in names:
        if name in graph.constants:
            results.append(np.ascontiguousarray(graph.constants[name]).tobytes())
        elif (slot := found[name].slot) in constants:
            results.append(constants[slot][: found[name].spec.size * 4])
        else:
            results.append(slot)
    return _as_file(plan, device, kind, results, answers, constants)


def _dense_in(b: Builder, spec: Any) -> Value:
    """Add a row-major input to the plan, and return it repacked into the layout of *spec*."""
    bare = Spec(spec.shape, spec.dtype)
    if bare.layout == CONTIGUOUS:
        return b.input(bare)
    return copied(b, b.input(dense(bare)), bare, "pack")


def _dense_out(b: Builder, value: Value) -> Value:
    return value if value.spec.layout == CONTIGUOUS else copied(b, value, value.spec, "unpack")


def _as_file(
    plan: Plan, device: Device, kind: str, results: Sequence[int | bytes], answers: tuple[bytes, ...],
    constants: Mapping[int, bytes],
) -> FilePlan:  # fmt: skip
    programs: dict[int, tuple[int, Program]] = {}
    for step in plan.steps:
        if step.program is not None:
            programs.setdefault(id(step.program), (len(programs), step.program))
    c = device.capabilities
    dispatches = sum(len(step.grids) for step in plan.steps)
    about = f"{c.name}, {len(programs)} shaders, {dispatches} dispatches"
    used = {slot for step in plan.steps for slot in step.slots}
    return FilePlan(
        kind, about, _needs(plan, [p for _, p in programs.values()], device, kind),
        tuple(_shader(program, device) for _, program in programs.values()),
        plan.slots, c.buffer_alignment, tuple(results), answers, plan.scratch_bytes,
        tuple((slot, at, whole_vectors(size)) for slot, (at, size) in plan.scratch.items() if slot in used),
        tuple((slot, data) for slot, data in constants.items() if slot in used),
        tuple(_step(step, programs) for step in plan.steps),
    )  # fmt: skip


def _shader(program: Program, device: Device) -> FileProgram:
    variant = program.variant
    ready = compiled(variant)
    binary = spirv(variant) if ready is None else ready
    module, constants = code(variant, binary, program.constants, device.capabilities)
    return FileProgram(
        variant.name, module, len(variant.bindings), variant.texels, 4 * len(variant.push_constants),
        program.subgroup_size, tuple(constants),
    )  # fmt: skip


def _step(step: Step, programs: Mapping[int, tuple[int, Program]]) -> FileStep:
    number = None if step.program is None else programs[id(step.program)][0]
    slots = tuple((slot, (slot in step.reads) + 2 * (slot in step.writes)) for slot in step.slots)
    at = step.program.first_group_at if step.program else -1
    return FileStep(number, slots, step.push, at, step.grids, step.value, step.busy_ns)


def _asks(plan: FilePlan) -> tuple[int, int]:
    """Return a plan's sort key: (the number of values that a device must have exactly, the number of
    features that it must have)."""
    names = [name for name, _ in plan.needs]
    return sum(name[0] == "=" for name in names), sum(name in FEATURES for name in names)


def _needs(plan: Plan, programs: Sequence[Program], device: Device, kind: str) -> tuple[tuple[str, int], ...]:
    """Return the features and limits that a device must have to run the plan, as (name, minimum), or as
    ("=" and the name, exact value)."""
    needs: dict[str, int] = {}

    def need(name: str, value: int) -> None:
        needs[name] = max(needs.get(name, 0), value)

    known = kind != THIS  # True if libvkq can check everything on which the shaders rely
    for program in programs:
        variant, constants = program.variant, program.constants
        for name, value in variant.requires.items():
            if name in FEATURES or name in KNOWN_LIMITS:
                need(name, int(value))
            elif kind == PORTABLE:
                raise ArgumentError(
                    f"export: {variant.name} needs {name}, which a portable plan must not need"
                )
            else:
                known = False
        size = variant.local_size(constants)
        for axis, count in zip("xyz", size, strict=True):
            need(f"maxComputeWorkGroupSize_{axis}", count)
        need("maxComputeWorkGroupInvocations", math.prod(size))
        need("maxComputeSharedMemorySize", variant.shared_bytes(constants))
        need("maxPushConstantsSize", 4 * len(variant.push_constants))
        need("maxPerStageDescriptorStorageBuffers", sum(not b.texels for b in variant.bindings))
        if program.subgroup_size:
            need("computeFullSubgroups", 1)
    known = known and not any(p.subgroup_size or "cooperativeMatrix" in p.variant.requires for p in programs)
    _need_sizes(plan, need)
    c, same = device.capabilities, dict[str, int]()
    if kind != PORTABLE:
        same["=vendorID"] = c.vendor_id
        needs |= {name: int(c.properties[name]) for name in CONTROLS if programs}
    # libvkq cannot check matrix sizes and subgroup sizes, so it must run the plan on the device of the
    # export.
    if not known:
        same |= {"=deviceID": c.device_id, "=subgroupSize": int(c.properties["subgroupSize"])}
    return (*same.items(), *((name, value) for name, value in needs.items() if value))


def _need_sizes(plan: Plan, need: Callable[[str, int], None]) -> None:
    """Add the needed limits on workgroup counts, buffers and texel buffers."""
    sizes = {slot: size for slot, (_, size) in plan.scratch.items()}
    sizes |= {slot: resident.bytes for slot, resident in plan.constants.items()}
    sizes |= {slot: spec.nbytes for slot, spec in zip(plan.outputs, plan.results, strict=True)}
    sizes |= {slot: spec.nbytes for slot, spec in enumerate(plan.inputs)}
    sizes = {slot: whole_vectors(size) for slot, size in sizes.items()}
    need("maxStorageBufferRange", max(sizes.values(), default=0))
    for step in plan.steps:
        for _, x, y in step.grids:
            need("maxComputeWorkGroupCount_x", x)
            need("maxComputeWorkGroupCount_y", y)
        bindings = step.program.variant.bindings if step.program else ()
        for slot, binding in zip(step.slots, bindings, strict=False):  # a fill has no bindings
            if binding.texels:
                need("maxTexelBufferElements", sizes[slot] // TEXEL_BYTES)
