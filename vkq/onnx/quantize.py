"""Quantizes a float model with onnxruntime.quantization, and with settings for which a device can run all
nodes of the result."""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import files
from ..errors import ModelError, VkqError
from ..graph.graph import Array
from ..numerics.calibration import usable_samples
from .names import chosen
from .protobuf import package
from .reader import Model, read

# While a model is quantized, weights of more than this many bytes are stored in a separate file.
EXTERNAL = 1 << 30
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
FLOAT16 = 10  # float16 in TensorProto.DataType
CHANNELS = 13  # the first opset in which QuantizeLinear supports an axis


def quantize(
    model: str | os.PathLike[str],
    target: str | os.PathLike[str],
    samples: Iterable[Mapping[str, Array]],
    activations: str = "int8",
    per_channel: bool = True,
    exclude: Collection[str] = (),
) -> None:
    """Quantize a float model to QDQ with int8 weights, and write it to *target*.

    samples: tens of typical inputs, each a mapping of names to arrays; they determine the ranges of
    activations. activations: "int8" or "uint8". per_channel: True for one scale for each output channel of
    a weight. exclude: names of nodes that stay float. The name of a module, such as "/head", stands for all
    nodes in it.
    """
    quantization = quantizer()
    if activations not in ("int8", "uint8"):
        raise ModelError(f"activations are {activations!r}; they must be 'int8' or 'uint8'")

    class Samples(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.left = usable_samples(samples)

        def get_next(self) -> Any:
            return next(self.left, None)

    kind = quantization.QuantType.QInt8 if activations == "int8" else quantization.QuantType.QUInt8
    with tempfile.TemporaryDirectory() as folder, files.output(Path(target)) as beside, refusals_told():
        remedy = "use one scale for each weight (--per-tensor)"
        ready = prepared(model, folder, CHANNELS if per_channel else 0, "scales of channels", remedy)
        left = chosen(package().load(ready, load_external_data=False), exclude)
        quantization.quantize_static(
            ready, os.fspath(beside), Samples(), quant_format=quantization.QuantFormat.QDQ,
            activation_type=kind, weight_type=quantization.QuantType.QInt8, per_channel=per_channel,
            nodes_to_exclude=left,
        )  # fmt: skip


def quantizer() -> Any:
    """Return the module onnxruntime.quantization. Raises ModelError if a package is missing."""
    try:
        import onnx
        from onnxruntime import quantization
    except ImportError as error:
        raise ModelError("quantizing needs the packages onnx and onnxruntime: pip install them") from error
    return quantization if onnx else None


@contextlib.contextmanager
def refusals_told(what: str = "onnxruntime.quantization cannot quantize the model") -> Iterator[None]:
    """Context manager: convert exceptions of onnx and ONNX Runtime to a ModelError whose message begins
    with *what*."""
    try:
        yield
    except (VkqError, OSError):
        raise
    except Exception as error:  # the errors of onnx and ONNX Runtime have no common base class
        raise ModelError(f"{what}: {str(error)[:500]}") from error


def prepared(model: str | os.PathLike[str], folder: str, least: int, what: str, remedy: str) -> str:
    """Prepare a model for quantization and return its path in *folder*. The result has opset *least* or
    newer, a name for every node, folded constants, and BatchNormalization fused into convolutions.

    Raises ModelError if onnx cannot convert the model to opset *least*. The message says that *what* needs
    this opset, and gives *remedy*.
    """
    from onnxruntime.quantization.shape_inference import quant_pre_process

    _check_weights(read(model))  # `read` raises a clear error for a file that is no model
    onnx = package()
    first, second = (os.path.join(folder, name) for name in ("whole.onnx", "prepared.onnx"))
    proto = onnx.load(os.fspath(model))
    if any(o.domain in ("", "ai.onnx") and o.version < least for o in proto.opset_import):
        try:
            proto = importlib.import_module("onnx.version_converter").convert_version(proto, least)
        except Exception as error:  # the errors of onnx's converter have no common base class
            raise ModelError(
                f"{what} need opset {least}, to which onnx cannot convert the model ({str(error)[:300]});"
                f" export it with that opset, or {remedy}"
            ) from error
    # Name each node now, after its first result: optimizers keep names of nodes, but may remove results.
    for node in proto.graph.node:
        node.name = node.name or next(iter(node.output), "")
    large = proto.ByteSize() > EXTERNAL
    onnx.save(proto, first, save_as_external_data=large)
    half = any(tensor.data_type == FLOAT16 for tensor in proto.graph.initializer)
    quant_pre_process(  # skip the optimizer for float16 models, because it would compute float16 in float32
        first, second, skip_symbolic_shape=True, skip_optimization=half, save_as_external_data=large
    )
    return second


def _check_weights(model: Model) -> None:
    """Raise ModelError if a weight has elements that are not finite. No scale represents them, and the
    quantized model would be refused."""
    for node in model.nodes:
        for name in node.inputs[1:] if node.op in WEIGHTED else ():
            array = model.constants.get(name)
            if array is not None and array.dtype.kind == "f" and not np.isfinite(array).all():
                at = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
                raise ModelError(f"{node}: its weight {name!r} is {array[at]} at {at}; correct or retrain it")


def stored_bytes(path: str | os.PathLike[str]) -> int:
    """Return a model's size on disk in bytes: the size of its file and of each file of external data."""
    model = package().load(os.fspath(path), load_external_data=False)
    entries = (entry for tensor in model.graph.initializer for entry in tensor.external_data)
    beside = {Path(path).parent / entry.value for entry in entries if entry.key == "location"}
    return sum(os.stat(file).st_size for file in (path, *beside))
