"""Write examples/models/digits.onnx as a .tflite file, with the same weights and scales, and with operators
like those of a converter: ``python -m tests.tflite.digits``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .writer import Writer

MODELS = Path(__file__).resolve().parents[2] / "examples" / "models"


def digits() -> bytes:
    """Return a model from float images (N, 8, 8, 1) in [0, 1] to scores (N, 10)."""
    import onnx

    graph = onnx.load(MODELS / "digits.onnx").graph
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    w = Writer()

    def value(shape: tuple[int, ...], of: str = "") -> int:
        q = (float(arrays[f"{of}_scale"]), int(arrays[f"{of}_zero_point"])) if of else (None, 0)
        name = f"{of}/int8" if of else "image" if len(shape) == 3 else "scores"
        more = {"name": name, "shape_signature": [-1, *shape]}
        return w.tensor((1, *shape), "int8" if of else "float32", *q, **more)

    def weights(number: int, x: str) -> list[int]:
        weight, scale = arrays[f"w{number}_quantized"], arrays[f"w{number}_scale"]
        weight = weight.transpose(0, 2, 3, 1) if weight.ndim == 4 else weight
        bias = arrays[f"b{number}_quantized"]
        return [w.constant(weight, scale), w.constant(bias, arrays[f"{x}_scale"] * scale)]

    image, given = value((8, 8, 1)), value((8, 8, 1), "x")
    w.operator("QUANTIZE", [image], [given])
    one, two, three = value((8, 8, 16), "y1"), value((4, 4, 24), "y3"), value((4, 4, 32), "y5")
    conv = {"padding": 0, "stride_h": 1, "stride_w": 1, "fused_activation_function": 1}
    w.operator("CONV_2D", [given, *weights(0, "x")], [one], "Conv2DOptions", 3, **conv)
    padded = value((10, 10, 16), "y1")
    margins = w.constant(np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32))
    w.operator("PAD", [one, margins], [padded], "PadOptions", 2)
    every = conv | {"padding": 1, "stride_h": 2, "stride_w": 2}
    w.operator("CONV_2D", [padded, *weights(2, "y1")], [two], "Conv2DOptions", 3, **every)
    w.operator("CONV_2D", [two, *weights(4, "y3")], [three], "Conv2DOptions", 3, **conv)
    mean, scores, result = value((32,), "y6"), value((10,), "y"), value((10,))
    axes = w.constant(np.array([1, 2], np.int32))
    w.operator("MEAN", [three, axes], [mean], "ReducerOptions", 2)
    w.operator("FULLY_CONNECTED", [mean, *weights(8, "y6")], [scores], "FullyConnectedOptions", 4)
    w.operator("DEQUANTIZE", [scores], [result], "", 2)
    signature = {
        "signature_key": "serving_default", "inputs": [{"name": "image", "tensor_index": image}],
        "outputs": [{"name": "scores", "tensor_index": result}],
    }  # fmt: skip
    return w.file([image], [result], signature_defs=[signature])


if __name__ == "__main__":
    (MODELS / "digits.tflite").write_bytes(digits())
