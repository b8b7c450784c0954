"""A chain of int8 layers filters a photograph on a Vulkan device; ONNX Runtime must give equal bytes.

The layers quantize and blur the picture, find its edges in eight directions and colour them by direction. A
linear layer computes the mean of the edges in each cell of a 4x4 grid. Between the layers, all data stay on
the device, and the whole chain is one submission. Usage: 01_photo_filters.py [DEVICE]"""

import sys
import time
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession
from PIL import Image
from skimage import data

import vkq

OUT = Path(__file__).parent / "out"
PIXEL = vkq.QParams(1 / 255, -128)  # parameters of int8 for values from 0 to 1
EDGE = vkq.QParams(0.01, -128)  # parameters of int8 for values from 0 to 2.55
SHARE = vkq.QParams(0.005, -128)


def filters() -> dict[str, tuple[np.ndarray, np.ndarray, dict[str, object], vkq.QParams, vkq.QParams]]:
    """Return the chain's convolutions: name -> (float weight, options, qparams of x, qparams of y)."""
    binomial = np.outer([1, 4, 6, 4, 1], [1, 4, 6, 4, 1]) / 256
    blur = np.broadcast_to(binomial, (3, 1, 5, 5))
    angle = np.arange(8) * np.pi / 4
    dx = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 4
    steered = np.cos(angle)[:, None, None] * dx + np.sin(angle)[:, None, None] * dx.T
    edges = np.repeat(steered[:, None], 3, axis=1)
    colours = np.stack([0.5 + 0.5 * np.cos(angle + shift) for shift in (0, 2.1, 4.2)])[:, :, None, None]
    pool = np.zeros((8, 1, 32, 32)) + 1 / 1024
    return {
        "blur": (blur, {"padding": 2, "groups": 3}, PIXEL, PIXEL),
        "edges": (edges, {"padding": 1}, PIXEL, EDGE),
        "colours": (colours, {}, EDGE, EDGE),
        "pool": (pool, {"stride": 32, "groups": 8}, EDGE, EDGE),
    }


