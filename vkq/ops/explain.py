"""``vkq.explain``: the dispatches of any operator on a device, without running them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ..device.refused import without
from ..runtime.device import Device
from ..runtime.opened import opened
from ..runtime.tensor import Tensor


@dataclasses.dataclass(frozen=True)
class Steps:
    """The dispatches of an operator in order: the names of their shader ``variants``, and the number of
    multiply-adds."""

    device: str
    variants: tuple[str, ...]
    macs: int
    # the features of the device that failed the self-test, each with the reason
    refused: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.device}: {self.macs} multiply-adds, dispatches: {len(self.variants)}"]
        lines += [f"  {name}" for name in self.variants]
        return "\n".join([*lines, *(f"  without {feature}" for feature in self.refused)])


def explain(
    operator: Callable[..., Any], *arguments: Any, device: Device | int | str | None = None, **options: Any
) -> Steps:
    """Return the dispatches of ``operator(*arguments, **options)``, recorded without running them.

    Args:
        operator: a function of vkq or a layer. The ``explain`` of a layer also gives the path and the
            reason.
        arguments: those of the call, with activations as Tensors; the first may also be a NumPy array.

    >>> from vkq.ops.pool import max_pool2d
    >>> explain(max_pool2d, np.zeros((1, 4, 8, 8), np.int8), 2).variants
    ('max_pool_q8__pixels:4w4c',)
    """
    chosen = next((a.device for a in arguments if isinstance(a, Tensor)), None) or opened(device)
    first = [Tensor.from_numpy(a, chosen) if isinstance(a, np.ndarray) else a for a in arguments[:1]]
    with chosen.record() as recording:
        operator(*first, *arguments[1:], **options)
    steps = [step for one in recording.steps for step in one.steps]
    return Steps(
        chosen.name,
        tuple(step.program.variant.name for step in steps if step.program is not None),
        sum(step.macs for step in steps),
        without(chosen.capabilities),
    )
