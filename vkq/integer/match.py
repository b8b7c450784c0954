"""Template matching with scores from exact integer sums."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..errors import ArgumentError
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from .best import Best, best_of_maps
from .checks import Array, integers, range_of
from .score import score
from .templates import Templates


@checked
def match_template(
    image: npt.ArrayLike | Tensor,
    templates: npt.ArrayLike | Templates,
    method: Literal["ccorr", "ssd", "ccoeff_normed"] = "ccorr",
    best: bool = False,
    *,
    path: str = "auto",
    device: Device | int | str | None = None,
) -> Any:
    """Return a score for each template at every position of the image, from exact integer sums.

    The sums run over a window I of the image and the template T, of n elements each (all channels
    together):

    | method | value | dtype | best | elsewhere |
    | --- | --- | --- | --- | --- |
    | "ccorr" | sum I*T | int64, exact | largest | cv2.TM_CCORR |
    | "ssd" | sum (I - T)**2 | int64, exact | smallest; 0 where equal | cv2.TM_SQDIFF |
    | "ccoeff_normed" | cov(I, T) / sqrt(var(I) * var(T)) | float64 | largest (<= 1) | cv2.TM_CCOEFF_NORMED |

    The device computes the sums of products. For "ccoeff_normed", the host divides exact integers in
    float64 and finds the best position, because Vulkan does not guarantee equal float64 rounding on all
    devices. As in skimage.feature.match_template, the score is 1 where I = a*T + b with a > 0, and 0 where
    the window or the template is constant.

    Args:
        image: (H, W) or (C, H, W), an array or Tensor of the dtypes of `conv2d`.
        templates: (h, w) or (T, h, w) for an image (H, W); (C, h, w) or (T, C, h, w) for an image (C, H, W).
            They must not be larger than the image. Or an object `Templates` of (T, h, w) or (T, C, h, w),
            made without bias and options, whose templates stay on the device.
        best: if True, return ``Best(score, place)`` instead of the maps of scores: the best score of each
            template (T,) and its position (T, 2); for a single template, a number and an array (2,). For
            "ccorr" and "ssd" the device finds the best window, so that no map is downloaded.
        path, device: as in `conv2d`.

    Returns:
        (T, H-h+1, W-w+1), without T if a single template was given. The value at [i, j] belongs to the window
        with the top left pixel (i, j).

    Raises:
        DTypeError, ArgumentError: as in `conv2d`. AccumulatorOverflowError: a sum of squares may exceed
        int64; only 32-bit data can cause this.

    >>> image = np.arange(20, dtype=np.uint8).reshape(4, 5) ** 2
    >>> score = match_template(image, image[1:3, 2:4], "ssd")
    >>> np.argwhere(score == 0)
    array([[1, 2]])
    >>> match_template(image, image[None, 1:3, 2:4], "ssd", best=True)
    Best(score=array([0]), place=array([[1, 2]]))
    """
    if method not in ("ccorr", "ssd", "ccoeff_normed"):
        raise ArgumentError(f"match_template: method is {method!r}; it must be ccorr, ssd or ccoeff_normed")
    a = image if isinstance(image, Tensor) else integers("match_template", "image", image)
    kept, single = _templates(a, templates, path, device)
    shape = (1, *((1, *a.shape) if len(a.shape) == 2 else a.shape))
    if shape[2] < kept.w.shape[2] or shape[3] < kept.w.shape[3]:
        raise ArgumentError(
            f"match_template: the image is {shape[2]} x {shape[3]} and the templates {kept.w.shape[2]} x"
            f" {kept.w.shape[3]}; they must fit in the image"
        )
    kept.problem(shape)
    if best and method != "ccoeff_normed":
        found = kept.best_of(a, shape, method == "ssd")
        return Best(*(part[0, 0] if single else part[0] for part in found))
    host = a.numpy().reshape(shape) if isinstance(a, Tensor) else a.reshape(shape)
    products = kept(host)[0].astype(np.int64, copy=False)
    scores = products if method == "ccorr" else score(method, host[0], kept.w, products)
    if best:
        scores = best_of_maps(scores)
        return Best(*(part[0] for part in scores)) if single else scores
    return scores[0] if single else scores


def _templates(
    a: Array | Tensor, templates: npt.ArrayLike | Templates, path: str, device: Device | int | str | None
) -> tuple[Templates, bool]:
    """Return (the templates, whether the caller gave a single template without the axis T)."""
    if isinstance(templates, Templates):
        if templates.plain and len(a.shape) in (2, 3):
            return templates, False
        raise ArgumentError(
            f"match_template: image {a.shape} and Templates {templates.w.shape}; the image must be (H, W) or"
            " (C, H, W), and the templates without bias, stride, padding, dilation and groups"
        )
    t = integers("match_template", "templates", templates)
    rank = len(a.shape)
    if rank not in (2, 3) or t.ndim not in (rank, rank + 1):
        raise ArgumentError(
            f"match_template: image {a.shape}, templates {t.shape}; they must be (H, W) with (h, w) or (T, h,"
            " w), or (C, H, W) with (C, h, w) or (T, C, h, w)"
        )
    if rank == 3 and t.shape[-1] == a.shape[-1] < a.shape[0] != t.shape[-3] and a.shape[-1] in (1, 3, 4):
        raise ArgumentError(
            f"match_template: image {a.shape} and templates {t.shape} have their channels last; they must be"
            " first: image.transpose(2, 0, 1), and the templates alike"
        )
    single = t.ndim == rank
    w = t[None] if single else t
    w = w if w.ndim == 4 else w[:, None]
    x_range = range_of(a) if isinstance(a, np.ndarray) else None
    where = a.device if isinstance(a, Tensor) and device is None else device
    return Templates(w, x_dtype=str(a.dtype), x_range=x_range, path=path, device=where), single
