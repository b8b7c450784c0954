"""Tests of one file for several shapes: each shape gives the session's bytes, has a known answer, and
shares the weights. Long work on a slow device is split into several submissions."""

import ctypes
import dataclasses
import functools
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkq
import vkq.onnx
from tests.player.files import graph_of, only, refused, rewritten, texts
from vkq._version import __version__
from vkq.cli import main
from vkq.device import verdict
from vkq.device.watchdog import LONGEST_S
from vkq.errors import ArgumentError, DeviceError, OutOfMemoryError
from vkq.player.export import exported
from vkq.player.file import HEAD_AT, checksum, written
from vkq.player.load import PlayedModel, check, library
from vkq.player.reader import contents

BATCHES = (1, 8)
MANY = 1 << 20
LAYERS, M, K = 5, 12, 64


def chain(layers: int) -> bytes:
    """Return a model of *layers* int8 linear layers in sequence, for any number of rows."""
    random, nodes, constants = np.random.default_rng(0), [], []
    names = ["x", *(f"x{i}" for i in range(1, layers)), "y"]
    for i in range(layers):
        given = {
            "a": np.float32(0.1), "az": np.int8(1), "w": random.integers(-9, 9, (K, K), np.int8),
            "ws": np.float32(0.03), "wz": np.int8(0), "y": np.float32(0.1), "yz": np.int8(1),
        }  # fmt: skip
        constants += [numpy_helper.from_array(np.asarray(a), f"{name}{i}") for name, a in given.items()]
        nodes.append(
            helper.make_node("QLinearMatMul", [names[i], *(f"{n}{i}" for n in given)], [names[i + 1]])
        )
    x, y = (helper.make_tensor_value_info(name, TensorProto.INT8, ["N", K]) for name in ("x", "y"))
    graph = helper.make_graph(nodes, "chain", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def rows(batch: int) -> dict[str, npt.NDArray[np.int8]]:
    return {"x": np.random.default_rng(batch).integers(-128, 128, (batch, K), np.int8)}


@functools.cache
def file_of(batches: tuple[int, ...] = BATCHES) -> bytes:
    with vkq.Device("llvmpipe") as device:
        return exported([graph_of(chain(2), {"x": (n, K)}) for n in batches], device, ("portable",))[0]


def calls(work: Callable[[], object]) -> int:
    """Return the number of Vulkan calls of *work* into which faults can be injected."""
    library().vkq_inject(MANY, -1)
    work()
    return MANY - int(library().vkq_inject(0, 0))


def test_the_shape_of_the_input_chooses(
    device: vkq.Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, model = tmp_path / "model.vkq", tmp_path / "model.onnx"
    model.write_bytes(chain(2))
    main(["export", str(model), "-o", str(path), "--batch", "1", "8", "--device", device.name])
    assert "  x [8, 64]\n  this: " in capsys.readouterr().out
    assert main(["inspect", str(path)]) == 0
    assert "output  y: int8[8, 64]\nplan    this: " in capsys.readouterr().out
    session = vkq.onnx.InferenceSession(model, device)
    want = {n: session.run(None, rows(n))[0] for n in BATCHES}
    with vkq.load(path, device.name) as played:
        assert played.shapes == [{"x": (n, K)} for n in BATCHES]
        assert played.explain().startswith("this: ")
        assert played.explain().endswith("\nshapes: x=1x64 (these); x=8x64")
        assert played.explain({"x": [8, K]}).endswith("\nshapes: x=1x64; x=8x64 (these)")
        with ThreadPoolExecutor(4) as pool:
            results = [(n, pool.submit(played.run, None, rows(n))) for n in BATCHES * 4]
        for n, result in results:
            np.testing.assert_array_equal(result.result()[0], want[n])
        with pytest.raises(ArgumentError, match=r"the file takes \(1, 64\) or \(8, 64\)"):
            played.run(None, rows(3))


def test_what_libvkq_says_of_shapes(any_device: vkq.Device, tmp_path: Path) -> None:
    """Errors of libvkq name the shapes of a file. libvkq uploads weights once: the file's second shape uses
    the same buffer and pipelines."""
    path, model = tmp_path / "model.vkq", ctypes.c_void_p()
    path.write_bytes(file_of())
    sizes, one = (ctypes.c_uint64 * 2)(3, K), ctypes.create_string_buffer(64)
    with vkq.load(path, any_device.name) as played:

        def shaped() -> int:
            pointers = (ctypes.c_void_p * 1)(ctypes.addressof(sizes))
            return int(library().vkq_shaped(played._model, pointers, ctypes.byref(model)))

        assert shaped() == 1
        said = b"the file does not hold the shapes x=3x64; it holds x=1x64; x=8x64"
        assert library().vkq_error() == said
        assert not model
        assert library().vkq_shape(played._model, 2, 0, one) == 1
        assert library().vkq_error() == b"number is 2; the file has 2 sets of shapes"
        sizes[0] = 8
        together = calls(shaped)
        assert calls(shaped) == 0, "loaded twice"
        library().vkq_unload(model)  # does nothing, because the file owns the model
        assert played.run(None, rows(8))[0].shape == (8, K)
    path.write_bytes(file_of((8,)))
    loaded: list[PlayedModel] = []
    alone = calls(lambda: loaded.append(PlayedModel(path, any_device.name)))
    loaded.pop().close()
    opening = calls(lambda: check(library().vkq_open(any_device.name.encode(), ctypes.byref(model))))
    library().vkq_close(model)
    assert alone - opening - together == 1 + 4


def test_each_set_has_its_own_answer(any_device: vkq.Device, tmp_path: Path) -> None:
    """If no plan for a shape gives the known answer, or a Vulkan call fails, each run with this shape raises
    an error. The other shapes keep working."""
    path, (first, other) = tmp_path / "model.vkq", contents(file_of()).sets
    plans = [dataclasses.replace(plan, answers=(bytes(8 * K),)) for plan in other.plans]
    wrong = [first, dataclasses.replace(other, plans=plans)]
    path.write_bytes(written("tests", wrong))
    with vkq.load(path, any_device.name) as played:
        want = played.run(None, rows(1))[0]
        for _ in range(2):
            with pytest.raises(DeviceError, match="portable: not taken, its known answer"):
                played.run(None, rows(8))
            np.testing.assert_array_equal(played.run(None, rows(1))[0], want)
    path.write_bytes(file_of())
    with vkq.load(path, any_device.name) as played:
        for nth in range(1, MANY):
            library().vkq_inject(nth, -2)
            try:
                played.explain({"x": (8, K)})
            except OutOfMemoryError:
                np.testing.assert_array_equal(played.run(None, rows(1))[0], want)
            else:
                break
        assert library().vkq_inject(0, 0)
        assert nth > 20
        assert played.run(None, rows(8))[0].shape == (8, K)


def test_weights_stand_once() -> None:
    alone, together = (contents(file_of(batches)) for batches in ((1,), BATCHES))
    assert together.parts["weights"][1] < 1.05 * alone.parts["weights"][1]
    assert written(f"vkq {__version__}", together.sets) == file_of()


def test_scratch_memory_is_bound_in_whole_vectors(any_device: vkq.Device) -> None:
    """An intermediate array of 35 words is bound as 9 vectors of four words, because a shader accesses whole
    vectors. The device must be able to bind this size."""
    file = exported([graph_of(texts(), {"ids": (1, 5)})], any_device, ("portable",))[0]
    (plan,) = only(file).plans
    sizes = [size for _, _, size in plan.scratch]
    assert 144 in sizes
    assert all(size % 16 == 0 for size in sizes)
    assert dict(plan.needs)["maxStorageBufferRange"] % 16 == 0


@pytest.mark.parametrize("field", ["name", "dtype", "shape"])
def test_sets_of_other_models_are_refused(
    any_device: vkq.Device, opened: ctypes.c_void_p, field: str
) -> None:
    other = {"name": "z", "dtype": "uint8", "shape": (8, 1, K)}
    sets = contents(file_of()).sets
    changed = [dataclasses.replace(sets[1].inputs[0], **{field: other[field]})]  # type: ignore[arg-type]
    data = written("tests", [sets[0], dataclasses.replace(sets[1], inputs=changed)])
    refused(opened, data, "sets of shapes are of different models")


def test_a_file_without_sets_is_refused(opened: ctypes.c_void_p) -> None:
    refused(opened, written("tests", []), "damaged: its sets of shapes are of different models")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch", "0"], None),
        (["--batch", "1", "1"], "the same shapes are asked for twice"),
        (["--shape", "x=1x64", "--shape", "x=1x65"], "has shape"),
    ],
)
def test_what_export_refuses(
    words: list[str], message: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.onnx").write_bytes(chain(1))
    command = ["export", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "model.vkq"), *words]
    if message is None:
        with pytest.raises(SystemExit):
            main(command)
        return
    assert main(command) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "model.vkq").exists()


