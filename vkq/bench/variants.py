"""Makes a layer run the shader variant with a given name, by finding the choice of kernels that selects
it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkq.device.profiles import preferred
from vkq.errors import ArgumentError, PathError, VkqError
from vkq.runtime.tensor import Tensor
from vkq.select.tuner import Choice, legal, says, watched
from vkq.shader.catalog import catalog

LISTED = 12  # maximum number of variants that an error message names


class Chosen:
    """A wrapper with a layer's interface that uses one choice of kernels and ignores tuned choices."""

    def __init__(self, layer: Any, choice: Choice):
        self._layer, self._says = layer, says(choice)

    def __call__(self, x: Any) -> Any:
        with preferred(self._says):
            return self._layer(x)

    def explain(self, shape: Sequence[int]) -> Any:
        """Return the layer's explanation with this choice."""
        with preferred(self._says):
            return self._layer.explain(shape)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def names(pattern: str) -> set[str]:
    """Return the variants that match a pattern (`Catalog.matching`). Raises ArgumentError if none does."""
    found = {variant.name for variant in catalog().matching(pattern)}
    if not found:
        raise ArgumentError(
            f"--variant is {pattern!r}, which names no shader; `vkq shaders list` has them all"
        )
    return found


def with_variant(layer: Any, x: Tensor, pattern: str) -> Chosen:
    """Return the layer with the first choice of kernels whose plan for *x* runs a variant of this pattern.

    Raises PathError, with the variants that the layer can run here, if no choice does.
    """
    wanted, seen = names(pattern), dict[str, None]()
    if not hasattr(layer, "plan"):
        raise PathError("--variant: this operator has only one kernel on each path; leave it out")
    with preferred({}), watched() as rankings:
        layer.plan(x.spec)
    for choice in legal(rankings):
        try:
            with preferred(says(choice)):
                variants = layer.plan(x.spec).variants
        except VkqError:  # this size or this device does not support the choice
            continue
        if not wanted.isdisjoint(variants):
            return Chosen(layer, choice)
        seen |= dict.fromkeys(variants)
    more = f" and {len(seen) - LISTED} more" if len(seen) > LISTED else ""
    raise PathError(
        f"no choice of kernels runs {pattern} here; this path and method can run"
        f" {', '.join(list(seen)[:LISTED])}{more}"
    )
