"""``vkq.tflite.InferenceSession``: a .tflite model on a device, with the interface of
`vkq.onnx.InferenceSession`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ModelError
from ..graph.executable import listed, refusals
from ..graph.passes import lower
from ..onnx import session
from ..onnx.adapted import adapted
from ..onnx.fallback import alone
from ..onnx.reader import Model
from .litert import LitertCpuModel
from .reader import read


def nothing() -> None:
    """Do nothing. ONNX models import a package here, but .tflite files need none."""


class InferenceSession(session.InferenceSession):
    """An int8 .tflite model on a Vulkan device. Its results equal those of LiteRT and XNNPACK byte for byte.

    It has the arguments and methods (run, map, explain, profile) of `vkq.onnx.InferenceSession`. Arrays
    have the file's order of axes; images are (N, H, W, C). *model* is a path or bytes.

    fallback: with "litert", the package ai-edge-litert runs operators that the device cannot run, on the CPU
    and with one warning; None refuses such models.

    Raises ModelError for a broken file, UnsupportedModelError with the list of operators that cannot run.
    """

    FALLBACK = "litert"
    _begin = staticmethod(nothing)
    _parse = staticmethod(read)
    _whole = LitertCpuModel

    def _read(self, model: Any, constant_inputs: Sequence[str]) -> None:
        """Read the model. With a fallback, operators that the device cannot run become ``foreign`` nodes,
        which LiteRT runs."""
        super()._read(model, constant_inputs)
        apart = set[str]()
        while self._fallback and not self._unread:
            graph = lower(self.model.at(self.trial_shapes()))
            refused = refusals(graph)
            known = {node.source.split()[-1] for node, _ in refused if node.op != "foreign"}
            if not known:
                for node, _ in refused[:1]:  # raises an error now if LiteRT is missing or refuses the file
                    node.attributes["part"](alone(graph, node))
                return
            if isinstance(model, Model) or known <= apart:
                self._unread = LitertCpuModel(model, ModelError(listed(graph, refused)))
            else:
                apart |= known
                self.model = adapted(read(model, apart=apart), self._sizes)
