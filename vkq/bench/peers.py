"""Other libraries beside vkq, where they are installed: each says what really ran, on what, and whether its numbers agreed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from vkq.bench.cases import Case
from vkq.bench.data import Array, Expected, Weights
from vkq.errors import ArgumentError
from vkq.runtime.device import Device


@dataclass(frozen=True)
class PeerArm:
    """What is timed (``call``), what really runs in it (library, version, device, type), and whether its numbers agreed."""

    call: Callable[[], Any]
    ran: str
    agreement: str


class Peer(Protocol):
    """A library that can run a case, or says why not (NotImplementedError)."""

    name: str

    def arm(self, case: Case, weights: Weights, x: Array, expected: Expected, device: Device) -> PeerArm:
        """Ready to be timed; it has run once."""


PEERS: dict[str, Callable[[], Peer]] = {}


def find_peer(name: str) -> Peer:
    """The peer by name. Raises ArgumentError where there is none, or it is not installed."""
    if name not in PEERS:
        raise ArgumentError(f"--peer is {name!r}; it must be all or one of {', '.join(PEERS)}")
    return PEERS[name]()
