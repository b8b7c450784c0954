"""The checks of `vkq check`. A check is a problem with a scheme, dtypes, the seed of its data, and a method.
The name of a check contains all of them. `vkq check` accepts names as filters.

A name such as ``linear[M=9,K=9,N=9]/seed=3,x=uint8,wz=channel`` has the problem, the seed, and the options
whose values are not the defaults.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError
from ..kernels.methods import names as conv_methods
from ..numerics.qparams import QDType
from ..numerics.quantize import dequantize, quantize
from ..numerics.requantize import Activation
from ..ops.linear import METHODS as LINEAR_METHODS
from ..problem.names import MOST_LETTERS, Problem, check_work, parse
from ..runtime.device import Device
from ..select.path import float_sums
from .cases import (
    CASES,
    CHANNELS,
    DQ8CA,
    FLOAT_WEIGHTS,
    GROUPED,
    GROUPED_HALF,
    ODD,
    Q8TA,
    Q8TO,
    SCHEMES,
    TRANSPOSED,
    Case,
    large_conv2d,
    long_linear,
    random_conv2d,
    random_linear,
    random_transposed,
)  # fmt: skip
from .data import Data, random_data
from .expected import Expected

ZeroPoints = Literal["none", "tensor", "channel"]
# The names of all methods of each operator.
METHODS: dict[str, tuple[str, ...]] = {
    "linear": LINEAR_METHODS,
    "conv2d": conv_methods(),
    "conv_transpose2d": ("auto",),
}


@dataclasses.dataclass(frozen=True)
class Check:
    """One check.

    - x, w: the dtypes of the operands; an 8-bit result has the dtype of x
    - scheme: one of `cases.SCHEMES`. Schemes in `cases.Q8TA` have 8-bit x, q4gsw_f16 and q8gsw_f16 have
      float16 x, all others float32 x. Results of `cases.Q8TA` and dq8ca_q8csw must be exact; all others have
      an error bound. Weights in groups (q4gsw, ...) are the data's, quantized again in groups along K.
    - wz: weight zero points, "none", "tensor" or "channel"
    - extreme: x and w are extremes of their ranges
    - float_in: x is float32, and the device quantizes it
    """

    problem: Problem
    seed: int = 0
    x: QDType = "int8"
    w: QDType = "int8"
    scheme: str = SCHEMES[0]
    wz: ZeroPoints = "none"
    act: Literal["none", "relu", "relu6"] = "none"
    extreme: bool = False
    float_in: bool = False
    method: str = "auto"

    @property
    def op(self) -> str:
        """The operator: ``linear``, ``conv2d`` or ``conv_transpose2d``."""
        return self.problem.name.partition("[")[0]

    @property
    def name(self) -> str:
        """The problem's name, a slash, the seed, and the options whose values are not the defaults."""
        options = [f"seed={self.seed}"]
        for key, default in _DEFAULTS.items():
            value = getattr(self, key)
            if value != default:
                options.append(key if value is True else f"{key}={value}")
        return f"{self.problem.name}/{','.join(options)}"

    @property
    def activation(self) -> Activation:
        return None if self.act == "none" else self.act

    @property
    def integer(self) -> bool:
        """True if the kernels read 8-bit x with static quantization parameters."""
        return self.scheme in Q8TA

    def data(self, w_range: tuple[int, int] | None = None) -> Data:
        """Return random operands, determined by the seed and the problem's name. *w_range*: see
        `random_data`."""
        rng = np.random.default_rng([self.seed, zlib.crc32(self.problem.name.encode())])
        return random_data(
            self.problem, rng, self.x, self.w, w_range=w_range, w_zero_points=self.wz, extreme=self.extreme
        )

    def input(self, data: Data) -> npt.NDArray[Any]:
        """Return the layer's input: 8-bit x, or float values that are not multiples of the scale of x."""
        if self.integer and not self.float_in:
            return data.x
        rng = np.random.default_rng(self.seed)
        noise = rng.uniform(-0.6, 0.6, data.x.shape) * data.x_q.scale
        given = dequantize(data.x, data.x_q) + noise
        return given.astype(np.float16 if self.scheme in GROUPED_HALF else np.float32)

    def expected(self, data: Data, given: npt.NDArray[Any], device: Device | None = None) -> Expected:
        """Return the reference's result for the input *given*. *device*: the device whose kernels determine
        an error bound; None: a device with float16 matrix units."""
        if self.scheme in CHANNELS:
            compute = CHANNELS[self.scheme]
            sums = float_sums(device, compute) if device else compute
            return data.expected_sum(given, self.activation, sums)
        if self.scheme in FLOAT_WEIGHTS:
            return data.expected_floats(given, FLOAT_WEIGHTS[self.scheme], self.activation)
        if self.scheme in GROUPED:
            return data.expected_grouped(given, GROUPED[self.scheme], self.activation)
        if self.scheme in DQ8CA:
            return Expected(data.expected_dynamic(given, self.activation))
        if self.float_in:
            data = dataclasses.replace(data, x=quantize(given, data.x_q))
        y = data.y_q if self.scheme in Q8TO else None
        return Expected(data.expected(y, activation=self.activation))


