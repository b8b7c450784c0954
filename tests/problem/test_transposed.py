from __future__ import annotations

from typing import Any

import pytest

from vkq.errors import ArgumentError, DTypeError
from vkq.problem.transposed import TransposedConv2dProblem, TransposedOptions


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stride": 0}, "stride is 0; it must be at least 1"),
        ({"padding": (1, 2, 3)}, r"padding is \(1, 2, 3\); give an int, \(vertical, horizontal\) or \(top"),
        (
            {"output_padding": 2, "stride": 2},
            r"output_padding\[0\] is 2; it must be less than the stride \(2\) or the dilation \(1\)",
        ),
        ({"groups": 3}, "IC=4, groups=3; groups must divide IC"),
        (
            {"padding": 4, "x_shape": (1, 4, 2, 2)},
            r"\(2 - 1\)\*1 - 4 - 4 \+ 1\*\(3 - 1\) \+ 0 \+ 1 = -4; it must be at least 1",
        ),
        ({"x_shape": (1, 5, 2, 2)}, r"x has IC=5 .* weight has IC=4"),
        ({"x_shape": (4, 2, 2)}, "x has 3 axes"),
        ({"weight_shape": (4, 2)}, "weight has 2 axes"),
        ({"weight_shape": (4, 2, 0, 1)}, "KH is 0; it must be at least 1"),
    ],
)
def test_problem_refuses(change, message):
    good: dict[str, Any] = {"x_shape": (1, 4, 5, 5), "weight_shape": (4, 2, 3, 3)}
    assert TransposedConv2dProblem.of(**good).y_shape == (1, 2, 7, 7)
    with pytest.raises(ArgumentError, match=message):
        TransposedConv2dProblem.of(**(good | change))


@pytest.mark.parametrize(
    "options", [{"stride": 1.0}, {"padding": "same"}, {"groups": True}, {"dilation": "2"}]
)
def test_refuses_options_of_wrong_types(options: dict[str, Any]) -> None:
    with pytest.raises((DTypeError, ArgumentError), match=f"conv_transpose2d: {next(iter(options))} is"):
        TransposedOptions.of((4, 2, 3, 3), **options)


def test_options_are_checked_without_an_image() -> None:
    options = TransposedOptions.of((4, 2, 3, 5), 2, (1, 2), 1, groups=2)
    assert (options.kernel, options.padding, options.output_padding) == ((3, 5), (1, 2, 1, 2), (1, 1))
    whole = TransposedConv2dProblem.with_options((1, 4, 7, 7), (4, 2, 3, 5), options)
    assert whole == TransposedConv2dProblem.of((1, 4, 7, 7), (4, 2, 3, 5), 2, (1, 2), 1, groups=2)
    with pytest.raises(ArgumentError, match=r"output_padding\[1\] is 2; it must be less than the stride"):
        TransposedOptions.of((4, 2, 3, 5), 2, 0, (0, 2))
    with pytest.raises(ArgumentError, match="IC=4, groups=3; groups must divide IC"):
        TransposedOptions.of((4, 2, 3, 5), groups=3)
