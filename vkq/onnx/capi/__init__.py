"""The counterpart of ``onnxruntime.capi``, from which code written for ONNX Runtime imports error classes."""
