"""Tests of tensors from every kind of array, and of values that are refused."""

import copy
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vkq
from tests.runtime import work
from vkq.layout.extent import BLOCKED
from vkq.layout.pack import activation_layouts

Array = npt.NDArray[Any]
DTYPES = ["int8", "uint8", "float32", "int32"]


def values(dtype: str, shape: tuple[int, ...] = (3, 5, 6, 7)) -> Array:
    """Return random bit patterns of the type, with its extremes first."""
    rng = np.random.default_rng(5)
    size = int(np.prod(shape))
    out = rng.integers(0, 256, size * np.dtype(dtype).itemsize, dtype=np.uint8).view(dtype)[:size]
    info = np.finfo if dtype == "float32" else np.iinfo
    out[:2] = info(dtype).min, info(dtype).max  # type: ignore[operator]
    return np.nan_to_num(out).reshape(shape) if dtype == "float32" else out.reshape(shape)


def read_only(a: Array) -> Array:
    a = a.copy()
    a.flags.writeable = False
    return a


KINDS: dict[str, Callable[[Array], Array]] = {
    "as it is": lambda a: a,
    "every second": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "reversed": lambda a: a[::-1, :, ::-1].copy()[::-1, :, ::-1],
    "transposed": lambda a: a.transpose(0, 3, 1, 2).copy().transpose(0, 2, 3, 1),
    "Fortran": np.asfortranarray,
    "read-only": read_only,
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "unaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_every_kind_come_back(device: vkq.Device, kind: str, dtype: str) -> None:
    array = KINDS[kind](values(dtype))
    before, flags = array.tobytes(), str(array.flags)
    tensor = vkq.Tensor.from_numpy(array, device)
    got = tensor.numpy()
    assert (got.dtype, got.shape) == (np.dtype(dtype), array.shape)
    np.testing.assert_array_equal(got, array)
    assert (array.tobytes(), str(array.flags)) == (before, flags), "the caller's array was changed"
    got[...] = 0  # changes the copy, not the tensor
    np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_mapped_files_come_back_and_stay(device: vkq.Device, dtype: str, tmp_path: Path) -> None:
    array = values(dtype)
    array.tofile(tmp_path / "data")
    mapped = np.memmap(tmp_path / "data", dtype, "r", shape=array.shape)
    np.testing.assert_array_equal(vkq.Tensor.from_numpy(mapped, device).numpy(), array)
    assert (tmp_path / "data").read_bytes() == array.tobytes()


@pytest.mark.parametrize("staging", [False, True])
@pytest.mark.parametrize(
    "shape", [(), (0,), (1,), (5,), (0, 4), (4, 0), (2, 0, 3, 4), (1, 1, 1, 1), (2, 3, 5), (1, 2, 3, 4, 5)]
)
def test_any_rank_and_empty_ones(device: vkq.Device, shape: tuple[int, ...], staging: bool) -> None:
    with work.opened(device, staging) as mine:
        for dtype in DTYPES:
            array = np.resize(values(dtype), shape)
            tensor = vkq.Tensor.from_numpy(array, mine)
            assert (tensor.shape, tensor.size) == (shape, array.size)
            np.testing.assert_array_equal(tensor.numpy(), array)
            tensor.write(array)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_images_in_every_layout(device: vkq.Device, dtype: str) -> None:
    array = values(dtype)
    for one in activation_layouts():
        np.testing.assert_array_equal(vkq.Tensor.from_numpy(array, device, one.name).numpy(), array)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("shape", [(), (35,), (5, 16), (2, 3, 17), (2, 3, 2, 2, 5), (3, 0), (0, 7)])
def test_rows_in_blocks_of_channels(device: vkq.Device, shape: tuple[int, ...], dtype: str) -> None:
    """In kPackedInt8_16C, rows are split into blocks of 16 contiguous elements. After a block of one row
    comes the same block of the next row."""
    array = np.resize(values(dtype), shape)
    tensor = vkq.Tensor.from_numpy(array, device, BLOCKED)
    rows, k = int(np.prod(shape[:-1])), shape[-1] if shape else 1
    assert tensor.extent == (rows, k, 1, 1)
    assert tensor.nbytes == rows * -(-k // 16) * 16
    np.testing.assert_array_equal(tensor.numpy(), array)
    stored = array.view(np.int8) if dtype == "int8" else (array ^ np.uint8(128)).view(np.int8)
    raw = device.download(tensor.buffer, tensor.nbytes).view(np.int8).reshape(-(-k // 16), rows, 16)
    np.testing.assert_array_equal(
        raw.transpose(1, 0, 2).reshape(rows, -(-k // 16) * 16)[:, :k], stored.reshape(rows, k)
    )
    tensor.write(array[::-1] if shape else array)
    np.testing.assert_array_equal(tensor.numpy(), array[::-1] if shape else array)


@pytest.mark.parametrize("array", [
    np.ones(3), np.ones(3, bool), np.array([None]), np.ones(3, np.int64),
    np.ones(3, np.uint32), np.ones(3, np.int16), np.ones(3, np.complex64), np.array(["a"]),
    np.zeros(2, [("a", "i4")]), np.zeros(2, "M8[s]"), [1, 2], 1.5, "text", None,
], ids=lambda a: f"{np.asarray(a).dtype}-{type(a).__name__}")  # fmt: skip
def test_other_dtypes_are_refused_by_name(any_device: vkq.Device, array: object) -> None:
    with pytest.raises(
        vkq.DTypeError, match=r"is not one of int8, uint8, float32, int32, float16; convert the array first"
    ):
        vkq.Tensor.from_numpy(array, any_device)  # type: ignore[arg-type]


def test_layouts_that_do_not_fit_are_refused(any_device: vkq.Device) -> None:
    cases: list[tuple[str, tuple[int, ...], str, str]] = [
        ("int8", (2, 3), "contiguous", "8-bit data is packed"),
        ("float32", (1, 2, 3, 4), "kPackedInt8_4W4C", "8-bit data is packed"),
        ("int8", (2, 3), "kPackedInt8_4W4C", r"holds \(N, C, H, W\), the shape is \(2, 3\)"),
        ("int8", (2, 3), "kPackedInt8_4N4K", "need a layout of n, c, h, w"),
        ("int8", (2, 3), "nothing", "nothing"),
    ]
    for dtype, shape, layout, message in cases:
        with pytest.raises(vkq.ArgumentError, match=message):
            vkq.Tensor(any_device, shape, dtype, layout)
    with pytest.raises(vkq.ArgumentError, match=r"shape \(-1, 3\) has a negative dim"):
        vkq.Tensor(any_device, (-1, 3), "int32")
    with pytest.raises(vkq.DTypeError, match="float64"):
        vkq.Tensor(any_device, (1, 3), "float64")


def test_write_takes_only_what_fits(device: vkq.Device) -> None:
    tensor = vkq.Tensor.from_numpy(values("int8"), device)
    for wrong in (values("int8")[:2], values("uint8"), values("float32"), values("int8").reshape(3, 5, 42)):
        with pytest.raises(
            vkq.ArgumentError, match=r"Tensor.write: the array is .* the tensor int8 \(3, 5, 6, 7\)"
        ):
            tensor.write(wrong)
    np.testing.assert_array_equal(tensor.numpy(), values("int8"))
    tensor.write(values("int8")[::-1])
    np.testing.assert_array_equal(tensor.numpy(), values("int8")[::-1])


def test_memory_in_flight_is_not_given_away(device: vkq.Device) -> None:
    """The memory of an input that is deleted while its work is pending is not reused before the work has
    run."""
    one = work.linear(device)
    one.check()  # uploads the layer's weights
    device.synchronize()
    gc.collect()
    before = device.memory_used_bytes
    for flush in (False, True):
        y = one.layer(vkq.Tensor.from_numpy(one.x, device))
        if flush:
            device.flush()
        others = [vkq.Tensor.from_numpy(np.full_like(one.x, i), device) for i in range(8)]
        np.testing.assert_array_equal(y.numpy(), one.want)
        assert all((t.numpy() == i).all() for i, t in enumerate(others))
        del y, others
    assert device.memory_used_bytes == before


def test_a_layer_refuses_a_tensor_of_another_device(any_device: vkq.Device) -> None:
    with vkq.Device(any_device.name) as other:
        one = work.linear(any_device)
        with pytest.raises(vkq.ArgumentError, match="must be the same"):
            one.layer(vkq.Tensor.from_numpy(one.x, other))


@pytest.mark.parametrize("send", [pickle.dumps, copy.deepcopy])
def test_what_is_on_a_device_stays_in_its_process(
    send: Callable[[object], object], any_device: vkq.Device
) -> None:
    layer = vkq.Linear(np.ones((4, 8), np.int8), 0.1, x_qparams=vkq.QParams(0.1, 0), device=any_device)
    tensor = vkq.Tensor.from_numpy(np.zeros((2, 8), np.int8), any_device)
    layer(tensor)
    for given in (any_device, layer, tensor):
        name = type(given).__name__
        with pytest.raises(vkq.DTypeError, match=f"{name}: objects on a device belong to one process"):
            send(given)
