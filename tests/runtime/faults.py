"""Make random Vulkan calls fail: ``python -m tests.runtime.faults --count 10000 --device llvmpipe``.

Random chains of every operator and method (operators.py) and whole networks run, on mapped memory and with
staging copies; with ``--matrix-units`` also operators on matrix units, real or emulated. Meanwhile a Vulkan
call fails once or several times in a row.

Each call of vkq must raise the typed error or return the correct bytes. Afterwards every call of the chain
must return the correct bytes on the same device (after a lost device, on a new one). The validation layer
must stay silent.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import vkq
import vkq.onnx
from tests import conftest
from tests.runtime import matrix_units, seldom
from tests.runtime.operators import OPERATORS, Make
from tests.runtime.work import DEVICE_LOST, OUT_OF_DEVICE_MEMORY, failing
from vkq.device import vulkan
from vkq.runtime.tensor import Tensor

OUT_OF_HOST_MEMORY = -1
LIFE = 200  # number of faults until a new device is opened
LOST = 0.02  # share of the faults that lose the device
CHAIN = 3  # maximum number of operators that are pending when a fault happens
Units = dict[str, tuple[Make, Any]]
Fit = Callable[[vkq.Device], contextlib.AbstractContextManager[Any]]  # prepares a device for use


def models() -> dict[str, tuple[bytes, tuple[int, ...]]]:
    """Return whole networks (model, input shape), each of which is one plan. Together they contain nearly
    all operators of vkq's graph, epilogues with sums and tables, squeeze-and-excite gates, and parallel
    branches."""
    from tests.onnx.networks import KINDS, Net, quantized

    found = {"seldom": (seldom.model(), seldom.SHAPE), "real": (seldom.real(), seldom.SHAPE)}
    for kind, made in KINDS.items():
        net = Net(seed=1)
        with tempfile.TemporaryDirectory() as folder:
            model = quantized(net.model(*made(net)), "qdq_int8", Path(folder), net.shape)
        found[kind] = model, net.shape
    return found


def networks() -> Units:
    """Return name -> (a function that opens the model on a device and returns a call, an input)."""
    found = {f"network {kind}": network(*model) for kind, model in models().items()}
    for kv_cache in (None, "int8"):
        data, feed = caches(kv_cache)

        def make(device: vkq.Device, data: bytes = data, kv_cache: str | None = kv_cache) -> Any:
            session = vkq.onnx.InferenceSession(data, device, kv_cache=kv_cache)
            return lambda x: np.concatenate([y.ravel().view(np.uint8) for y in session.run(None, x)])

        found[f"network with {kv_cache or 'float'} caches"] = (make, feed)
    return found


def caches(kv_cache: str | None) -> tuple[bytes, dict[str, Any]]:
    """Return a decoder's attention for an InferenceSession with this ``kv_cache``, and its inputs."""
    from tests.onnx.test_adapted import case, words

    data, feed = case(1, 12, [6, 4], do_rotary=1)
    if kv_cache is None:
        return data, feed
    return data, feed | {name: words(feed[name]) for name in ("pk", "pv")}


def network(model: bytes, shape: tuple[int, ...]) -> tuple[Make, Any]:
    return _session(model), np.random.default_rng(0).normal(0, 1.2, shape).astype(np.float32)


def _session(model: bytes) -> Make:
    def make(device: vkq.Device) -> Any:
        session = vkq.onnx.InferenceSession(model, device)
        return lambda x: np.concatenate([y.ravel() for y in session.run(None, {"x": x})])

    return make


class Life:
    """A device, and the operators that were made on it."""

    def __init__(self, name: str, units: Units, staging: bool, fit: Fit):
        self.units = units
        self.calls: dict[str, Any] = {}
        self._ends = contextlib.ExitStack()
        self.device = self._ends.enter_context(vkq.Device(name, staging=staging))
        self._ends.enter_context(fit(self.device))

    def close(self) -> None:
        self._ends.close()

    def start(self, name: str, on_device: bool) -> Any:
        """Call an operator and return its result, which may still be pending."""
        make, x = self.units[name]
        if name not in self.calls:
            self.calls[name] = make(self.device)
        return self.calls[name](Tensor.from_numpy(x, self.device) if on_device else x)

    def exact(self, name: str, want: Any) -> None:
        np.testing.assert_array_equal(_array(self.start(name, False)), want)


def _array(y: Any) -> Any:
    return y.numpy() if isinstance(y, Tensor) else y


def takes_tensors(name: str) -> bool:
    """Return True if the operator accepts a Tensor and returns a Tensor whose data may still be pending."""
    return not name.startswith(("integer", "network", "flatten", "reshape"))


def run(
    name: str, units: Units, count: int, seed: int, fit: Fit = contextlib.nullcontext
) -> collections.Counter[str]:
    """Inject *count* faults on a device and return the outcomes. Raise AssertionError for a wrong result or
    an unexpected error."""
    rng, told = np.random.default_rng(seed), collections.Counter[str]()
    with vkq.Device(name) as healthy, fit(healthy):
        want = {unit: make(healthy)(x) for unit, (make, x) in units.items()}
        staged = healthy.capabilities.device_type == "discrete"  # a discrete GPU's memory cannot be mapped
    life = None
    for i in range(count):
        staging = staged or bool(i // LIFE % 2)
        if life is None or i % LIFE == 0:
            if life is not None:
                life.close()
            life = Life(name, units, staging, fit)
        lost = rng.random() < LOST
        chain = [str(unit) for unit in rng.choice(list(units), rng.integers(1, CHAIN + 1))]
        code = DEVICE_LOST if lost else int(rng.choice([OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY]))
        error = vkq.DeviceLostError if lost else vkq.OutOfMemoryError
        times = 1 if lost else int(rng.choice([1, 1, 2, 5, 50]))
        with failing("*", int(rng.integers(1, 6 + 8 * len(chain))), code, times):
            said = _under_fault(life, chain, want, error, rng.random() < 0.5)
        told["faults"] += 1
        told[said] += 1
        told.update(chain)
        if lost and said != "not seen":
            life.close()
            life = Life(name, units, staging, fit)
        for unit in chain:
            life.exact(unit, want[unit])
    if life is not None:
        life.close()
    gc.collect()
    assert not vulkan.validation_messages(), vulkan.validation_messages()[:3]
    return told


def _under_fault(life: Life, chain: list[str], want: Any, error: type[Exception], pending: bool) -> str:
    started, said = [], "not seen"
    for unit in chain:
        try:
            started.append((unit, life.start(unit, pending and takes_tensors(unit))))
        except error:
            said = error.__name__
    for unit, y in started:
        try:
            np.testing.assert_array_equal(_array(y), want[unit])
        except error:
            said = error.__name__
    return said


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.runtime.faults")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default=conftest.DRIVERS["lavapipe"])
    parser.add_argument("--matrix-units", action="store_true", help="operators and networks on matrix units")
    options = parser.parse_args()
    fit: Fit = matrix_units.fitted if options.matrix_units else contextlib.nullcontext
    operators = matrix_units.OPERATORS if options.matrix_units else OPERATORS
    begun, units = time.monotonic(), {**operators, **networks()}
    told = run(options.device, units, options.count, options.seed, fit)
    met = {unit: told.pop(unit, 0) for unit in units}
    print(
        f"{options.device}: {dict(told)}; {len(units)} operators and networks, each under at least"
        f" {min(met.values())} faults; 0 wrong numbers, {time.monotonic() - begun:.0f} s"
    )


if __name__ == "__main__":
    main()
