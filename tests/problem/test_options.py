from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vkq.errors import ArgumentError, DTypeError
from vkq.problem.conv2d import Conv2dProblem
from vkq.problem.options import ConvOptions, quad, shortest


@pytest.mark.parametrize(
    ("padding", "expected"),
    [
        (0, (0, 0, 0, 0)),
        (2, (2, 2, 2, 2)),
        ((1, 2), (1, 2, 1, 2)),
        ([1, 2, 3, 4], (1, 2, 3, 4)),
        ("valid", (0, 0, 0, 0)),
        ("same", (1, 1, 1, 2)),
    ],
)
def test_padding_forms(padding, expected):
    p = Conv2dProblem.of((1, 1, 8, 8), (1, 1, 3, 4), padding=padding)
    assert p.padding == expected


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_same_padding_keeps_the_size(kernel, dilation):
    p = Conv2dProblem.of((1, 1, 7, 9), (1, 1, kernel, kernel), padding="same", dilation=dilation)
    assert p.y_shape == (1, 1, 7, 9)


@pytest.mark.parametrize(
    "options", [{"stride": 1.0}, {"padding": (1, True)}, {"dilation": "2"}, {"groups": 1.5}]
)
def test_conv2d_refuses_options_of_wrong_types(options):
    with pytest.raises((DTypeError, ArgumentError), match=next(iter(options))):
        Conv2dProblem.of((1, 4, 8, 8), (4, 4, 3, 3), **options)


@pytest.mark.parametrize(
    ("weight", "options", "message"),
    [
        ((4, 4, 3), {}, r"conv2d: weight has 3 axes \(shape \(4, 4, 3\)\)"),
        ((3, 2, 3, 3), {"groups": 2}, "OC=3, groups=2; groups must divide OC"),
        ((4, 4, 0, 3), {}, "KH is 0; it must be at least 1"),
        ((4, 4, 3, 3), {"stride": (1, 0)}, "stride is 0; it must be at least 1"),
        ((4, 4, 3, 3), {"padding": "same", "stride": 2}, '"same" needs stride 1'),
        (
            (4, 4, 3, 3),
            {"padding": (1, 2, 3)},
            r"padding is \(1, 2, 3\); give an int, .*, \"same\" or \"valid\"",
        ),
    ],
)
def test_options_are_refused_without_an_image(weight: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ConvOptions.of("conv2d", weight, **options)


def test_options_checked_once_serve_every_image() -> None:
    weight, given = (6, 2, 3, 4), {"stride": 1, "padding": "same", "dilation": (1, 2), "groups": 3}
    options = ConvOptions.of("conv2d", weight, **given)
    assert options == ConvOptions((1, 1), (1, 3, 1, 3), (1, 2), 3, (3, 4))
    for h, w in ((7, 9), (20, 30)):
        whole = Conv2dProblem.with_options((2, 6, h, w), weight, options)
        assert whole == Conv2dProblem.of((2, 6, h, w), weight, **given)
        assert whole.y_shape == (2, 6, h, w)
    with pytest.raises(ArgumentError, match="IC must be 2 \\* 3 = 6"):
        Conv2dProblem.with_options((2, 5, 7, 7), weight, options)


def test_padding_of_operators_without_same_and_valid() -> None:
    assert quad("max_pool2d", np.int64(2)) == (2, 2, 2, 2)
    assert [shortest(quad("max_pool2d", p)) for p in (2, (1, 2), (1, 2, 3, 4))] == ["2", "1x2", "1x2x3x4"]
    with pytest.raises(ArgumentError, match=r"max_pool2d: padding is 'same'; give an int, .* or \(top, left"):
        quad("max_pool2d", "same")
