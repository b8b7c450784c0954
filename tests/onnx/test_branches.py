"""Tests of branches and loops whose conditions are constants or depend on shapes: vkq inlines the
branches, unrolls the loops and runs the model entirely on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import vkq
import vkq.onnx
from vkq.onnx import branches
from vkq.onnx.fallback import FallbackWarning
from vkq.onnx.prepared import Executable

from .networks import onnxruntime_results
from .test_stages import BOOL, FLOAT, INT, X, branch, info, node


def model(nodes: Any, constants: dict[str, Any], sizes: Any = X.shape, outputs: str = "y") -> bytes:
    """Return a model with the input x of shape *sizes*, and with results of unspecified shapes."""
    given = [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    results = [info(name, FLOAT, None) for name in outputs.split()]
    graph = helper.make_graph(nodes, "g", [info("x", FLOAT, sizes)], results, given)
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    ).SerializeToString()
    return made


def compared(device: vkq.Device, data: bytes, *arrays: np.ndarray) -> list[str]:
    """Check that results are close to ONNX Runtime's, and that all nodes ran on the device; return the
    operators that ran."""
    session = vkq.onnx.InferenceSession(data, device)
    for x in arrays:
        for got, want in zip(session.run(None, {"x": x}), onnxruntime_results(data, {"x": x}), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    made = session._executables.of({"x": arrays[-1]})
    assert isinstance(made, Executable)
    return [name for one in made.graph.nodes for name in one.attributes.get("ops", (one.op,))]


@pytest.mark.parametrize("flag", [False, True])
def test_a_constant_decides(device: vkq.Device, flag: bool) -> None:
    """An If with a constant condition is inlined: the taken branch reads an outer value, and the other
    branch's operators do not run."""
    nodes = [
        node("Relu", "x", "r"),
        node("If", "c", "b", then_branch=branch("Sinh", "t"), else_branch=branch("Cosh", "e")),
        node("Add", "b r"),
    ]
    ran = compared(device, model(nodes, {"c": np.array([flag])}), X)
    assert ran == ["Relu", "Sinh" if flag else "Cosh", "Add"]


def test_a_shape_decides(device: vkq.Device) -> None:
    """An If whose condition depends on a shape is inlined. The model is PyTorch's squeeze(1), which
    removes an axis of size 1. A branch may give a result two names, return an outer value or an
    initializer, and contain another If."""
    squeezed = helper.make_graph(
        [node("Squeeze", "r axis", "s"), node("Identity", "r", "q")], "then", [],
        [info("s", FLOAT, None), info("q", FLOAT, None)],
        [numpy_helper.from_array(np.array([1]), "axis")],
    )  # fmt: skip
    choice = {"then_branch": branch("Neg", "m", None), "else_branch": branch("Abs", "p", None)}
    inner = [node("If", "long", "b", **choice)]
    inner.append(node("Identity", "b", "again"))
    kept = helper.make_graph(inner, "else", [], [info("b", FLOAT, None), info("again", FLOAT, None)])
    nodes = [
        node("Relu", "x", "r"), node("Shape", "x", "shape"), node("Gather", "shape one", "size"),
        node("Equal", "size one", "alone"), node("Less", "three size", "long"),
        node("If", "alone", "y z", then_branch=squeezed, else_branch=kept),
    ]  # fmt: skip
    data = model(nodes, {"one": 1, "three": 3}, ["n", "c", "l"], "y z")
    ran = compared(device, data, X, np.repeat(X, 2, 1))
    assert [op for op in ran if op != "Identity"] == ["Relu", "Neg"]  # y and z share one Neg
    assert "Neg" not in compared(device, data, X[:, :1])


@pytest.mark.parametrize("condition", ["none", "given", "constant"])
def test_rounds(device: vkq.Device, condition: str) -> None:
    """A Loop is unrolled. Its body has a value that grows, a sum as a result of every iteration, an If on
    the iteration's number, and an outer value."""
    add = helper.make_graph([node("Add", "a0 r", "t")], "then", [], [info("t", FLOAT)])
    keep = helper.make_graph([node("Mul", "a0 r", "e")], "else", [], [info("e", FLOAT)])
    on = [node("Identity", "k0", "k")]
    if condition == "constant":
        on = [node("Constant", "", "k", value=numpy_helper.from_array(np.array(True)))]
    body = helper.make_graph(
        [
            *on, node("Equal", "i two", "last"), node("If", "last", "b", then_branch=add, else_branch=keep),
            node("Concat", "g0 b", "g", axis=2), node("ReduceSum", "b", "s", keepdims=0),
        ],
        "body", [info("i", INT), info("k0", BOOL), info("a0", FLOAT, X.shape), info("g0", FLOAT, None)],
        [info("k", BOOL), info("b", FLOAT, X.shape), info("g", FLOAT, None), info("s", FLOAT)],
        [numpy_helper.from_array(np.array(2), "two")],
    )  # fmt: skip
    given = "on" if condition == "given" else ""
    nodes = [
        node("Relu", "x", "r"),
        helper.make_node("Loop", ["count", given, "r", "x"], ["a", "y", "z"], body=body),
    ]
    data = model(nodes, {"count": np.array(3), "on": np.array(True)}, X.shape, "y z a")
    ran = compared(device, data, X)
    assert (ran.count("Mul"), ran.count("Add")) == (2, 1)
    assert "foreign" not in ran


@pytest.mark.parametrize("form", ["stops", "none", "many", "large"])
def test_what_numbers_decide_is_the_fallbacks(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The fallback runs loops that depend on run-time values: a loop that may stop early, a loop without
    iterations, and a loop with too many iterations."""
    on = node("Less", "i zero64", "k") if form == "stops" else node("Identity", "k0", "k")
    given = [info("i", INT), info("k0", BOOL), info("a0", FLOAT, X.shape)]
    made = [info("k", BOOL), info("a", FLOAT, X.shape)]
    body = helper.make_graph([on, node("Neg", "a0", "a")], "body", given, made)
    nodes = [helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)]
    count = {"none": 0, "large": 1 << 40}.get(form, 3)
    if form == "many":
        monkeypatch.setattr(branches, "MOST_NODES", 2)
    if form == "large":  # too many iterations for both libraries
        data = model(nodes, {"count": np.array(count)})
        with pytest.raises(vkq.onnx.ModelError, match="Loop"):
            vkq.onnx.InferenceSession(data, any_device)
        return
    data = model(nodes, {"zero64": np.array(0), "count": np.array(count)})
    with pytest.warns(FallbackWarning):
        (got,) = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime").run(None, {"x": X})
    np.testing.assert_array_equal(got, onnxruntime_results(data, {"x": X})[0])


def test_a_broken_branch_is_told(any_device: vkq.Device) -> None:
    """The error for an unknown operator in a branch names the operator, not the If."""
    nodes = [
        node("Relu", "x", "r"),
        node("If", "c", "y", then_branch=branch("Det", "t"), else_branch=branch("Abs", "e")),
    ]
    with pytest.raises(vkq.onnx.ModelError, match="Det"):
        vkq.onnx.InferenceSession(model(nodes, {"c": np.array(True)}), any_device)
