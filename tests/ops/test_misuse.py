"""Tests of invalid values for every argument of every public callable. Within `SECONDS` a call must
return, raise a VkqError, or raise a TypeError that names the argument."""

from __future__ import annotations

import contextlib
import inspect
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import vkq
from tests.runtime.test_transfer import Capsule
from vkq import QParams, Tensor
from vkq.runtime.opened import named_device

Q, Y = QParams(0.5, 3), QParams(2.0, -1)
ROWS = np.arange(-4, 4, dtype=np.int8).reshape(2, 4)
IMAGE = np.arange(-16, 16, dtype=np.int8).reshape(1, 2, 4, 4)
KERNEL = np.ones((2, 2, 3, 3), np.int8)

# Valid arguments of each callable. `given` replaces the class Tensor by ROWS on the device, and Device by
# the device.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "linear": (vkq.linear, {"x": ROWS, "weight": np.ones((3, 4), np.int8), "w_scale": 0.5, "x_qparams": Q}),
    "conv2d": (vkq.conv2d, {"x": IMAGE, "weight": KERNEL, "w_scale": 0.5, "x_qparams": Q, "y_qparams": Y}),
    "conv_transpose2d": (
        vkq.conv_transpose2d, {"x": IMAGE, "weight": KERNEL, "w_scale": 0.5, "x_qparams": Q, "y_qparams": Y}
    ),
    "Linear": (vkq.Linear, {"weight": np.ones((3, 4), np.int8), "w_scale": 0.5, "x_qparams": Q}),
    "Conv2d": (vkq.Conv2d, {"weight": KERNEL, "w_scale": 0.5, "x_qparams": Q}),
    "ConvTranspose2d": (vkq.ConvTranspose2d, {"weight": KERNEL, "w_scale": 0.5, "x_qparams": Q}),
    "add": (vkq.add, {"a": ROWS, "b": ROWS, "y_qparams": Y, "a_qparams": Q, "b_qparams": Q}),
    "sub": (vkq.sub, {"a": ROWS, "b": ROWS, "y_qparams": Y, "a_qparams": Q, "b_qparams": Q}),
    "mul": (vkq.mul, {"a": ROWS, "b": ROWS, "y_qparams": Y, "a_qparams": Q, "b_qparams": Q}),
    "max_pool2d": (vkq.max_pool2d, {"x": IMAGE, "kernel": 2}),
    "avg_pool2d": (vkq.avg_pool2d, {"x": IMAGE, "kernel": 2, "x_qparams": Q}),
    "global_avg_pool2d": (vkq.global_avg_pool2d, {"x": IMAGE, "x_qparams": Q}),
    "quantize": (vkq.quantize, {"x": ROWS.astype(np.float32), "qparams": Q}),
    "dequantize": (vkq.dequantize, {"x": ROWS, "qparams": Q}),
    "requantize": (vkq.requantize, {"x": ROWS, "y_qparams": Y, "x_qparams": Q}),
    "flatten": (vkq.flatten, {"x": Tensor}),
    "reshape": (vkq.reshape, {"x": Tensor, "shape": (4, 2)}),
    "resize": (vkq.resize, {"x": IMAGE, "size": (8, 8)}),
    "concat": (vkq.concat, {"xs": [ROWS, ROWS], "axis": 0}),
    "pad": (vkq.pad, {"x": ROWS, "pads": [(0, 1), (1, 0)], "value": 0}),
    "transpose": (vkq.transpose, {"x": ROWS}),
    "softmax": (vkq.softmax, {"x": ROWS, "x_qparams": Q}),
    "lookup": (vkq.lookup, {"x": ROWS, "table": np.arange(256).astype(np.int8)}),
    "unary": (vkq.unary, {"function": "sigmoid", "x": ROWS, "y_qparams": Y, "x_qparams": Q}),
    "table_of": (vkq.table_of, {"function": "sigmoid", "x_qparams": Q, "y_qparams": Y}),
    "matmul": (vkq.matmul, {"a": ROWS, "b": ROWS.T.copy(), "y_qparams": Y, "a_qparams": Q, "b_qparams": Q}),
    "slice": (vkq.slice, {"x": ROWS, "slices": [slice(0, 1), slice(0, 2)]}),
    "split": (vkq.split, {"x": ROWS, "sizes": [1, 3], "axis": 1}),
    "take": (vkq.take, {"x": ROWS, "places": np.zeros((2, 2), np.int64)}),
    "clamp": (vkq.clamp, {"low": 0.0, "high": 6.0}),
    "leaky_relu": (vkq.leaky_relu, {"alpha": 0.1}),
    "QParams": (QParams, {"scale": 0.5, "zero_point": 0, "dtype": "int8"}),
    "QParams.from_range": (QParams.from_range, {"lo": -1.0, "hi": 1.0}),
    "Tensor": (Tensor, {"device": vkq.Device, "shape": (2, 3), "dtype": "int8"}),
    "Tensor.from_numpy": (Tensor.from_numpy, {"array": ROWS, "device": vkq.Device}),
    "quantize_weight": (vkq.quantize_weight, {"weight": np.ones((2, 3), np.float32)}),
    "quantize_weight in groups": (
        vkq.quantize_weight, {"weight": np.ones((2, 64), np.float32), "bits": 4, "group": 32}
    ),
    "GroupedWeight": (
        vkq.GroupedWeight, {"packed": np.ones((2, 3, 16), np.uint8), "scale": np.ones((2, 3), np.float32)}
    ),
    "lookup_axis": (vkq.lookup_axis, {"x": ROWS, "table": np.ones((4, 256), np.int8), "axis": 1}),
    "lookup_pair": (vkq.lookup_pair, {"a": ROWS, "b": ROWS, "table": np.ones((256, 256), np.int8)}),
    "reduce_mean": (vkq.reduce_mean, {"x": IMAGE, "x_qparams": QParams(0.5)}),
    "empty_pinned": (vkq.empty_pinned, {"shape": (2, 3)}),
    "integer.conv2d": (vkq.integer.conv2d, {"x": IMAGE, "w": KERNEL}),
    "integer.matmul": (vkq.integer.matmul, {"a": ROWS, "b": ROWS.T.copy()}),
    "integer.match_template": (
        vkq.integer.match_template,
        {"image": IMAGE[0, 0].astype(np.uint8), "templates": np.ones((1, 2, 2), np.uint8)},
    ),
}  # fmt: skip
WRONG: dict[str, Any] = {
    "None": None, "text": "x", "bytes": b"x", "an object": object(), "a half": 2.5, "NaN": float("nan"),
    "-1": -1, "2**40": 2**40, "10**5000": 10**5000, "True": True, "a list": [], "a mapping": {},
    "a class": dict, "a function": len, "objects": np.array([object()]), "texts": np.array(["a", "b"]),
    "complex": np.ones((2, 4), np.complex64), "ragged": [[1], [2, 3]], "nested": [[[[[[1]]]]]],
    "a pair": (1, 1), "halves": (1.5, 2.5), "a scalar": np.float64(1.5), "0-d": np.array(3),
    "a complex": 1j, "zero": 0,
    "three": (1, 2, 3), "a generator": (i for i in ()), "a set": {1, 2}, "times": np.array(["2020"], "M8[s]"),
}  # fmt: skip
SECONDS = 10.0


