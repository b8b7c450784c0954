"""The module of ONNX Runtime from which type hints import sessions and values."""

from ..binding import IOBinding
from ..library import OrtDevice
from ..session import InferenceSession
from ..values import OrtValue

__all__ = ["IOBinding", "InferenceSession", "OrtDevice", "OrtValue"]
