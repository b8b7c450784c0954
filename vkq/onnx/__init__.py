"""ONNX models on Vulkan devices, with ONNX Runtime's bytes.

    session = vkq.onnx.InferenceSession("model.onnx")
    (scores,) = session.run(None, {"x": image})

Needs the package ``onnx`` (``pip install vkq[onnx]``). Imported with ``import vkq.onnx``.
"""

from ..errors import ModelError, UnsupportedModelError
from .feed import NodeArg
from .reader import Model, read
from .session import InferenceSession, load

__all__ = ["InferenceSession", "Model", "ModelError", "NodeArg", "UnsupportedModelError", "load", "read"]
