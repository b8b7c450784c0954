"""Write six int8 networks for vkq and for ncnn with equal weights and scales, each in its own file format.

    python benchmarks/int8_networks.py FOLDER [NAME ...]    writes NAME.onnx, NAME.ncnn.param, NAME.ncnn.bin
    vkq bench FOLDER/NAME.onnx --peer ncnn                  measures the pair; int8_peers.py measures all

The weights are random. Both files have the same int8 weights with one scale per channel, and the same scales
of int8 activations without zero points, taken from the ranges of a float run. vkq rounds to int8 after every
operator, as QDQ models define it. ncnn keeps float values between a convolution and an operator that is not a
convolution, as its tool ncnn2int8 does."""

import argparse
import collections
import dataclasses
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from vkq.bench.ncnn_peer import INT8_DATA

Array = npt.NDArray[Any]
SIZE = 224
CLIPS = {"": (), "relu": ("Relu",), "relu6": ("Clip",)}
WEIGHTED = ("conv", "linear")


@dataclasses.dataclass
class Operator:
    """One operator. ``weight`` and ``bias`` are floats, ``size`` is the side length of the window, and
    ``shape`` is the shape of the result without the batch axis."""

    kind: str
    name: str
    inputs: list["Operator"]
    shape: tuple[int, ...]
    weight: Array | None = None
    bias: Array | None = None
    size: int = 1
    stride: int = 1
    pad: int = 0
    groups: int = 1
    clip: str = ""


