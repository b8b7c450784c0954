"""Tests of copies, Reshapes of flags, and Expands: which nodes are removed or moved, and that this does not
change the results."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import vkq
from tests.graph.test_chains import chains, compared, model, normal, op

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
ALL, NONE, SOME = np.ones((1, 3, 1), bool), np.zeros((), bool), np.array([[True], [True], [False]])
ORDERED = np.arange(12).reshape(2, 6)


def shape(*sizes: int) -> np.ndarray:
    return np.array(sizes, np.int64)


# (name, nodes that compute y from float32 x (4, 12) and z (4, 12), constants, operators after the passes)
COPIES: list[tuple[str, list[Any], dict[str, Any], list[str]]] = [
    ("expand", [op("Expand", "x c", "y")], {"c": shape(1, 12)}, ["Identity"]),
    ("gather", [op("Gather", "x c", "y", axis=1)], {"c": ORDERED}, ["Reshape"]),
    ("gather from the end", [op("Gather", "x c", "y", axis=1)], {"c": ORDERED - 12}, ["Reshape"]),
    ("gather in disorder", [op("Gather", "x c", "y", axis=1)], {"c": ORDERED[::-1].copy()}, ["Gather"]),
    ("gather a part", [op("Gather", "x c", "y", axis=1)], {"c": ORDERED[:, 1:3].copy()}, ["Gather"]),
    ("reshape twice", [op("Gather", "x c", "a", axis=1), op("Reshape", "a to", "y")],
     {"c": ORDERED, "to": shape(8, 6)}, ["Reshape"]),
    ("where", [op("Where", "c x z", "y")], {"c": np.ones((4, 1), bool)}, ["Identity"]),
    ("where not", [op("Where", "c x z", "y")], {"c": NONE}, ["Identity"]),
    ("where larger", [op("Where", "c x z", "y")], {"c": np.ones((2, 1, 1), bool)}, ["Expand"]),
    ("where mixed", [op("Where", "c x z", "y")], {"c": np.arange(12) < 5}, ["Where"]),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "constants", "ops"), [c[1:] for c in COPIES], ids=[c[0] for c in COPIES])
def test_copies(any_device: vkq.Device, nodes: list[Any], constants: dict[str, Any], ops: list[str]) -> None:
    inputs = {"x": normal(0, 4, 12), "z": normal(1, 4, 12)}
    data = model(nodes, inputs, {"y": FLOAT}, **constants)
    assert chains(data, inputs) == [(one,) for one in ops]
    compared(any_device, data, inputs)


@pytest.mark.parametrize("names", ["f c", "c f"])
@pytest.mark.parametrize(
    ("kind", "constant", "ops"),
    [
        ("And", ALL, [("Less", "Where"), ("Expand",)]),
        ("Or", NONE, [("Less", "Where")]),
        ("And", SOME, [("Less",), ("And",), ("Where",)]),
        ("Or", ALL, [("Less",), ("Or",), ("Where",)]),
    ],
)
def test_logic_with_constants(
    device: vkq.Device, names: str, kind: str, constant: np.ndarray, ops: list[Any]
) -> None:
    """A logic operator with a constant is removed if its result equals its other operand. If the constant
    only broadcasts that operand, an Expand at the end of the graph replaces the operator."""
    nodes = [op("Less", "x z", "f"), op(kind, names, "g"), op("Where", "g x z", "y")]
    inputs = {"x": normal(2, 2, 1, 5), "z": normal(3, 2, 1, 5)}
    data = model(nodes, inputs, {"y": FLOAT}, c=constant)
    assert chains(data, inputs) == ops
    compared(device, data, inputs)


def test_reshapes_move_before_flags(device: vkq.Device) -> None:
    """A Reshape of flags moves before the comparison or Cast that computes them, unless the flags have a
    second reader."""
    nodes = [
        op("Cast", "x", "f", to=BOOL), op("Not", "f", "g"), op("Equal", "x three", "e"),
        op("Reshape", "g to", "h"), op("Reshape", "e to", "k"), op("And", "h k", "b"),
        op("Cast", "b", "y", to=FLOAT), op("Cast", "e", "z", to=FLOAT),
    ]  # fmt: skip
    inputs = {"x": np.random.default_rng(5).integers(0, 5, (4, 6)).astype(np.int32)}
    data = model(nodes, inputs, {"y": FLOAT, "z": FLOAT}, to=shape(2, 1, 12), three=np.int32([3]))
    found = chains(data, inputs)
    assert sorted(found) == [
        ("Cast",), ("Cast", "Not", "And", "Cast"), ("Equal",), ("Reshape",), ("Reshape",),
    ]  # fmt: skip
    compared(device, data, inputs)


# (name, nodes that compute y from z (5, 4) and e (3, 5, 4), operators after the passes). e is x (3, 1, 4)
# after an Expand.
EXPANDS: list[tuple[str, list[Any], list[Any]]] = [
    ("vanishes", [op("Mul", "e z", "y")], [("Mul",)]),
    ("moves behind", [op("Exp", "e", "y")], [("Exp",), ("Expand",)]),
    ("moves, then vanishes", [op("Exp", "e", "a"), op("Sub", "z a", "y")], [("Exp",), ("Sub",)]),
    ("has two readers", [op("Mul", "e z", "a"), op("Add", "a e", "y")], [("Mul", "Add")]),
    ("is read whole", [op("Mul", "e z", "a"), op("Concat", "a e", "y", axis=0)],
     [("Mul",), ("Expand",), ("Concat",)]),
    ("stays for two readers", [op("Exp", "e", "a"), op("Mul", "e a", "y")], [("Expand",), ("Exp", "Mul")]),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "ops"), [case[1:] for case in EXPANDS], ids=[case[0] for case in EXPANDS])
def test_expands(device: vkq.Device, nodes: list[Any], ops: list[Any]) -> None:
    inputs = {"x": normal(6, 3, 1, 4), "z": normal(7, 5, 4)}
    constants = {"to": shape(3, 5, 4), "ax": shape(1)}
    data = model([op("Expand", "x to", "e"), *nodes], inputs, {"y": FLOAT}, **constants)
    found = chains(data, inputs)
    assert sorted(found) == sorted(ops)
    compared(device, data, inputs)
