"""Translates TFLite_Detection_PostProcess: decodes boxes relative to anchors, and selects detections by
non-maximum suppression.

Each step of a selection takes the box with the highest score, and removes this box and all boxes that overlap
it too much. With ``use_regular_nms``, each class has a selection of its own; otherwise there is one, by the
highest score of each box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import ModelError
from ..graph.graph import Array
from .file import FileOperator
from .flexbuffer import read_map
from .layers import BYTES
from .lowering import Lowering, Unsupported
from .movement import Rule
from .sums import largest_of

MOST_STEPS = 256  # steps of a selection; each becomes about ten nodes of the graph
PER_CLASS = 100  # LiteRT's default of detections_per_class
GONE = np.float32(np.finfo(np.float32).min)  # the score of a box that was removed
NEEDED = ("max_detections", "max_classes_per_detection", "num_classes", "nms_score_threshold",
          "nms_iou_threshold", "y_scale", "x_scale", "h_scale", "w_scale")  # fmt: skip
Options = Mapping[str, float]


def detect(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower TFLite_Detection_PostProcess. All results after the last detection are 0; without
    ``use_regular_nms`` LiteRT does not write them."""
    options = read_map(operator.options.get("custom", b""))
    if missing := [name for name in NEEDED if name not in options]:
        raise ModelError(f"{operator}: its options lack {', '.join(missing)}")
    encoded, scored = (low.shape(n) for n in operator.inputs[:2])
    classes, count = int(options["num_classes"]), int(options["max_detections"])
    offset = scored[-1] - classes  # 1 if class 0 is the background
    if (
        len(encoded) != 3
        or len(scored) != 3
        or encoded[0] != 1
        or encoded[:2] != scored[:2]
        or offset not in (0, 1)
    ):
        raise ModelError(
            f"{operator}: boxes {encoded} must be (1, N, 4 or more), scores {scored} (1, N, {classes} or"
            f" {classes + 1})"
        )
    if not 0 < count <= MOST_STEPS:
        raise Unsupported(f"it selects {count} detections; vkq selects at most {MOST_STEPS}")
    ends = _corners(low, operator, options)
    scores = _part(low, low.reshape(_real(low, operator.inputs[1]), scored[1:]), 1, offset, scored[2])
    results = (_by_class if options.get("use_regular_nms", 0) else _over_classes)(low, ends, scores, options)
    for number, name in zip(operator.outputs, results, strict=True):
        low.give(number, name)


def _real(low: Lowering, number: int) -> str:
    if low.dtype(number) in BYTES:
        return low.emit("dequantize", [low.last_of(number)], x=low.q(number))
    return low.last_of(number)


def _part(low: Lowering, name: str, axis: int, first: int, end: int) -> str:
    """Emit the elements from *first* to *end* - 1 of *name* along an axis. Return the result's name."""
    if (first, end) == (0, low.specs[name].shape[axis]):
        return name
    lists = [low.constant(np.array([v]), "slice") for v in (first, end, axis, 1)]
    return low.emit("Slice", [name, *lists])


