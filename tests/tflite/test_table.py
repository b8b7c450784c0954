"""Tests of the tables of docs/tflite.md: every supported operator has a row, each row has cases that test
it, and the column that tells which library computes the bytes is right."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np
import pytest

from vkq.tflite.file import parse
from vkq.tflite.reader import RULES

from . import test_floats
from .all import OPERATORS, operator_case
from .answers import FILE, SEEDS, TAKEN, digest

NAME = re.compile(r"\b[A-Z][A-Z0-9_]+\b")
BOTH = {True, False}
WHOSE = {"XNNPACK": {True}, "LiteRT": {False}, "the numbers": BOTH, "XNNPACK or LiteRT": BOTH}


def rows(columns: int) -> list[list[str]]:
    """Return the rows of the tables in docs/tflite.md that have this number of columns and begin with names
    of operators."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "tflite.md").read_text(encoding="utf-8")
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [row for row in cells if len(row) == columns and NAME.search(row[0])]


QUANTIZED, REAL = rows(4), rows(3)


def operators_of(cell: str) -> set[str]:
    return set(NAME.findall(cell)) - {"SAME", "VALID"}


def test_every_operator_has_a_row() -> None:
    assert set().union(*(operators_of(row[0]) for row in (*QUANTIZED, *REAL))) == set(RULES)
    named = [case for row in QUANTIZED for case in row[3].split(", ")]
    assert sorted(named) == sorted(OPERATORS)


@functools.cache
def taken() -> set[str]:
    with np.load(FILE) as file:
        return set(file[TAKEN].tolist())


@pytest.mark.parametrize("row", QUANTIZED, ids=[row[3].partition(",")[0] for row in QUANTIZED])
def test_quantized(row: list[str]) -> None:
    """The models of a row's cases contain all operators of the row, and the library that computes them is the
    one that the row states."""
    models = [operator_case(op, seed) for op in row[3].split(", ") for seed in range(SEEDS)]
    assert {o.op for data, _ in models for o in parse(data).operators} >= operators_of(row[0])
    assert {digest(case) in taken() for case in models} <= WHOSE[re.split("[:;,]", row[1])[0]]


@pytest.mark.parametrize("row", REAL, ids=[row[2] for row in REAL])
def test_of_floats(row: list[str]) -> None:
    """For each row of docs/tflite.md on float operators, test_floats.py contains the tests that the row
    names, and the names of the row's operators."""
    for name in re.findall(r"test_\w+", row[2]):
        assert callable(getattr(test_floats, name))
    source = Path(test_floats.__file__).read_text(encoding="utf-8")
    assert set(re.findall(r'"([A-Z][A-Z0-9_]+)"', source)) >= operators_of(row[0])
