"""Accepts PyTorch's programs as models, and PyTorch's tensors as inputs and results. vkq uses PyTorch only if
the caller has imported it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError, ModelError
from ..ops.torch_modules import is_torch, plain_array, tensor_of

__all__ = ["as_torch", "given_as", "model_of", "plain_array"]


def model_of(model: Any) -> Any:
    """Return the ONNX model of a `torch.onnx.ONNXProgram` or `torch.export.ExportedProgram`; return other
    objects unchanged."""
    if is_torch(model, "ExportedProgram"):
        import torch

        try:
            model = torch.onnx.export(model, dynamo=True, verbose=False)
        except Exception as error:  # torch's errors have no common base class; onnxscript may be missing
            raise ModelError(
                f"PyTorch cannot make an ONNX model of this program: {str(error)[:300]}; `pip install"
                " onnxscript`, or give the result of torch.onnx.export(..., dynamo=True)"
            ) from error
    if is_torch(model, "ONNXProgram"):
        return model.model_proto
    if is_torch(model, "Module"):
        raise ModelError(
            f"the model is a torch {type(model).__name__}; give"
            " torch.export.export(module.eval(), (example,))"
        )
    return model


def given_as(outputs: str, call: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    """Return *call*, or, if *outputs* is "torch", a function that also converts its results to torch
    tensors."""
    return (lambda: [tensor_of(result) for result in call()]) if outputs == "torch" else call


def as_torch(session: Any) -> Callable[..., Any]:
    """Return a function that runs an `InferenceSession` on torch tensors. The function takes the inputs in
    order or by name. It returns a tensor on the CPU, or a tuple of tensors if the model has several outputs.

    >>> net = vkq.onnx.as_torch(session)  # doctest: +SKIP
    >>> net(torch.zeros(1, 3, 224, 224)).shape  # doctest: +SKIP
    torch.Size([1, 1000])
    """
    names = [argument.name for argument in session.get_inputs()]

    @functools.wraps(session.run)
    def call(*inputs: Any, **named: Any) -> Any:
        if len(inputs) > len(names):
            raise ArgumentError(f"{len(inputs)} inputs are given; the model takes {names}")
        feed = {**dict(zip(names, inputs, strict=False)), **named}
        tensors = tuple(session.run(None, feed, outputs="torch"))
        return tensors[0] if len(tensors) == 1 else tensors

    return call