@contextlib.contextmanager
def soon() -> Iterator[None]:
    """Context manager: raise TimeoutError if a call takes longer than `SECONDS`."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(call: Callable[..., Any], arguments: dict[str, Any], name: str) -> str:
    """Return "" if the call returns, raises a VkqError, or raises a TypeError whose message contains
    *name*. Otherwise, and if a message has 4,000 characters or more, return the exception's text."""
    try:
        with warnings.catch_warnings(), soon():
            warnings.simplefilter("ignore")
            call(**arguments)
    except (vkq.VkqError, TypeError) as error:
        text = str(error)
        if isinstance(error, vkq.VkqError) and len(text) < 4000:
            return ""
        return "" if name in text and len(text) < 4000 else f"{type(error).__name__}: {text[:200]}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def given(name: str, device: vkq.Device) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return (callable, valid arguments on a device)."""
    call, arguments = CALLS[name]
    filled = {
        key: Tensor.from_numpy(ROWS, device) if value is Tensor else device if value is vkq.Device else value
        for key, value in arguments.items()
    }
    if "device" in inspect.signature(call).parameters:
        filled.setdefault("device", device)
    return call, filled


def test_every_public_operator_is_here() -> None:
    public = {name for name in vkq.__all__ if callable(getattr(vkq, name)) and name[0].islower()}
    assert public - {"devices", "default_device", "explain", "load"} <= CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_named(name: str, any_device: vkq.Device) -> None:
    call, arguments = given(name, any_device)
    call(**arguments)
    found = []
    for parameter in inspect.signature(call).parameters:
        if parameter == "buffer":
            continue  # a Buffer is an internal object
        for what, value in WRONG.items():
            if (parameter, what) == ("function", "a class"):
                continue  # the callable argument runs, and raises its own error
            said = outcome(call, {**arguments, parameter: value}, parameter)
            if said:
                found.append(f"{parameter} = {what}: {said}")
    assert not found, f"{len(found)} misused calls:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "name", [name for name in CALLS if "device" in inspect.signature(CALLS[name][0]).parameters]
)
def test_a_device_may_be_given_by_index_or_name(name: str, any_device: vkq.Device) -> None:
    """A device may be given by index or name. Index 0 is the first device, not the default device. Equal
    indices or names give the same Device object."""
    call, arguments = given(name, any_device)
    if any(isinstance(value, Tensor) for value in arguments.values()):
        return
    opened = {which: named_device(which) for which in (0, any_device.name)}
    assert opened[0].capabilities.index == 0
    assert opened[any_device.name].name == any_device.name
    for which, device in opened.items():
        made = call(**{**arguments, "device": which})
        again = call(**{**arguments, "device": device})
        if name == "empty_pinned":  # the content of these arrays is undefined
            assert made.shape == again.shape
        elif isinstance(made, (list, np.ndarray)):
            assert all(map(np.array_equal, made, again))
        else:
            assert made.device is again.device is device
    with pytest.raises(vkq.NoDeviceError, match="no device matches 99"):
        call(**{**arguments, "device": 99})