_DEFAULTS: dict[str, Any] = {
    field.name: field.default for field in dataclasses.fields(Check) if field.name not in ("problem", "seed")
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "x": ("int8", "uint8"),
    "w": ("int8", "uint8"),
    "scheme": SCHEMES,
    "wz": ("none", "tensor", "channel"),
    "act": ("none", "relu", "relu6"),
    "method": tuple(dict.fromkeys(name for names in METHODS.values() for name in names)),
}
# Every problem is checked with each variation. Together, variations cover every dtype and every epilogue.
_VARIATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"x": "uint8", "scheme": "q8ta_q8csw", "act": "relu"},
    {"wz": "channel", "float_in": True},
    {"w": "uint8", "wz": "tensor", "act": "relu6", "extreme": True},
    {"x": "uint8", "w": "uint8", "wz": "channel", "scheme": "q8ta_q8csw"},
)
_WEIGHT_ONLY: dict[str, Any] = {"scheme": "q8csw", "act": "relu6"}
_HALF: dict[str, Any] = {"scheme": "q8csw_f16", "w": "uint8", "wz": "channel"}
_CENTRED: dict[str, Any] = {"scheme": "q8csw", "w": "uint8", "wz": "channel"}
# The methods that the layers of a scheme do not have.
_OTHERS = {"q8csw": ("im2col", "matrix"), "q8csw_f16": ("im2col", "matrix"), "dq8ca_q8csw": ("staged",)}
_DYNAMIC: dict[str, Any] = {"scheme": "dq8ca_q8csw", "w": "uint8", "wz": "channel"}
_IN_GROUPS: tuple[dict[str, Any], ...] = (
    {"scheme": "q4gsw", "act": "relu6"},
    {"scheme": "q4gsw", "wz": "channel", "method": "staged"},
    {"scheme": "q8gsw", "wz": "channel", "method": "gemv"},
    {"scheme": "q4gsw_f16", "wz": "channel"},
    {"scheme": "q8gsw_f16", "act": "relu"},
)


def catalogue(use: str | None = "correctness") -> Iterator[Check]:
    """Yield all checks of the cases for a use: "correctness" or "performance"; None: both."""
    for case in (*CASES, *TRANSPOSED):
        if use in (None, case.use):
            for number, options in enumerate(_options(case)):
                yield Check(case.layer, seed=number, **options)


def _options(case: Case) -> Iterator[dict[str, Any]]:
    """Yield the options of each check of a case. `ODD` cases have all schemes and all methods."""
    if case.use == "performance":
        yield _VARIATIONS[0]
        return
    yield from _VARIATIONS
    if case not in ODD:
        return
    yield _WEIGHT_ONLY
    yield _HALF
    yield from ({"scheme": scheme, "act": "relu"} for scheme in FLOAT_WEIGHTS)
    if case.op == "linear":
        yield _DYNAMIC
    yield from ({"method": name} for name in METHODS[case.op][1:])
    if case.op == "linear":
        yield from ({**_CENTRED, "method": name} for name in ("gemv", "staged"))
        yield {**_DYNAMIC, "method": "gemv"}
        yield from _IN_GROUPS
    else:
        yield from ({**_CENTRED, "method": name} for name in ("direct", "implicit"))