class Network:
    """The operators in the order in which they run."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.every = [Operator("input", "x", [], (3, SIZE, SIZE))]

    def _add(self, kind: str, inputs: Sequence[Operator], shape: Sequence[int], **rest: Any) -> Operator:
        self.every.append(Operator(kind, f"v{len(self.every)}", list(inputs), tuple(shape), **rest))
        return self.every[-1]

    def conv(
        self, x: Operator, channels: int, size: int = 1, stride: int = 1, groups: int = 1,
        clip: str = "relu", pad: int | None = None,
    ) -> Operator:  # fmt: skip
        pad = size // 2 if pad is None else pad
        shape = (channels, *((n + 2 * pad - size) // stride + 1 for n in x.shape[1:]))
        window = (channels, x.shape[0] // groups, size, size)
        spread = np.sqrt((2 if clip else 1) / np.prod(window[1:]))
        return self._add(
            "conv", [x], shape, size=size, stride=stride, pad=pad, groups=groups, clip=clip,
            **self._weights(window, spread),
        )  # fmt: skip

    def _weights(self, shape: Sequence[int], spread: float) -> dict[str, Array]:
        rng = self.rng
        return {
            "weight": (spread * rng.standard_normal(shape)).astype(np.float32),
            "bias": (0.1 * rng.standard_normal(shape[0])).astype(np.float32),
        }

    def pool(self, x: Operator, size: int = 3, stride: int = 2, pad: int = 0) -> Operator:
        shape = (x.shape[0], *((n + 2 * pad - size) // stride + 1 for n in x.shape[1:]))
        return self._add("pool", [x], shape, size=size, stride=stride, pad=pad)

    def add(self, a: Operator, b: Operator, clip: str = "") -> Operator:
        return self._add("add", [a, b], a.shape, clip=clip)

    def concat(self, *parts: Operator) -> Operator:
        return self._add("concat", parts, (sum(p.shape[0] for p in parts), *parts[0].shape[1:]))

    def mean(self, x: Operator) -> Operator:
        return self._add("mean", [x], (x.shape[0], 1, 1))

    def linear(self, x: Operator, outputs: int = 1000) -> Operator:
        return self._add(
            "linear", [x], (outputs,), **self._weights((outputs, x.shape[0]), x.shape[0] ** -0.5)
        )


def squeezenet(n: Network) -> None:  # SqueezeNet 1.1
    x = n.pool(n.conv(n.every[0], 64, 3, 2, pad=0))
    for place, (few, many) in enumerate(
        ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
    ):
        x = n.pool(x) if place in (2, 4) else x
        x = n.conv(x, few)
        x = n.concat(n.conv(x, many), n.conv(x, many, 3))
    n.mean(n.conv(x, 1000))


def mobilenet_v1(n: Network) -> None:
    x = n.conv(n.every[0], 32, 3, 2, clip="relu6")
    for channels, stride in (
        (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)
    ):  # fmt: skip
        x = n.conv(x, x.shape[0], 3, stride, x.shape[0], "relu6")
        x = n.conv(x, channels, clip="relu6")
    n.linear(n.mean(x))


def resnet18(n: Network) -> None:
    x = n.pool(n.conv(n.every[0], 64, 7, 2), pad=1)
    for channels, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        y = n.conv(n.conv(x, channels, 3, stride), channels, 3, clip="")
        x = n.add(y, x if x.shape == y.shape else n.conv(x, channels, 1, stride, clip=""), "relu")
    n.linear(n.mean(x))


def resnet50(n: Network) -> None:
    x = n.pool(n.conv(n.every[0], 64, 7, 2), pad=1)
    for channels, times in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for place in range(times):
            stride = 2 if place == 0 and channels > 64 else 1
            y = n.conv(n.conv(n.conv(x, channels), channels, 3, stride), 4 * channels, clip="")
            x = n.add(y, x if x.shape == y.shape else n.conv(x, 4 * channels, 1, stride, clip=""), "relu")
    n.linear(n.mean(x))


# torchvision's GoogLeNet, which has a 3x3 convolution where the paper has a 5x5 convolution.
def googlenet(n: Network) -> None:
    x = n.pool(n.conv(n.every[0], 64, 7, 2), pad=1)
    x = n.pool(n.conv(n.conv(x, 64), 192, 3), pad=1)
    for place, (one, few, three, least, five, pooled) in enumerate((
        (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128), (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
    )):  # fmt: skip
        x = n.pool(x, pad=1) if place in (2, 7) else x
        x = n.concat(
            n.conv(x, one), n.conv(n.conv(x, few), three, 3), n.conv(n.conv(x, least), five, 3),
            n.conv(n.pool(x, 3, 1, 1), pooled),
        )  # fmt: skip
    n.linear(n.mean(x))


def mobilenet_v2(n: Network) -> None:
    x = n.conv(n.every[0], 32, 3, 2, clip="relu6")
    for wider, channels, times, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):  # fmt: skip
        for stride in (first, *[1] * (times - 1)):
            y = n.conv(x, wider * x.shape[0], clip="relu6") if wider > 1 else x
            y = n.conv(n.conv(y, y.shape[0], 3, stride, y.shape[0], "relu6"), channels, clip="")
            x = n.add(x, y) if x.shape == y.shape else y
    n.linear(n.mean(n.conv(x, 1280, clip="relu6")))


NETWORKS: dict[str, Callable[[Network], None]] = {
    made.__name__: made for made in (squeezenet, mobilenet_v1, resnet18, resnet50, googlenet, mobilenet_v2)
}


# ------------------------------------------------------------------------------------------------------- ONNX


class Graph:
    """The nodes and constants of an ONNX model. With *scales*, the model is in QDQ form."""

    def __init__(self, scales: dict[str, float] | None) -> None:
        self.scales, self.nodes, self.constants = scales, [], {"zero": np.int8(0)}

    def node(self, kind: str, inputs: Iterable[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=output, **attributes))
        return output

    def constant(self, name: str, value: Array) -> str:
        self.constants[name] = value
        return name

    def stored(self, name: str, last: bool) -> str:
        """Return the name under which operators read a value. In QDQ form, this is the value after
        quantization and dequantization."""
        if self.scales is None or last:
            return name
        scale = self.constant(f"{name}_scale", np.float32(self.scales[name]))
        self.node("QuantizeLinear", (name, scale, "zero"), f"{name}_q")
        return self.node("DequantizeLinear", (f"{name}_q", scale, "zero"), f"{name}_dq")

    def weights(self, op: Operator) -> list[str]:
        assert op.weight is not None
        assert op.bias is not None
        if self.scales is None:
            return [self.constant(f"{op.name}_w", op.weight), self.constant(f"{op.name}_b", op.bias)]
        quantized, scale = int8_weights(op.weight)
        at = np.float32(self.scales[op.inputs[0].name]) * scale
        found = []
        for kind, data, by in (("w", quantized, scale), ("b", np.rint(op.bias / at).astype(np.int32), at)):
            names = [
                self.constant(f"{op.name}_{kind}{end}", value)
                for end, value in (("_q", data), ("_s", by), ("_z", np.zeros(by.size, data.dtype)))
            ]
            found.append(self.node("DequantizeLinear", names, f"{op.name}_{kind}", axis=0))
        return found


def int8_weights(weight: Array) -> tuple[Array, Array]:
    scale = np.abs(weight).reshape(len(weight), -1).max(1) / np.float32(127)
    return np.rint(weight / scale.reshape(-1, *[1] * (weight.ndim - 1))).astype(np.int8), scale


def onnx_model(net: Network, scales: dict[str, float] | None) -> onnx.ModelProto:
    graph, read = Graph(scales), {}
    for op in net.every:
        inputs, last = [read[one.name] for one in op.inputs], op is net.every[-1]
        raw = f"{op.name}_raw" if op.clip else op.name
        window = {"kernel_shape": [op.size] * 2, "strides": [op.stride] * 2, "pads": [op.pad] * 4}
        if op.kind == "conv":
            graph.node("Conv", inputs + graph.weights(op), raw, group=op.groups, **window)
        elif op.kind == "linear":
            flat = graph.node("Flatten", inputs, f"{op.name}_flat")
            graph.node("Gemm", [flat, *graph.weights(op)], raw, transB=1)
        elif op.kind == "pool":
            graph.node("MaxPool", inputs, raw, **window)
        elif op.kind != "input":
            kind, attributes = {"add": ("Add", {}), "concat": ("Concat", {"axis": 1}),
                                "mean": ("GlobalAveragePool", {})}[op.kind]  # fmt: skip
            graph.node(kind, inputs, raw, **attributes)
        for kind in CLIPS[op.clip]:
            limits = [graph.constant(n, np.float32(v)) for n, v in (("low", 0), ("high", 6))]
            graph.node(kind, [raw, *(limits if kind == "Clip" else ())], op.name)
        read[op.name] = graph.stored(op.name, last)
    values = [
        helper.make_tensor_value_info(op.name, TensorProto.FLOAT, (1, *op.shape))
        for op in (net.every[0], *(net.every[-1:] if scales else net.every[1:]))
    ]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in graph.constants.items()]
    made = helper.make_graph(graph.nodes, "network", values[:1], values[1:], constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def ranges(net: Network, x: Array) -> dict[str, float]:
    """Return the scale of each value: its largest magnitude in a float run of one image, divided by 127."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        onnx_model(net, None).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found = dict(zip((op.name for op in net.every[1:]), session.run(None, {"x": x}), strict=True))
    return {name: float(np.abs(value).max()) / 127 for name, value in ({"x": x} | found).items()}


