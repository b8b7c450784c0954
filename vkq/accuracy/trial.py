"""Measures the accuracy of quantization plans on the samples that are held out of the calibration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..graph.graph import Array
from ..onnx.cpu import cpu_session
from ..onnx.protobuf import package
from .measure import Agreement
from .place import QuantPlan, placed

Feed = Mapping[str, Array]
Samples = Callable[[], Iterable[Feed]]  # yields all samples at each call


@dataclasses.dataclass(frozen=True)
class SearchStep:
    """A step of a search. what: the change that was tried. snr_db, same: the accuracy of the worst output
    after the change (`OutputRow`). kept: True if the change was kept."""

    what: str
    snr_db: float
    same: float
    kept: bool

    def __str__(self) -> str:
        kept = "" if self.kept else "  (left out)"
        return f"{self.what:32} {self.snr_db:6.1f} dB  {100 * self.same:5.1f} % the same{kept}"


@dataclasses.dataclass(frozen=True)
class Found:
    """A plan, its float model, and the accuracy of its quantized model."""

    proto: Any
    plan: QuantPlan
    agreement: Agreement

    @property
    def snr_db(self) -> float:
        """The signal-to-noise ratio of the worst output, in dB."""
        return self.agreement.worst()

    @property
    def same(self) -> float:
        """The smallest ``same`` (`OutputRow`) of the outputs."""
        return min((row.same for row in self.agreement.rows()), default=1.0)

    def model(self) -> Any:
        """Return the quantized model of this plan."""
        return placed(self.proto, self.plan)


class HeldOut:
    """Measures plans on the held-out samples, for which it keeps the float model's outputs."""

    def __init__(self, proto: Any, held: Samples):
        self.held = held
        self.names = [value.name for value in proto.graph.output]
        session = cpu_session(_bytes(proto), "quantizing", arena=False)
        self.real = [session.run(self.names, dict(feed)) for feed in held()]
        self.count = 0

    def __call__(self, proto: Any, plan: QuantPlan) -> Found:
        session = cpu_session(_bytes(placed(proto, plan)), "quantizing", arena=False)
        agreement = Agreement(self.names)
        for feed, real in zip(self.held(), self.real, strict=True):
            agreement.add(real, session.run(self.names, dict(feed)))
        self.count += 1
        return Found(proto, plan, agreement)


def _bytes(proto: Any) -> bytes:
    return bytes(package().ModelProto.SerializeToString(proto))
