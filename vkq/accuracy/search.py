"""Searches for the most accurate quantization of a model within a given time. Layers stay float if an
accuracy target cannot be reached otherwise."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import files
from ..errors import ArgumentError
from ..graph.graph import Array
from ..numerics.calibration import usable_samples
from ..onnx.names import chosen
from ..onnx.protobuf import package
from ..onnx.quantize import CHANNELS, prepared, quantizer, refusals_told
from .goal import Goal, Judge
from .keep import KeptLayer, kept_layers
from .measure import OutputRow
from .mend import corrected, equalized
from .observe import Observed
from .place import QuantPlan, tail
from .ranges import RULES, step
from .trial import Found, HeldOut, SearchStep

LEAST_GAIN = 0.05  # minimum gain in dB of a change that is kept
HELD = 3  # every HELD-th sample measures the accuracy, and is not used for calibration


@dataclasses.dataclass(frozen=True)
class QuantizedReport:
    """The result of a search.

    - steps: the changes that were tried, with the accuracy after each
    - outputs: the accuracy of each output on the samples that were held out of the calibration
    - held_out: the number of these samples
    - kept: the layers that are not int8
    - reached: True if the accuracy targets were reached; None without targets
    - before: if layers were made float to reach the targets, the model before this change, as bytes"""

    steps: tuple[SearchStep, ...]
    outputs: tuple[OutputRow, ...]
    held_out: int
    kept: tuple[KeptLayer, ...] = ()
    reached: bool | None = None
    before: bytes | None = dataclasses.field(default=None, repr=False)

    def __str__(self) -> str:
        lines = [str(step) for step in self.steps]
        lines += [f"  {row}" for row in self.outputs]
        if self.kept:
            share = sum(row.share for row in self.kept)
            many = "" if len(self.kept) == 1 else "s"
            lines.append(f"not in int8: {len(self.kept)} layer{many}, {share:.1%} of the multiply-adds")
            lines += [f"  {row}" for row in self.kept]
        if self.reached is False:
            db = min((min(row.snr_db, row.even_db) for row in self.outputs), default=float("inf"))
            same = min((row.same for row in self.outputs), default=1.0)
            best = f"{db:.1f} dB, {same:.2%} the same"
            lines.append(f"the target is not reached; this is the best found: {best}")
        return "\n".join(lines)


def quantize(
    model: str | os.PathLike[str],
    target: str | os.PathLike[str],
    samples: Sequence[Mapping[str, Array]] | Callable[[], Iterator[Mapping[str, Array]]],
    *,
    seconds: float = 60.0,
    activations: str = "int8",
    per_channel: bool = True,
    exclude: Collection[str] = (),
    only_weights: Collection[str] = (),
    target_db: float | None = None,
    target_agreement: float | None = None,
    target_judge: Judge | None = None,
    least: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> QuantizedReport:
    """Quantize a float *model* and write the result in QDQ form to the file *target*.

    The best of six ranges is chosen for each value, biases are corrected, and neighbouring convolutions are
    equalized. A change is kept if it improves the accuracy on samples that are held out of the calibration.
    Outputs, and the operators that compute them from the results of the last layers, stay float.

    If *target_db*, *target_agreement* or *target_judge* is given, layers are made float until all given
    targets are met. The layers with the largest gain in accuracy per multiply-add come first.

    - samples: mappings of input names to arrays, as a sequence, or as a function that yields them at each
      call. Every third sample is held out. A single sample serves for the calibration and for the accuracy.
    - seconds: after this time no further change is tried, but the first range is always chosen
    - exclude: names of nodes that stay float, or of modules that contain such nodes
    - only_weights: names of nodes with int8 weights and float activations
    - target_db: the minimum for the ``snr_db`` and the ``even_db`` (`OutputRow`) of every output
    - target_agreement: the minimum for the ``same`` (`OutputRow`, 0 to 1) of every output
    - target_judge: a function that gets the path of a candidate model. It returns a bool, or a score, which
      must be at least *least* (default: 99.5 % of the float model's score).
    - progress: called with a text for each step

    Raises ArgumentError for invalid options, ModelError for a model that cannot be quantized.
    """
    if activations not in ("int8", "uint8"):
        raise ArgumentError(f"activations are {activations!r}; they must be 'int8' or 'uint8'")
    quantizer()
    every = samples if callable(samples) else lambda: iter(samples)
    with tempfile.TemporaryDirectory() as folder, files.output(Path(target)) as beside, refusals_told():
        remedy = "use one scale for each weight (--per-tensor)"
        path = prepared(model, folder, CHANNELS if per_channel else 0, "scales of channels", remedy)
        proto = package().load(path)
        weights = frozenset(chosen(proto, only_weights))
        floats = frozenset(tail(proto)) | frozenset(chosen(proto, exclude)) | weights
        goal = Goal(proto, target_db, target_agreement, target_judge, least, progress)
        search = Search(proto, every, time.monotonic() + seconds, progress)
        plan = QuantPlan({}, floats, weights, False, activations, per_channel)
        found = search.best(plan)
        kept, reached, before = tuple[KeptLayer, ...](), None, None
        if goal.exists:
            before = found
            found, kept, reached = kept_layers(search.trial, found, search.seen, goal, progress)
        package().save(found.model(), beside)
        whole = before.model().SerializeToString() if before is not None and kept else None
    rows = tuple(found.agreement.rows())
    return QuantizedReport(tuple(search.steps), rows, len(search.trial.real), kept, reached, whole)


class Search:
    """The steps of a search. Each step is measured, and the best plan is kept."""

    def __init__(
        self,
        proto: Any,
        samples: Callable[[], Iterator[Mapping[str, Array]]],
        until: float,
        progress: Callable[[str], None],
    ):
        count = sum(1 for _ in usable_samples(samples()))
        if not count:
            raise ArgumentError("there are no samples; there must be at least one")
        held = set(range(count)[held_out(count)])
        seen = set(range(count)) - held or held

        def calibrate() -> Iterator[Mapping[str, Array]]:
            return (feed for i, feed in enumerate(samples()) if i in seen)

        self.calibrate = calibrate
        self.proto, self.until, self.progress = proto, until, progress
        progress("the float model")
        self.trial = HeldOut(proto, lambda: (feed for i, feed in enumerate(samples()) if i in held))
        self.seen = Observed(proto, self.calibrate())
        self.steps: list[SearchStep] = []

    def best(self, plan: QuantPlan) -> Found:
        found = self._rules(self.proto, self.seen, plan, None)
        found = self._equalize(found)
        found = self._values(found)
        return self._correct(found)

    def _take(self, what: str, found: Found | None, new: Found, least: float = LEAST_GAIN) -> Found:
        kept = found is None or new.snr_db > found.snr_db + least
        self.steps.append(SearchStep(what, new.snr_db, new.same, kept))
        self.progress(str(self.steps[-1]))
        return new if kept or found is None else found

    def _rules(
        self, proto: Any, seen: Observed, plan: QuantPlan, found: Found | None, what: str = ""
    ) -> Found:
        """Try each rule for the ranges of all values. Return the best result. *found*: the best earlier
        result, which is returned if no rule is better. *what*: a prefix of the steps' names."""
        for name in RULES:
            if found is not None and time.monotonic() > self.until:
                break
            ranges = {value: RULES[name](histogram) for value, histogram in seen.histograms.items()}
            new = self.trial(proto, dataclasses.replace(plan, ranges=ranges))
            found = self._take(f"{what}{name}", found, new)
        if time.monotonic() < self.until and found is not None and not what:
            new = self.trial(proto, dataclasses.replace(found.plan, symmetric=True))
            found = self._take("symmetric", found, new)
        assert found is not None
        return found

    def _equalize(self, found: Found) -> Found:
        """Equalize the channels between layers, and choose ranges for the new model. Return the better of the
        result and *found*."""
        proto, count = equalized(self.proto, self.seen)
        if not count or time.monotonic() > self.until:
            return found
        self.progress(f"equalizing {count} pairs of layers")
        seen = Observed(proto, self.calibrate())
        new = self._rules(proto, seen, found.plan, found, "equalized, ")
        if new is not found:
            self.seen = seen
        return new

    def _values(self, found: Found) -> Found:
        """Try all rules for each value alone, in the order of `_by_loss`. Keep each change that helps, and
        continue from there. Return the last result."""
        before, changed = found, 0
        for name in self._by_loss(found):
            histogram = self.seen.histograms[name]
            tried = {found.plan.ranges[name]}
            for rule in RULES.values():
                if time.monotonic() > self.until:
                    break
                span = rule(histogram)
                if any(_near(span, other) for other in tried):
                    continue
                tried.add(span)
                new = self.trial(
                    found.proto, dataclasses.replace(found.plan, ranges={**found.plan.ranges, name: span})
                )
                if new.snr_db > found.snr_db + LEAST_GAIN:
                    found, changed = new, changed + 1
        if changed:
            self.steps.append(
                SearchStep(f"value by value, {changed} changed", found.snr_db, found.same, True)
            )
            self.progress(str(self.steps[-1]))
        return found if changed else before

    def _by_loss(self, found: Found) -> list[str]:
        """Return the names of the quantized values, sorted by the factor by which a least-squares range would
        reduce the noise, largest factor first."""
        made = {node.input[0] for node in found.model().graph.node if node.op_type == "QuantizeLinear"}

        def loss(name: str) -> float:
            histogram = self.seen.histograms[name]
            spans = found.plan.ranges[name], RULES["least squares"](histogram)
            now, best = (histogram.noise(*step(span), -128, 127) for span in spans)
            return now / best if best else 1.0

        return sorted((name for name in made if name in self.seen.histograms), key=loss, reverse=True)

    def _correct(self, found: Found) -> Found:
        """Correct biases (`corrected`). Return the better of the result and *found*."""
        proto, count = corrected(found.proto, found.model(), self.seen)
        if not count or time.monotonic() > self.until:
            return found
        return self._take(f"biases of {count} layers corrected", found, self.trial(proto, found.plan))


def held_out(count: int) -> slice:
    """Return the slice of the samples that are held out of the calibration: every third sample, or the last
    sample if there are fewer than three. A single sample serves for the calibration, too."""
    return slice(HELD - 1, None, HELD) if count >= HELD else slice(count - 1, None)


def _near(a: tuple[float, float], b: tuple[float, float]) -> bool:
    """Return True if the ends of two ranges differ by at most 2 % of the width of *b*."""
    return max(abs(a[0] - b[0]), abs(a[1] - b[1])) <= 0.02 * (b[1] - b[0])
