"""Networks of timm, torchvision and transformers (small sizes) with random weights, as
``torch.onnx.export(dynamo=True)`` writes them.

    python -m tests.onnx.exported make FOLDER [NAME ...]       needs torch, timm, torchvision, transformers
    python -m tests.onnx.exported compare FOLDER [DEVICE]      needs none of them

*make* writes NAME.onnx, and NAME.npz with the network's inputs. *compare* runs each network on the
device without a fallback, in float and quantized by onnxruntime.quantization (QDQ, int8, per channel),
and compares all results with ONNX Runtime's.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

Make = Callable[[], tuple[Any, dict[str, Any]]]  # a function that returns (module, inputs)
TIMM = {  # image size -> names
    64: """convnext_atto convnextv2_atto edgenext_xx_small mobilevit_xxs mobilevitv2_050 mobileone_s0
        repvgg_a0 fastvit_t8 ghostnet_100 ghostnetv2_100 regnety_002 tinynet_e lcnet_035 dla34
        ese_vovnet19b_slim hrnet_w18_small res2net50_14w_8s resnest14d skresnet18 xcit_nano_12_p16_224
        deit_tiny_patch16_224 poolformer_s12 coat_lite_tiny efficientvit_b0 starnet_s1
        mobilenetv4_conv_small mobilenetv4_hybrid_medium nf_resnet26 nextvit_small visformer_tiny selecsls42b
        inception_next_atto caformer_s18 focalnet_tiny_srf mambaout_femto rdnet_tiny repvit_m0_9
        cspdarknet53 densenet121 xception41 vgg11 pvt_v2_b0""",
    224: """levit_128s mixer_s32_224 gmlp_ti16_224 pit_ti_224 efficientvit_m0 sequencer2d_s tiny_vit_5m_224
        cait_xxs24_224 davit_tiny""",
}
TORCHVISION = {
    "segmentation.deeplabv3_mobilenet_v3_large": (1, 3, 64, 64),
    "segmentation.lraspp_mobilenet_v3_large": (1, 3, 64, 64),
    "video.r3d_18": (1, 3, 8, 32, 32), "video.r2plus1d_18": (1, 3, 8, 32, 32),
    "shufflenet_v2_x0_5": (1, 3, 64, 64), "inception_v3": (1, 3, 96, 96),
}  # fmt: skip
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
WORDS = SMALL | {"vocab_size": 100}
IDS, MASK, PAIRS = {"input_ids": (1, 16)}, {"attention_mask": (1, 16)}, {"num_key_value_heads": 2}
ALONE = {"use_cache": False}  # models return no caches
PATCHES = SMALL | {"image_size": 32, "patch_size": 8}
IMAGE = {"pixel_values": (1, 3, 32, 32)}
# name -> ("PREFIX TASK", the arguments of the configuration, the shapes of the inputs). The model class is
# PREFIX + TASK, its configuration class PREFIXConfig.
TRANSFORMERS: dict[str, tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "bert": ("Bert Model", WORDS, IDS | MASK),
    "roberta": ("Roberta Model", WORDS, IDS | MASK),
    "albert": ("Albert Model", WORDS | {"embedding_size": 16}, IDS | MASK),
    "electra": ("Electra Model", WORDS | {"embedding_size": 16}, IDS | MASK),
    "mpnet": ("MPNet Model", WORDS, IDS | MASK),
    "convbert": ("ConvBert Model", WORDS | {"embedding_size": 16}, IDS | MASK),
    "fnet": ("FNet Model", WORDS, IDS),
    "squeezebert": ("SqueezeBert Model", WORDS | {"embedding_size": 32}, IDS | MASK),
    "llama": ("Llama ForCausalLM", WORDS | PAIRS | ALONE, IDS),
    "qwen3": ("Qwen3 ForCausalLM", WORDS | PAIRS | ALONE | {"head_dim": 8}, IDS),
    "phi": ("Phi ForCausalLM", WORDS | ALONE, IDS),
    "gpt2": ("GPT2 LMHeadModel", ALONE | {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100}, IDS),
    "mamba": (
        "Mamba ForCausalLM", ALONE | {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100}, IDS,
    ),
    "t5": (
        "T5 EncoderModel",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 100},
        IDS | MASK,
    ),
    "vit": ("ViT Model", PATCHES, IMAGE),
    "clip": ("CLIPVision Model", PATCHES, IMAGE),
    "siglip": ("SiglipVision Model", PATCHES, IMAGE),
    "wav2vec2": (
        "Wav2Vec2 Model",
        WORDS | {"conv_dim": [16] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4},
        {"input_values": (1, 4000)},
    ),
    "patchtst": (
        "PatchTST Model",
        {"num_input_channels": 2, "context_length": 32, "patch_length": 8, "patch_stride": 8, "d_model": 16,
         "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 32},
        {"past_values": (1, 32, 2)},
    ),
}  # fmt: skip


def networks() -> dict[str, Make]:
    """Return a dict from the name of each network to the function that makes the network and its inputs."""
    found = {f"timm_{name}": _timm(name, size) for size, names in TIMM.items() for name in names.split()}
    found |= {f"torchvision_{path.split('.')[-1]}": _vision(path) for path in TORCHVISION}
    return found | {f"transformers_{name}": _transformer(*row) for name, row in TRANSFORMERS.items()}


def _timm(name: str, size: int) -> Make:
    def make() -> tuple[Any, dict[str, Any]]:
        import timm
        import torch

        try:
            model = timm.create_model(name, img_size=size)
        except TypeError:  # the network takes images of any size
            model = timm.create_model(name)
        return model, {"x": torch.randn(1, 3, size, size)}

    return make


def _vision(path: str) -> Make:
    def make() -> tuple[Any, dict[str, Any]]:
        import torch
        import torchvision

        kind = torchvision.models
        for part in path.split("."):
            kind = getattr(kind, part)
        none = {"weights_backbone": None} if path.startswith("segmentation") else {}
        return kind(weights=None, **none), {"x": torch.randn(*TORCHVISION[path])}

    return make


def _transformer(kind: str, options: dict[str, Any], inputs: dict[str, tuple[int, ...]]) -> Make:
    def make() -> tuple[Any, dict[str, Any]]:
        import torch
        import transformers

        prefix, task = kind.split()
        config = getattr(transformers, f"{prefix}Config")(**options, attn_implementation="eager")
        model = getattr(transformers, f"{prefix}{task}")(config)

        class First(torch.nn.Module):  # type: ignore[misc, name-defined]
            """A model that returns only the first result of another model."""

            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, *given: Any) -> Any:
                return self.model(**dict(zip(inputs, given, strict=True)))[0]

        drawn = {
            "input_ids": torch.randint(5, 90, (1, 16)),
            "attention_mask": torch.ones(1, 16, dtype=torch.int64),
        }
        return First(), {name: drawn.get(name, torch.randn(*shape)) for name, shape in inputs.items()}

    return make


def make(folder: Path, names: list[str]) -> None:
    """Export networks into a folder, and print those that cannot be exported."""
    import torch

    folder.mkdir(exist_ok=True)
    for name, network in networks().items():
        if names and name not in names:
            continue
        torch.manual_seed(1)
        try:
            model, inputs = network()
            for part in model.modules():
                if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
                    torch.nn.init.uniform_(part.running_mean, -0.2, 0.2)
                    torch.nn.init.uniform_(part.running_var, 0.6, 1.4)
            given = tuple(inputs.values())
            torch.onnx.export(model.eval(), given, dynamo=True).save(str(folder / f"{name}.onnx"))
        except Exception as error:  # exporters raise errors of many types
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:100]}", flush=True)
            continue
        fed = [value.name for value in onnx.load(folder / f"{name}.onnx").graph.input]
        np.savez(folder / f"{name}.npz", **dict(zip(fed, (v.numpy() for v in given), strict=True)))


class Noisy(CalibrationDataReader):  # type: ignore[misc]
    """Calibration data: a network's inputs, and the inputs with noise."""

    def __init__(self, feed: dict[str, Any]):
        rng = np.random.default_rng(0)
        noisy = {
            k: v + rng.normal(0, 0.3, v.shape).astype(v.dtype) for k, v in feed.items() if v.dtype.kind == "f"
        }
        self.left = iter([feed, feed | noisy])

    def get_next(self) -> Any:
        return next(self.left, None)


