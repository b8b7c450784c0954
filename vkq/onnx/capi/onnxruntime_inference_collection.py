"""The module of ONNX Runtime from which type hints import sessions and values."""

from .. import InferenceSession, IOBinding, OrtDevice, OrtValue

__all__ = ["IOBinding", "InferenceSession", "OrtDevice", "OrtValue"]
