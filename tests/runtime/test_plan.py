"""Tests of plans: they are made without running anything, and are cached. Eager calls, recordings and
explanations use the same plan. Also tests of ``out=``."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vkq
from tests.runtime.work import counted, failing
from vkq import Tensor
from vkq.device.extension import native_module
from vkq.device.verdict import Verdict
from vkq.layout.extent import BLOCKED, Spec
from vkq.ops.table import looked_up
from vkq.runtime.builder import Builder
from vkq.shader.catalog import catalog

Q, Y = vkq.QParams(0.05, 3), vkq.QParams(1.5, -4)
RNG = np.random.default_rng(30)
IMAGE = RNG.integers(-128, 128, (1, 6, 7, 5)).astype(np.int8)
W = RNG.integers(-128, 128, (9, 6, 3, 3)).astype(np.int8)

# name -> call of an operator on a tensor of images
OPERATORS: dict[str, Callable[..., Any]] = {
    "add": lambda x, **o: vkq.add(x, x, Y, **o),
    "sub": lambda x, **o: vkq.sub(x, x, Y, **o),
    "mul": lambda x, **o: vkq.mul(x, x, Y, **o),
    "max_pool2d": lambda x, **o: vkq.max_pool2d(x, 2, **o),
    "avg_pool2d": lambda x, **o: vkq.avg_pool2d(x, 2, **o),
    "global_avg_pool2d": vkq.global_avg_pool2d,
    "lookup": lambda x, **o: vkq.lookup(x, np.arange(256).astype(np.uint8), **o),
    "unary": lambda x, **o: vkq.unary("relu", x, Y, **o),
    "requantize": lambda x, **o: vkq.requantize(x, Y, **o),
    "concat": lambda x, **o: vkq.concat([x, x], 1, **o),
    "pad": lambda x, **o: vkq.pad(x, [(0, 0), (1, 2), (0, 1), (1, 0)], **o),
    "transpose": lambda x, **o: vkq.transpose(x, (0, 2, 3, 1), **o),
    "resize": lambda x, **o: vkq.resize(x, scale=2, **o),
    "softmax": lambda x, **o: vkq.softmax(x, 1, vkq.QParams(1 / 256, -128), **o),
    "dequantize": vkq.dequantize,
    "reshape": lambda x, **o: vkq.reshape(x, (6, 35), **o),
    "take": lambda x, **o: vkq.take(x, np.arange(12).reshape(3, 4), **o),
    "slice": lambda x, **o: vkq.slice(x, [slice(None), slice(1, 5)], **o),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_out_is_written_and_returned(device: vkq.Device, name: str) -> None:
    x = Tensor.from_numpy(IMAGE, device, qparams=Q)
    y = OPERATORS[name](x)
    out = Tensor.of(device, y.spec)
    assert OPERATORS[name](x, out=out) is out
    np.testing.assert_array_equal(out.numpy(), y.numpy())


@pytest.mark.parametrize("options", [{"x_qparams": Q, "y_qparams": Y}, {"x_qparams": Q}, {}], ids=str)
def test_a_layer_writes_into_out(device: vkq.Device, options: dict[str, Any]) -> None:
    layer = vkq.Conv2d(W, 0.01, padding=1, device=device, **options)
    x = IMAGE if options else IMAGE.astype(np.float32)
    y = layer(Tensor.from_numpy(x, device))
    out = Tensor.of(device, y.spec)
    assert layer(x, out=out) is out
    np.testing.assert_array_equal(out.numpy(), y.numpy())


def test_what_out_may_not_be(any_device: vkq.Device) -> None:
    x = Tensor.from_numpy(IMAGE, any_device, qparams=Q)
    with pytest.raises(vkq.ArgumentError, match=r"add: out is int8 \(1, 6, 7, 5\).*the result"):
        vkq.add(x, x, Y, out=Tensor.of(any_device, Spec(x.shape, "int8", BLOCKED, Y)))
    with pytest.raises(vkq.ArgumentError, match="unary: out is an input of the operation"):
        vkq.unary("relu", x, Q, out=x)


def test_making_a_plan_runs_and_allocates_nothing(any_device: vkq.Device) -> None:
    layer = vkq.Conv2d(W, 0.01, padding=1, x_qparams=Q, y_qparams=Y, device=any_device)
    any_device.synchronize()
    before = any_device.memory_used_bytes
    with failing("vkQueueSubmit", 0):
        plan = layer.plan(Spec(IMAGE.shape, "int8", qparams=Q))
        layer.explain(IMAGE.shape)
        any_device.synchronize()
        assert counted() == 0
    assert any_device.memory_used_bytes == before, "weights are packed and uploaded by the first call"
    assert plan.variants
    assert plan.reasons["method"]


def test_eager_calls_recordings_and_explanations_use_one_plan(any_device: vkq.Device) -> None:
    layer = vkq.Conv2d(W, 0.01, padding=1, x_qparams=Q, y_qparams=Y, device=any_device)
    x = Tensor.from_numpy(IMAGE, any_device, qparams=Q)
    plan = layer.plan(x.spec)
    assert layer.plan(x.spec) is plan
    assert layer.explain(IMAGE.shape).variants == plan.variants
    with any_device.record() as recording:
        layer(x)
    steps = [step for one in recording.steps for step in one.steps]
    assert steps == list(plan.steps)


def test_weights_are_there_once(any_device: vkq.Device) -> None:
    """A layer stores its weights once, although it has run with one row and with many rows: both kernels
    read the same copy."""
    w = RNG.integers(-128, 128, (512, 512)).astype(np.int8)
    layer = vkq.Linear(w, 0.01, x_qparams=Q, y_qparams=Y, device=any_device)
    x = [Tensor.from_numpy(np.zeros((rows, 512), np.int8), any_device) for rows in (1, 200)]
    results = [layer(one) for one in x]
    any_device.synchronize()
    used = any_device.memory_used_bytes
    del layer
    freed = used - any_device.memory_used_bytes
    assert w.size <= freed < 1.2 * w.size
    assert len(results) == 2


def test_the_same_data_is_one_slot(any_device: vkq.Device) -> None:
    b = Builder(any_device)
    table = any_device.constant("test_plan", 16, lambda: np.zeros(4, np.int32))
    assert b.constant(table) == b.constant(table)


def test_a_kernel_whose_loops_the_driver_would_end_is_refused(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that would loop longer than the driver allows is refused when it is planned, by the number
    of iterations in its YAML. Drivers end such loops without an error."""
    monkeypatch.setattr("vkq.runtime.device.probed", lambda device: Verdict({}, False, loop_limit=60))
    monkeypatch.setattr("vkq.runtime.builder.EVERYWHERE", 0)
    program = any_device.program(catalog().find("matmul_q8_int32__row"))
    push = {"batch": 1, "m": 1, "n": 1, "k": 1, "a_zeros": 1, "b_zeros": 1}
    sizes = ({**push, "k": k} for k in range(1, 4096))
    beyond = next(p for p in sizes if program.variant.iterations(p, program.constants) > 60)
    b = Builder(any_device)
    slots = [b.words(64) for _ in program.variant.bindings]
    b.dispatch(program, slots, {**beyond, "k": beyond["k"] - 1})
    with pytest.raises(vkq.ArgumentError, match=r"loops would run 61 iterations, and .* ends them after 60"):
        b.dispatch(program, slots, beyond)


def test_scratch_memory_is_bound_in_whole_vectors(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An intermediate array of 70 words is bound as 18 vectors of four words, because a shader writes its
    last vector as a whole. A GPU may drop a write that is partly outside the binding."""
    plans: list[Any] = []
    true = native_module()
    native = SimpleNamespace(Plan=lambda *given: plans.append(given) or true.Plan(*given))
    monkeypatch.setattr("vkq.runtime.plan.native_module", lambda: native)
    b = Builder(any_device)
    x = b.input(Spec((2, 2, 5, 7), "int8", "kPackedInt8_4C1W"))
    middle = looked_up(b, x, np.arange(-128, 128).astype(np.int8), None)
    plan = b.plan(looked_up(b, middle, np.arange(-128, 128).astype(np.int8), None))
    assert plan.scratch[middle.slot] == (0, 280)
    assert plan.native is not None
    assert plans[0][4] == [(middle.slot, 0, 288)]
