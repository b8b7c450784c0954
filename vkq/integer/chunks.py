"""Exact integer correlations of arrays of any size, in chunks of templates, images and result rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..problem.conv2d import Conv2dProblem
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from .correlation import Correlation, Sums, axes
from .images import Images, words
from .phases import Axis

CHUNK_BYTES = 256 << 20  # maximum number of bytes of a chunk's results, and also of its images and templates


def correlate(
    device: Device, path: str, sums: Sums, p: Conv2dProblem, x: npt.NDArray[Any], w: npt.NDArray[Any],
    bias: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:  # fmt: skip
    """Return the correlation of the images x with the templates w, computed in chunks of at most
    `CHUNK_BYTES`: int64 if the sums need 64 bits, else int32."""
    y = np.empty(p.y_shape, np.int64 if sums.wide else np.int32)
    for first, last, groups in _template_chunks(p, sums, _most_bytes(device)):
        one_group = p.oc // p.groups
        channels = slice(first // one_group * w.shape[1], (last - 1) // one_group * w.shape[1] + w.shape[1])
        part = dataclasses.replace(p, groups=groups, oc=last - first, ic=channels.stop - channels.start)
        owner = Correlation(device, path, part, w[first:last], bias[first:last], sums)
        correlate_arrays(owner, part, x[:, channels], y[:, first:last])
    return y


def correlate_arrays(owner: Correlation, p: Conv2dProblem, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
    """Write the correlation of the images x with the templates of *owner*, which are on the device, into
    *y*. Compute it in chunks of images and result rows."""
    _, columns = axes(p)
    for n, top, chunk, rows in image_chunks(owner.device, p, x, 8 if owner.sums.wide else 4):
        sent = Tensor.from_numpy(words(chunk), owner.device)
        found = owner.run(sent, Images.of_array(chunk), rows, columns)
        y[n : n + len(chunk), :, top : top + rows.out] = numbers(found, owner.sums.wide)


def image_chunks(
    device: Device, p: Conv2dProblem, x: npt.NDArray[Any], result_bytes: int
) -> Iterator[tuple[int, int, npt.NDArray[Any], Axis]]:
    """Divide the images x into chunks of images and result rows. For each chunk, yield (first image, first
    result row, the part of x that the chunk reads, vertical axis of this part). *result_bytes*: the number
    of bytes of one result on the device."""
    rows, _ = axes(p)
    images, lines = _image_chunk(p, result_bytes, x.itemsize, _most_bytes(device))
    for n in range(0, p.n, images):
        for top in range(0, p.oh, lines):
            seen, axis = rows.part(top, min(top + lines, p.oh))
            yield n, top, x[n : n + images, :, seen], axis


def numbers(y: Tensor, wide: bool) -> npt.NDArray[Any]:
    """Download a result. *wide*: the last axis has the two words of a 64-bit sum, which become one int64."""
    raw = y.numpy()
    return raw.view("<i8")[..., 0] if wide else raw


def _most_bytes(device: Device) -> int:
    """Return the smaller of `CHUNK_BYTES` and the device's maxStorageBufferRange (often 128 MiB)."""
    return min(CHUNK_BYTES, int(device.capabilities.properties["maxStorageBufferRange"]))


def _template_chunks(p: Conv2dProblem, sums: Sums, most_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Divide the templates into chunks. For each chunk, yield (first template, last template + 1, number of
    groups of channels). A chunk of several groups has all templates of these groups."""
    template = max(1, p.gemm_k // p.kw * (p.kw + 16) * 4)
    result = p.ow * min(p.oh, 64) * (8 if sums.wide else 4)
    most = max(8, most_bytes // max(template, result) // 8 * 8)
    unit = p.oc // p.groups if p.groups > 1 else 1
    step = max(unit, most // unit * unit)
    for first in range(0, p.oc, step):
        last = min(first + step, p.oc)
        yield first, last, (last - first) // unit if p.groups > 1 else 1


def _image_chunk(p: Conv2dProblem, result_bytes: int, itemsize: int, most_bytes: int) -> tuple[int, int]:
    """Return (number of images, number of result rows) of a chunk."""
    images, lines = p.n, p.oh

    def fits() -> bool:
        reach = min(p.h, (lines - 1) * p.stride[0] + (p.kh - 1) * p.dilation[0] + 1)
        raw = images * p.ic * reach * p.w * itemsize
        result = images * p.oc * lines * p.ow * result_bytes
        return max(raw, result) <= most_bytes

    while not fits() and images > 1:
        images = -(-images // 2)
    while not fits() and lines > 1:
        lines = -(-lines // 2)
    return images, lines
