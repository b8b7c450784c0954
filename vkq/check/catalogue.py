"""The checks of `vkq check`: a problem with its types, data and output; the name says everything and is the
filter.

``linear[M=9,K=9,N=9]/seed=3,x=uint8,wz=channel`` is the problem, the seed of its data, and what differs from
int8 data, weights without zero points, and an int8 result.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import zlib
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError
from ..numerics.qparams import QDType
from ..numerics.quantize import dequantize, quantize
from ..numerics.requantize import Activation
from ..problem.conv2d import Conv2dProblem
from ..problem.linear import LinearProblem
from ..problem.names import MOST_LETTERS, Problem, check_work, parse
from .cases import CASES, random_conv2d, random_linear
from .data import Data, random_data

ZeroPoints = Literal["none", "tensor", "channel"]


@dataclasses.dataclass(frozen=True)
class Check:
    """One case. ``x``, ``w``: the types of the operands; ``x`` is the result's too. ``out``: "q8to" (8-bit)
    or "f32".

    ``wz``: weight zero points, "none", "tensor" or "channel". ``act``: "none", "relu" or "relu6".
    ``extreme``: data at the ends of its type. ``float_in``: x is float32 and quantized on the device.
    ``method``: of a convolution, see `vkq.Conv2d`.
    """

    problem: Problem
    seed: int = 0
    x: QDType = "int8"
    w: QDType = "int8"
    out: Literal["q8to", "f32"] = "q8to"
    wz: ZeroPoints = "none"
    act: Literal["none", "relu", "relu6"] = "none"
    extreme: bool = False
    float_in: bool = False
    method: Literal["auto", "im2col", "direct", "depthwise", "pointwise"] = "auto"

    @property
    def name(self) -> str:
        """The problem's name, and after a slash the seed and what is not the default."""
        options = [f"seed={self.seed}"]
        for key, default in _DEFAULTS.items():
            value = getattr(self, key)
            if value != default:
                options.append(key if value is True else f"{key}={value}")
        return f"{self.problem.name}/{','.join(options)}"

    @property
    def activation(self) -> Activation:
        return None if self.act == "none" else self.act

    def data(self, w_range: tuple[int, int] | None = None) -> Data:
        """The operands, the same for the same name."""
        rng = np.random.default_rng([self.seed, zlib.crc32(self.problem.name.encode())])
        return random_data(
            self.problem, rng, self.x, self.w, w_range=w_range, w_zero_points=self.wz, extreme=self.extreme
        )

    def input(self, data: Data) -> npt.NDArray[Any]:
        """What the layer is given: x, or float32 numbers whose quantization is not exact."""
        if not self.float_in:
            return data.x
        rng = np.random.default_rng(self.seed)
        noise = rng.uniform(-0.6, 0.6, data.x.shape) * data.x_q.scale
        return (dequantize(data.x, data.x_q) + noise).astype(np.float32)

    def expected(self, data: Data, given: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The reference's answer to *given*."""
        if self.float_in:
            data = dataclasses.replace(data, x=quantize(given, data.x_q))
        return data.expected(data.y_q if self.out == "q8to" else None, activation=self.activation)


_DEFAULTS: dict[str, Any] = {
    field.name: field.default for field in dataclasses.fields(Check) if field.name not in ("problem", "seed")
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "x": ("int8", "uint8"),
    "w": ("int8", "uint8"),
    "out": ("q8to", "f32"),
    "wz": ("none", "tensor", "channel"),
    "act": ("none", "relu", "relu6"),
    "method": ("auto", "im2col", "direct", "depthwise", "pointwise"),
}
_EVERYWHERE = ("auto", "auto", "im2col", "direct")  # methods that take every convolution
# Every problem is checked with each of these: together they reach every output, type and epilogue.
_VARIATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"x": "uint8", "out": "f32", "act": "relu"},
    {"wz": "channel", "float_in": True},
    {"w": "uint8", "wz": "tensor", "act": "relu6", "extreme": True},
    {"x": "uint8", "w": "uint8", "wz": "channel", "out": "f32"},
)


def catalogue(use: str | None = "correctness") -> Iterator[Check]:
    """Every check of the problems for a use ("correctness", "performance"; None: all)."""
    for case in CASES:
        if use in (None, case.use):
            for number, options in enumerate(_VARIATIONS if case.use == "correctness" else _VARIATIONS[:1]):
                yield Check(case.problem, seed=number, **options)


def random_checks(count: int, seed: int) -> Iterator[Check]:
    """Seeded random checks: two convolutions for each linear layer, every option at random."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        problem = random_linear(rng) if number % 3 == 0 else random_conv2d(rng)
        options: dict[str, Any] = {
            key: str(rng.choice(values)) for key, values in _CHOICES.items() if key != "method"
        }
        options |= {"extreme": bool(rng.integers(8) == 0), "float_in": bool(rng.integers(6) == 0)}
        if isinstance(problem, Conv2dProblem):
            options["method"] = str(rng.choice(_EVERYWHERE))
        yield Check(parse(problem.name), seed=seed * 1_000_000 + number, **options)


def select(pattern: str) -> list[Check]:
    """The checks that *pattern* names: one check by its full name (of random ones too), else those whose name
    holds it.

    ``*`` and ``?`` make it a glob over the whole name. Raises ArgumentError where nothing matches.
    """
    if not pattern:
        return list(catalogue())
    if len(pattern) > MOST_LETTERS:
        raise ArgumentError(f"the filter has {len(pattern)} letters; at most {MOST_LETTERS} are taken.")
    if re.fullmatch(r"(linear|conv2d)\[[^]]*\](/.*)?", pattern) and not set(pattern) & set("*?"):
        exact = _exact(pattern)
        return exact if exact else [check_of(pattern)]
    glob = pattern if set(pattern) & set("*?") else f"*{pattern}*"
    glob = glob.replace("[", "\0").replace("]", "[]]").replace("\0", "[[]")
    found = [check for check in catalogue(None) if fnmatch.fnmatchcase(check.name, glob)]
    if not found:
        raise ArgumentError(f"no check matches {pattern!r}; `vkq check --list` prints their names.")
    return found


def _exact(name: str) -> list[Check]:
    """The catalogue's checks of a problem written without options."""
    return [] if "/" in name else [check for check in catalogue(None) if check.problem == parse(name)]


def check_of(name: str) -> Check:
    """The check of a full name; the inverse of ``Check.name``. Raises ArgumentError for what it cannot be."""
    problem, _, options = name.partition("/")
    if len(options) > MOST_LETTERS:
        raise ArgumentError(f"check {name[:60]!r}...: its options have {len(options)} letters.")
    values: dict[str, Any] = {}
    for item in filter(None, options.split(",")):
        key, _, value = item.partition("=")
        if key in ("extreme", "float_in") and not value:
            values[key] = True
        elif key == "seed" and re.fullmatch("[0-9]{1,18}", value):
            values[key] = int(value)
        elif value in _CHOICES.get(key, ()):
            values[key] = value
        else:
            known = "; ".join(f"{k}={'|'.join(v)}" for k, v in _CHOICES.items())
            raise ArgumentError(
                f"check {name!r}: the option {item!r} is unknown; there are seed=NUMBER; {known}; extreme;"
                " float_in."
            )
    check = Check(parse(problem), **values)
    check_work(check.problem)
    if check.method != "auto" and isinstance(check.problem, LinearProblem):
        raise ArgumentError(f"check {name!r}: method={check.method} is for convolutions; leave it out.")
    return check
