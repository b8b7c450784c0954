"""Several linear layers of the same x as one product. Its result contains the results of all layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..kernels.after import TABLE, TABLES, in_parts
from ..layout.extent import BLOCKED, Spec
from ..numerics.qparams import QParams
from ..runtime.builder import Builder, Value
from .linear import Linear


class JoinedLinears:
    """Linear layers of the same 8-bit x, with 8-bit results, as one product. The columns of its result are
    those of the layers' results, layer after layer. In kPackedInt8_16C, a block of columns is contiguous,
    and so is each layer's result."""

    def __init__(self, layers: Sequence[Linear]):
        self.layers = tuple(layers)
        operands = [layer._scheme.operands for layer in layers]
        results = [_result(layer) for layer in layers]
        zeros = [np.zeros(one.weight.shape[0], np.int32) for one in operands]
        biases = [none if one.bias is None else one.bias for one, none in zip(operands, zeros, strict=True)]
        self.whole = Linear(
            np.concatenate([one.weight for one in operands]),
            np.concatenate([np.broadcast_to(one.w_scale, one.weight.shape[:1]) for one in operands]),
            x_qparams=operands[0].x,
            # the largest scale, so that no multiplier overflows
            y_qparams=max(results, key=lambda y: y.scale),
            bias=np.concatenate(biases),
            w_zero_point=np.concatenate(
                [none + one.w_zero_point for one, none in zip(operands, zeros, strict=True)]
            ),
            path=layers[0].path,
            overflow="wrap",
            device=layers[0].device,
        )
        afters = [layer._scheme.after for layer in layers]
        counts = [layer.weight_shape[0] for layer in layers]
        self.whole.finish(in_parts(list(zip(counts, results, afters, strict=True))))

    @staticmethod
    def refusal(layers: Sequence[Linear], x: Spec) -> str:
        """Return the reason why these layers cannot or should not be one product for inputs of spec *x*, or
        "". The layers must have equal x_qparams, results of the same dtype, and no activation."""
        if len(x.shape) == 4 or any(layer.input_layout(x.shape) != BLOCKED for layer in layers):
            return "results in kPackedInt8_4H4W are not parts of one array"
        if any(layer.weight_shape[0] % 16 for layer in layers):
            return "results are not whole blocks of 16 columns"
        kinds = {layer._scheme.after.kind for layer in layers}
        if TABLE in kinds and TABLES not in kinds:
            return "a table for each column takes longer than one table"
        alike = len({layer._scheme.operands.weight.dtype for layer in layers}) == 1
        return "" if alike else "weights are of different types"

    @property
    def problems(self) -> list[str]:
        """The problems of the product for all input shapes so far, in the form that `vkq tune` accepts."""
        return self.whole.problems

    def build(self, b: Builder, x: Value) -> list[Value] | None:
        """Add the product to a plan, and return the results of the layers. Return None if the device cannot
        bind memory at the offsets of the results."""
        shapes = [layer._problem_of(x.spec.shape)[0].y_shape for layer in self.layers]
        parts = [
            b.new(layer._scheme.result(shape, BLOCKED))
            for layer, shape in zip(self.layers, shapes, strict=True)
        ]
        columns = sum(shape[-1] for shape in shapes)
        whole = b.joined(parts, self.whole._scheme.result((*shapes[0][:-1], columns), BLOCKED))
        if whole is not None:
            self.whole.build(b, x, whole)
        return None if whole is None else parts


def _result(layer: Linear) -> QParams:
    """Return the parameters of a layer's result before its epilogue."""
    assert layer.y_qparams is not None
    return layer.y_qparams
