"""External references with which vkq must agree: ONNX's node tests and ONNX Runtime's CPU provider."""
