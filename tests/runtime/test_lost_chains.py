"""A chain whose commands are lost (vkEndCommandBuffer failed) takes with it what it computed, and nothing
else: for every operator and method, with and without staging copies."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkq
from tests.runtime import work
from tests.runtime.work import failing

RNG = np.random.default_rng(0)
W = RNG.integers(-127, 128, (8, 8, 3, 3), np.int8)
X = RNG.integers(-128, 128, (1, 8, 9, 9), np.int8)
ROWS = X.reshape(9, 72)
FLOATS = ROWS.astype(np.float32) / 16
Q = vkq.QParams(0.1, 3)
QQ: dict[str, Any] = {"x_qparams": Q, "y_qparams": Q}
Made = Callable[[Any], Any]


def conv(method: str) -> Callable[[vkq.Device], Made]:
    w, groups = (W[:, :1], 8) if method == "depthwise" else (W, 1)
    return lambda d: vkq.Conv2d(w, 0.01, padding=1, groups=groups, device=d, method=method, **QQ)


OPERATORS: dict[str, tuple[Callable[[vkq.Device], Made], Any]] = {
    **{f"conv2d {m}": (conv(m), X) for m in ("auto", "im2col", "implicit", "direct", "depthwise")},
    "conv_transpose2d": (lambda d: vkq.ConvTranspose2d(W, 0.01, device=d, **QQ), X),
    "linear": (lambda d: vkq.Linear(W.reshape(8, 72), 0.01, device=d, **QQ), ROWS),
    "linear dynamic": (lambda d: vkq.Linear(W.reshape(8, 72), 0.01, x_qparams="dynamic", device=d), FLOATS),
    "linear weight-only": (lambda d: vkq.Linear(W.reshape(8, 72), 0.01, device=d), FLOATS),
    "softmax": (lambda d: lambda x: vkq.softmax(x, device=d, x_qparams=Q), X),
    "add": (lambda d: lambda x: vkq.add(x, x, Q, a_qparams=Q, b_qparams=Q, device=d), X),
    "quantize": (lambda d: lambda x: vkq.quantize(x, Q, device=d), FLOATS),
    "dequantize": (lambda d: lambda x: vkq.dequantize(x, Q, device=d), X),
    "max_pool2d": (lambda d: lambda x: vkq.max_pool2d(x, 2, device=d), X),
    "concat": (
        lambda d: lambda x: vkq.concat([x, x], 1, Q, x_qparams=[Q, Q], device=d), X,
    ),
    "transpose": (lambda d: lambda x: vkq.transpose(x, (0, 2, 3, 1), device=d), X),
}  # fmt: skip


@pytest.mark.parametrize("staging", [False, True], ids=["mapped", "staging"])
@pytest.mark.parametrize("name", OPERATORS)
def test_the_next_call_is_exact(any_device: vkq.Device, name: str, staging: bool) -> None:
    make, x = OPERATORS[name]
    with work.opened(any_device, staging) as mine:
        want = make(any_device)(x)
        first, second = make(mine), make(mine)
        with failing("vkEndCommandBuffer"), pytest.raises(vkq.OutOfMemoryError):
            first(x)  # the first of all: what it uploads is in the lost chain
        for _ in range(2):
            np.testing.assert_array_equal(first(x), want)
        with failing("vkEndCommandBuffer"), pytest.raises(vkq.OutOfMemoryError):
            first(x)
        np.testing.assert_array_equal(second(x), want)
        np.testing.assert_array_equal(first(x), want)


def test_what_was_lost_and_is_written_whole_is_clean_again(device: vkq.Device) -> None:
    one = work.linear(device)
    x = vkq.Tensor.from_numpy(one.x, device)
    y = one.layer(x)
    device.synchronize()
    one.layer(x, out=y)
    with failing("vkEndCommandBuffer"), pytest.raises(vkq.OutOfMemoryError):
        device.flush()
    with pytest.raises(vkq.OutOfMemoryError, match=r"never computed.*compute it again"):
        y.numpy()
    one.layer(x, out=y)  # only writes it
    np.testing.assert_array_equal(y.numpy(), one.want)
    np.testing.assert_array_equal(x.numpy(), one.x)  # the lost chain only read it


def test_a_lost_result_stays_lost_through_what_is_computed_from_it(device: vkq.Device) -> None:
    q = vkq.QParams(0.5)
    x = vkq.Tensor.from_numpy(np.arange(8, dtype=np.float32), device)
    lost = vkq.quantize(x, q)
    with failing("vkEndCommandBuffer"), pytest.raises(vkq.OutOfMemoryError):
        device.flush()
    with pytest.raises(vkq.OutOfMemoryError, match="never computed"):
        vkq.dequantize(lost)
    np.testing.assert_array_equal(vkq.dequantize(vkq.quantize(x, q)).numpy(), np.arange(8))


def test_a_plan_that_could_not_be_recorded_to_its_end_is_not_read(device: vkq.Device) -> None:
    one = work.conv2d(device)
    x = vkq.Tensor.from_numpy(one.x, device)
    y = one.layer(x)
    np.testing.assert_array_equal(y.numpy(), one.want)
    with failing("vkAllocateDescriptorSets", 2), pytest.raises(vkq.OutOfMemoryError):
        one.layer(x, out=y)  # its second dispatch finds no descriptor set
    with pytest.raises(vkq.OutOfMemoryError, match="never computed"):
        y.numpy()
    one.layer(x, out=y)
    np.testing.assert_array_equal(y.numpy(), one.want)
