"""ONNX Runtime's names of error classes, for ``except``. Each name is bound to the corresponding class of
vkq."""

from ...errors import DeviceError, ModelError, UnsupportedModelError, VkqError

Fail = InvalidArgument = VkqError
InvalidGraph = InvalidProtobuf = NoModel = ModelError
NotImplemented = UnsupportedModelError
EngineError = EPFail = RuntimeException = DeviceError
NoSuchFile = FileNotFoundError