# ------------------------------------------------------------------------------------------------------- ncnn


def ncnn_files(net: Network, scales: dict[str, float] | None) -> tuple[str, bytes]:
    """Return the text of the .param file and the bytes of the .bin file. With *scales*, they are for int8."""
    readers = collections.Counter(one.name for op in net.every for one in op.inputs)
    into = collections.defaultdict(list)
    for op in net.every:
        for one in op.inputs:
            into[one.name].append(op.kind)
    lines, data, given, blobs = [], [], dict.fromkeys(readers, 0), 0
    for op in net.every:
        inputs = []
        for one in op.inputs:
            many = readers[one.name] > 1
            inputs.append(f"{one.name}_{given[one.name]}" if many else one.name)
            given[one.name] += 1
        requantized = op.kind == "conv" and set(into[op.name]) == {"conv"}
        kind, words = ncnn_layer(op, 0 if scales is None else 101 if requantized else 1)
        lines.append(f"{kind} {op.name} {len(inputs)} 1 {' '.join([*inputs, op.name, *words])}")
        blobs += 1
        if op.kind in WEIGHTED:
            data.append(ncnn_weights(op, scales, requantized))
        if op.clip and op.kind == "add":
            lines[-1] = lines[-1].replace(f" {op.name} 0=0", f" {op.name}_raw 0=0")
            lines.append(f"ReLU {op.name}_relu 1 1 {op.name}_raw {op.name}")
            blobs += 1
        if readers[op.name] > 1:
            copies = [f"{op.name}_{i}" for i in range(readers[op.name])]
            lines.append(f"Split {op.name}_split 1 {len(copies)} {op.name} {' '.join(copies)}")
            blobs += len(copies)
    return f"7767517\n{len(lines)} {blobs}\n" + "\n".join(lines) + "\n", b"".join(data)


