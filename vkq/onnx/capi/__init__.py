"""The module in which code written for ONNX Runtime expects its errors."""