def quantized(path: Path, feed: dict[str, Any]) -> Path:
    """Quantize a network with onnxruntime.quantization, write it, and return its path."""
    ready, result = path.with_suffix(".pre.onnx"), path.with_suffix(".int8.onnx")
    quant_pre_process(str(path), str(ready), skip_symbolic_shape=True)
    quantize_static(
        str(ready), str(result), Noisy(feed), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    return result


def compare(folder: Path, device: str | None = None) -> None:
    """Print how each network's results differ from ONNX Runtime's, relative to the largest element of the
    results."""
    import vkq.onnx
    from vkq.onnx.cpu import cpu_session

    equal = count = 0
    for inputs in sorted(folder.glob("*.npz")):
        feed, path = dict(np.load(inputs)), inputs.with_suffix(".onnx")
        for kind in ("float", "int8"):
            try:
                file = path if kind == "float" else quantized(path, feed)
                with vkq.onnx.InferenceSession(str(file), device) as session:
                    got = session.run(None, feed)
                want = cpu_session(str(file), "comparing", threads=1).run(None, feed)
            except Exception as error:  # refusals are printed as results
                print(f"{path.stem} {kind}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                continue
            pairs = list(zip(got, want, strict=True))
            off = max(
                float(np.abs(a.astype(float) - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in pairs
            )
            count, equal = count + (kind == "int8"), equal + (kind == "int8" and off == 0)
            print(f"{path.stem} {kind}: {f'{off:.1e}' if off else 'equal'}", flush=True)
    print(f"int8: {equal} of {count} equal")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), sys.argv[3:])
    else:
        compare(Path(sys.argv[2]), *sys.argv[3:4])
