"""Write int8 models with random weights, as PyTorch exports them and onnxruntime quantizes them.

    python benchmarks/quantized_models.py FOLDER [NAME ...]

NAME is bert (6 layers, width 768, 128 tokens, uint8 activations) or one of these models with int8
activations: vit (ViT-B/16 for 224 x 224), timm (timm's ViT-B/16), resnet50, mobilenet_v2 or
efficientnet_b0. Weights are int8, with a scale for each output channel. Needs torch, torchvision,
transformers and timm. `networks.py FOLDER/*.onnx` times the models, `peers.py --compile` the same networks
in PyTorch.
"""

import argparse
import functools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from transformers import BertConfig, BertModel, ViTConfig, ViTModel

TOKENS, SAMPLES = 128, 4
Feed = dict[str, Any]


class Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Iterator[Feed]):
        self.feeds = feeds

    def get_next(self) -> Feed | None:
        return next(self.feeds, None)


class Hidden(torch.nn.Module):
    """A module that returns the last hidden state of a model. *names*: the names of the model's inputs."""

    def __init__(self, model: Any, names: tuple[str, ...]):
        super().__init__()
        model.config._attn_implementation = "eager"
        self.model, self.names = model.eval(), names

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True))).last_hidden_state


def bert(rng: np.random.Generator) -> tuple[Hidden, Feed, QuantType]:
    config = BertConfig(num_hidden_layers=6)
    feed = {
        "input_ids": rng.integers(0, config.vocab_size, (1, TOKENS)),
        "attention_mask": np.ones((1, TOKENS), np.int64),
    }
    return Hidden(BertModel(config, add_pooling_layer=False), tuple(feed)), feed, QuantType.QUInt8


def vit(rng: np.random.Generator) -> tuple[Hidden, Feed, QuantType]:
    feed = {"pixel_values": rng.normal(size=(1, 3, 224, 224)).astype(np.float32)}
    return Hidden(ViTModel(ViTConfig(), add_pooling_layer=False), tuple(feed)), feed, QuantType.QInt8


def timm(rng: np.random.Generator) -> tuple[torch.nn.Module, Feed, QuantType]:
    os.environ["TIMM_FUSED_ATTN"] = "0"  # timm then exports attention as MatMul, Softmax, ...
    from timm import create_model

    feed = {"x": rng.normal(size=(1, 3, 224, 224)).astype(np.float32)}
    return create_model("vit_base_patch16_224").eval(), feed, QuantType.QInt8


def convolutional(name: str, rng: np.random.Generator) -> tuple[torch.nn.Module, Feed, QuantType]:
    """Return a network of torchvision. Its normalizations have the statistics of random pictures, as after
    training; otherwise the values of later layers would be tiny."""
    from torchvision import models

    model: torch.nn.Module = getattr(models, name)(weights=None)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # None: use the mean over all pictures
    feed = {"x": rng.normal(size=(1, 3, 224, 224)).astype(np.float32)}
    with torch.no_grad():
        model.train()(torch.from_numpy(rng.normal(size=(8, 3, 224, 224)).astype(np.float32)))
    return model.eval(), feed, QuantType.QInt8


CONVOLUTIONAL = ("resnet50", "mobilenet_v2", "efficientnet_b0")
MODELS: dict[str, Any] = {"bert": bert, "vit": vit, "timm": timm}
MODELS |= {name: functools.partial(convolutional, name) for name in CONVOLUTIONAL}


def write(name: str, path: Path) -> None:
    """Export a model, quantize it and write it."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model, feed, activations = MODELS[name](rng)
    with tempfile.TemporaryDirectory() as folder:
        exported, ready = (str(Path(folder) / f"{kind}.onnx") for kind in ("float", "ready"))
        torch.onnx.export(
            model, tuple(map(torch.from_numpy, feed.values())), exported, dynamo=False, opset_version=17,
            input_names=list(feed), output_names=["y"],
            dynamic_axes={value: {0: "batch"} for value in (*feed, "y")},
        )  # fmt: skip
        quant_pre_process(exported, ready, skip_symbolic_shape=True)
        feeds = (MODELS[name](rng)[1] for _ in range(SAMPLES))
        quantize_static(
            ready, str(path), Samples(feeds), quant_format=QuantFormat.QDQ, activation_type=activations,
            weight_type=QuantType.QInt8, per_channel=True,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(MODELS)} (default: all)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or MODELS:
        write(name, options.folder / f"{name}.onnx")
        print(options.folder / f"{name}.onnx", flush=True)


if __name__ == "__main__":
    main()
