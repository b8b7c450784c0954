"""Measure the accuracy that each quantization method keeps on trained networks.

    python benchmarks/accuracy.py [NETWORK ...] [--methods METHOD ...]
    python benchmarks/accuracy.py --write

The script keeps its rows in results/accuracy.json; a new row replaces the earlier row of the same network
and method. --write puts all rows as a table into docs/models.md.

The networks are from examples/train_scenes.py and examples/train.py. The digits that were not used for
training are split into two halves: scenes with one half calibrate, scenes with the other half measure. The
column "dB" is the signal-to-noise ratio of the worst output channel. "same" is the share of decisions that
are equal to the float model's: digits, classes of pixels, or detections (what non-maximum suppression
leaves), whose boxes must overlap by 80 %. "out" is the share of multiply-adds in float. ONNX Runtime's
CPU provider computes all results; vkq returns equal bytes."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from vkq.accuracy import Agreement, quantize
from vkq.onnx.cpu import cpu_session
from vkq.onnx.quantize import quantize as fast

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
from scenes import Digits, Scenes, images_of, kept_digits  # noqa: E402

MODELS = ROOT / "examples" / "models"
PAGE, KEPT = ROOT / "docs" / "models.md", ROOT / "benchmarks" / "results" / "accuracy.json"
BEGIN, END = "<!-- from benchmarks/accuracy.py -->", "<!-- until here -->"
BATCH = 8
# numbers of batches: CALIBRATING set ranges, JUDGED decide for --target, MEASURED give the table's numbers
CALIBRATING, JUDGED, MEASURED = 10, 60, 200
# SURE: minimum score of a detection. DOUBLE: overlap at which a detection is suppressed. OVERLAP: minimum
# overlap of equal detections. See `detections` and `same_decisions`.
SURE, DOUBLE, OVERLAP = 0.5, 0.5, 0.8
GOAL = 0.995  # the share of equal decisions that --target requires

Feed = dict[str, np.ndarray]


@dataclass(frozen=True)
class Result:
    """The result of one quantization method on one network."""

    network: str
    method: str
    snr_db: float
    same: float
    out: float
    seconds: float


def half(first: bool) -> Digits:
    images, labels = kept_digits()
    return images[0 if first else 1 :: 2], labels[0 if first else 1 :: 2]


def feeds(network: str, count: int, calibrating: bool) -> list[Feed]:
    """Return batches of scenes as inputs of the network."""
    digits, seed = half(calibrating), 1 if calibrating else 2
    if network == "digits":
        images = digits[0][:, None]
        return [{"x": images[i * BATCH : (i + 1) * BATCH]} for i in range(min(count, len(images) // BATCH))]
    size, most, sides = {"segment": (48, 3, (14, 24)), "detect": (48, 2, (16, 26))}.get(
        network, (24, 1, (16, 23))
    )
    scenes = Scenes(digits, size, seed, most, sides)
    return [{"x": images_of(scenes.batch(BATCH))} for _ in range(count)]


def same_decisions(network: str, real: np.ndarray, got: np.ndarray) -> tuple[int, int]:
    """Return (the number of equal decisions, the number of all decisions). Two detections are equal if they
    have the same class and the intersection over union of their boxes is above OVERLAP."""
    if network != "detect":
        equal = real.argmax(1) == got.argmax(1)
        return int(equal.sum()), equal.size
    same = count = 0
    for y, z in zip(real, got, strict=True):
        a, b = detections(y), detections(z)
        close = (overlap(a[:, None, :4], b[None, :, :4]) > OVERLAP) & (a[:, None, 4] == b[None, :, 4])
        pairs = int(min(close.any(0).sum(), close.any(1).sum()))
        same, count = same + pairs, count + len(a) + len(b) - pairs
    return same, count


def detections(y: np.ndarray) -> np.ndarray:
    """Return the detections (count, 5) in the output (4 + classes, cells) of one scene. A detection is the
    box and the class of a cell whose best score is above the threshold SURE. Non-maximum suppression
    removes a cell if the intersection over union of its box and a box with a higher score is at least
    DOUBLE."""
    scores, left = y[4:].max(0), list[np.ndarray]()
    for cell in np.argsort(-scores, kind="stable"):
        box = y[:4, cell]
        if scores[cell] > SURE and all(overlap(box, other[:4]) < DOUBLE for other in left):
            left.append(np.append(box, y[4:, cell].argmax()))
    return np.array(left, np.float32).reshape(-1, 5)


def overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the intersection over union of boxes (..., 4), given as centre, width and height."""
    low = np.maximum(a[..., :2] - a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2)
    high = np.minimum(a[..., :2] + a[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2)
    inside = np.maximum(high - low, 0).prod(-1)
    return np.asarray(inside / np.maximum(a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - inside, 1e-9))


def measured(network: str, path: Path, samples: Sequence[Feed]) -> tuple[float, float]:
    """Return (the signal-to-noise ratio of the worst channel in dB, the share of equal decisions)."""
    real, got = (cpu_session(p, "measuring") for p in (MODELS / f"{network}.float.onnx", path))
    agreement, equal, count = Agreement(["y"]), 0, 0
    for feed in samples:
        a, b = real.run(["y"], feed), got.run(["y"], feed)
        agreement.add(a, b)
        same = same_decisions(network, a[0], b[0])
        equal, count = equal + same[0], count + same[1]
    return min(row.channel_db for row in agreement.rows()), equal / max(count, 1)


def judge_of(network: str, samples: Sequence[Feed]) -> Callable[[Path], bool]:
    """Return a function that accepts a quantized model if a share of at least GOAL of its decisions equals
    the float model's."""
    return lambda path: measured(network, path, samples)[1] >= GOAL


def run(network: str, method: str, unseen: Sequence[Feed], path: Path) -> Result:
    given = feeds(network, CALIBRATING, True)
    model = MODELS / f"{network}.float.onnx"
    begun, out = time.perf_counter(), 0.0
    if method == "--fast":
        fast(model, path, given)
    else:
        seconds = 60 if method == "default" else 0
        judge = judge_of(network, feeds(network, JUDGED, True)) if method == TARGET else None
        report = quantize(model, path, given, seconds=seconds, target_judge=judge)
        out = sum(row.share for row in report.kept)
    spent = time.perf_counter() - begun
    return Result(network, method, *measured(network, path, unseen), out, spent)


TARGET = "--seconds 0 --target"
METHODS = {"fast": "--fast", "first": "--seconds 0", "target": TARGET, "default": "default"}
NETWORKS = ("digits", "segment", "detect", "classify")


def table(results: Sequence[Result]) -> list[str]:
    lines = ["| network | options | dB | same | out of int8 | s |", "| --- | --- | --- | --- | --- | --- |"]
    for r in results:
        row = f"{r.snr_db:.1f} | {r.same:.2%} | {r.out:.1%} | {r.seconds:.0f}"
        lines.append(f"| {r.network} | `{r.method}` | {row} |")
    return lines


def kept() -> dict[tuple[str, str], Result]:
    rows = json.loads(KEPT.read_text()) if KEPT.exists() else []
    return {(row["network"], row["method"]): Result(**row) for row in rows}


def keep(result: Result) -> None:
    found = {**kept(), (result.network, result.method): result}
    rows = [
        found[key]
        for key in sorted(found, key=lambda k: (NETWORKS.index(k[0]), list(METHODS.values()).index(k[1])))
    ]
    KEPT.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def write() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(
        "\n".join([before + BEGIN, "", *table(list(kept().values())), "", END]) + rest.partition(END)[2]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures what quantizing leaves of trained networks.")
    parser.add_argument("networks", nargs="*", default=[])
    parser.add_argument("--methods", nargs="+", default=[*METHODS], choices=[*METHODS])
    parser.add_argument("--write", action="store_true", help="write the table into docs/models.md")
    options = parser.parse_args()
    for network in options.networks or ([] if options.write else NETWORKS):
        unseen = feeds(network, MEASURED, False)
        with tempfile.TemporaryDirectory() as folder:
            for method in options.methods:
                keep(result := run(network, METHODS[method], unseen, Path(folder) / "int8.onnx"))
                print(result, flush=True)
    if options.write:
        write()


if __name__ == "__main__":
    main()