def quantize_weight(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantize a weight symmetrically to int8, with one scale for each output channel (q8csw)."""
    rows = weight.reshape(len(weight), -1)
    scale = (np.abs(rows).max(axis=1) / 127).astype(np.float32)
    return np.rint(rows / scale[:, None]).astype(np.int8).reshape(weight.shape), scale


def grid_weight(height: int, width: int) -> np.ndarray:
    """Return the weight (16, 8 * height * width) whose outputs are the means of the cells of a 4x4 grid."""
    weight = np.zeros((4, 4, 8, height, width))
    for i in range(4):
        for j in range(4):
            weight[
                i, j, :, i * height // 4 : (i + 1) * height // 4, j * width // 4 : (j + 1) * width // 4
            ] = 1
    flat = weight.reshape(16, -1)
    return flat / flat.sum(axis=1, keepdims=True)


class Network:
    """The chain on one device. Every layer takes and returns device tensors."""

    def __init__(self, device: vkq.Device, grid: np.ndarray):
        self.layers = {}
        for name, (weight, options, x, y) in filters().items():
            w, scale = quantize_weight(weight)
            relu = "relu" if name == "edges" else None
            self.layers[name] = vkq.Conv2d(
                w, scale, x_qparams=x, y_qparams=y, activation=relu, device=device, **options
            )
        w, scale = quantize_weight(grid)
        self.layers["grid"] = vkq.Linear(w, scale, x_qparams=EDGE, y_qparams=SHARE, device=device)

    def __call__(self, x: vkq.Tensor) -> tuple[vkq.Tensor, vkq.Tensor]:
        edges = self.layers["edges"](self.layers["blur"](vkq.quantize(x, PIXEL)))
        cells = self.layers["grid"](vkq.flatten(self.layers["pool"](edges)))
        return self.layers["colours"](edges), cells


def onnx_twin(shape: tuple[int, ...], grid: np.ndarray) -> InferenceSession:
    """Return the chain of `Network` as an ONNX model of QuantizeLinear, QLinearConv and QLinearMatMul."""
    nodes, constants = [], []

    def constant(name: str, value: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def qparams(name: str, q: vkq.QParams) -> list[str]:
        scale, zero = np.float32(q.scale), np.int8(q.zero_point)
        return [constant(f"{name}_scale", scale), constant(f"{name}_zero", zero)]

    def quantized(name: str, w: np.ndarray, scale: np.ndarray) -> list[str]:
        zero = np.zeros(len(scale), np.int8)
        return [
            constant(f"{name}_w", w), constant(f"{name}_w_scale", scale), constant(f"{name}_w_zero", zero)
        ]  # fmt: skip

    nodes.append(helper.make_node("QuantizeLinear", ["image", *qparams("image", PIXEL)], ["image_q"]))
    inputs = {"blur": "image_q", "edges": "blur", "colours": "edges", "pool": "edges"}
    for name, (weight, options, x, y) in filters().items():
        parameters = quantized(name, *quantize_weight(weight))
        ends = [inputs[name], *qparams(f"{name}_x", x), *parameters, *qparams(f"{name}_y", y)]
        window = {"pads": [options.get("padding", 0)] * 4, "strides": [options.get("stride", 1)] * 2}
        raw = f"{name}_raw" if name == "edges" else name
        groups = options.get("groups", 1)
        nodes.append(helper.make_node("QLinearConv", ends, [raw], group=groups, **window))
        if name == "edges":  # Relu on quantized values is a Max with the zero point
            floor = constant("edges_floor", np.int8(y.zero_point))
            nodes.append(helper.make_node("Max", [raw, floor], [name]))
    w, scale = quantize_weight(grid)
    nodes.append(helper.make_node("Flatten", ["pool"], ["pool_flat"]))
    weights = quantized("grid", w.T.copy(), scale)
    ends = ["pool_flat", *qparams("grid_x", EDGE), *weights, *qparams("grid_y", SHARE)]
    nodes.append(helper.make_node("QLinearMatMul", ends, ["grid"]))
    graph = helper.make_graph(
        nodes, "twin", [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(n, TensorProto.INT8, None) for n in ("colours", "grid")], constants,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def main() -> int:
    photo = data.astronaut()
    image = np.ascontiguousarray(photo.transpose(2, 0, 1)[None] / np.float32(255), np.float32)
    _, _, height, width = image.shape
    grid = grid_weight(height // 32, width // 32)
    with vkq.Device(sys.argv[1] if len(sys.argv) > 1 else None) as device:
        network = Network(device, grid)
        choice = network.layers["edges"].choice()
        print(f"device   {device.name}")
        print(f"path     {choice.path} ({choice.reason})")
        x = vkq.Tensor.from_numpy(image, device)
        picture, cells = network(x)  # the first call also makes the pipelines
        picture.numpy()
        start = time.perf_counter()
        picture, cells = network(x)
        got = {"colours": picture.numpy(), "grid": cells.numpy()}
        elapsed = time.perf_counter() - start
        shown = vkq.dequantize(picture).numpy()
    want = dict(zip(got, onnx_twin(image.shape, grid).run(None, {"image": image}), strict=True))
    equal = sum(int((got[name] == want[name]).sum()) for name in got)
    total = sum(array.size for array in want.values())
    OUT.mkdir(exist_ok=True)
    edges = (np.clip(shown[0].transpose(1, 2, 0) * 1.5, 0, 1) * 255).astype(np.uint8)
    Image.fromarray(np.hstack([photo, edges])).save(OUT / "photo_filters.png")
    print(f"picture  {OUT / 'photo_filters.png'}")
    print("edges by cell of a 4x4 grid, in percent of full scale:")
    print(np.rint(100 * (got["grid"].astype(int) - SHARE.zero_point).reshape(4, 4) * SHARE.scale).astype(int))
    print(
        f"time     {1000 * elapsed:.1f} ms for {sum(p[0].size > 0 for p in filters().values())} convolutions"
        " and a linear layer"
    )
    print(f"result   {equal} of {total} bytes equal to ONNX Runtime's")
    return 0 if equal == total else 1


if __name__ == "__main__":
    sys.exit(main())