def ncnn_layer(op: Operator, term: int) -> tuple[str, list[str]]:
    """Return (type, options) of a layer in ncnn's .param file. *term*: ncnn's option ``int8_scale_term``: 0
    for a float layer; 101 for an int8 layer with an int8 result."""
    clip = {"": [], "relu": ["9=1"], "relu6": ["9=3", "-23310=2,0.0,6.0"]}[op.clip]
    int8 = [f"8={term}"] if term else []
    size = 0 if op.weight is None else op.weight.size
    if op.kind == "conv":
        kind = "Convolution" if op.groups == 1 else "ConvolutionDepthWise"
        window = [f"0={op.shape[0]}", f"1={op.size}", f"3={op.stride}", f"4={op.pad}", "5=1", f"6={size}"]
        return kind, [*window, *([f"7={op.groups}"] if op.groups > 1 else []), *int8, *clip]
    return {
        "input": ("Input", []),
        "linear": ("InnerProduct", [f"0={op.shape[0]}", "1=1", f"2={size}", *int8]),
        "pool": ("Pooling", ["0=0", f"1={op.size}", f"2={op.stride}", f"3={op.pad}", "5=1"]),
        "add": ("BinaryOp", ["0=0"]),
        "concat": ("Concat", ["0=0"]),
        "mean": ("Pooling", ["0=1", "4=1"]),
    }[op.kind]


def ncnn_weights(op: Operator, scales: dict[str, float] | None, requantized: bool) -> bytes:
    assert op.weight is not None
    assert op.bias is not None
    bias = op.bias.astype("<f4").tobytes()
    if scales is None:
        return struct.pack("<I", 0) + op.weight.astype("<f4").tobytes() + bias
    quantized, scale = int8_weights(op.weight)
    given = [scales[op.inputs[0].name], *([scales[op.name]] if requantized else [])]
    return (
        struct.pack("<I", INT8_DATA) + quantized.tobytes() + b"\0" * (-quantized.size % 4) + bias
        + (1 / scale).astype("<f4").tobytes() + struct.pack(f"<{len(given)}f", *(1 / one for one in given))
    )  # fmt: skip


def write(name: str, folder: Path, float_too: bool = False) -> Array:
    """Write the files of a network, optionally also its float form ``NAME.float.ncnn.*``; return an input
    image."""
    net = Network()
    NETWORKS[name](net)
    x = np.random.default_rng(1).standard_normal((1, 3, SIZE, SIZE)).astype(np.float32)
    scales = ranges(net, x)
    onnx.save(onnx_model(net, scales), folder / f"{name}.onnx")
    for stem, given in ((name, scales), *([(f"{name}.float", None)] if float_too else [])):
        param, weights = ncnn_files(net, given)
        (folder / f"{stem}.ncnn.param").write_text(param)
        (folder / f"{stem}.ncnn.bin").write_bytes(weights)
    return x


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or NETWORKS:
        write(name, options.folder)


if __name__ == "__main__":
    main()
