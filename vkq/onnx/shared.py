"""Shares weights on a device between the open sessions of one model."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Hashable
from typing import Any

import numpy as np

from ..graph.device.context import PRODUCTS, alike
from ..graph.graph import Array
from ..runtime.device import Device
from ..schemes.base import COMPUTE, check_compute
from ..turns import Turns
from .reader import Model


class Layers(dict[Hashable, Any]):
    """Cache of the objects made from a model's weights, by key. Hold ``lock`` while you make an object."""

    def __init__(self, compute: str = COMPUTE[0]) -> None:
        super().__init__({PRODUCTS: check_compute("InferenceSession", compute)})
        self.lock = Turns("preparing a model")
        # The `Executables` of all sessions that share this cache.
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()


_known: list[tuple[weakref.ref[Layers], weakref.ref[Device], Model]] = []
_lock = Turns("opening a session")


def shared(model: Model, device: Device, compute: str) -> tuple[Model, Layers]:
    """Return (model, layers) for a session. If an open session on this device has an equal model and the same
    *compute*, return the layers of that session, and *model* with the nodes and arrays of that session.
    Otherwise return new layers and *model* unchanged."""
    with _lock:
        _known[:] = [one for one in _known if one[0]() is not None]
        for layers_of, device_of, other in _known:
            layers = layers_of()
            if layers is None or device_of() is not device or layers[PRODUCTS] != compute:
                continue
            if _equal(model, other):
                return dataclasses.replace(model, nodes=other.nodes, constants=other.constants), layers
        made = Layers(compute)
        _known.append((weakref.ref(made), weakref.ref(device), model))
        return model, made


def _equal(a: Model, b: Model) -> bool:
    """Return True if two models have equal nodes, and constants that are equal byte for byte."""
    if a.constants is b.constants and a.nodes is b.nodes:
        return True
    named = (a.inputs, a.outputs, a.opset) == (b.inputs, b.outputs, b.opset)
    if not named or len(a.nodes) != len(b.nodes) or a.constants.keys() != b.constants.keys():
        return False
    same = all(_same(array, b.constants[name]) for name, array in a.constants.items())
    return same and alike(a.nodes, b.nodes)


def _same(a: Array, b: Array) -> bool:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    one, two = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return bool(np.array_equal(one, two))
