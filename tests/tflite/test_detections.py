"""Tests of TFLite_Detection_PostProcess: boxes, classes and scores are those of the algorithm in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

import vkq
from vkq.tflite import InferenceSession
from vkq.tflite.flexbuffer import read_map

from .writer import Writer

SCALES = {"y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0}
MOST = 4  # detections
PLAIN = {"max_detections": MOST, "max_classes_per_detection": 1, "num_classes": 3, "nms_iou_threshold": 0.5,
         "nms_score_threshold": 0.3, "use_regular_nms": False, **SCALES}  # fmt: skip
COUNT = 40


def options(**more: Any) -> bytes:
    builder = flexbuffers.Builder()
    with builder.Map():
        for key, value in (PLAIN | more).items():
            {bool: builder.Bool, int: builder.Int, float: builder.Float}[type(value)](key, value)
    return bytes(builder.Finish())


def model(custom: bytes, classes: int, each: int = 1, dtype: str = "float32") -> bytes:
    """Return a model of the operator for COUNT boxes. Quantized inputs have scales of 1/100 and 1/256."""
    w, bytes_ = Writer(), dtype == "uint8"
    anchors = np.random.default_rng(2).uniform(0.1, 0.9, (COUNT, 4)).astype(np.float32)
    scales = (0.01, 1 / 256, 0.01) if bytes_ else (None,) * 3
    inputs = [w.tensor((1, COUNT, n), dtype, s) for n, s in zip((4, classes), scales, strict=False)]
    stored = np.rint(anchors * 100).astype(np.uint8) if bytes_ else anchors
    most = MOST * each
    outputs = [w.tensor(shape, "float32") for shape in ((1, most, 4), (1, most), (1, most), (1,))]
    w.operator("TFLite_Detection_PostProcess", [*inputs, w.constant(stored, scales[2])], outputs)
    w.operators[-1]["custom_options"] = custom
    return w.file(inputs, outputs)


def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.normal(0, 2, (1, COUNT, 4)).astype(np.float32), rng.random((1, COUNT, 4)).astype(np.float32)]


def boxes_of(encoded: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    y, x, h, w = anchors.astype(np.float64).T
    centre = np.stack([encoded[:, 0] / 10 * h + y, encoded[:, 1] / 10 * w + x], 1)
    half = np.exp(encoded[:, 2:] / 5.0) * np.stack([h, w], 1) / 2
    return np.concatenate([centre - half, centre + half], 1)


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    areas = [(box[2:] - box[:2]).prod() for box in (a, b)]
    return float(sides.prod() / (sum(areas) - sides.prod()))


def selected(boxes: np.ndarray, scores: np.ndarray, most: int) -> list[int]:
    """Return the indices of the boxes that non-maximum suppression selects, the best first."""
    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable").tolist():
        if scores[i] >= 0.3 and len(kept) < most and all(overlap(boxes[i], boxes[j]) <= 0.5 for j in kept):
            kept.append(i)
    return kept


def found(boxes: np.ndarray, scores: np.ndarray, regular: bool, each: int) -> list[tuple[Any, int, float]]:
    """Return (box, class, score) of each detection. *scores*: (boxes, classes)."""
    if not regular:
        kept, order = selected(boxes, scores.max(1), MOST), np.argsort(-scores, 1, kind="stable")
        return [(boxes[i], int(c), float(scores[i, c])) for i in kept for c in order[i, :each]]
    pairs = [(i, c) for c in range(scores.shape[1]) for i in selected(boxes, scores[:, c], MOST)]
    best = sorted(pairs, key=lambda pair: -scores[pair])[:MOST]
    return [(boxes[i], c, float(scores[i, c])) for i, c in best]


@pytest.mark.parametrize(
    ("regular", "each", "least"), [(False, 1, 0.3), (False, 2, 0.3), (True, 1, 0.3), (True, 1, 0.98)]
)
def test_detections(regular: bool, each: int, least: float, device: vkq.Device) -> None:
    """Detections equal NumPy's for one selection over all classes, with one or two classes for each box, and
    for a selection of each class (*regular*). Class 0 of the scores is the background. With a high threshold,
    the last results are 0."""
    custom = options(use_regular_nms=regular, max_classes_per_detection=each)
    boxes, scores = arrays()
    if least > 0.3:
        scores = np.where(scores > least, scores, 0).astype(np.float32)
    session = InferenceSession(model(custom, 4, each), device)
    got = session.run(None, {"t0": boxes, "t1": scores})
    assert {row.where for row in session.explain().rows} == {"device"}
    anchors = np.random.default_rng(2).uniform(0.1, 0.9, (COUNT, 4)).astype(np.float32)
    want = found(boxes_of(boxes[0], anchors), scores[0, :, 1:], regular, each)
    assert got[3].tolist() == [len(want) / each]
    assert (len(want) < MOST * each) == (least > 0.3)
    rest = MOST * each - len(want)
    for array, column in zip(got, zip(*want, strict=True), strict=False):
        whole = np.concatenate([np.stack(column), np.zeros((rest, *np.shape(column[0])))])
        np.testing.assert_allclose(array[0], whole, rtol=1e-6, atol=1e-6)


def test_bytes(device: vkq.Device) -> None:
    """8-bit boxes, scores and anchors give the results of the same numbers as floats."""
    boxes, scores = (np.rint(np.abs(a) * 100).astype(np.uint8) for a in arrays())
    session = InferenceSession(model(options(), 4, 1, "uint8"), device)
    got = session.run(None, {"t0": boxes, "t1": scores})
    anchors = np.random.default_rng(2).uniform(0.1, 0.9, (COUNT, 4)).astype(np.float32)
    real = boxes_of(boxes[0] * np.float64(np.float32(0.01)), np.rint(anchors * 100) * np.float32(0.01))
    want = found(real, scores[0, :, 1:].astype(np.float32) / 256, False, 1)
    assert 0 < got[3][0] == len(want)
    np.testing.assert_allclose(got[0][0, : len(want)], [box for box, _, _ in want], rtol=1e-6, atol=1e-6)


def test_options() -> None:
    wanted = {key: float(value) for key, value in (PLAIN | {"max_detections": 70_000}).items()}
    assert read_map(options(max_detections=70_000)) == pytest.approx(wanted)


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 40])
def test_broken_options(cut: int) -> None:
    """Options that are no map, and maps whose distances leave the data, are refused."""
    with pytest.raises(vkq.ModelError, match="the options"):
        read_map(options()[cut + 1 :] if cut else b"")


def test_refused() -> None:
    builder = flexbuffers.Builder()
    with builder.Map():
        builder.Int("num_classes", 3)
    shorter = bytes(builder.Finish())
    with pytest.raises(vkq.ModelError, match="its options lack max_detections, max_classes"):
        InferenceSession(model(shorter, 4))
    with pytest.raises(vkq.UnsupportedModelError, match="selects 300 detections; vkq selects at most 256"):
        InferenceSession(model(options(max_detections=300), 4))
    with pytest.raises(vkq.ModelError, match=r"must be \(1, N, 4 or more\), scores \(1, 40, 5\)"):
        InferenceSession(model(options(), 5))
