"""Quantizes a float model through onnxruntime.quantization, with the settings that run whole on a device."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import files
from ..errors import ModelError, VkqError
from ..graph.graph import Array
from .cpu import cpu_session
from .protobuf import package
from .reader import read

CHANNELS = 13  # the first opset with an axis of QuantizeLinear


def quantize(
    model: str | os.PathLike[str],
    target: str | os.PathLike[str],
    samples: Iterable[Mapping[str, Array]],
    activations: str = "int8",
    per_channel: bool = True,
) -> None:
    """Writes the quantized model: QDQ form, int8 weights, activations "int8" or "uint8", ranges from the
    samples.

    samples: inputs by name, as the model takes them; tens of typical ones.
    """
    try:
        from onnxruntime import quantization
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError as error:
        raise ModelError("quantizing needs the packages onnx and onnxruntime: pip install them") from error
    if activations not in ("int8", "uint8"):
        raise ModelError(f"activations are {activations!r}; they must be 'int8' or 'uint8'")

    class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(samples)

        def get_next(self) -> Any:
            return next(self.left, None)

    read(model)  # refuses what is no model, in words
    kind = quantization.QuantType.QInt8 if activations == "int8" else quantization.QuantType.QUInt8
    with tempfile.TemporaryDirectory() as folder, files.output(Path(target)) as beside:
        whole, prepared = (os.path.join(folder, name) for name in ("whole.onnx", "prepared.onnx"))
        try:
            _save_whole(model, whole, CHANNELS if per_channel else 0)
            quant_pre_process(whole, prepared, skip_symbolic_shape=True)
            quantization.quantize_static(
                prepared, os.fspath(beside), Samples(), quant_format=quantization.QuantFormat.QDQ,
                activation_type=kind, weight_type=quantization.QuantType.QInt8, per_channel=per_channel,
            )  # fmt: skip
        except (VkqError, OSError):
            raise
        except Exception as error:  # onnx, its converter and ONNX Runtime have classes of their own
            raise ModelError(f"onnxruntime.quantization cannot take the model: {str(error)[:500]}") from error


def _save_whole(model: str | os.PathLike[str], path: str, least: int) -> None:
    """The model with its external data in one file, and of the opset *least* at least."""
    onnx = package()
    proto = onnx.load(os.fspath(model))
    if any(o.domain in ("", "ai.onnx") and o.version < least for o in proto.opset_import):
        try:
            proto = importlib.import_module("onnx.version_converter").convert_version(proto, least)
        except Exception as error:  # its converter has classes of its own
            raise ModelError(
                f"scales of channels need opset {least}, to which onnx cannot convert the model"
                f" ({str(error)[:300]}); export it so, or take one scale for a weight (--per-tensor)"
            ) from error
    onnx.save(proto, path)


def agreement(real: list[Array], quantized: list[Array]) -> dict[str, float]:
    """How near the first outputs of a quantized model are to those of the float one: the signal-to-noise
    ratio in dB, and the share of samples with the same largest element."""
    a, b = (np.stack([np.asarray(v, np.float64) for v in values]) for values in (real, quantized))
    noise = float(np.square(a - b).mean())
    flat = [v.reshape(len(v), -1) for v in (a, b)]
    return {
        "snr_db": float(10 * np.log10(np.square(a).mean() / noise)) if noise else float("inf"),
        "top1": float((flat[0].argmax(1) == flat[1].argmax(1)).mean()),
    }


def run_float(model: str | os.PathLike[str], samples: Iterable[Mapping[str, Array]]) -> list[Array]:
    """The first output of the float model for each sample, through ONNX Runtime."""
    session = cpu_session(model, "quantizing")
    return [np.asarray(session.run(None, dict(sample))[0]) for sample in samples]


def stored_bytes(path: str | os.PathLike[str]) -> int:
    """The bytes of a model on disk: its file, and each file of external data that it names, once."""
    model = package().load(os.fspath(path), load_external_data=False)
    entries = (entry for tensor in model.graph.initializer for entry in tensor.external_data)
    beside = {Path(path).parent / entry.value for entry in entries if entry.key == "location"}
    return sum(os.stat(file).st_size for file in (path, *beside))
