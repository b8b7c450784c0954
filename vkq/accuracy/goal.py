"""The goal that a quantized model must reach: closeness to the float model, or a score that the user's own
program gives."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..onnx.protobuf import package
from .trial import Found

DEFAULT_FRACTION = 0.995  # default minimum score, as a fraction of the float model's score
SHOWN = 500  # maximum number of characters of a failed script's output in an error message

Judge = Callable[[Path], "float | bool"]


class Goal:
    """A callable that returns True if a candidate (`Found`) is good enough.

    - least_db, least_same: the minimum ``snr_db`` and ``same`` of the worst output
    - judge: a function that gets the path of the candidate's ONNX file, and returns a bool or a score
    - least: the minimum score (default: 99.5 % of the float model's score)

    Raises ArgumentError if the judge rejects the float model itself.
    """

    def __init__(
        self, real: Any, least_db: float | None, least_same: float | None, judge: Judge | None = None,
        least: float | None = None, progress: Callable[[str], None] = lambda text: None,
    ):  # fmt: skip
        self.least_db = float("-inf") if least_db is None else least_db
        self.least_same = least_same or 0.0
        self.judge, self.least, self.progress = judge, least, progress
        self.exists = not (least_db is None and least_same is None and judge is None)
        if judge is None:
            return
        score = self._score(real)
        if least is None and not isinstance(score, bool):
            self.least = score - (1 - DEFAULT_FRACTION) * abs(score)
        if not self._passes(score):
            wanted = "" if self.least is None else f"; the target is at least {self.least:g}"
            raise ArgumentError(
                f"the target's judge already rejects the float model: its score is {score}{wanted}"
            )
        progress(f"the float model scores {score}")

    def __call__(self, found: Found) -> bool:
        if found.snr_db < self.least_db or found.same < self.least_same:
            return False
        if self.judge is None:
            return True
        score = self._score(found.model())
        self.progress(f"a candidate of {found.snr_db:.1f} dB scores {score}")
        return self._passes(score)

    def _score(self, proto: Any) -> float | bool:
        assert self.judge is not None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "candidate.onnx"
            package().save(proto, path)
            score = self.judge(path)
        return score if isinstance(score, bool) else float(score)

    def _passes(self, score: float | bool) -> bool:
        if isinstance(score, bool):
            return score
        return self.least is not None and score >= self.least


def script(path: str | os.PathLike[str]) -> Judge:
    """Return a judge that runs the program *path* (a Python file, or an executable). The program's argument
    is the path of a candidate model.

    If the last line that the program prints is a number, the number is the score, and the exit code must be
    0. Otherwise exit code 0 means True, and any other exit code means False.
    """
    file = Path(path).absolute()
    if not file.is_file():
        raise ArgumentError(f"{path}: there is no such file; name a Python file or an executable")
    start = [sys.executable, str(file)] if file.suffix == ".py" else [str(file)]

    def judge(candidate: Path) -> float | bool:
        try:
            done = subprocess.run(
                [*start, str(candidate)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
            )
        except OSError as error:
            raise ArgumentError(f"{path} cannot be run ({error}); make it executable") from error
        said = done.stdout.decode(errors="replace").rstrip()
        if done.returncode < 0 or "Traceback (most recent call last)" in said:
            raise ArgumentError(f"{path} failed, exit code {done.returncode}:\n{said[-SHOWN:]}")
        try:
            score = float(said.splitlines()[-1])
        except (ValueError, IndexError):
            return done.returncode == 0
        if done.returncode:
            raise ArgumentError(
                f"{path} printed {score:g} and ended with exit code {done.returncode}; with a score, it must"
                " be 0"
            )
        return score

    return judge
