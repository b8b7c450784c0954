"""Compute the time of a network: the sum over its layers of (median time) x (count of the layer)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkq.bench.ceilings import of_path
from vkq.bench.result import Row, Total
from vkq.check.cases import Case


def totals(
    networks: Mapping[str, Sequence[Case]], rows: Sequence[Row], ceilings: Mapping[str, float | None]
) -> list[Total]:
    """Return the total times of every network: one for each scheme, path and clock of its measured layers.

    By the clocks ``submit`` and ``call``, a total adds the times of single calls. A recorded chain of all
    layers takes less time.
    """
    found = []
    for name, cases in networks.items():
        layers = {case.name: case.times for case in cases}
        arms: dict[tuple[str, str, str, str], dict[str, Row]] = {}
        for row in rows:
            if row.case in layers and row.clock != "host":  # the clock "host" does not measure the device
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