def _corners(low: Lowering, operator: FileOperator, options: Options) -> str:
    """Emit the decoded boxes (4, N): ymin, xmin, ymax, xmax. Return the result's name.

    An encoded box has y, x, h and w. Its centre is ``y / y_scale * anchor_h + anchor_y``, its height
    ``exp(h / h_scale) * anchor_h``; x and w likewise."""
    boxes, number = operator.inputs[0], operator.inputs[2]
    anchors = low.array(number, "anchors").astype(np.float64)
    count, width = low.shape(boxes)[1:]
    if low.dtype(number) in BYTES:
        anchors = (anchors - low.q(number).zero_point) * low.q(number).scale
    if anchors.shape != (count, 4) or width < 4:
        raise ModelError(
            f"{operator}: its anchors are {anchors.shape} and its boxes have {width} numbers; anchors must be"
            f" {(count, 4)}, and boxes have 4 numbers or more"
        )
    (y, x, h, w), scale = anchors.T, {name: options[f"{name}_scale"] for name in "yxhw"}
    factors = np.array([h / scale["y"], w / scale["x"]]), np.array([[1 / scale["h"]], [1 / scale["w"]]])
    given = low.emit("Transpose", [low.reshape(_real(low, boxes), (count, width))], perm=(1, 0))
    parts = [_part(low, given, 0, 2 * i, 2 * i + 2) for i in range(2)]
    moved, grown = (low.emit("Mul", [part, _floats(low, f)]) for part, f in zip(parts, factors, strict=True))
    centre = low.emit("Add", [moved, _floats(low, np.array([y, x]))])
    half = low.emit("Mul", [low.emit("Exp", [grown]), _floats(low, np.array([h, w]) / 2)])
    return low.emit("Concat", [low.emit(op, [centre, half]) for op in ("Sub", "Add")], axis=0)


def _floats(low: Lowering, values: Array) -> str:
    return low.constant(np.asarray(values, np.float32), "boxes")


def _selected(low: Lowering, ends: str, scores: str, options: Options, steps: int) -> tuple[str, str]:
    """Emit *steps* steps of a selection for each row of *scores* (rows, N). Return the names of the selected
    boxes' numbers (rows, steps) and of their scores. If no box is left, the score is GONE."""
    rows, count = low.specs[scores].shape
    line, gone = _floats(low, np.arange(count)[None]), _floats(low, GONE)
    least, most = (_floats(low, np.array(options[f"nms_{name}_threshold"])) for name in ("score", "iou"))
    axes, beyond = low.constant(np.array([1]), "axes"), _floats(low, np.array(count))
    boxes = low.emit("Transpose", [ends], perm=(1, 0))
    corners = [low.reshape(_part(low, ends, 0, i, i + 2), (1, 2, count)) for i in (0, 2)]
    areas = low.reshape(_product(low, low.emit("Sub", corners[::-1])), (count,))
    rest = low.emit("Where", [low.emit("GreaterOrEqual", [scores, least]), scores, gone])
    places, found = list[str](), list[str]()
    for _ in range(steps):
        best = low.emit("ReduceMax", [rest, axes], keepdims=1)
        after = low.emit("Where", [low.emit("Less", [rest, best]), beyond, line])
        at = low.emit("ReduceMin", [after, axes], keepdims=1)
        place = low.emit("Cast", [at], to="int32", range=(0, count - 1))
        own = low.reshape(low.emit("Gather", [boxes, place], axis=0), (rows, 4, 1))
        common = _common(low, [_part(low, own, 1, i, i + 2) for i in (0, 2)], corners)
        total = low.emit("Add", [low.emit("Gather", [areas, place], axis=0), areas])
        overlap = low.emit("Div", [common, low.emit("Sub", [total, common])])  # NaN for two empty boxes
        rest = low.emit("Where", [low.emit("Greater", [overlap, most]), gone, rest])
        rest = low.emit("Where", [low.emit("Equal", [line, at]), gone, rest])
        places.append(place)
        found.append(best)
    return low.emit("Concat", places, axis=1), low.emit("Concat", found, axis=1)


def _common(low: Lowering, a: Sequence[str], b: Sequence[str]) -> str:
    """Emit the areas (rows, N) that boxes have in common. *a* (rows, 2, 1) and *b* (1, 2, N): the names of
    the least and of the largest coordinates. Return the result's name."""
    first = low.emit("Max", [a[0], b[0]])
    length = low.emit("Sub", [low.emit("Min", [a[1], b[1]]), first])
    return _product(low, low.emit("Max", [length, _floats(low, np.array(0))]))


def _product(low: Lowering, pairs: str) -> str:
    """Emit the products of the two elements along axis 1 of *pairs* (rows, 2, N). Return the result's
    name."""
    rows, _, count = low.specs[pairs].shape
    return low.emit("Mul", [low.reshape(_part(low, pairs, 1, i, i + 1), (rows, count)) for i in range(2)])


