"""``vkq.onnx.capi``: code written for ONNX Runtime imports its error classes from ``onnxruntime.capi``."""
