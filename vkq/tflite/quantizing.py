"""Quantizes float .tflite models to int8 with Google's package ai-edge-quantizer."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ArgumentError, ModelError
from ..files import output as written
from ..graph.graph import Array
from ..numerics.calibration import usable_samples
from .file import File
from .lowering import names_of
from .reader import parsed

ENDS = ("INPUT", "OUTPUT")
AT_ONCE = 32  # maximum number of samples that are read at a time


def package() -> tuple[ModuleType, ModuleType]:
    """Return the modules `quantizer` and `recipe` of ai-edge-quantizer. Raises ModelError if it is not
    installed."""
    try:
        from ai_edge_quantizer import quantizer, recipe
    except ImportError as error:
        raise ModelError(
            "quantizing a .tflite file needs the package ai-edge-quantizer: pip install ai-edge-quantizer"
            f" ({error})"
        ) from error
    return quantizer, recipe


def quantize(
    model: str | os.PathLike[str], output: str | os.PathLike[str],
    samples: Iterable[Mapping[str, Array]] | None = None, weights_only: bool = False, bits: int = 8,
) -> None:  # fmt: skip
    """Quantize a float .tflite file with ai-edge-quantizer, and write the result to *output*.

    Inputs and outputs stay float. Weights are int8 with one scale for each channel. Activations are int8;
    *samples* determine their ranges, and each sample maps the inputs' tensor names to arrays. weights_only:
    activations stay float, weights have 8 or 4 *bits*, and no samples are needed.

    Raises ModelError if the package is missing or refuses the model. Also raises ModelError if samples are
    needed and the file does not have exactly one signature.
    """
    file = parsed(model)
    if any(tensor.scales.size and tensor.dtype in ("int8", "uint8", "int16") for tensor in file.tensors):
        raise ArgumentError(f"{os.fspath(model)} is quantized already; give the float model")
    if not weights_only and samples is None:
        raise ArgumentError("activations need samples to find their ranges; give some, or weights_only")
    if bits not in (8, 4) or (bits == 4 and not weights_only):
        raise ArgumentError(f"bits is {bits}; it must be 8, or 4 with weights_only")
    quantizer, recipe = package()
    make = getattr(recipe, f"weight_only_wi{bits}_afp32" if weights_only else "static_wi8_ai8")
    # Suppress the sizes that the package prints, and its warnings about its own debugging mode.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore", UserWarning)
        try:
            tool = quantizer.Quantizer(bytes(file.data), make())
            for end in ENDS if not weights_only else ():
                tool.update_quantization_recipe(".*", end, algorithm_key="no_quantize")
            ranges = None
            for some in () if weights_only else _given(file, samples or ()):
                ranges = tool.calibrate(some, ranges)
            made = tool.quantize(ranges).quantized_model
        except (ValueError, RuntimeError, KeyError, NotImplementedError) as error:
            raise ModelError(f"ai-edge-quantizer refuses the model: {str(error)[:500]}") from error
    with written(Path(output)) as path:
        path.write_bytes(made)


def _given(file: File, samples: Iterable[Mapping[str, Array]]) -> Iterator[dict[str, Any]]:
    """Yield lists of at most AT_ONCE samples, by signature key, as the quantizer requires. Each sample maps
    the names of the signature's inputs to arrays."""
    if len(file.signatures) != 1:
        raise ModelError(
            f"the model has {len(file.signatures)} signatures; it must have exactly one, because"
            " ai-edge-quantizer identifies inputs by their names in a signature"
        )
    ((key, (inputs, _)),) = file.signatures.items()
    names, left = names_of(file), usable_samples(samples)
    while some := list(itertools.islice(left, AT_ONCE)):
        yield {key: [{text: sample[names[n]] for text, n in inputs.items()} for sample in some]}