def random_checks(count: int, seed: int) -> Iterator[Check]:
    """Yield random checks: three of six are convolutions, two are linear layers, one is a transposed
    convolution. Two of 24 are replaced by problems with long sums. Options are random."""
    makers = (random_linear, random_conv2d, random_conv2d, random_linear, random_conv2d, random_transposed)
    large: dict[int, Callable[[np.random.Generator], Problem]] = {6: long_linear, 19: large_conv2d}
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        make = large.get(number % 24, makers[number % 6])
        check = Check(parse(make(rng).name), seed=seed * 1_000_000 + number)
        options: dict[str, Any] = {
            key: str(rng.choice(values))
            for key, values in _CHOICES.items()
            if key not in ("method", "scheme")
        }
        options |= {"extreme": bool(rng.integers(8) == 0), "float_in": bool(rng.integers(6) == 0)}
        options["method"] = str(rng.choice(METHODS[check.op])) if rng.integers(2) else "auto"
        if number % 24 in large:
            options["method"] = "auto"
        options["scheme"] = str(rng.choice(Q8TA)) if rng.integers(4) else str(rng.choice(SCHEMES))
        yield _fitting(dataclasses.replace(check, **options))


def _fitting(check: Check) -> Check:
    """Return the check, with each option that its scheme does not allow replaced by an allowed one."""
    if check.scheme in (*DQ8CA, *GROUPED) and check.op != "linear":
        check = dataclasses.replace(check, scheme="q8csw")
    if check.integer:
        return check
    check = dataclasses.replace(check, float_in=False)
    if check.scheme in FLOAT_WEIGHTS and check.method not in ("tiled", "direct"):
        check = dataclasses.replace(check, method="auto")
    if check.method in _OTHERS.get(check.scheme, ()):
        check = dataclasses.replace(check, method="auto")
    return check


def select(pattern: str) -> list[Check]:
    """Return the checks that *pattern* selects: the full name of a check (also of a random one), the name of
    a problem, a part of names, or a glob with ``*`` or ``?`` for whole names. Raises ArgumentError if no
    check matches."""
    if not pattern:
        return list(catalogue())
    if len(pattern) > MOST_LETTERS:
        raise ArgumentError(f"the filter has {len(pattern)} letters; at most {MOST_LETTERS} are allowed.")
    if re.fullmatch(rf"({'|'.join(METHODS)})\[[^]]*\](/.*)?", pattern) and not set(pattern) & set("*?"):
        exact = _exact(pattern)
        return exact if exact else [check_of(pattern)]
    glob = pattern if set(pattern) & set("*?") else f"*{pattern}*"
    glob = glob.replace("[", "\0").replace("]", "[]]").replace("\0", "[[]")
    found = [check for check in catalogue(None) if fnmatch.fnmatchcase(check.name, glob)]
    if not found:
        raise ArgumentError(f"no check matches {pattern!r}; `vkq check --list` prints their names.")
    return found


def _exact(name: str) -> list[Check]:
    """Return all checks of the problem *name*; an empty list if *name* has options."""
    return [] if "/" in name else [check for check in catalogue(None) if check.problem == parse(name)]


def check_of(name: str) -> Check:
    """Return the check with this full name (``Check.name``). Raises ArgumentError for an invalid name."""
    problem, _, options = name.partition("/")
    if len(options) > MOST_LETTERS:
        raise ArgumentError(f"check {name[:60]!r}...: {len(options)} option letters (most: {MOST_LETTERS})")
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
    if check.method not in METHODS[check.op]:
        known = ", ".join(METHODS[check.op])
        raise ArgumentError(f"check {name!r}: method={check.method} is unknown; {check.op} has {known}.")
    if not check.integer and _fitting(check) != check:
        raise ArgumentError(
            f"check {name!r}: its options do not fit scheme={check.scheme}. x is float, so float_in is not"
            " allowed; q8csw has no methods im2col and matrix, and dq8ca_q8csw no method staged; dq8ca_q8csw,"
            " q4gsw and q8gsw are only for linear layers."
        )
    return check
