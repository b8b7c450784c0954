"""TFLite models on Vulkan devices, with results that equal those of LiteRT and XNNPACK byte for byte.

    session = vkq.tflite.InferenceSession("model.tflite")
    (scores,) = session.run(None, {"serving_default_x:0": image})

`Interpreter` has the methods of LiteRT's Interpreter. No other package is needed. Import this package with
``import vkq.tflite``.
"""

from ..errors import ModelError, UnsupportedModelError
from .interpreter import Interpreter
from .quantizing import quantize
from .reader import read
from .session import InferenceSession

__all__ = ["InferenceSession", "Interpreter", "ModelError", "UnsupportedModelError", "quantize", "read"]
