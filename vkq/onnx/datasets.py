"""``vkq.onnx.datasets``: the example models of ``onnxruntime.datasets``, so that ONNX Runtime's examples run
unchanged."""

from __future__ import annotations

from ..errors import ArgumentError


def get_example(name: str) -> str:
    """Return the path of an example model of the package onnxruntime, such as "sigmoid.onnx". Raises
    ArgumentError if the package is missing, FileNotFoundError if the package has no such file."""
    try:
        from onnxruntime import datasets
    except ImportError as error:
        raise ArgumentError(
            f"get_example({name!r}) needs the package onnxruntime, which contains the examples:"
            " pip install onnxruntime"
        ) from error
    return str(datasets.get_example(name))
