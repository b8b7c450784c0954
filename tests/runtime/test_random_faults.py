"""A slice of the random faults, with the same ones every time; `python -m tests.runtime.faults` goes on."""

import pytest

import vkq
from tests.runtime import faults, operators
from vkq.kernels import methods

NO_OPERATORS = {
    "clamp", "default_device", "devices", "empty_pinned", "explain", "integer", "leaky_relu",
    "quantize_weight", "table_of",
}  # fmt: skip
MATRIX_UNITS = {"matrix", "stem"}


def test_every_operator_and_method_is_there() -> None:
    public = {name for name in vkq.__all__ if name[0].islower()} - NO_OPERATORS
    wing = {f"integer.{name}" for name in vkq.integer.__all__} - {"integer.explain", "integer.Best"}
    assert public | wing <= {name.split()[0] for name in operators.OPERATORS}
    assert {method.name for method in methods.METHODS} - MATRIX_UNITS == set(operators.METHODS)


def test_calls_fail_or_are_exact_and_the_device_works_after(any_device: vkq.Device) -> None:
    told = faults.run(any_device.name, operators.OPERATORS, 40, seed=5)
    assert told["OutOfMemoryError"] > 15


def test_models_too(any_device: vkq.Device) -> None:
    assert faults.run(any_device.name, faults.seldom_network(), 10, seed=1)["OutOfMemoryError"] > 1


def test_a_wrong_number_would_be_seen(any_device: vkq.Device) -> None:
    """An operator whose result after a fault is another."""
    calls = iter(range(100))
    units = {"integer counts": (lambda device: lambda x: next(calls), None)}
    with pytest.raises(AssertionError):
        faults.run(any_device.name, units, 3, seed=0)
