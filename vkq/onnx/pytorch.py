"""PyTorch's programs as models, and its tensors as inputs and results. PyTorch is never imported before it is
there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import ArgumentError, ModelError


def _is(value: Any, *names: str) -> bool:
    """Whether a value is of a class of PyTorch with one of these names."""
    return any(c.__module__.split(".")[0] == "torch" and c.__name__ in names for c in type(value).__mro__)


def model_of(model: Any) -> Any:
    """An ONNX model of a `torch.onnx.ONNXProgram` or a `torch.export.ExportedProgram`; others as they are."""
    if _is(model, "ExportedProgram"):
        import torch

        try:
            model = torch.onnx.export(model, dynamo=True, verbose=False)
        except Exception as error:  # its own, of several kinds; a missing onnxscript
            raise ModelError(
                f"PyTorch cannot make an ONNX model of this program: {str(error)[:300]}; `pip install"
                " onnxscript`, or give what torch.onnx.export(..., dynamo=True) returns"
            ) from error
    if _is(model, "ONNXProgram"):
        return model.model_proto
    if _is(model, "Module"):
        raise ModelError(
            f"the model is a torch {type(model).__name__}; give"
            " torch.export.export(module.eval(), (example,))"
        )
    return model


def plain_array(value: Any) -> Any:
    """A tensor of PyTorch as an array that shares its memory where it can; others as they are."""
    return value.detach().cpu().numpy() if _is(value, "Tensor") else value


def as_torch(session: Any) -> Callable[..., Any]:
    """An `InferenceSession` as a function of torch tensors: inputs in order or by name, the result as a
    tensor (a tuple, where the model has several) on the CPU.

    >>> net = vkq.onnx.as_torch(session)  # doctest: +SKIP
    >>> net(torch.zeros(1, 3, 224, 224)).shape  # doctest: +SKIP
    torch.Size([1, 1000])
    """
    names = [argument.name for argument in session.get_inputs()]

    @functools.wraps(session.run)
    def call(*inputs: Any, **named: Any) -> Any:
        import torch

        if len(inputs) > len(names):
            raise ArgumentError(f"{len(inputs)} inputs are given; the model takes {names}")
        results = session.run(None, {**dict(zip(names, inputs, strict=False)), **named})
        tensors = tuple(torch.from_numpy(np.ascontiguousarray(result)) for result in results)
        return tensors[0] if len(tensors) == 1 else tensors

    return call
