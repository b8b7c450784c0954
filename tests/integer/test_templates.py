"""Tests of templates that are kept on a device: arrays and tensors as images, batches, ranges, and the best
positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkq
from tests.runtime.work import doctored
from vkq.integer import Templates, chunks, conv2d, match_template, work
from vkq.integer.best import SEGMENT, tensor_range
from vkq.problem.conv2d import Conv2dProblem
from vkq.reference import integer as reference


def data(seed: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, dtype, endpoint=True)


def expected(x: np.ndarray, w: np.ndarray, **options: Any) -> np.ndarray:
    return reference.conv2d(x, w, None, Conv2dProblem.of(x.shape, w.shape, **options))


@pytest.mark.parametrize("layout", ["kPackedInt8_4W4C", "kPackedInt8_16C", "kPackedInt8_4H4W"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_tensors(device: vkq.Device, dtype: str, layout: str) -> None:
    """Images may be tensors. Batches of several sizes share one copy of the templates on the device, also
    with strides, dilations and padding."""
    w, options = (
        data(1, "int8", (3, 2, 3, 4)),
        {"stride": (1, 2), "dilation": (2, 1), "padding": (1, 2, 0, 3)},
    )
    templates = Templates(w, **options, x_dtype=dtype, device=device)
    for shape in ((2, 2, 9, 13), (1, 2, 12, 8)):
        x = data(2, dtype, shape)
        y = templates(vkq.Tensor.from_numpy(x, device, layout))
        assert isinstance(y, vkq.Tensor)
        np.testing.assert_array_equal(y.numpy(), expected(x, w, **options))
        np.testing.assert_array_equal(templates(x), y.numpy())


def test_wide_tensors(device: vkq.Device) -> None:
    """A camera's 12-bit values in int32 need two digits instead of four. Values beyond the stated range are
    refused."""
    x, w = data(3, "int32", (1, 1, 9, 10)) & 4095, data(4, "int16", (2, 1, 4, 3))
    templates = Templates(w, accumulate="int64", x_dtype="int32", x_range=(0, 4095), device=device)
    y = templates(vkq.Tensor.from_numpy(x, device))
    assert y.shape == (2 - 1, 2, 6, 8, 2)
    np.testing.assert_array_equal(y.numpy().view("<i8")[..., 0], expected(x, w))
    assert "x in [0, 4095]" in templates.explain(x.shape)
    x[0, 0, 3, 3] = 4096
    for given in (x, vkq.Tensor.from_numpy(x, device)):
        with pytest.raises(vkq.ArgumentError, match=r"4096\], and these templates were made for \[0, 4095\]"):
            templates(given)


def test_tensor_range(device: vkq.Device) -> None:
    """The range of a tensor is correct for more elements than one workgroup reads."""
    x = data(5, "int32", (3, SEGMENT))
    assert tensor_range(vkq.Tensor.from_numpy(x, device)) == (x.min(), x.max())


def test_nothing_is_sent_again(device: vkq.Device) -> None:
    """Templates are not uploaded again: the second call makes no plan and packs no template. The caller may
    change the array of templates."""
    w, x = np.ones((2, 1, 3, 3), np.int8), data(6, "uint8", (1, 1, 8, 8))
    templates = Templates(w, dilation=np.int64(2), device=device)
    w[:] = 7
    np.testing.assert_array_equal(templates(x), expected(x, w // 7, dilation=2))
    first, plans = templates(x), dict(templates._owner._plans)
    np.testing.assert_array_equal(templates(x), first)
    assert templates._owner._plans == plans


@pytest.mark.parametrize("parts", ["whole", "bands", "chunks"])
@pytest.mark.parametrize("method", ["ccorr", "ssd"])
@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_best(
    device: vkq.Device, monkeypatch: pytest.MonkeyPatch, dtype: str, method: Any, parts: str
) -> None:
    """The best score and its first position are correct for batches, padding and equal scores, also if bands
    of rows or chunks of images are searched separately."""
    if parts == "bands":
        monkeypatch.setattr(work, "BAND_BYTES", 20_000)
    if parts == "chunks":
        monkeypatch.setattr(chunks, "CHUNK_BYTES", 10_000)
    x, w = data(7, dtype, (2, 2, 70, 80)), data(8, dtype, (3, 2, 5, 6))
    x[0, :, 40:45, 10:16] = x[0, :, 8:13, 50:56] = w[0]
    templates = Templates(w, padding=(1, 2), x_dtype=dtype, device=device)
    maps = expected(x, w, padding=(1, 2))
    if method == "ssd":
        ones = np.ones((1, 2, 5, 6), np.int8)
        maps = expected(x.astype(np.int64) ** 2, ones, padding=(1, 2)) - 2 * maps
        maps += (w.astype(np.int64) ** 2).sum(axis=(1, 2, 3))[:, None, None]
    flat = maps.reshape(2, 3, -1) * (1 if method == "ssd" else -1)
    place = np.stack(np.unravel_index(flat.argmin(axis=2), maps.shape[2:]), axis=-1)
    best = templates.best(x, method)
    np.testing.assert_array_equal(best.place, place)
    np.testing.assert_array_equal(best.score, flat.min(axis=2) * (1 if method == "ssd" else -1))
    assert len(templates._reductions) == (1 if parts != "chunks" else 2 if dtype == "uint8" else 3)
    if method == "ssd":
        # of two equal scores, the first is returned
        assert (best.score[0, 0], best.place[0, 0].tolist()) == (0, [9, 52])


@pytest.mark.parametrize("method", ["ccorr", "ssd", "ccoeff_normed"])
def test_match_template(device: vkq.Device, method: Any) -> None:
    image = data(9, "uint8", (30, 35))
    templates = np.stack([image[4:12, 6:15], image[20:28, 20:29]])
    maps = match_template(image, templates, method, device=device)
    flat = maps.reshape(2, -1)
    at = flat.argmin(axis=1) if method == "ssd" else flat.argmax(axis=1)
    kept = Templates(templates[:, None], device=device)
    for x in (image, vkq.Tensor.from_numpy(image, device)):
        for t in (templates, kept):
            best = match_template(x, t, method, best=True, device=device)
            np.testing.assert_array_equal(best.score, flat[[0, 1], at])
            np.testing.assert_array_equal(best.place, np.stack(np.unravel_index(at, maps.shape[1:]), axis=-1))
    one = match_template(image, templates[1], method, best=True, device=device)
    assert (one.score, one.place.tolist()) == (flat[1, at[1]], best.place[1].tolist())
    np.testing.assert_array_equal(match_template(image, kept, method), maps)


@pytest.mark.parametrize("method", ["ccorr", "ssd"])
def test_an_image_above_what_a_shader_may_see(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch, method: Any
) -> None:
    monkeypatch.setattr(work, "BAND_BYTES", 100_000)
    image = np.zeros((600, 500), np.uint8)
    image[590, 480] = image[591, 481] = 200  # the match is in the last chunk
    with vkq.Device(capabilities=doctored(any_device.capabilities, maxStorageBufferRange=160_000)) as small:
        best = match_template(image, image[588:596, 478:484], method, best=True, device=small)
    assert best.place.tolist() == [588, 478]
    assert best.score == (0 if method == "ssd" else 2 * 200**2)


def test_nothing_to_do(any_device: vkq.Device) -> None:
    templates = Templates(np.ones((3, 1, 2, 2), np.int8), device=any_device)
    assert templates(np.zeros((0, 1, 5, 5), np.uint8)).shape == (0, 3, 4, 4)
    assert templates(vkq.Tensor.from_numpy(np.zeros((0, 1, 5, 5), np.uint8), any_device)).shape == (
        0,
        3,
        4,
        4,
    )
    with pytest.raises(vkq.ArgumentError, match=r"\(0, 3, 4, 4\), and no positions"):
        templates.best(np.zeros((0, 1, 5, 5), np.uint8))


def test_refusals(any_device: vkq.Device) -> None:
    w, x = np.ones((2, 1, 3, 3), np.int8), np.zeros((1, 1, 6, 6), np.uint8)
    with pytest.raises(vkq.ArgumentError, match=r"\(0, 1, 3, 3\); it must be \(OC"):
        Templates(w[:0], device=any_device)
    with pytest.raises(vkq.DTypeError, match="x_dtype is 'float32'"):
        Templates(w, x_dtype="float32", device=any_device)
    with pytest.raises(vkq.ArgumentError, match=r"x_range is \(3, 1\)"):
        Templates(w, x_range=(3, 1), device=any_device)
    with pytest.raises(vkq.AccumulatorOverflowError, match=r"Templates: template 0.*x in \[-2147483648"):
        Templates(w, accumulate="int32", x_dtype="int32", device=any_device)
    templates = Templates(w, device=any_device)
    with pytest.raises(vkq.ArgumentError, match=r"numbers in \[-1, -1\].*made for \[0, 255\]"):
        templates(x.astype(np.int8) - 1)
    with pytest.raises(vkq.DTypeError, match="x has dtype float32"):
        templates(vkq.Tensor.from_numpy(x.astype(np.float32), any_device))
    with pytest.raises(vkq.ArgumentError, match="method is 'best'"):
        templates.best(x, "best")  # type: ignore[arg-type]
    with pytest.raises(vkq.ArgumentError, match=r"ssd with stride \(2, 2\)"):
        Templates(w, stride=2, device=any_device).best(x, "ssd")
    with pytest.raises(vkq.ArgumentError, match=r"image \(6, 6\) and Templates \(2, 1, 3, 3\)"):
        match_template(x[0, 0], Templates(w, padding=1, device=any_device))
    with pytest.raises(vkq.AccumulatorOverflowError, match="9 squares of numbers up to 2147483648"):
        Templates(w, x_dtype="int32", device=any_device).best(x.astype(np.int32), "ssd")


def test_tensors_of_another_device(any_device: vkq.Device) -> None:
    with vkq.Device(any_device.name) as other:
        x = vkq.Tensor.from_numpy(np.zeros((1, 1, 4, 4), np.uint8), other)
        with pytest.raises(vkq.ArgumentError, match="must be on one device"):
            Templates(np.ones((1, 1, 2, 2), np.int8), device=any_device)(x)


def test_conv2d_agrees(any_device: vkq.Device) -> None:
    """conv2d and stored templates give equal results, with a bias."""
    x, w, bias = data(10, "uint8", (1, 1, 9, 9)), data(11, "int8", (2, 1, 3, 3)), np.array([5, -5])
    np.testing.assert_array_equal(
        Templates(w, bias, device=any_device)(x), conv2d(x, w, bias, device=any_device)
    )


def test_one_convention_of_shapes(any_device: vkq.Device) -> None:
    """As in `match_template`, templates (T, h, w) are for images of one channel, and (T, C, h, w) for
    images (C, H, W)."""
    rng = np.random.default_rng(8)
    image, parts = rng.integers(0, 256, (13, 17), np.uint8), rng.integers(0, 256, (3, 4, 5), np.uint8)
    kept = Templates(parts, device=any_device)
    assert kept.w.shape == (3, 1, 4, 5)
    want = match_template(image, parts, device=any_device)
    np.testing.assert_array_equal(kept(image[None, None])[0], want)
    np.testing.assert_array_equal(match_template(image, kept), want)
    colours, cut = rng.integers(0, 256, (3, 13, 17), np.uint8), rng.integers(0, 256, (2, 3, 4, 5), np.uint8)
    want = match_template(colours, cut, device=any_device)
    np.testing.assert_array_equal(match_template(colours, Templates(cut, device=any_device)), want)
    with pytest.raises(vkq.ArgumentError, match=r"\(C, H, W\) with \(C, h, w\) or \(T, C, h, w\)"):
        match_template(image, cut, device=any_device)
