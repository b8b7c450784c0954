"""``vkq.tflite.InferenceSession``: a .tflite model on a device, used as ``vkq.onnx``'s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ModelError
from ..graph.executable import listed, refusals
from ..graph.passes import lower
from ..onnx import session
from .litert import WholeLitert
from .reader import read


def nothing() -> None:
    """What reading a .tflite file imports."""


class InferenceSession(session.InferenceSession):
    """An int8 .tflite model on a Vulkan device, with the bytes of LiteRT and XNNPACK.

    Arguments and methods are those of `vkq.onnx.InferenceSession`: run, map, explain, profile. Data is as the
    file says, images (N, H, W, C). *model* is a path or bytes.

    fallback: "litert" runs the whole model on the CPU through the package ai-edge-litert, with one warning,
    where it has an operator that the device cannot run; None refuses it with a list.

    Raises ModelError for a broken file, UnsupportedModelError with the list of operators that cannot run.
    """

    FALLBACK = "litert"
    _begin = staticmethod(nothing)
    _parse = staticmethod(read)
    _whole = WholeLitert

    def _read(self, model: Any, constant_inputs: Sequence[str]) -> None:
        super()._read(model, constant_inputs)
        if self._fallback and not self._unread:
            graph = lower(self.model.at(self.trial_shapes()))
            if refused := refusals(graph):
                self._unread = WholeLitert(model, ModelError(listed(graph, refused)))
