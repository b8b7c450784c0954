"""Outside referees that vkq must agree with: ONNX's node tests and ONNX Runtime's CPU provider."""
