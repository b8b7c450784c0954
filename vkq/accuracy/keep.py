"""Chooses the layers whose activations stay float, so that a target is reached with the fewest multiply-adds
in float."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from .mend import smoothed
from .observe import Observed
from .place import blocks, elementwise
from .trial import Found, HeldOut

# Element-wise operators become float only for at least this gain in dB, because floats quadruple the bytes
# that these operators move.
ELEMENTWISE_GAIN = 0.5


@dataclasses.dataclass(frozen=True)
class KeptLayer:
    """A layer that does not compute in int8. *form*: "weights" (int8 weights, float activations), or "float"
    (float weights and activations). *share*: the layer's fraction of the model's multiply-adds."""

    layer: str
    form: str
    share: float

    def __str__(self) -> str:
        form = "int8 weights, float activations" if self.form == "weights" else "float"
        return f"{self.layer}: {form}, {self.share:.2%} of the multiply-adds"


def kept_layers(
    trial: HeldOut, found: Found, seen: Observed, reached: Callable[[Found], bool],
    progress: Callable[[str], None],
) -> tuple[Found, tuple[KeptLayer, ...], bool]:  # fmt: skip
    """Change layers from int8 to float, with as few multiply-adds in float as possible, until
    ``reached(result)`` returns True. Return (the result, the layers that are not int8, whether the goal is
    reached). If the goal cannot be reached, the result has all layers in float.

    1. Element-wise operators become float if that helps. They have no multiply-adds, and a chain of float
       operators rounds to int8 only once.
    2. The gain of each layer per multiply-add is measured, with only this layer's activations in float.
    3. The activations of layers become float in the order of these gains. A binary search finds the smallest
       number of layers that reaches the goal. If the activations of all layers do not suffice, the search is
       repeated with float weights, too.
    4. A float layer becomes int8 again if the goal is still reached after this change. The layers with the
       most multiply-adds are tried first.
    """

    if reached(found):
        return found, (), True
    found, first = _without_multiplying(trial, found, seen, progress)
    if reached(found):
        return found, first, True
    chooser = _Chooser(trial, found, seen.work)
    names = chooser.order(progress)
    for weights in (True, False):
        most = chooser.without(names, weights)
        if not reached(most):
            progress(f"all layers {'with int8 weights' if weights else 'in float'}: {most.snr_db:.1f} dB")
            continue
        low, high = 0, len(names)
        while low < high:
            middle = (low + high) // 2
            new = chooser.without(names[:middle], weights)
            progress(f"{middle} of {len(names)} layers out of int8: {new.snr_db:.1f} dB")
            low, high = (low, middle) if reached(new) else (middle + 1, high)
        kept, best = names[:low], chooser.without(names[:low], weights)
        for name in sorted(kept, key=lambda name: -seen.work.get(name, 0)):
            fewer = [other for other in kept if other != name]
            new = chooser.without(fewer, weights)
            if reached(new):
                kept, best = fewer, new
        return best, first + chooser.rows(kept, weights), True
    return most, first + chooser.rows(names, False), False


def _without_multiplying(
    trial: HeldOut, found: Found, seen: Observed, progress: Callable[[str], None]
) -> tuple[Found, tuple[KeptLayer, ...]]:
    """Make element-wise operators float, and then equalize the channels that convolutions read from them.
    Return (the result of the better of the two steps, a row for the operators that became float). Return
    (*found*, ()) if neither step gains more than `ELEMENTWISE_GAIN`."""
    rest = elementwise(found.proto)
    floats = found.plan.floats | set(rest)
    new = trial(found.proto, dataclasses.replace(found.plan, floats=floats))
    progress(f"{len(rest)} element-wise operators in float: {new.snr_db:.1f} dB")
    proto, ranges, nodes = smoothed(found.proto, seen, floats)
    plan = dataclasses.replace(found.plan, floats=floats | set(nodes), ranges={**found.plan.ranges, **ranges})
    even = trial(proto, plan)
    progress(f"{len(nodes)} inputs of convolutions with equal channels: {even.snr_db:.1f} dB")
    if max(new.snr_db, even.snr_db) <= found.snr_db + ELEMENTWISE_GAIN:
        return found, ()
    if even.snr_db > new.snr_db:
        return even, (KeptLayer(f"{len(rest) + len(nodes)} element-wise operators", "float", 0.0),)
    return new, (KeptLayer(f"{len(rest)} element-wise operators", "float", 0.0),)


class _Chooser:
    """Makes plans in which some layers are not int8. If a layer becomes float, the nodes after it up to the
    next layers (`blocks`) become float, too."""

    def __init__(self, trial: HeldOut, found: Found, work: Mapping[str, int]):
        self.trial, self.found, self.work = trial, found, work
        every = blocks(found.proto)
        self.blocks = {name: nodes for name, nodes in every.items() if name not in found.plan.floats}

    def without(self, names: Sequence[str], weights: bool) -> Found:
        """Measure and return the plan in which the layers with these *names*, and their blocks, have float
        activations. *weights*: True if the weights of these layers are int8, False if they are float."""
        plan = self.found.plan
        nodes = {node for name in names for node in self.blocks[name]}
        only = plan.only_weights | (set(names) if weights else set())
        new = dataclasses.replace(plan, floats=plan.floats | nodes, only_weights=frozenset(only))
        return self.trial(self.found.proto, new)

    def order(self, progress: Callable[[str], None]) -> list[str]:
        """Return the names of the layers, largest gain first. A layer's gain is the noise that disappears if
        its activations become float, divided by the layer's multiply-adds."""
        gains = {}
        before = 10 ** (-self.found.snr_db / 10)
        for i, name in enumerate(self.blocks, 1):
            new = self.without([name], True)
            progress(f"layer {i} of {len(self.blocks)} out of int8, {name}: {new.snr_db:.1f} dB")
            gain = before - 10 ** (-new.snr_db / 10)
            work = max(self.work.get(name, 1), 1)
            gains[name] = gain / work if gain > 0 else gain * work
        return sorted(gains, key=lambda name: -gains[name])

    def rows(self, names: Sequence[str], weights: bool) -> tuple[KeptLayer, ...]:
        total = max(sum(self.work.values()), 1)
        form = "weights" if weights else "float"
        return tuple(KeptLayer(name, form, self.work.get(name, 0) / total) for name in names)
