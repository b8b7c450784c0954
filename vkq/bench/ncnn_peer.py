"""Run ncnn for comparison on vkq's Vulkan device: a case as a model of one int8 layer, or a model file.

ncnn quantizes symmetrically (no zero point, no -128), and a layer's inputs and outputs are float32. So ncnn
gets a case's input as float32, with -127 in place of -128. Its results are compared with a reference without
zero points. The int8 sums must be exact; the float32 arithmetic after the sums may have an error of `CLOSE`.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vkq import reference
from vkq.bench.data import Array, Weights
from vkq.check.cases import Case
from vkq.problem.conv2d import Conv2dProblem
from vkq.runtime.device import Device

INT8_DATA = 0x000D4B38  # the tag that ncnn writes before int8 weights
CLOSE = 1e-5  # allowed error, relative to the largest result: the float32 roundoff after exact int8 sums


def arm(
    ncnn: Any, case: Case, weights: Weights, x: Array, device: Device
) -> tuple[Callable[[], Array], str, str]:
    """Return (function to time, text that describes what runs, text that says whether the results agree with
    the reference). Raises NotImplementedError for a case that ncnn cannot run."""
    p = case.layer
    if case.scheme == "q8csw":
        raise NotImplementedError("ncnn has no weight-only int8 layer")
    if isinstance(p, Conv2dProblem) and p.groups not in (1, p.oc):
        raise NotImplementedError(
            "ncnn has one weight scale for each group; use a depthwise case or one group"
        )
    index = _gpu(ncnn, device)
    symmetric = np.maximum(x, -127)
    assert weights.x is not None
    bias = (weights.bias * weights.scale * np.float32(weights.x.scale)).astype(np.float32)
    net, layer = _net(ncnn, case, weights, bias, index)
    # The input of a linear layer is one Mat. Each image of a batch is a Mat, because ncnn has no batches.
    real = symmetric.astype(np.float32) * np.float32(weights.x.scale)
    parts = [real] if case.op == "linear" else list(real)

    def call() -> Array:
        outputs = []
        for part in parts:
            extractor = net.create_extractor()
            extractor.input("x", _mat(ncnn, part))
            outputs.append(np.array(extractor.extract("y")[1]))
        return outputs[0].reshape(p.y_shape) if case.op == "linear" else np.stack(outputs).reshape(p.y_shape)

    batch = f", {len(parts)} images in turn" if len(parts) > 1 else ""
    ran = (
        f"ncnn {ncnn.__version__} {layer} int8 on Vulkan device {index} ({device.name}), fp16 off, float32 in"
        f" and out{batch}"
    )
    return call, ran, _agreement(case, weights, symmetric, bias, call())


def model_call(
    ncnn: Any, path: str, feed: Mapping[str, Array], device: Device
) -> tuple[Callable[[], list[Array]], str]:
    """Return (function that runs a model in ncnn with ncnn's default options, text that describes the run).

    ncnn reads the two files that pnnx (its converter) wrote next to the model. Raises NotImplementedError
    if a file is missing or ncnn does not support these inputs.
    """
    stem = Path(path).with_suffix("")
    param, weights = (Path(f"{stem}.ncnn.{kind}") for kind in ("param", "bin"))
    if missing := [file.name for file in (param, weights) if not file.is_file()]:
        raise NotImplementedError(
            f"ncnn runs files of its own, and there is no {' and no '.join(missing)} beside the model: make"
            f" them of the float model with pnnx (pip install pnnx; pnnx {Path(path).name})"
        )
    index = _gpu(ncnn, device)
    if batches := [f"{name} {x.shape}" for name, x in feed.items() if x.ndim > 1 and x.shape[0] != 1]:
        raise NotImplementedError(f"ncnn has no batches; axis 0 must be 1 in {', '.join(batches)}")
    net = ncnn.Net()
    net.opt.use_vulkan_compute = True
    net.set_vulkan_device(index)
    if net.load_param(str(param)) != 0 or net.load_model(str(weights)) != 0:
        raise NotImplementedError(f"ncnn refused {param.name}")
    names, results = list(net.input_names()), list(net.output_names())
    if len(names) != len(feed):
        raise NotImplementedError(f"{param.name} has the inputs {names}; the model has {list(feed)}")
    given = [np.ascontiguousarray(x[0] if x.ndim > 1 else x, np.float32) for x in feed.values()]

    def call() -> list[Array]:
        extractor = net.create_extractor()
        for name, x in zip(names, given, strict=True):
            extractor.input(name, _mat(ncnn, x))
        return [np.array(extractor.extract(name)[1])[None] for name in results]

    return call, f"ncnn {ncnn.__version__} {param.name} on Vulkan device {index} ({device.name}){_split(net)}"


def _mat(ncnn: Any, x: Array) -> Any:
    """Return an array as ncnn's Mat.

    On Vulkan, ncnn requires each channel to begin at a multiple of 16 bytes. A Mat over NumPy's memory has
    no gaps between channels, so it is copied if the size of a channel is not a multiple of 16 bytes.
    """
    mat = ncnn.Mat(x)
    return mat.clone() if x.ndim == 3 and x[0].nbytes % 16 else mat


def _split(net: Any) -> str:
    """Return a text on how many layers run on Vulkan, and which types of layers run on the CPU."""
    layers = list(net.layers())
    left = sorted({layer.type for layer in layers if not layer.support_vulkan})
    some = f"; {', '.join(left)} on the CPU" if left else ""
    return f", {sum(layer.support_vulkan for layer in layers)} of {len(layers)} layers by Vulkan{some}"


def _gpu(ncnn: Any, device: Device) -> int:
    names = [ncnn.get_gpu_info(i).device_name() for i in range(ncnn.get_gpu_count())]
    if device.name not in names:
        raise NotImplementedError(f"ncnn does not list this device; it lists {', '.join(names) or 'none'}")
    return names.index(device.name)


def _net(ncnn: Any, case: Case, weights: Weights, bias: Array, index: int) -> tuple[Any, str]:
    p = case.layer
    values = {0: p.gemm_n}
    if isinstance(p, Conv2dProblem):
        top, left, bottom, right = p.padding
        values |= {1: p.kw, 11: p.kh, 2: p.dilation[1], 12: p.dilation[0], 3: p.stride[1], 13: p.stride[0]}
        values |= {4: left, 15: right, 14: top, 16: bottom, 5: 1, 6: weights.w.size, 8: 1}
        values |= {0: p.oc} | ({} if p.groups == 1 else {7: p.groups})
        layer = "Convolution" if p.groups == 1 else "ConvolutionDepthWise"
    else:
        values |= {1: 1, 2: weights.w.size, 8: 1}
        layer = "InnerProduct"
    text = " ".join(f"{key}={value}" for key, value in values.items())
    net = ncnn.Net()
    net.opt.use_vulkan_compute = True
    for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_packed", "bf16_storage"):
        setattr(net.opt, f"use_{name}", False)
    net.set_vulkan_device(index)
    net.load_param_mem(f"7767517\n2 2\nInput x 0 1 x\n{layer} op 1 1 x y {text}\n")
    assert weights.x is not None
    scales = np.broadcast_to(1 / weights.scale, bias.size).astype("<f4")
    data = weights.w.tobytes()
    model = struct.pack("<I", INT8_DATA) + data + b"\0" * (-len(data) % 4)
    model += bias.astype("<f4").tobytes() + scales.tobytes() + struct.pack("<f", 1 / weights.x.scale)
    with tempfile.TemporaryDirectory() as folder:  # ncnn reads weights from a file, not from memory
        path = Path(folder) / "model.bin"
        path.write_bytes(model)
        if net.load_model(str(path)) != 0:
            raise NotImplementedError("ncnn refused the model")
    return net, layer


def _agreement(case: Case, weights: Weights, x: Array, bias: Array, got: Array) -> str:
    assert weights.x is not None
    scale = weights.scale * np.float32(weights.x.scale)
    real = x.astype(np.float64)
    if isinstance(case.layer, Conv2dProblem):
        p = case.layer
        window = {"stride": p.stride, "padding": p.padding, "dilation": p.dilation, "groups": p.groups}
        want = reference.conv2d_q8csw(real, weights.w, scale, bias, **window)  # type: ignore[arg-type]
    else:
        want = reference.linear_q8csw(real, weights.w, scale, bias)
    apart = float(np.abs(got - want).max()) / (float(np.abs(want).max()) or 1.0)
    verdict = "agrees" if apart < CLOSE else "DIFFERS"
    return f"{verdict}: at most {apart:.2g} of the largest result from the reference without zero point"
