"""Tests of the functional forms of layers (vkq.linear, ...): they have the layer's parameters, name
themselves in errors, and give the layer's bits."""

import doctest
import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkq
from vkq.runtime.tensor import Tensor

FORMS: dict[Callable[..., Any], type] = {
    vkq.linear: vkq.Linear,
    vkq.conv2d: vkq.Conv2d,
    vkq.conv_transpose2d: vkq.ConvTranspose2d,
}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_the_signature_is_the_layers(form: Callable[..., Any]) -> None:
    own, said = inspect.signature(FORMS[form]).parameters, inspect.signature(form).parameters
    assert list(said) == ["x", *own, "out"]
    assert all(said[name] == parameter for name, parameter in own.items())
    assert (said["x"].annotation, said["out"].annotation) == ("npt.ArrayLike | Tensor", "Tensor | None")
    hints = typing.get_type_hints(form)
    assert hints["out"] == Tensor | None
    assert hints["y_qparams"] == vkq.QParams | None
    assert hints.keys() == said.keys()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_it_is_a_function_of_its_module(form: Callable[..., Any]) -> None:
    """A functional form is a function of its module, and has a docstring of its own with examples that
    doctest finds."""
    module = sys.modules[form.__module__]
    assert getattr(module, form.__name__) is form
    assert inspect.isfunction(form)
    assert form.__doc__
    assert " once; " in form.__doc__
    found = {test.name.rpartition(".")[2] for test in doctest.DocTestFinder().find(module)}
    assert {form.__name__, FORMS[form].__name__} <= found


def test_it_gives_what_the_layer_gives(any_device: vkq.Device) -> None:
    q = vkq.QParams(0.5, 3)
    x, w = np.arange(-6, 6, dtype=np.int8).reshape(3, 4), np.arange(-10, 10, dtype=np.int8).reshape(5, 4)
    options: dict[str, Any] = {"x_qparams": q, "y_qparams": q, "activation": "relu"}
    want = vkq.Linear(w, 0.25, device=any_device, **options)(x)
    np.testing.assert_array_equal(vkq.linear(x, w, 0.25, device=any_device, **options), want)
    np.testing.assert_array_equal(vkq.linear(x=x, weight=w, w_scale=0.25, device=any_device, **options), want)
    on_device = Tensor.from_numpy(x, any_device)
    y = vkq.linear(on_device, w, 0.25, **options)  # runs on the device of x
    assert y.device is any_device
    assert vkq.linear(on_device, w, 0.25, out=y, **options) is y
    np.testing.assert_array_equal(y.numpy(), want)


def test_refusals_name_it() -> None:
    x, w = np.zeros((1, 4), np.int8), np.zeros((3, 4), np.int8)
    with pytest.raises(vkq.DTypeError, match=r"conv2d: groups is 'two' \(str\); it must be an integer"):
        vkq.conv2d(x, w, 1.0, groups="two")  # type: ignore[call-overload]
    with pytest.raises(vkq.DTypeError, match="linear: w_scale is 'a'"):
        vkq.linear(x, w, "a")
    with pytest.raises(TypeError, match="unexpected keyword argument 'stride'"):
        vkq.linear(x, w, 1.0, stride=2)  # type: ignore[call-overload]
    with pytest.raises(vkq.ArgumentError, match="linear: w_scale is None; an int8 weight needs one"):
        vkq.linear(x, w)
