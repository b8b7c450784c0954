"""Tests of transfers of arrays to the device and back: every kind of array, order, chunks, faults, and no
allocation in the steady state."""

import array as stdarray
import gc
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkq
from tests.runtime import work
from tests.runtime.work import DEVICE_LOST, counted, failing
from vkq.runtime import memory

RNG = np.random.default_rng(5)
SMALL_RING = 1 << 16


@pytest.fixture(params=["mapped", "staging", "small ring"])
def mine(
    device: vkq.Device, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[vkq.Device]:
    """Yield a device without staging, with staging, or with a staging buffer smaller than the test's
    arrays."""
    if request.param == "small ring":
        monkeypatch.setattr(memory, "BLOCK_BYTES", SMALL_RING // 4)
        monkeypatch.setattr(memory, "STAGING_BYTES", SMALL_RING)
        monkeypatch.setattr(memory, "STAGING_CHUNK", SMALL_RING // 8)
    with work.opened(device, request.param != "mapped") as opened:
        yield opened


def values(dtype: str, shape: tuple[int, ...]) -> Any:
    if dtype == "float32":
        return RNG.standard_normal(shape).astype(np.float32)
    return RNG.integers(*((0, 256) if dtype == "uint8" else (-128, 128)), shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float32", "int32"])
@pytest.mark.parametrize("shape", [(3, 5, 7, 9), (1, 4, 8, 8), (33, 21), (7,), (2, 130, 31, 33), (0, 4), ()])
def test_what_goes_up_comes_down(mine: vkq.Device, dtype: str, shape: tuple[int, ...]) -> None:
    data = values(dtype, shape)
    for layout in (None, "kPackedInt8_16C") if dtype in ("int8", "uint8") and shape else (None,):
        tensor = vkq.Tensor.from_numpy(data, mine, layout)
        got = tensor.numpy()
        assert got.dtype == data.dtype
        np.testing.assert_array_equal(got, data)
        out = np.empty(shape[::-1], dtype).T  # *out* need not be contiguous
        assert tensor.numpy(out=out) is out
        np.testing.assert_array_equal(out, data)
        np.testing.assert_array_equal(tensor.numpy_async().result(20), data)


@pytest.mark.parametrize(
    "layout", ["kPackedInt8_4W4C", "kPackedInt8_4H4W", "kPackedInt8_16C", "kPackedInt8_4C"]
)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_the_words_are_the_oracles(mine: vkq.Device, layout: str, dtype: str) -> None:
    data = values(dtype, (2, 7, 5, 6))
    tensor = vkq.Tensor.from_numpy(data, mine, layout)
    packed = tensor.packed
    assert packed is not None
    signed = data if dtype == "int8" else (data ^ 0x80).view(np.int8)
    words = mine.download(tensor.buffer, tensor.nbytes).view("<i4")
    np.testing.assert_array_equal(words, packed.pack(signed.reshape(tensor.extent)))


def odd_arrays(tmp_path: Path) -> dict[str, Any]:
    base = values("int8", (12, 20))
    frozen = base.copy()
    frozen.flags.writeable = False
    path = tmp_path / "mapped.bin"
    base.tofile(path)
    wide = values("int32", (6, 10))
    return {
        "strided": base[::3, 1::2], "reversed": base[::-1, ::-1], "transposed": base.T,
        "fortran": np.asfortranarray(base), "read-only": frozen, "big-endian": wide.astype(">i4"),
        "memory-mapped": np.memmap(path, np.int8, "r", shape=(12, 20)),
        "broadcast": np.broadcast_to(base[:1], (5, 20)), "zero-size": base[:0], "a scalar": np.int8(7),
        "float big-endian": values("float32", (4, 4)).astype(">f4"),
    }  # fmt: skip


def test_odd_arrays_give_what_they_hold_and_stay_as_they_are(mine: vkq.Device, tmp_path: Path) -> None:
    for name, data in odd_arrays(tmp_path).items():
        before = np.array(data)
        tensor = vkq.Tensor.from_numpy(data, mine)
        np.testing.assert_array_equal(tensor.numpy(), before, err_msg=name)
        np.testing.assert_array_equal(data, before, err_msg=name)


class Holder:
    """An object that offers its data only through `__array__`."""

    def __init__(self, data: Any):
        self.data = data

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.data


class Capsule:
    """An object that offers its data only through DLPack."""

    def __init__(self, data: Any, kind: int = 1):
        self.data, self.kind = data, kind

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.kind, 0)


def test_arrays_of_every_kind_go_up(any_device: vkq.Device) -> None:
    data = values("float32", (3, 5))
    kinds = {
        "__array__": Holder(data), "DLPack": Capsule(data), "lists": data, "memoryview": memoryview(data),
        "array.array": stdarray.array("f", data.reshape(-1)),
        "a tensor": vkq.Tensor.from_numpy(data, any_device),
    }  # fmt: skip
    for name, one in kinds.items():
        got = vkq.Tensor.from_numpy(one, any_device).numpy()
        np.testing.assert_array_equal(got.reshape(3, 5), data, err_msg=name)
    with pytest.raises(vkq.ArgumentError, match=r"DLPack device type 2; it must be in host memory \(1\)"):
        vkq.Tensor.from_numpy(Capsule(data, 2), any_device)


def test_tensors_go_to_other_libraries(any_device: vkq.Device) -> None:
    data = values("int8", (3, 5))
    tensor = vkq.Tensor.from_numpy(data, any_device)
    np.testing.assert_array_equal(np.asarray(tensor), data)
    np.testing.assert_array_equal(np.asarray(tensor, np.float64), data.astype(np.float64))
    np.testing.assert_array_equal(np.from_dlpack(tensor), data)
    with pytest.raises(ValueError, match="leave copy=False out"):
        tensor.__array__(copy=False)


def test_out_must_be_what_the_tensor_is(any_device: vkq.Device) -> None:
    tensor = vkq.Tensor.from_numpy(values("int8", (3, 5)), any_device)
    frozen = np.empty((3, 5), np.int8)
    frozen.flags.writeable = False
    for out in (np.empty((5, 3), np.int8), np.empty((3, 5), np.uint8), frozen):
        with pytest.raises(vkq.ArgumentError, match=r"out is .* must be equal, and out writable"):
            tensor.numpy(out=out)


def test_the_callers_array_may_be_changed_at_once(mine: vkq.Device) -> None:
    for size in (10, 100_000):
        data = values("int32", (size,))
        want = data.copy()
        tensor = vkq.Tensor.from_numpy(data, mine)
        data[:] = 0
        np.testing.assert_array_equal(tensor.numpy(), want)


@pytest.mark.parametrize("size", [100, 70_000])
def test_a_write_is_seen_after_it_and_not_before(mine: vkq.Device, size: int) -> None:
    q = vkq.QParams(1.0)
    old, new = np.full((1, size), 3, np.int8), np.full((1, size), 9, np.int8)
    x = vkq.Tensor.from_numpy(old, mine, qparams=q)
    before = vkq.dequantize(x)
    future = x.numpy_async()
    x.write(new)
    after = vkq.dequantize(x)
    assert (after.numpy() == 9).all()
    assert (before.numpy() == 3).all()
    assert (future.result(20) == 3).all()
    with mine.record() as recording:
        y = vkq.dequantize(x)
    recording.submit()
    x.write(old)
    recording.wait()
    assert (y.numpy() == 9).all()


def test_uploads_in_a_record_block_are_made_once(mine: vkq.Device) -> None:
    q = vkq.QParams(1.0)
    with mine.record() as recording:
        x = vkq.Tensor.from_numpy(np.full((2, 50), 4, np.int8), mine, qparams=q)
        y = vkq.dequantize(x)
    recording.run()
    assert (y.numpy() == 4).all()
    x.write(np.full((2, 50), 5, np.int8))
    recording.run()
    assert (y.numpy() == 5).all()
    with mine.record(), pytest.raises(vkq.DeviceError, match="only being recorded"):
        x.numpy()
    with mine.record(), pytest.raises(vkq.DeviceError, match="only being recorded"):
        x.numpy_async()


def test_pinned_arrays_need_no_copy_on_the_host(mine: vkq.Device) -> None:
    for dtype in ("int8", "float32"):
        data = mine.empty_pinned((40, 1001), dtype)
        data[:] = values(dtype, data.shape)
        want = data.copy()
        tensor = vkq.Tensor.from_numpy(data[1:], mine)
        data[:] = 0  # from_numpy has already copied the data
        np.testing.assert_array_equal(tensor.numpy(), want[1:])
        back = mine.empty_pinned((39, 1001), dtype)
        tensor.numpy(out=back)
        np.testing.assert_array_equal(back, want[1:])
    used = mine._memory.staging.used_bytes
    del data, back
    gc.collect()
    assert mine._memory.staging.used_bytes < used, "pinned memory goes with its last array"


def test_nothing_is_allocated_in_the_steady_state(mine: vkq.Device) -> None:
    one = work.linear(mine)
    big = values("int8", (40, 3000))
    for _ in range(3):
        one.check()
        vkq.Tensor.from_numpy(big, mine).numpy()
    with failing("vkAllocateMemory", 0):
        for i in range(1000):
            np.testing.assert_array_equal(one.layer(one.x), one.want)
            if i % 20 == 0:
                vkq.Tensor.from_numpy(big, mine).numpy()
        assert counted() == 0


def test_changing_sizes_do_not_grow(device: vkq.Device) -> None:
    with work.opened(device, True) as mine:
        sizes = RNG.integers(1, 30_000, 64)

        def some(count: int) -> None:
            for i in range(count):
                data = np.full(sizes[i % 64], i, np.int32)
                assert (vkq.Tensor.from_numpy(data, mine).numpy() == i).all()

        some(200)
        before = mine._memory.arena.allocated_bytes, mine._memory.staging.allocated_bytes
        some(2000)
        assert (mine._memory.arena.allocated_bytes, mine._memory.staging.allocated_bytes) == before


def test_the_ring_is_bounded(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "BLOCK_BYTES", SMALL_RING // 4)
    monkeypatch.setattr(memory, "STAGING_BYTES", SMALL_RING)
    monkeypatch.setattr(memory, "STAGING_CHUNK", SMALL_RING // 8)
    with work.opened(device, True) as mine:
        data = values("int32", (500_000,))
        for _ in range(3):
            tensors = [vkq.Tensor.from_numpy(data + i, mine) for i in range(3)]
            for i, tensor in enumerate(tensors):
                np.testing.assert_array_equal(tensor.numpy(), data + i)
        assert mine._memory.staging.allocated_bytes <= SMALL_RING


RETRIED = ("vkAllocateMemory", "vkCreateBuffer", "vkBindBufferMemory", "vkMapMemory")
RING_CALLS = [
    "vkAllocateMemory", "vkCreateBuffer", "vkBindBufferMemory", "vkMapMemory", "vkCreateCommandPool",
    "vkAllocateCommandBuffers", "vkBeginCommandBuffer", "vkEndCommandBuffer", "vkQueueSubmit",
    "vkCreateFence", "vkResetFences", "vkWaitForFences", "vkAllocateDescriptorSets", "vkCreateDescriptorPool",
]  # fmt: skip


@pytest.mark.parametrize("call", RING_CALLS)
def test_a_fault_at_every_call_of_the_ring_loses_no_number(
    any_device: vkq.Device, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If any Vulkan call of the staging ring fails, the result is right or the error is raised, and later
    results are right. The n-th call fails, for every n."""
    monkeypatch.setattr(memory, "BLOCK_BYTES", SMALL_RING // 4)
    monkeypatch.setattr(memory, "STAGING_BYTES", SMALL_RING)
    monkeypatch.setattr(memory, "STAGING_CHUNK", SMALL_RING // 8)
    data = values("int8", (3, 5, 70, 130))  # 136,500 bytes: several chunks, larger than the ring

    def there_and_back(device: vkq.Device) -> Any:
        return vkq.Tensor.from_numpy(data, device).numpy()

    with work.opened(any_device, True) as mine, failing(call, 0):
        there_and_back(mine)
        many = counted()
    told: list[vkq.OutOfMemoryError] = []

    def tried(step: Callable[[], Any]) -> Any:
        try:
            return step()
        except vkq.OutOfMemoryError as error:
            told.append(error)
            return None

    for nth in range(1, min(many, 40) + 2):
        with work.opened(any_device, True) as mine:
            with failing(call, nth):
                got = tried(lambda mine=mine: there_and_back(mine))  # type: ignore[misc]
            assert got is None or np.array_equal(got, data)
            np.testing.assert_array_equal(there_and_back(mine), data)
            assert all(error.call == call for error in told)
            tensor = vkq.Tensor.from_numpy(data, mine)
            with failing(call, nth):
                tried(lambda tensor=tensor: tensor.write(data[::-1]))  # type: ignore[misc]
                tried(tensor.numpy)
            got = tried(tensor.numpy)  # an error, the old data or the new data, never a mixture of both data
            assert got is None or np.array_equal(got, data[::-1]) or np.array_equal(got, data)
            tensor.write(data)
            np.testing.assert_array_equal(tensor.numpy(), data)
            told = [error for error in told if "never computed" not in str(error)]
    assert told or call in RETRIED or (call, many) == ("vkWaitForFences", 0)


def test_a_loss_in_the_middle_of_an_upload_is_told(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "STAGING_CHUNK", 4 << 20)
    with work.opened(any_device, True) as mine:
        data = values("int32", (1 << 22,))
        with failing("vkQueueSubmit", 2, DEVICE_LOST), pytest.raises(vkq.DeviceLostError):
            vkq.Tensor.from_numpy(data, mine).numpy()
        with pytest.raises(vkq.DeviceLostError):
            vkq.Tensor.from_numpy(data, mine)


def test_threads_go_up_and_down_at_once(mine: vkq.Device) -> None:
    from tests.runtime.test_threads import together

    arrays = [values("int8", (3, 40, 17, 60 + i)) for i in range(8)]

    def body(number: int) -> None:
        for _ in range(4):
            tensor = vkq.Tensor.from_numpy(arrays[number], mine)
            future = tensor.numpy_async()
            np.testing.assert_array_equal(tensor.numpy(), arrays[number])
            np.testing.assert_array_equal(future.result(30), arrays[number])

    assert together(body) == []


def test_an_array_larger_than_a_shader_may_bind_goes_up_too(any_device: vkq.Device) -> None:
    small = work.doctored(any_device.capabilities, maxStorageBufferRange=4096)
    data = values("uint8", (2, 5, 40, 30))
    with vkq.Device(capabilities=small, staging=True) as mine:
        np.testing.assert_array_equal(vkq.Tensor.from_numpy(data, mine).numpy(), data)


def test_files_in_memory_are_read_where_they_are(any_device: vkq.Device) -> None:
    with mmap.mmap(-1, 4096) as memory:
        memory[:] = bytes(range(256)) * 16
        tensor = vkq.Tensor.from_numpy(np.frombuffer(memory, np.uint8).reshape(16, 256), any_device)
        assert (tensor.numpy() == np.arange(256)).all()


class Raising:
    """An object whose `__array__` raises."""

    def __array__(self, *_: object, **__: object) -> None:
        raise KeyError("mine")


class NoCapsule:
    """An object that claims DLPack data in host memory, but returns no capsule."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: object) -> int:
        return 5


@pytest.mark.parametrize("x", [Raising(), NoCapsule(), [[1.0], [2.0, 3.0]]])
def test_objects_that_give_no_array_are_refused(any_device: vkq.Device, x: object) -> None:
    for take in (vkq.Tensor.from_numpy, vkq.Tensor.from_numpy(np.zeros(3, np.float32), any_device).write):
        with pytest.raises(vkq.DTypeError, match="NumPy cannot read it as an array"):
            take(x)
    with pytest.raises(vkq.DTypeError, match="out is a list"):
        vkq.Tensor.from_numpy(np.zeros(3, np.float32), any_device).numpy(out=[])
