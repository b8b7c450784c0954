"""``vkq.integer.Templates``: templates that stay on a device, to be used for many images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..errors import ArgumentError, DTypeError
from ..layout.extent import Spec
from ..problem.conv2d import Conv2dProblem
from ..problem.options import ConvOptions, Padding
from ..runtime.caches import keep
from ..runtime.device import Device
from ..runtime.eager import run
from ..runtime.opened import opened
from ..runtime.tensor import Tensor
from . import correlation as op
from .best import Best, Reduction, keep_better, tensor_range
from .checks import DTYPES, Accumulate, Array, accumulator, bias_of, integers, squares_fit
from .chunks import correlate_arrays, image_chunks
from .explain import explained
from .images import Images, words
from .phases import Axis


class Templates:
    """The templates of `conv2d`, packed once on a device.

    Args:
        w, bias, stride, padding, dilation, groups, accumulate, path, device: as in `conv2d`. w is (OC,
            C/groups, KH, KW), or (T, h, w) for images of one channel, as in `match_template`.
        x_dtype: the dtype of the images: "int8", "uint8", "int16", "uint16" or "int32". Overflow is checked
            for the range of this dtype, or for x_range.
        x_range: (smallest, largest) value of the images, such as (0, 4095) for a 12-bit camera; None: the
            range of x_dtype. A smaller range needs fewer products, and may need only an int32 accumulator.
            Images with other values are refused.

    ``templates(x)`` computes `conv2d` of x (N, C, H, W). For a NumPy array it returns an array. For a
    Tensor (int8, uint8 or int32) it returns an int32 Tensor (N, OC, OH, OW).

    A Tensor of 64-bit sums has the shape (N, OC, OH, OW, 2): two words for each sum, the low word first. It
    is converted by ``y.numpy().view("<i8")[..., 0]``.

    The method `best` finds the best positions on the device.

    Raises:
        DTypeError, ArgumentError, AccumulatorOverflowError: as in `conv2d`, when the object is made.

    >>> t = Templates(np.array([[[[1, 2]]], [[[-1, 1]]]], np.int8))
    >>> t(np.array([[[[10, 20, 250]]]], np.uint8))[0, :, 0]
    array([[ 50, 520],
           [ 10, 230]], dtype=int32)
    >>> best = t.best(np.array([[[[10, 20, 250]]]], np.uint8))
    >>> best.score, best.place[0, 1]
    (array([[520, 230]]), array([0, 1]))
    """

    @checked
    def __init__(
        self,
        w: npt.ArrayLike,
        bias: npt.ArrayLike | None = None,
        stride: int | Sequence[int] = 1,
        padding: Padding = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        accumulate: Accumulate = "auto",
        *,
        x_dtype: str = "uint8",
        x_range: Sequence[int] | None = None,
        path: str = "auto",
        device: Device | int | str | None = None,
    ):
        if x_dtype not in DTYPES:
            raise DTypeError(f"Templates: x_dtype is {x_dtype!r}; it must be one of {', '.join(DTYPES)}")
        self.w = np.array(integers("Templates", "w", w))  # a copy: later writes to w have no effect
        self.w = self.w[:, None] if self.w.ndim == 3 else self.w
        if self.w.ndim != 4 or 0 in self.w.shape:
            raise ArgumentError(
                f"Templates: w has shape {self.w.shape}; it must be (OC, C/groups, KH, KW) or (T, KH, KW), of"
                " at least one number"
            )
        info = np.iinfo(x_dtype)
        low, high = (info.min, info.max) if x_range is None else _pair(x_range)
        self.x_dtype, self.x_range = x_dtype, (min(low, 0), max(high, 0))
        self.device = opened(device)
        self._options = (stride, padding, dilation, groups)
        offsets = bias_of("Templates", bias, len(self.w))
        self._bias = offsets
        wide = accumulator("Templates", self.x_range, self.w, offsets, accumulate) == np.int64
        # Check the options with an image as large as the window. Each call checks the shape of its images.
        options = ConvOptions.of("Templates", self.w.shape, *self._options)
        reach = [(k - 1) * d + 1 for k, d in zip(self.w.shape[2:], options.dilation, strict=True)]
        self._problem = p = self.problem((1, self.w.shape[1] * groups, *reach))
        self._owner = op.Correlation(
            self.device, path, p, self.w, offsets, op.Sums.of(self.x_range, self.w, wide)
        )
        self._reductions: dict[tuple[Images, Axis, Axis, bool], Reduction] = {}

    def problem(self, x_shape: Sequence[int]) -> Conv2dProblem:
        """Return the convolution problem for images of this shape and these templates."""
        return Conv2dProblem.of(x_shape, self.w.shape, *self._options)

    def __call__(self, x: npt.ArrayLike | Tensor) -> Any:
        """Return `conv2d` of x (N, C, H, W) with these templates (see the class)."""
        if isinstance(x, Tensor):
            images = self._of_tensor(x, x.shape)
            p = self.problem(images.shape)
            if 0 in p.y_shape:
                shape = (*p.y_shape, 2) if self._owner.sums.wide else p.y_shape
                return Tensor.of(self.device, Spec(shape, "int32"))
            return self._owner.run(x, images, *op.axes(p))
        array = self._checked(integers("Templates", "x", x))
        p = self.problem(array.shape)
        y = np.empty(p.y_shape, np.int64 if self._owner.sums.wide else np.int32)
        if y.size:
            correlate_arrays(self._owner, p, array, y)
        return y

    def best(self, x: npt.ArrayLike | Tensor, method: Literal["ccorr", "ssd"] = "ccorr") -> Best:
        """Return the best position of each template in each image. Only positions and scores are
        downloaded.

        Args:
            x: as in a call of the object.
            method: "ccorr" finds the largest sum of products, "ssd" the smallest sum of squared differences.
                "ssd" requires stride, dilation and groups of 1 and no bias; pixels outside the image count as
                0.

        Returns:
            ``Best(score, place)``: the scores, int64 (N, OC), and the positions (N, OC, 2), the row and
            column in the result. Of equal scores, the first position is returned.

        Raises:
            The errors of a call of the object; ArgumentError also if the result has no positions.
        """
        if method not in ("ccorr", "ssd"):
            raise ArgumentError(f"Templates.best: method is {method!r}; it must be ccorr or ssd")
        given = x if isinstance(x, Tensor) else integers("Templates.best", "x", x)
        return self.best_of(given, given.shape, method == "ssd")

    def best_of(self, x: Tensor | Array, shape: Sequence[int], ssd: bool) -> Best:
        """Return the result of `best`, in chunks for large arrays. *shape*: the shape (N, C, H, W) of the
        images in x. *ssd*: whether the method is "ssd"."""
        p = self.problem(shape)
        if 0 in p.y_shape:
            raise ArgumentError(f"Templates.best: the result has shape {p.y_shape}, and no positions")
        if ssd:
            self._check_ssd(p)
        rows, columns = op.axes(p)
        if isinstance(x, Tensor):
            best = self._found(x, self._of_tensor(x, shape), rows, columns, ssd)
        else:
            array = self._checked(x).reshape(shape)
            best = Best(np.zeros((p.n, p.oc), np.int64), np.zeros((p.n, p.oc, 2), np.int64))
            for first, top, chunk, part in image_chunks(self.device, p, array, 0):
                sent = Tensor.from_numpy(words(chunk), self.device)
                found = self._found(sent, Images.of_array(chunk), part, columns, ssd)
                keep_better(best, first, top, found, ssd)
        if not ssd:
            return best
        own = (self.w.reshape(len(self.w), -1).astype(np.int64) ** 2).sum(axis=1)
        return Best(best.score + own, best.place)

    def _found(self, x: Tensor, images: Images, rows: Axis, columns: Axis, ssd: bool) -> Best:
        """Return the best scores and positions for images on the device. With *ssd*, the caller must add
        the templates' sums of squares to the scores."""
        key = images, rows, columns, ssd
        reduction = self._reductions.get(key) or keep(self._reductions, key, Reduction(self._owner, *key))
        return reduction.read(run(reduction.plan, [x]).numpy())

    @property
    def plain(self) -> bool:
        """True if there is no bias, and stride, padding, dilation and groups have their defaults."""
        p = self._problem
        return (p.stride, p.dilation, p.groups, p.padding) == ((1, 1), (1, 1), 1, (0,) * 4) and not (
            self._bias.any()
        )

    @checked
    def explain(self, x_shape: Sequence[int]) -> str:
        """Return a text on the kernel for images of this shape, the reason for its choice, and the scratch
        memory."""
        p = self.problem(x_shape)
        image = np.broadcast_to(np.zeros((), self.x_dtype), tuple(x_shape))
        return explained(self._owner, p, Images.of_array(image))

    def _check_ssd(self, p: Conv2dProblem) -> None:
        if (p.stride, p.dilation, p.groups) != ((1, 1), (1, 1), 1) or self._bias.any():
            raise ArgumentError(
                f"Templates.best: ssd with stride {p.stride}, dilation {p.dilation}, groups {p.groups}"
                f"{' and a bias' if self._bias.any() else ''}; they must be 1, and no bias"
            )
        squares_fit("Templates.best", math.prod(self.w.shape[1:]), self.x_range, self.w)

    def _checked(self, x: Array) -> Array:
        """Return *x*. Raises ArgumentError if a value is outside of `x_range`."""
        info, (low, high) = np.iinfo(x.dtype), self.x_range
        if x.size and (info.min < low or info.max > high):
            self._check_range(int(x.min()), int(x.max()))
        return x

    def _check_range(self, least: int, most: int) -> None:
        low, high = self.x_range
        if least < low or most > high:
            raise ArgumentError(
                f"Templates: x has numbers in [{least}, {most}], and these templates were made for [{low},"
                f" {high}]; make them with a larger x_dtype or x_range"
            )

    def _of_tensor(self, x: Tensor, shape: Sequence[int]) -> Images:
        if x.device is not self.device:
            raise ArgumentError(
                f"Templates: x is on {x.device!r} and the templates on {self.device!r}; they must be on one"
                " device"
            )
        if x.dtype not in DTYPES:
            raise DTypeError(f"Templates: x has dtype {x.dtype}; it must be int8, uint8 or int32")
        info, (low, high) = np.iinfo(x.dtype), self.x_range
        if x.size and (info.min < low or info.max > high):
            found = tensor_range(x) if x.dtype == "int32" else (info.min, info.max)
            self._check_range(*found)
        self.problem(shape)
        n, c, h, w = shape
        return Images((n, c, h, w), x.dtype, x.spec)


def _pair(values: Sequence[int]) -> tuple[int, int]:
    if len(values) != 2 or values[0] > values[1]:
        raise ArgumentError(f"Templates: x_range is {tuple(values)}; it must be (least, largest)")
    return int(values[0]), int(values[1])
