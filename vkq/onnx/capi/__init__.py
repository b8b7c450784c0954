"""The module from which code written for ONNX Runtime imports error classes."""
