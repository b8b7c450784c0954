"""A shader variant by name: the choice of kernels that a layer takes it by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkq.device.profiles import preferred
from vkq.errors import ArgumentError, PathError, VkqError
from vkq.runtime.tensor import Tensor
from vkq.select.tuner import Choice, legal, says, watched
from vkq.shader.catalog import catalog

LISTED = 12  # variants that a refusal names


class Chosen:
    """A layer with one choice of kernels, whatever was tuned. Used as the layer."""

    def __init__(self, layer: Any, choice: Choice):
        self._layer, self._says = layer, says(choice)

    def __call__(self, x: Any) -> Any:
        with preferred(self._says):
            return self._layer(x)

    def explain(self, shape: Sequence[int]) -> Any:
        """What the layer says of itself with this choice."""
        with preferred(self._says):
            return self._layer.explain(shape)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def names(pattern: str) -> set[str]:
    """The variants that a pattern names (`Catalog.matching`). Raises ArgumentError where there is none."""
    found = {variant.name for variant in catalog().matching(pattern)}
    if not found:
        raise ArgumentError(
            f"--variant is {pattern!r}, which names no shader; `vkq shaders list` has them all"
        )
    return found


def with_variant(layer: Any, x: Tensor, pattern: str) -> Chosen:
    """The layer with the first choice whose plan for *x* runs a variant of this pattern. Raises PathError,
    with what the layer can run here, where none does."""
    wanted, seen = names(pattern), dict[str, None]()
    if not hasattr(layer, "plan"):
        raise PathError("--variant: this operator has one kernel on each path, and none to choose")
    with preferred({}), watched() as rankings:
        layer.plan(x.spec)
    for choice in legal(rankings):
        try:
            with preferred(says(choice)):
                variants = layer.plan(x.spec).variants
        except VkqError:  # a choice that this size or device cannot take
            continue
        if not wanted.isdisjoint(variants):
            return Chosen(layer, choice)
        seen |= dict.fromkeys(variants)
    more = f" and {len(seen) - LISTED} more" if len(seen) > LISTED else ""
    raise PathError(
        f"no choice of kernels runs {pattern} here; this path and method can run"
        f" {', '.join(list(seen)[:LISTED])}{more}"
    )
