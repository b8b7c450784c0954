"""Tests that the list of guards matches the code; `make mutants` removes the guards one at a time."""

from __future__ import annotations

import ast

import pytest

from tests.mutants import ROOT, Mutant, mutants


@pytest.mark.parametrize("mutant", mutants(), ids=str)
def test_the_guard_is_there_and_its_test_exists(mutant: Mutant) -> None:
    if mutant.file.suffix == ".py":
        ast.parse(mutant.applied())
    path, *names = mutant.test.partition("[")[0].split("::")
    text = (ROOT / path).read_text()
    assert not names or f"def {names[-1]}(" in text


def test_there_are_sixty() -> None:
    assert len(mutants()) >= 60
    assert len({(m.file, m.guard) for m in mutants()}) == len(mutants())
