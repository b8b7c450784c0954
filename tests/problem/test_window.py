from __future__ import annotations

import numpy as np
import pytest

from vkq.errors import ArgumentError, DTypeError
from vkq.problem.window import Window


def test_forms_of_the_arguments() -> None:
    window = Window.of("max_pool2d", (2, 3, 9, 8), (3, 2), None, (1, 0), np.int64(1), False)
    assert (window.stride, window.padding, window.dilation) == ((3, 2), (1, 0, 1, 0), (1, 1))
    assert (window.y_shape, window.taps) == ((2, 3, 3, 4), 6)
    assert Window.of("max_pool2d", (1, 1, 9, 8), 3, 1, (0, 1, 2, 0), 2, False).padding == (0, 1, 2, 0)


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_output_size_is_that_of_counting_windows(ceil_mode: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        size, kernel, stride = (int(v) for v in rng.integers(1, (12, 5, 5)))
        before, after = (int(v) for v in rng.integers(0, kernel, 2))
        if size + before + after < kernel:
            continue
        p = Window.of(
            "pool", (1, 1, size, size), kernel, stride, (before, before, after, after), 1, ceil_mode
        )
        starts = range(0, size + before + after, stride)
        # as in the ONNX specification, a window begins inside the image or in the padding before it
        if ceil_mode:
            windows = [s for s in starts if s < size + before]
            last = next((i for i, s in enumerate(windows) if s + kernel >= size + before + after), None)
            count = len(windows) if last is None else last + 1
        else:
            count = sum(s + kernel <= size + before + after for s in starts)
        assert p.y_shape[2:] == (count, count), p


def test_refuses() -> None:
    good = ("avg_pool2d", (1, 1, 8, 8))
    with pytest.raises(ArgumentError, match="avg_pool2d: x has 3 axes"):
        Window.of("avg_pool2d", (1, 8, 8), 2, 2, 0, 1, False)
    with pytest.raises(ArgumentError, match=r"padding along H is \(3, 3\) and the kernel spans 3"):
        Window.of(*good, 3, 1, 3, 1, False)
    with pytest.raises(ArgumentError, match="the kernel spans 9 but H with padding is 8"):
        Window.of(*good, 9, None, 0, 1, False)
    # In ceil mode the last window may reach beyond the padding, also if it is the only window.
    assert Window.of("max_pool2d", (1, 1, 8, 1), (1, 3), (1, 3), (0, 0, 0, 1), 1, True).y_shape == (
        1,
        1,
        8,
        1,
    )
    with pytest.raises(ArgumentError, match=r"the kernel spans 5 but W with padding is 1 \+ 0 \+ 0"):
        Window.of("max_pool2d", (1, 1, 8, 1), (1, 5), (1, 3), 0, 1, True)
    with pytest.raises(
        ArgumentError, match=r"kernel is \(1, 2, 3\); give an int or \(vertical, horizontal\)"
    ):
        Window.of(*good, (1, 2, 3), None, 0, 1, False)
    with pytest.raises(DTypeError, match=r"stride is 1.5 \(float\); it must be an integer"):
        Window.of(*good, 2, 1.5, 0, 1, False)  # type: ignore[arg-type]
