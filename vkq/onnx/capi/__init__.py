"""Where code written for ONNX Runtime looks for its errors."""
