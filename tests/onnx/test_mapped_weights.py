"""Tests of the memory that a language model's weights take, in bytes. The host reads external data from a
memory map. The device holds each weight once, although prompts and single tokens run different kernels."""

from __future__ import annotations

import gc
import mmap
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkq
import vkq.onnx
from tests.onnx.language import Sizes, folder
from vkq import files
from vkq.graph.executable import Executable
from vkq.numerics.stored import owned
from vkq.runtime.offsets import lower_bound
from vkq.runtime.plan import Resident

SIZES = Sizes(
    hidden=512, heads=8, kv_heads=2, width=64, inner=2048, words=4000, symmetric=True, gathered=True
)  # fmt: skip
ROOM = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("language"), SIZES) / "model.onnx"


def fed(tokens: int) -> dict[str, Any]:
    """Return the inputs for the first *tokens* tokens of a text."""
    found: dict[str, Any] = {"input_ids": np.arange(tokens)[None]}
    found["attention_mask"] = (np.arange(ROOM)[None] < tokens).astype(np.int64)
    cache = np.zeros((1, SIZES.kv_heads, ROOM, SIZES.width), np.float32)
    names = [f"{i}.{part}" for i in range(SIZES.layers) for part in ("key", "value")]
    return found | {f"past_key_values.{name}": cache for name in names}


def prepared(session: Any, tokens: int) -> Executable:
    """Run the first *tokens* tokens, and return the executable that ran."""
    session.run(["logits"], fed(tokens))
    found: Executable = next(reversed(session._executables.kept.values()))
    return found


def constants(one: Executable) -> set[Resident]:
    return set(one.memory_of_its_own()[1])


def test_host_memory(any_device: vkq.Device, model: Path) -> None:
    """A session takes less host memory than a quarter of its file, and less than the file's size while it
    prepares the model, because it packs only a few layers at a time."""
    size = (model.parent / "model.onnx.data").stat().st_size
    prepared(vkq.onnx.InferenceSession(model, any_device), 1)  # compiles the shaders
    gc.collect()
    tracemalloc.start()
    try:
        session = vkq.onnx.InferenceSession(model, any_device)
        prepared(session, 1)
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < size / 4
    assert peak < size


def test_device_memory(device: vkq.Device, model: Path) -> None:
    """Prompts and single tokens use the same copy of each large weight. The constants of the plans for
    prompts and for single tokens take, together, at most 1.3 times the size of the file."""
    session = vkq.onnx.InferenceSession(model, device)
    one, many = (prepared(session, tokens) for tokens in (1, 32))
    both = constants(one) | constants(many)
    assert sum(x.bytes for x in both) <= 1.3 * (model.parent / "model.onnx.data").stat().st_size
    large = [{x for x in constants(of) if x.bytes >= 1 << 16} for of in (one, many)]
    assert large[0] == large[1] != set()
    for of in (one, many):
        assert of.plan.scratch_bytes <= 1.3 * lower_bound(of.lifetimes)


def test_maps(tmp_path: Path) -> None:
    """A file is mapped once until it changes. An array on the map stays readable after `release_maps`. Pipes
    raise an error."""
    path = tmp_path / "data"
    path.write_bytes(bytes(range(256)) * 1024)
    found = files.mapped(path)
    assert files.mapped(path) is found
    array = np.frombuffer(found, np.uint8)
    want = array.sum()
    files.release_maps()
    assert array.sum() == want
    assert np.shares_memory(owned(array[7:]), array)
    os.utime(path, ns=(1, 1))
    assert files.mapped(path) is not found
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        files.mapped(tmp_path / "pipe")


def test_memory_that_others_write(tmp_path: Path) -> None:
    """`owned` copies a read-only view if its memory can be written in another way."""
    path = tmp_path / "data"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
        for memory in (shared, memoryview(shared).toreadonly(), memoryview(bytearray(64)).toreadonly()):
            view = np.frombuffer(memory, np.uint8)
            view.flags.writeable = False
            assert not np.shares_memory(owned(view), view)
            del view, memory


def test_results(any_device: vkq.Device, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose weights are mapped gives the same bits as with weights that are read from the file."""
    y = vkq.onnx.InferenceSession(model, any_device).run(["logits"], fed(3))[0]
    monkeypatch.setattr("vkq.onnx.tensors.LEAST_MAPPED", 1 << 60)
    want = vkq.onnx.InferenceSession(model, any_device).run(["logits"], fed(3))[0]
    np.testing.assert_array_equal(y, want)
