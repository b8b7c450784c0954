"""The module in which code for ONNX Runtime looks for its error classes."""
