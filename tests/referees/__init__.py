"""External references with which vkq must agree: the node tests of ONNX, and ONNX Runtime's CPU provider."""
