"""Tests of the expressions in a shader's YAML."""

import itertools

import pytest

from vkq.errors import ArgumentError
from vkq.shader.expression import MAX_LENGTH, MOST_KEPT, Expression, _parse, ceil_div


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("a + b * 2", 14),
        ("(a + b) * 2", 18),
        ("a - -b", 9),
        ("a // 2 + a % 3", 3),
        ("ceil_div(a, 3) + min(a, b, 9) * max(1, b)", 22),
    ],
)
def test_values(text: str, value: int) -> None:
    assert Expression(text).evaluate({"a": 4, "b": 5, "unused": 0}) == value


def test_ceil_div_is_the_least_count_that_covers() -> None:
    for a, b in itertools.product(range(40), range(1, 9)):
        assert (ceil_div(a, b) - 1) * b < a <= ceil_div(a, b) * b


def test_names_leave_out_functions() -> None:
    assert Expression("ceil_div(m, max(t, 2))").names == {"m", "t"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "a ** b",
        "1.5",
        "True",
        "'a'",
        "a.b",
        "a[0]",
        "a if b else 1",
        "a < b",
        "__import__('os')",
        "open(a)",
        "min(a)",
        "ceil_div(a, b, 1)",
        "max(a, b=1)",
        "[a for a in b]",
        "lambda: 1",
        "1" * (MAX_LENGTH + 1),
        "(" * 400,
        "\0",
        "1if a else 2",
        "0x10",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(ArgumentError):
        Expression(text)


def test_evaluation_errors_name_the_values() -> None:
    with pytest.raises(ArgumentError, match="needs a value for 'm'"):
        Expression("m + 1").evaluate({"n": 1})
    with pytest.raises(ArgumentError, match="divides by zero with a=0"):
        Expression("8 // a").evaluate({"a": 0})


@pytest.mark.filterwarnings("error")
def test_numbers_glued_to_words_are_refused_without_a_warning() -> None:
    with pytest.raises(ArgumentError, match="not an expression"):
        Expression("4or a")


def test_texts_that_differ_are_not_kept_for_ever() -> None:
    for i in range(MOST_KEPT + 10):
        Expression(f"{i} + a")
    assert _parse.cache_info().currsize == MOST_KEPT
