"""Makes an int8 session from a PyTorch module and typical inputs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..arguments import shown
from ..errors import ArgumentError, DTypeError, ModelError
from ..graph.graph import Array
from ..onnx.pytorch import model_of, plain_array
from ..onnx.session import InferenceSession
from ..ops.torch_modules import is_torch
from ..runtime.device import Device
from .search import QuantizedReport, quantize


def quantize_torch(
    module: Any,
    samples: Sequence[Any],
    target: str | os.PathLike[str] | None = None,
    *,
    dynamic_shapes: Any = None,
    device: Device | int | str | None = None,
    **options: Any,
) -> tuple[InferenceSession, QuantizedReport]:
    """Export a float torch.nn.Module (or torch.export.ExportedProgram), quantize it to int8, and open it.
    Return the session, and the report on its accuracy.

    - samples: typical inputs, one for each call of the module: a tensor, or a tuple of tensors in the order
      of the module's arguments. The module is exported with the first sample, which fixes the sizes of all
      axes that *dynamic_shapes* does not name.
    - target: the path of the int8 .onnx file (None: no file is kept)
    - options: those of `quantize`, such as ``seconds=``, ``target_db=``, ``exclude=``

    The module is exported in ``eval()`` mode; it is not changed.

    >>> session, report = quantize_torch(net, batches)  # doctest: +SKIP
    >>> vkq.onnx.as_torch(session)(batches[0])  # doctest: +SKIP

    Raises ModelError if PyTorch cannot export the module or the device cannot run it.
    """
    if isinstance(samples, Mapping) or not isinstance(samples, Sequence) or not samples:
        raise ArgumentError(f"samples are {shown(samples)}; they must be a list with at least one sample")
    given = [_arguments(sample) for sample in samples]
    program = _program(module, given[0], dynamic_shapes)
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "float.onnx"), Path(target or Path(folder, "int8.onnx"))
        proto = model_of(program)
        _save(proto, source)
        held = {tensor.name for tensor in proto.graph.initializer}
        names = [value.name for value in proto.graph.input if value.name not in held]
        report = quantize(source, made, [_named(names, one) for one in given], **options)
        return InferenceSession(made, device), report


def _arguments(sample: Any) -> tuple[Any, ...]:
    found = tuple(sample) if isinstance(sample, (tuple, list)) else (sample,)
    if wrong := [value for value in found if not is_torch(value, "Tensor")]:
        raise DTypeError(f"a sample has {shown(wrong[0])}; it must be a torch tensor, or a tuple of them")
    return found


def _program(module: Any, example: tuple[Any, ...], dynamic_shapes: Any) -> Any:
    if is_torch(module, "ExportedProgram"):
        return module
    if not is_torch(module, "Module"):
        raise DTypeError(
            f"the module is {shown(module)}; it must be a torch.nn.Module or a torch.export.ExportedProgram"
        )
    import torch

    with _as_in_use(module):
        try:
            return torch.export.export(module, example, dynamic_shapes=dynamic_shapes)
        except Exception as error:  # torch's errors have no common base class
            raise ModelError(
                f"torch.export.export cannot export this {type(module).__name__}: {str(error)[:300]}"
            ) from error


@contextlib.contextmanager
def _as_in_use(module: Any) -> Iterator[None]:
    """Context manager: put the module into ``eval()`` mode. At the end, restore the mode of each
    submodule."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _save(proto: Any, path: Path) -> None:
    import onnx

    large = proto.ByteSize() > 1 << 30
    onnx.save(proto, os.fspath(path), save_as_external_data=large)


def _named(names: list[str], arguments: tuple[Any, ...]) -> dict[str, Array]:
    if len(arguments) != len(names):
        raise ArgumentError(f"a sample has {len(arguments)} tensors; the program takes {names}")
    return {name: plain_array(value) for name, value in zip(names, arguments, strict=True)}