@pytest.mark.parametrize(
    "name", [name for name in CALLS if "device" in inspect.signature(CALLS[name][0]).parameters]
)
def test_a_type_checker_knows_what_a_device_may_be(name: str) -> None:
    said = str(inspect.signature(CALLS[name][0]).parameters["device"].annotation)
    assert said.removesuffix(" | None") == "Device | int | str"


def test_a_tensor_to_write_into_says_where(device: vkq.Device) -> None:
    """A Tensor in out= determines the device, even if all operands are arrays and another device is the
    default."""
    out = Tensor(device, (4, 2), "int8")
    assert vkq.transpose(ROWS, out=out) is out
    np.testing.assert_array_equal(out.numpy(), ROWS.T)
    vkq.concat([ROWS.T[:1], ROWS.T[1:]], 0, out=out)
    np.testing.assert_array_equal(out.numpy(), ROWS.T)
    vkq.unary(lambda x: x, ROWS.T, Q, x_qparams=Q, out=Tensor(device, (4, 2), "int8", None, Q))
    vkq.linear(ROWS, np.ones((3, 4), np.int8), 1.0, x_qparams=Q, out=Tensor(device, (2, 3), "float32"))


@pytest.mark.parametrize("name", [name for name in CALLS if {"x", "a", "image"} & CALLS[name][1].keys()])
def test_operands_behind_dlpack_alone(name: str, any_device: vkq.Device) -> None:
    call, arguments = given(name, any_device)
    held = {
        key: Capsule(value) if key in ("x", "a", "b", "image") and isinstance(value, np.ndarray) else value
        for key, value in arguments.items()
    }
    want, got = call(**arguments), call(**held)
    for one, other in zip(want, got, strict=True) if isinstance(want, (list, tuple)) else [(want, got)]:
        np.testing.assert_array_equal(one, other)


