"""Tests of runs on bound tensors. The second of two runs on the same tensors is recorded, and later runs
replay the recording. The recording keeps its tensors only until other tensors are bound, the bindings are
cleared, or the session is closed."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkq
import vkq.onnx
from vkq.graph.resident import Repeated
from vkq.runtime.recording import Recording

ROOM, WIDTH = 250, 5


def model() -> onnx.ModelProto:
    """Return a model that writes one row of a cache and sums the cache's columns."""
    f, i = TensorProto.FLOAT, TensorProto.INT64
    info, node = helper.make_tensor_value_info, helper.make_node
    nodes = [
        node("TensorScatter", ["past", "row", "at"], ["present"], axis=1),
        node("ReduceSum", ["present", "axis"], ["y"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes, "step",
        [info("past", f, [1, "room", WIDTH]), info("row", f, [1, 1, WIDTH]), info("at", i, [1])],
        [info("present", f, [1, "room", WIDTH]), info("y", f, [1, WIDTH])],
        [helper.make_tensor("axis", i, [1], [1])],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)


MODEL = model().SerializeToString()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count plans that are added to the pending work ("added"), recordings that are made ("recorded") and
    their submissions ("replayed")."""
    count: Counter[str] = Counter()

    def counted(owner: Any, method: str, name: str) -> None:
        own = getattr(owner, method)

        def call(*args: Any, **more: Any) -> Any:
            count[name] += 1
            return own(*args, **more)

        monkeypatch.setattr(owner, method, call)

    counted(vkq.Device, "add", "added")
    counted(vkq.Device, "record", "recorded")
    counted(Recording, "submit", "replayed")
    return count


class Bound:
    """A session whose cache, a tensor on the device, is bound as both the past and the present. The other
    inputs are arrays of the host."""

    def __init__(self, device: vkq.Device, room: int = ROOM):
        self.device = device
        self.session = vkq.onnx.InferenceSession(MODEL, device)
        self.cache, self.y = self.zeros(1, room, WIDTH), self.zeros(1, WIDTH)
        self.row, self.at = np.zeros((1, 1, WIDTH), np.float32), np.zeros(1, np.int64)
        self.binding = self.session.io_binding()
        self.binding.bind_ortvalue_input("past", self.cache)
        self.binding.bind_cpu_input("row", self.row)
        self.binding.bind_cpu_input("at", self.at)
        for name, tensor in (("present", self.cache), ("y", self.y)):
            self.binding.bind_ortvalue_output(name, tensor)

    def zeros(self, *shape: int) -> vkq.Tensor:
        return vkq.Tensor.from_numpy(np.zeros(shape, np.float32), self.device)

    def run(self, at: int) -> None:
        """Write the number *at* + 1 to row *at* of the cache."""
        self.row[:], self.at[:] = at + 1, at
        self.session.run_with_iobinding(self.binding)

    def check(self, rows: int) -> None:
        """Check the cache and the sums after a run for each of the first *rows* rows."""
        want = np.arange(1, self.cache.shape[1] + 1)
        np.testing.assert_array_equal(self.cache.numpy()[0, :, 0], np.where(want <= rows, want, 0))
        np.testing.assert_array_equal(self.y.numpy(), rows * (rows + 1) // 2)


def test_the_third_run_records_nothing(device: vkq.Device, counts: Counter[str]) -> None:
    """The first run adds its plan to the pending work, the second run makes a recording, and later runs
    replay it. Each run reads the arrays' current content. The first run on other tensors adds its plan
    again."""
    one = Bound(device)
    for i in range(5):
        counts.clear()
        one.run(i)
        assert +counts == +Counter(added=i == 0, recorded=i == 1, replayed=i > 0)
        one.check(i + 1)
    before, one.y = one.y, one.zeros(1, WIDTH)
    one.binding.bind_ortvalue_output("y", one.y)
    counts.clear()
    one.run(5)
    assert counts == Counter(added=1)
    one.check(6)
    np.testing.assert_array_equal(before.numpy(), 15)


def test_200_replays_without_a_read(device: vkq.Device, counts: Counter[str]) -> None:
    """Every run overwrites the cache that it reads, while the previous run may not be complete: no run is
    lost, and none reads a later run's inputs."""
    one = Bound(device)
    for i in range(200):
        one.run(i)
    one.check(200)
    assert (counts["added"], counts["recorded"], counts["replayed"]) == (1, 1, 199)


def test_results_in_new_memory(device: vkq.Device, counts: Counter[str]) -> None:
    """If one result is not bound to a tensor, every run allocates memory for it, so nothing is recorded."""
    one = Bound(device)
    one.binding.bind_output("y", "vulkan")
    kept = []
    for i in range(4):
        one.run(i)
        kept.append(one.binding.get_outputs()[1])
    assert [float(x.numpy()[0, 0]) for x in kept] == [1, 3, 6, 10]
    assert counts == Counter(added=4)


def test_in_a_record_block(device: vkq.Device, counts: Counter[str]) -> None:
    """In `Device.record`, each bound run is part of the caller's recording, with the arrays that it was
    given: neither the next run in the block nor a run after the block replaces them."""
    one = Bound(device)
    for i in range(3):
        one.run(i)
    with device.record() as recording:
        counts.clear()
        one.run(3)
        one.run(4)
        assert counts == Counter(added=2)
    one.check(3)
    one.run(2)
    recording.run()
    one.check(5)


@pytest.mark.parametrize("how", ["clear", "other tensors", "close"])
def test_what_the_recording_keeps(device: vkq.Device, how: str) -> None:
    """The tensors of the last run stay until the bindings are cleared, other tensors are bound, or the
    session is closed."""
    gc.collect()
    before = device.memory_used_bytes
    one = Bound(device, 10000)
    for i in range(3):
        one.run(i)
    binding, size = one.binding, one.cache.nbytes
    other = Bound(device)
    if how == "other tensors":
        binding._inputs, binding._outputs = dict(other.binding._inputs), dict(other.binding._outputs)
        binding.run(None)
    else:
        if how == "close":
            one.session.close()
        else:
            binding.clear_binding_inputs()
        binding._inputs.clear()
        binding._outputs.clear()
    binding._results.clear()
    del one
    device.synchronize()  # pending work keeps its memory
    gc.collect()
    assert device.memory_used_bytes - before < size


def test_the_plan_ends_the_recording() -> None:
    """Deleting a plan deletes its recording. The two have no reference cycle."""

    class Plan:
        pass

    repeated, plan = Repeated(), Plan()
    own = weakref.ref(repeated)
    repeated.replay(None, plan, ["x"], ["y"])  # type: ignore[arg-type, list-item]
    assert repeated._buffers == ["x", "y"]
    del plan
    assert not repeated._buffers
    del repeated
    assert own() is None
