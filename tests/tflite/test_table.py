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

from . import test_detections, test_floats, test_sums
from .all import OPERATORS, operator_case
from .answers import FILE, SEEDS, TAKEN, digest

NAME = re.compile(r"\b(?:[A-Z][A-Z0-9_]+|TFLite_\w+)\b")
BOTH = {True, False}
WHOSE = {"XNNPACK": {True}, "LiteRT": {False}, "the numbers": BOTH, "XNNPACK or LiteRT": BOTH}


def rows(columns: int) -> list[list[str]]:
    """Return the rows of the tables in docs/tflite.md that have this number of columns and begin with names
    of operators."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "tflite.md").read_text(encoding="utf-8")
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [row for row in cells if len(row) == columns and NAME.search(row[0])]


QUANTIZED, REAL = rows(4), rows(3)
FLOATS = test_floats, test_sums, test_detections


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
    """For each row of docs/tflite.md on float operators, one of FLOATS contains the tests that the row names,
    and the names of the row's operators."""
    names = re.findall(r"test_\w+", row[2])
    modules = [module for module in FLOATS if all(hasattr(module, name) for name in names)]
    sources = [Path(str(module.__file__)).read_text(encoding="utf-8") for module in modules]
    named = [set(re.findall(r'"([A-Z]\w+)"', source)) for source in sources]
    assert any(found >= operators_of(row[0]) for found in named)