def test_what_once_was_taken_silently(any_device: vkq.Device) -> None:
    with pytest.raises(
        vkq.DTypeError, match=r"Tensor: shape is \(2.5,\) \(tuple\); it must be a sequence of integers"
    ):
        Tensor(any_device, (2.5,), "int8")  # type: ignore[list-item]
    with pytest.raises(vkq.DTypeError, match=r"add: y_qparams is 0 \(int\); it must be a QParams"):
        vkq.add(ROWS, ROWS, 0, a_qparams=Q, b_qparams=Q)  # type: ignore[arg-type]
    with pytest.raises(vkq.DTypeError, match=r"pad: pads is 1 \(int\); it must be a sequence of pairs"):
        vkq.pad(ROWS, 1, 0)  # type: ignore[arg-type]
    with pytest.raises(vkq.DTypeError, match=r"add: activation is 6 \(int\); it must be the name of an act"):
        vkq.add(ROWS, ROWS, Q, a_qparams=Q, b_qparams=Q, activation=6)  # type: ignore[arg-type]
    with pytest.raises(vkq.DTypeError, match=r"conv2d: groups is \(1, 1\) \(tuple\); it must be an integer"):
        vkq.conv2d(IMAGE, KERNEL, 0.5, groups=(1, 1), x_qparams=Q)  # type: ignore[arg-type]
    with pytest.raises(vkq.ArgumentError, match=r"stride is \(40000, 40000\); the product of the two may be"):
        vkq.conv_transpose2d(IMAGE, KERNEL, 0.5, stride=40_000, x_qparams=Q)
    with pytest.raises(vkq.DTypeError, match=r"take: fill is 2.5; x holds int8"):
        vkq.take(ROWS, [0], 2.5)


def test_methods_name_what_they_cannot_take(any_device: vkq.Device) -> None:
    layer = vkq.Linear(np.ones((3, 4), np.int8), 0.5, x_qparams=Q, device=any_device)
    grouped = vkq.Linear(vkq.quantize_weight(np.ones((2, 64)), bits=4, group=32), device=any_device)
    tensor = Tensor.from_numpy(ROWS, any_device)
    calls: dict[str, Callable[[Any], Any]] = {
        "x": layer,
        "out": lambda out: layer(ROWS, out=out),
        "array": tensor.write,
        "timestamps": lambda timestamps: any_device.record(timestamps).__enter__(),
        "marks": lambda marks: any_device.record(0, marks).__enter__(),
        "scale": QParams.of,
        "x_shape": layer.explain,
        "x_shape of input_layout": layer.input_layout,
        "x_shape of input_layouts": vkq.Conv2d(
            KERNEL, 0.5, x_qparams=Q, y_qparams=Y, device=any_device
        ).input_layouts,
        "x_shape of Templates": vkq.integer.Templates(KERNEL, device=any_device).explain,
        "shape": tensor.reshape,
        "x of observe": vkq.Calibrator().observe,
        "percentile": lambda percentile: seen.qparams(percentile=percentile),
        "x of a grouped layer": grouped,
    }
    seen = vkq.Calibrator()
    seen.observe(np.float32([1, 2]))
    said = {
        (name, what): outcome(lambda value, call=call: call(value), {"value": value}, name.split()[0])
        for name, call in calls.items()
        for what, value in WRONG.items()
    }
    assert {case: text for case, text in said.items() if text} == {}
