"""Tests with some of the random faults; `python -m tests.runtime.faults` injects more."""

import pytest

import vkq
from tests.runtime import faults, matrix_units, operators, seldom
from vkq.graph.device.rows import ROWS
from vkq.graph.passes import lower
from vkq.onnx.reader import read

NO_OPERATORS = {
    "clamp", "default_device", "devices", "empty_pinned", "explain", "integer", "leaky_relu", "load",
    "quantize_weight", "table_of",
}  # fmt: skip
# Operators of vkq's graph that these models do not contain after all passes. Passes replace them by lookup2,
# dequantize, chains, and (for rows of up to 8 million elements) the row kernel. Attention is fused only for
# at least 16 MiB of scores.
OTHER_ROWS = {"sub", "DequantizeLinear", "Where", "GlobalAveragePool", "ReduceSum", "CumProd", "attention"}


def test_every_operator_and_method_is_there() -> None:
    public = {name for name in vkq.__all__ if name[0].islower()} - NO_OPERATORS
    wing = {f"integer.{name}" for name in vkq.integer.__all__} - {"integer.explain", "integer.Best"}
    assert public | wing <= {name.split()[0] for name in operators.OPERATORS}
    on_matrix_units = {name.split()[1] for name in matrix_units.OPERATORS if name.startswith("conv2d ")}
    assert on_matrix_units >= set(operators.MATRIX_UNITS)


def test_every_row_of_the_graph_is_there(any_device: vkq.Device) -> None:
    found = set(OTHER_ROWS)
    for model, shape in faults.models().values():
        found |= {node.op for node in lower(read(model).at({"x": shape})).nodes}
    for kv_cache in (None, "int8"):
        data, feed = faults.caches(kv_cache)
        session = vkq.onnx.InferenceSession(data, any_device, kv_cache=kv_cache)
        found |= {node.op for node in session.lowered({name: x.shape for name, x in feed.items()}).nodes}
    assert ROWS.keys() <= found


def test_calls_fail_or_are_exact_and_the_device_works_after(any_device: vkq.Device) -> None:
    told = faults.run(any_device.name, operators.OPERATORS, 40, seed=5)
    assert told["OutOfMemoryError"] > 15


def test_models_too(any_device: vkq.Device) -> None:
    units = {"network of seldom operators": faults.network(seldom.model(), seldom.SHAPE)}
    assert faults.run(any_device.name, units, 20, seed=1)["OutOfMemoryError"] > 3


def test_matrix_units_too(strict_device: vkq.Device) -> None:
    told = faults.run(strict_device.name, matrix_units.OPERATORS, 12, 3, matrix_units.fitted)
    assert told["OutOfMemoryError"] > 3


def test_a_wrong_number_would_be_seen(any_device: vkq.Device) -> None:
    """The fault test fails if an operator's result differs after a fault."""
    calls = iter(range(100))
    units = {"integer counts": (lambda device: lambda x: next(calls), None)}
    with pytest.raises(AssertionError):
        faults.run(any_device.name, units, 3, seed=0)
