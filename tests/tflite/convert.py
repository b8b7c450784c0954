"""Networks with random weights, as TensorFlow's converter writes them. ``python -m tests.tflite.convert``
makes their files in the folder ``models`` again, and needs the package tensorflow-cpu."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).with_name("models")
SHAPES = {
    "keywords": (49, 10, 1), "keywords_uint8": (49, 10, 1), "residual": (24, 24, 3), "mobile3": (40, 40, 3),
    "segment": (48, 64, 3), "atrous": (65, 65, 3), "pose": (64, 64, 3), "detect": (64, 64, 3),
    "mixed": (32, 32, 3), "dense_blocks": (24, 24, 3), "floats": (17, 23, 3), "half_floats": (17, 23, 3),
    "hybrid": (17, 23, 3), "keywords_16x8": (49, 10, 1),
}  # fmt: skip
# PyTorch networks of `tests.tflite.torched`; the file of a network is torch_NAME.tflite.
KEPT = ("resnet", "mobile3", "efficient", "unet", "atrous", "bert", "vit", "waves", "boxes", "yolo", "style",
        "decoder", "attended")  # fmt: skip
# The file "quantized" is floats.tflite after `vkq quantize`.
CONVERTED = (*SHAPES, "quantized", *(f"torch_{name}" for name in KEPT))
# file -> allowed difference from LiteRT's float results. LiteRT adds in another order, quantizes the
# activations of hybrid layers, and rounds 16-bit activations.
NEAR = {"floats": 1e-6, "half_floats": 1e-6, "hybrid": 1e-3, "keywords_16x8": 1e-4}


def normal(layer: Any, x: Any, count: int, kernel: int = 3, stride: int = 1, act: str = "relu") -> Any:
    x = layer.Conv2D(count, kernel, stride, padding="same", use_bias=False)(x)
    return layer.Activation(act)(layer.BatchNormalization()(x))


def keywords(layer: Any, x: Any) -> Any:
    x = layer.Conv2D(16, (10, 4), 2, padding="same", activation="relu")(x)
    for _ in range(2):
        x = layer.DepthwiseConv2D(3, padding="same", activation="relu")(x)
        x = layer.Conv2D(16, 1, activation="relu")(x)
    return layer.Dense(12, activation="softmax")(layer.Flatten()(layer.AveragePooling2D((25, 5))(x)))


def residual(layer: Any, x: Any) -> Any:
    x = normal(layer, x, 8)
    for count, stride in ((8, 1), (12, 2)):
        y = normal(layer, normal(layer, x, count, stride=stride), count, act="linear")
        x = layer.ReLU()(layer.Add()([y, x if stride == 1 else layer.Conv2D(count, 1, 2)(x)]))
    return layer.Dense(10, activation="softmax")(layer.GlobalAveragePooling2D()(x))


def mobile3(layer: Any, x: Any) -> Any:
    x = normal(layer, x, 8, 3, 2, "hard_swish")
    for count, stride in ((8, 1), (12, 2)):
        y = normal(layer, x, 24, 1, act="hard_swish")
        y = layer.DepthwiseConv2D(5, stride, padding="same")(y)
        gate = layer.Conv2D(8, 1, activation="relu")(layer.GlobalAveragePooling2D(keepdims=True)(y))
        y = layer.Multiply()([y, layer.Conv2D(24, 1, activation="hard_sigmoid")(gate)])
        y = normal(layer, y, count, 1, act="linear")
        x = layer.Add()([x, y]) if stride == 1 else y
    return layer.Dense(7)(layer.Activation("hard_swish")(layer.GlobalAveragePooling2D()(x)))


def segment(layer: Any, x: Any) -> Any:
    skips = []
    for count in (6, 10):
        skips.append(x := normal(layer, x, count))
        x = layer.MaxPool2D()(x)
    x = normal(layer, x, 16)
    for skip in skips[::-1]:
        x = layer.Conv2DTranspose(skip.shape[-1], 3, strides=2, padding="same")(x)
        x = normal(layer.Concatenate()([x, skip]), skip.shape[-1])
    return layer.Conv2D(2, 1, activation="sigmoid")(x)


def atrous(layer: Any, x: Any) -> Any:
    x = layer.Conv2D(12, 3, 2, padding="same", activation="relu6")(x)
    x = layer.ReLU(6.0)(layer.DepthwiseConv2D(3, dilation_rate=2, padding="same")(x))
    mean = layer.Conv2D(8, 1, activation="relu")(layer.GlobalAveragePooling2D(keepdims=True)(x))
    parts = [
        layer.Conv2D(8, 1, activation="relu")(x),
        layer.Conv2D(8, 3, dilation_rate=3, padding="same", activation="relu")(x),
        layer.Resizing(33, 33, interpolation="bilinear")(mean),
    ]
    x = layer.Conv2D(5, 1)(layer.Concatenate()(parts))
    return layer.Softmax()(layer.Resizing(65, 65, interpolation="bilinear")(x))


def pose(layer: Any, x: Any) -> Any:
    steps = []
    for count in (6, 10, 14):
        steps.append(x := layer.Conv2D(count, 3, 2, padding="same", activation="relu6")(x))
    y = layer.Conv2D(8, 1)(x)
    for step in steps[1::-1]:
        y = layer.Add()([layer.UpSampling2D(interpolation="bilinear")(y), layer.Conv2D(8, 1)(step)])
        y = layer.SeparableConv2D(8, 3, padding="same", activation="relu")(y)
    return [layer.Conv2D(1, 1, activation="sigmoid")(y), layer.Conv2D(34, 1)(y)]


def detect(layer: Any, x: Any) -> Any:
    x = normal(layer, normal(layer, x, 8, 3, 2, "silu"), 12, 3, 2, "silu")
    a, b = normal(layer, x, 6, 1, act="silu"), normal(layer, x, 6, 1, act="silu")
    x = layer.Concatenate()(
        [a, layer.Add()([b, normal(layer, normal(layer, b, 6, 1, act="silu"), 6, act="silu")])]
    )
    pools = [x]
    for _ in range(2):
        pools.append(layer.MaxPool2D(5, 1, padding="same")(pools[-1]))
    x = layer.UpSampling2D()(normal(layer.Concatenate()(pools), 8, 1, act="silu"))
    return layer.Activation("sigmoid")(layer.Reshape((-1, 9))(layer.Conv2D(9, 1)(x)))


def mixed(layer: Any, x: Any) -> Any:
    x = layer.Conv2D(8, 3, 2)(layer.ZeroPadding2D(((1, 0), (0, 1)))(x))
    x = layer.LeakyReLU(negative_slope=0.1)(x)
    y = layer.PReLU(shared_axes=[1, 2])(layer.Conv2D(8, 3, padding="same")(x))
    x = layer.Multiply()([layer.Subtract()([x, y]), y])
    x = layer.AveragePooling2D(3, 2, padding="same")(x)
    x = layer.Maximum()([layer.Activation("tanh")(x), layer.Activation("sigmoid")(x)])
    return layer.Conv2D(4, 3, padding="same", activation="hard_sigmoid")(x)


def dense_blocks(layer: Any, x: Any) -> Any:
    x = normal(layer, x, 6)
    for _ in range(3):
        x = layer.Concatenate()([x, normal(layer, normal(layer, x, 8, 1), 4)])
    x = layer.AveragePooling2D(2)(normal(layer, x, 10, 1))
    return layer.Dense(5)(layer.GlobalMaxPooling2D()(x))


def floats(layer: Any, x: Any) -> Any:
    x = normal(layer, x, 8, 3, 2)
    x = layer.Add()([x, layer.SeparableConv2D(8, 3, padding="same", activation="relu6")(x)])
    x = layer.Conv2DTranspose(5, 3, 2, padding="valid", activation="tanh")(x)
    return layer.Dense(9, activation="softmax")(layer.GlobalAveragePooling2D()(layer.Conv2D(40, 5)(x)))


NETWORKS = {
    "keywords": keywords, "keywords_uint8": keywords, "residual": residual, "mobile3": mobile3,
    "segment": segment, "atrous": atrous, "pose": pose, "detect": detect,
    "mixed": mixed, "dense_blocks": dense_blocks, "floats": floats, "half_floats": floats,
    "hybrid": floats, "keywords_16x8": keywords,
}  # fmt: skip


def convert(tf: Any, model: Any, shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> bytes:
    """Return the bytes of a .tflite file of a Keras model. *kind*: "floats", "half_floats" (float16 weights),
    "hybrid" (8-bit weights), a name that ends with "16x8", or any other name (8 bits throughout)."""
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if kind == "floats":
        return bytes(converter.convert())
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if kind == "half_floats":
        converter.target_spec.supported_types = [tf.float16]
    elif kind != "hybrid":
        samples = [[rng.normal(0, 1, (1, *shape)).astype(np.float32)] for _ in range(4)]
        converter.representative_dataset = lambda: iter(samples)
        sets = tf.lite.OpsSet
        if kind.endswith("16x8"):
            wide = sets.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
            converter.target_spec.supported_ops = [wide]
            return bytes(converter.convert())
        converter.target_spec.supported_ops = [sets.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = tf.uint8 if kind.endswith("uint8") else tf.int8
        converter.inference_output_type = converter.inference_input_type
    return bytes(converter.convert())


def main() -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    FOLDER.mkdir(exist_ok=True)
    for number, (name, network) in enumerate(NETWORKS.items()):
        rng = np.random.default_rng(number)
        tf.keras.utils.set_random_seed(number)
        given = tf.keras.Input(SHAPES[name], batch_size=None if name == "mobile3" else 1)
        model = tf.keras.Model(given, network(tf.keras.layers, given))
        for weight in model.weights:
            if len(weight.shape) == 1:  # Keras initializes biases with 0, and scales of normalizations with 1
                weight.assign(weight.numpy() + np.abs(rng.normal(0, 0.3, weight.shape)))
        (FOLDER / f"{name}.tflite").write_bytes(convert(tf, model, SHAPES[name], name, rng))


if __name__ == "__main__":
    main()