# ------------------------------------------------------------------------------------------ slow devices

RATE = 2 * 8 * M * K * K * 10 * 2.5  # with this rate `watchdog` estimates 40 ms for a layer


def test_a_slow_device_gets_several_submissions(
    device: vkq.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is split into submissions of at most an estimated 100 ms, as in a session. If one fails, the
    run waits for the submissions before it."""
    path, x = tmp_path / "chain.vkq", rows(M)
    want = vkq.onnx.InferenceSession(chain(LAYERS), device).run(None, x)[0]
    c = dataclasses.replace(device.capabilities, device_type="integrated")
    report = verdict.Verdict({}, soft_float=False, rates={"float": RATE}, isolated=True)
    monkeypatch.setitem(verdict._reports, c.key, report)
    with vkq.Device(capabilities=c) as slow:
        data, (only,) = exported([graph_of(chain(LAYERS), {"x": (M, K)})], slow)
    path.write_bytes(data)
    works = [step.busy_ns for step in only.plans[0].steps]
    assert max(works) < 1e9 * LONGEST_S < sum(works)
    with vkq.load(path, device.name) as played:
        assert played.explain().startswith("this: ")
        assert calls(lambda: played.run(None, x)) == 2 + 3  # a fence reset, three submissions, a wait
        np.testing.assert_array_equal(played.run(None, x)[0], want)
        for nth in (2, 3, 4):
            library().vkq_inject(nth, -2)
            with pytest.raises(OutOfMemoryError, match="vkQueueSubmit"):
                played.run(None, x)
            np.testing.assert_array_equal(played.run(None, x)[0], want)
    at = data.index(struct.pack("<Q", max(works)))  # an estimate, which readers must not trust
    changed = bytearray(data)
    changed[at : at + 8] = b"\xff" * 8
    changed[24:32] = struct.pack("<Q", checksum(np.frombuffer(bytes(changed), np.uint8)[HEAD_AT:]))
    path.write_bytes(changed)
    with vkq.load(path, device.name) as played:
        np.testing.assert_array_equal(played.run(None, x)[0], want)


def test_one_long_step_gets_several_submissions(device: vkq.Device, tmp_path: Path) -> None:
    """The dispatches (`grids`) of a long step become separate submissions if each takes 100 ms or more.
    Later steps wait for all of them."""
    path, x = tmp_path / "chain.vkq", rows(M)
    want = vkq.onnx.InferenceSession(chain(LAYERS), device).run(None, x)[0]
    found = only(exported([graph_of(chain(LAYERS), {"x": (M, K)})], device, ("portable",))[0])
    (plan,) = found.plans
    step = next(
        step for step in plan.steps if step.grids and step.grids[0][1] > 2 and step.first_group_at >= 0
    )
    (first, x_groups, one), *others = step.grids
    parts = ((first, 1, one), (first + 1, 1, one), (first + 2, x_groups - 2, one))
    assert (one, others) == (1, [])
    long = dataclasses.replace(step, grids=parts, busy_ns=int(1e9 * LONGEST_S) * x_groups)
    steps = [long if one is step else dataclasses.replace(one, busy_ns=0) for one in plan.steps]
    path.write_bytes(rewritten(found, plans=[dataclasses.replace(plan, steps=tuple(steps))]))
    with vkq.load(path, device.name) as played:
        assert calls(lambda: played.run(None, x)) == 2 + 3
        np.testing.assert_array_equal(played.run(None, x)[0], want)
