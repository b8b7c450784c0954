"""Sessions of ONNX Runtime on the CPU. They are the reference for comparisons, and the fallback for nodes
that a device cannot run."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ModelError
from ..graph.graph import Array

# Session options that make ONNX Runtime's integer arithmetic exact. The first option enables integer
# arithmetic for int8 activations on x86-64. The second keeps sums of products of uint8 and int8 from
# saturating to 16 bits on processors without VNNI. ONNX Runtime refuses the second option for int8
# activations, whose sums do not saturate anyway.
EXACT = ("session.qdqisint8allowed", "session.x64quantprecision")
# This optimizer quantizes the float weights of layers with quantized activations (8 bits, one scale per
# tensor), and so changes the model's results.
CHANGES_NUMBERS = ["WeightBiasQuantization"]


def cpu_session(
    model: str | os.PathLike[str] | bytes,
    needed: str,
    plain: bool = False,
    threads: int = 0,
    arena: bool = True,
) -> Any:
    """Return a session of ONNX Runtime that computes with int8 activations in integers on every machine. (By
    default, ONNX Runtime converts int8 activations to floats on x86-64.) Optimizers that change the model's
    results are off.

    plain: True to turn off all optimizers. threads: the number of threads for a node; 0 lets ONNX Runtime
    choose. arena: True if the session keeps its memory between runs.

    Raises ModelError if ONNX Runtime refuses the model, or if the package is missing. The error text for a
    missing package begins with *needed*.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError(f"{needed} needs the package onnxruntime: pip install onnxruntime") from error
    source = model if isinstance(model, bytes) else os.fspath(model)
    for entries in (EXACT, EXACT[:1]):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # do not log: a refusal is raised as an error, or the next options are tried
        options.log_severity_level = 4
        options.enable_cpu_mem_arena = options.enable_mem_pattern = arena
        if plain:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        for entry in entries:
            options.add_session_config_entry(entry, "1")
        try:
            return onnxruntime.InferenceSession(
                source, options, providers=["CPUExecutionProvider"], disabled_optimizers=CHANGES_NUMBERS
            )
        except Exception as error:  # ONNX Runtime's errors have no common base class
            refused = error
    raise ModelError(f"ONNX Runtime refuses the model: {str(refused)[:500]}") from refused


def unequal(got: Array, want: Array) -> npt.NDArray[np.bool_]:
    """Return a Boolean array that is True where *got* and *want* differ. NaN equals NaN."""
    return np.asarray((got != want) & ((got == got) | (want == want)))
