"""Make layers from PyTorch's modules, and convert results to PyTorch tensors. PyTorch is used only if the
caller has imported it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError
from ..numerics.calibration import quantize_weight

OUTPUTS = ("numpy", "torch")


def is_torch(value: Any, *names: str) -> bool:
    """Return True if a value is an instance of a PyTorch class with one of these names."""
    return any(c.__module__.split(".")[0] == "torch" and c.__name__ in names for c in type(value).__mro__)


def plain_array(value: Any) -> Any:
    """Return a PyTorch tensor as an array, which shares the tensor's memory if possible, and other values
    unchanged."""
    return value.detach().cpu().numpy() if is_torch(value, "Tensor") else value


def tensor_of(array: npt.NDArray[Any]) -> Any:
    """Return an array as a PyTorch tensor that shares the array's memory."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(array))


def operands(module: Any, kind: str, x_qparams: Any, quantized: bool | None) -> dict[str, Any]:
    """Return copies of a module's weight, scales and bias, as the arguments of a layer.

    quantized: True: convert the weight to int8 with a scale for each output channel. None: do so if x is
    quantized. Raises ArgumentError for a module of another class.
    """
    if not is_torch(module, kind):
        raise ArgumentError(f"from_torch: the module is a {type(module).__name__}, not a torch.nn.{kind}")
    weight = _floats(module.weight)
    bias = None if module.bias is None else _floats(module.bias).astype(np.float32)
    if quantized is None:
        quantized = x_qparams is not None
    if not quantized:
        if x_qparams is not None:
            raise ArgumentError("from_torch: with x_qparams the weight is quantized; leave quantized out")
        return {"weight": weight, "bias": bias}
    stored, scale = quantize_weight(weight)
    return {"weight": stored, "w_scale": scale, "bias": bias, "x_qparams": x_qparams}


def _floats(parameter: Any) -> npt.NDArray[Any]:
    """Return a parameter as an array: float16 unchanged, other float types as float32 (NumPy has no
    bfloat16)."""
    value = parameter.detach().cpu()
    return np.array((value if str(value.dtype) == "torch.float16" else value.float()).numpy())
