"""What a whole network takes: each layer's median as often as the layer occurs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkq.bench.ceilings import of_path
from vkq.bench.result import Row, Total
from vkq.check.cases import Case


def totals(
    networks: Mapping[str, Sequence[Case]], rows: Sequence[Row], ceilings: Mapping[str, float | None]
) -> list[Total]:
    """The totals of every network on every path and clock of which a layer was measured.

    A layer that occurs in several schemes is summed in each. Host clocks add up what single calls took, not
    what a chain of them would.
    """
    found = []
    for name, cases in networks.items():
        layers = {case.name: case.times for case in cases}
        arms: dict[tuple[str, str, str, str], dict[str, Row]] = {}
        for row in rows:
            if row.case in layers and row.clock != "host":  # which measures no work of the device
                arms.setdefault((row.scheme, row.scale, row.path, row.clock), {})[row.case] = row
        for (scheme, scale, path, clock), measured in arms.items():
            time_us = sum(layers[case] * row.median_us for case, row in measured.items())
            operations = sum(layers[case] * row.operations for case, row in measured.items())
            ceiling = of_path(path, ceilings) if next(iter(measured.values())).arm == "vkq" else None
            share = operations / time_us / 1e3 / ceiling[1] if ceiling else None
            found.append(
                Total(
                    name, scheme, scale, path, clock, layers=sum(layers.values()),
                    missing=len(layers) - len(measured), time_us=time_us, operations=operations,
                    compute_ceiling=ceiling[0] if ceiling else None, compute_share=share,
                )
            )  # fmt: skip
    return found