def _over_classes(low: Lowering, ends: str, scores: str, options: Options) -> list[str]:
    """Emit the results of one selection by each box's highest score in *scores* (N, classes)."""
    steps, each = int(options["max_detections"]), int(options["max_classes_per_detection"])
    count, classes = low.specs[scores].shape
    if not 0 < each <= classes:
        raise Unsupported(f"it returns {each} classes for each detection; it must be 1 to {classes}")
    best = low.emit("ReduceMax", [scores, low.constant(np.array([1]), "axes")], keepdims=1)
    places, found = _selected(low, ends, low.reshape(best, (1, count)), options, steps)
    places, found = low.reshape(places, (steps,)), low.reshape(found, (steps, 1))
    if each == 1:
        values = found
        labels = low.emit("ArgMax", [scores], axis=1, keepdims=1)
        labels = low.emit("Gather", [low.emit("Cast", [labels], to="int32"), places], axis=0)
    else:
        values, labels = largest_of(low, low.emit("Gather", [scores, places], axis=0), each)
    there = low.emit("Greater", [found, _floats(low, GONE)])
    return _results(
        low,
        ends,
        low.emit("Tile", [low.reshape(places, (steps, 1)), low.constant(np.array([1, each]), "counts")]),
        labels,
        values,
        there,
        steps * each,
    )


def _by_class(low: Lowering, ends: str, scores: str, options: Options) -> list[str]:
    """Emit the results of one selection for each class of *scores* (N, classes). They are the selected boxes
    with the highest scores."""
    count, classes = int(options["max_detections"]), low.specs[scores].shape[1]
    steps = min(int(options.get("detections_per_class", PER_CLASS)), count)
    each = int(options["max_classes_per_detection"])
    if steps < 1 or classes * steps < count or each != 1:
        raise Unsupported(
            f"it selects {count} detections, {steps} in each of {classes} classes, {each} for each box; there"
            " must be enough in all classes, and one for each box"
        )
    places, found = _selected(low, ends, low.emit("Transpose", [scores], perm=(1, 0)), options, steps)
    values, at = largest_of(low, low.reshape(found, (1, classes * steps)), count)
    at, values = low.reshape(at, (count, 1)), low.reshape(values, (count, 1))
    labels = low.emit("Div", [at, low.constant(np.int32(steps), "steps")])
    places = low.emit("Gather", [low.reshape(places, (classes * steps,)), at], axis=0)
    there = low.emit("Greater", [values, _floats(low, GONE)])
    return _results(low, ends, places, labels, values, there, count)


def _results(
    low: Lowering, ends: str, places: str, labels: str, values: str, there: str, count: int
) -> list[str]:
    """Emit the four results: boxes, classes, scores and the number of detections. Parameters of shape
    (detections, classes of a detection): *places*, *labels* and *values*, the index of the box, the class and
    the score; *there*, True for detections that exist."""
    zero = _floats(low, np.array(0))
    boxes = low.emit("Gather", [low.emit("Transpose", [ends], perm=(1, 0)), places], axis=0)
    flags = low.reshape(there, (*low.specs[there].shape, 1))
    real = low.emit("Cast", [labels], to="float32")
    found = [
        low.emit("Where", pair) for pair in ([flags, boxes, zero], [there, real, zero], [there, values, zero])
    ]
    ones = low.emit("Cast", [there], to="float32")
    total = low.emit("ReduceSum", [ones, low.constant(np.array([0, 1]), "axes")], keepdims=0)
    shapes = (1, count, 4), (1, count), (1, count), (1,)
    return [low.reshape(name, shape) for name, shape in zip((*found, total), shapes, strict=True)]


RULES: dict[str, Rule] = {"TFLite_Detection_PostProcess": detect}
