"""PyTorch networks with random weights, converted by litert-torch and quantized by ai-edge-quantizer.
``python -m tests.tflite.torched`` makes the networks in ``models`` again; ``python -m tests.tflite.torched
FOLDER`` writes networks of torchvision and timm to a folder. The commands need litert-torch,
ai-edge-quantizer, torchvision and timm."""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .convert import FOLDER, KEPT

Make = Callable[[], Any]
LEAST = 1e-3  # parameters whose largest magnitude is below this get random values: untrained networks have 0
TIMM = """mobilevit_xxs ghostnet_050 levit_128s repvgg_a0 edgenext_xx_small efficientvit_b0 mobileone_s0
fastvit_t8 poolformer_s12 mobilenetv4_conv_small convmixer_768_32 res2net50_14w_8s tinynet_e hardcorenas_a
lcnet_050 semnasnet_075 pit_ti_224 deit_tiny_patch16_224 repghostnet_050 starnet_s1 tf_efficientnet_lite0
skresnet18 xcit_nano_12_p16_224 rexnet_100 hrnet_w18_small dla34 vovnet39a"""


def prepared(torch: Any, model: Any, inputs: tuple[Any, ...]) -> Any:
    """Return the model with random biases and scales, and with BatchNormalization statistics from random
    inputs, so that the values of no layer are all zero."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1 or weight.abs().max() < LEAST:
                weight.add_(torch.randn(weight.shape) * 0.2)
        model.train()
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        for _ in range(6):
            model(*(torch.cat([again(torch, x) for _ in range(4)]) for x in inputs))
    return model.eval()


def again(torch: Any, x: Any) -> Any:
    """Return a new random input with the shape and dtype of *x*."""
    if x.dtype.is_floating_point:
        return torch.randn(x.shape)
    return torch.randint(0, 64, x.shape, dtype=x.dtype)


def converted(model: Any, inputs: tuple[Any, ...], last: bool) -> bytes:
    """Return the model as a float file. *last*: inputs and outputs have their channels last."""
    import litert_torch

    if last:
        model = litert_torch.to_channel_last_io(model, args=[0]).eval()
        inputs = (inputs[0].permute(0, *range(2, inputs[0].ndim), 1), *inputs[1:])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "float.tflite"
        litert_torch.convert(model, inputs).export(str(path))
        return path.read_bytes()


def recipes() -> dict[str, Any]:
    """Return ai-edge-quantizer's recipes, by the names that occur in the names of files."""
    from ai_edge_quantizer import algorithm_manager, qtyping, recipe, recipe_manager

    half = recipe_manager.RecipeManager()
    weights = qtyping.TensorQuantizationConfig(num_bits=16, dtype=qtyping.TensorDataType.FLOAT)
    half.add_quantization_config(
        ".*", qtyping.TFLOperationName.ALL_SUPPORTED,
        qtyping.OpQuantizationConfig(
            weight_tensor_config=weights, compute_precision=qtyping.ComputePrecision.FLOAT,
            explicit_dequantize=True,
        ),
        algorithm_key=algorithm_manager.AlgorithmName.FLOAT_CASTING,
    )  # fmt: skip
    return {
        "int8": recipe.static_wi8_ai8(), "hybrid": recipe.dynamic_wi8_afp32(),
        "weights": recipe.weight_only_wi8_afp32(), "weights4": recipe.weight_only_wi4_afp32(),
        "half": half.get_quantization_recipe(), "16x8": recipe.static_wi8_ai16(),
    }  # fmt: skip


def quantized(data: bytes, recipe: Any, floats: bool, seed: int = 0) -> bytes:
    """Return the file quantized by *recipe*, with ranges from random samples. *floats*: inputs and outputs
    remain floats."""
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import quantizer

    tool = quantizer.Quantizer(data, recipe)
    for end in ("INPUT", "OUTPUT") if floats else ():
        tool.update_quantization_recipe(".*", end, algorithm_key="no_quantize")
    rng, found = np.random.default_rng(seed), None
    if tool.need_calibration:
        interpreter = Interpreter(model_content=data)
        ((key, _),) = interpreter.get_signature_list().items()
        details = interpreter.get_signature_runner(key).get_input_details()
        samples = [
            {name: drawn(rng, d["shape"], d["dtype"]) for name, d in details.items()} for _ in range(4)
        ]
        found = tool.calibrate({key: samples})
    return bytes(tool.quantize(found).quantized_model)


def drawn(rng: np.random.Generator, shape: Any, dtype: Any) -> Any:
    if np.dtype(dtype).kind == "f":
        return rng.normal(0, 1, shape).astype(dtype)
    return rng.integers(0, 64, shape).astype(dtype)


def library() -> dict[str, Make]:
    """Return networks of torchvision and timm by name."""
    import timm
    import torchvision

    own, heads = torchvision.models, "densenet121 efficientnet_b0 mnasnet0_5 mobilenet_v2 mobilenet_v3_small"
    heads += " regnet_y_400mf resnet18 resnext50_32x4d shufflenet_v2_x0_5 squeezenet1_1"
    found: dict[str, Make] = {name: getattr(own, name) for name in heads.split()}
    found["googlenet"] = lambda: own.googlenet(aux_logits=False, init_weights=False)
    rows = [own.convnext.CNBlockConfig(a, b, 2) for a, b in ((24, 48), (48, 64), (64, None))]
    found["convnext"] = lambda: own.ConvNeXt(rows, num_classes=20)
    found["vit"] = lambda: own.VisionTransformer(64, 16, 3, 4, 48, 96, num_classes=20)
    found["swin"] = lambda: own.SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=20)
    for name in TIMM.split():
        sized = {"img_size": 64} if name.startswith(("pit", "deit", "xcit")) else {}
        found[name] = functools.partial(timm.create_model, name, num_classes=20, **sized)
    return found


def made(name: str, make: Make, shape: tuple[int, ...], kind: str, floats: bool) -> bytes:
    """Return a network as a file, quantized by the recipe *kind* ("": not quantized). The seed of the random
    weights is the length of the network's name."""
    import torch

    torch.manual_seed(len(name))
    x = torch.randint(0, 64, shape) if len(shape) == 2 else torch.randn(shape)
    model = prepared(torch, make(), (x,))
    data = converted(model, (x,), len(shape) == 4 and len(name) % 4 > 0)
    return quantized(data, recipes()[kind], floats) if kind else data


def main(folder: str = "", *kinds: str) -> None:
    from .torch_networks import NETWORKS

    if not folder:
        for name in KEPT:
            path = FOLDER / f"torch_{name}.tflite"
            path.write_bytes(made(name, *NETWORKS[name], "int8", floats=len(name) % 2 == 0))
        return
    Path(folder).mkdir(exist_ok=True)
    networks = {**NETWORKS, **{name: (make, (1, 3, 64, 64)) for name, make in library().items()}}
    for name, (make, shape) in networks.items():
        for kind in kinds or ("int8",):
            data = made(name, make, shape, kind, floats=len(name) % 2 == 0)
            (Path(folder) / f"{name}_{kind}.tflite").write_bytes(data)


if __name__ == "__main__":
    main(*sys.argv[1:])
