"""Check the types of the arguments of public callables against the annotations in their signatures. The
check runs before the callable's code; a wrong type raises `DTypeError`, which names the argument. The
callables check values themselves."""

from __future__ import annotations

import functools
import inspect
import reprlib
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from vkq.errors import DTypeError

Function = TypeVar("Function", bound=Callable[..., Any])
Predicate = Callable[[Any], bool]
LARGEST = 2**63
LARGEST_OPTION = 2**31  # maximum stride, padding, ...; no image needs a larger value
LONGEST = 10_000  # maximum length of a sequence
NUMBERS = "biufV"  # kinds of NumPy's dtypes; V is the kind of types of other packages, such as bfloat16


class Rule(NamedTuple):
    """The rule for one annotation."""

    check: Predicate  # returns True for a valid argument
    must: str  # describes a valid argument
    convert: Callable[[Any], Any] | None = None  # to the one type that the callable expects


def checked(function: Function) -> Function:
    """Return the function, or a class's ``__init__``, wrapped so that each call first checks its arguments.

    `RULES` maps the text of an annotation to the check. Parameters with other annotations are not checked."""
    parameters = list(inspect.signature(function).parameters.values())
    op = function.__qualname__.removesuffix(".__init__").rstrip("_")
    rules = {p.name: RULES[str(p.annotation)] for p in parameters if str(p.annotation) in RULES}
    names = [p.name for p in parameters]
    converted = [(name, names.index(name), rule.convert) for name, rule in rules.items() if rule.convert]
    checks = {name: rule.check for name, rule in rules.items()}
    refused = _refused  # a local name, because the globals of `call` are replaced below

    def call(*given: Any, **options: Any) -> Any:
        for name, value in zip(names, given, strict=False):
            if name in checks and not checks[name](value):
                raise refused(op, name, value, rules[name].must)
        for name, value in options.items():
            if name in checks and not checks[name](value):
                raise refused(op, name, value, rules[name].must)
        for name, at, convert in converted:
            if name in options:
                options[name] = convert(options[name])
            elif at < len(given):
                given = (*given[:at], convert(given[at]), *given[at + 1 :])
        return function(*given, **options)

    # doctest finds a function in a module only if the function's globals are the module's.
    home = vars(sys.modules[function.__module__])
    wrapped = types.FunctionType(call.__code__, home, function.__name__, None, call.__closure__)
    return cast(Function, functools.wraps(function)(wrapped))


def _refused(op: str, name: str, value: Any, rule: str) -> DTypeError:
    kind = type(value).__name__
    return DTypeError(f"{op}: {name} is {shown(value)} ({kind}); it must be {rule}.")


def shown(value: Any) -> str:
    """Return a short text for a value, for messages."""
    try:
        return reprlib.repr(value)
    # repr() fails for an integer with too many digits to print, and may fail for any object.
    except Exception:
        return f"a value of {value.bit_length()} bits" if isinstance(value, int) else "a value"


def integer(value: Any, below: int = LARGEST) -> bool:
    """Return True for an integer from -below to below - 1, but not for a bool."""
    if type(value) is not int and not isinstance(value, np.integer):
        return hasattr(value, "__index__") and not isinstance(value, (bool, np.bool_, np.ndarray, type))
    return bool(-below <= value < below)


def real(value: Any) -> bool:
    """Return True for a number, NaN included, but not for a bool."""
    if isinstance(value, (bool, np.bool_)):
        return False
    return isinstance(value, (float, np.floating)) or integer(value)


def array(value: Any) -> bool:
    """Return True if NumPy can convert the value to an array of numbers. Objects with DLPack pass too."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind in NUMBERS
    if value is None or isinstance(value, (str, bytes)):
        return False
    if hasattr(value, "__dlpack_device__"):  # `as_array` checks the device later
        return True
    try:
        return np.asarray(value).dtype.kind in NUMBERS
    except Exception:  # a ragged list, or an object whose __array__ raises
        return False


def dtype(value: Any) -> bool:
    """Return True if NumPy can convert the value to a numeric dtype."""
    try:
        found = np.dtype(value)
        return found.kind in NUMBERS and found.itemsize > 0
    except Exception:
        return False


def sequence(each: Predicate) -> Predicate:
    """Return a check that passes for a sequence (not text) of at most `LONGEST` elements that all pass
    *each*."""

    def check(value: Any) -> bool:
        if isinstance(value, np.ndarray):
            return value.ndim == 1 and len(value) <= LONGEST and all(map(each, value))
        good = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
        return good and len(value) <= LONGEST and all(map(each, value))

    return check


def either(first: Predicate, second: Predicate) -> Predicate:
    return lambda value: first(value) or second(value)


def optional(check: Predicate) -> Predicate:
    """Return a check that also accepts None."""
    return lambda value: value is None or check(value)


def of(*kinds: type) -> Predicate:
    """Return a check that passes for instances of these types."""
    return lambda value: isinstance(value, kinds)


_option = functools.partial(integer, below=LARGEST_OPTION)
_text = of(str)
_integers = sequence(integer)
_options = either(_option, lambda value: not isinstance(value, np.ndarray) and sequence(_option)(value))
_pairs = "an integer or a sequence of integers"
# The keys are the texts of annotations. A module that defines a type adds the type's rule here.
RULES: dict[str, Rule] = {
    "int": Rule(integer, "an integer"),
    "int | None": Rule(optional(integer), "an integer or None"),
    "int | float": Rule(real, "a number"),
    "int | float | None": Rule(optional(real), "a number or None"),
    "float": Rule(real, "a number"),
    "float | Sequence[float] | None": Rule(
        optional(either(real, sequence(real))), "a number, several or None"
    ),
    "bool": Rule(of(bool, np.bool_), "True or False"),
    "str": Rule(_text, "text"),
    "str | None": Rule(optional(_text), "text or None"),
    "str | Function": Rule(either(_text, callable), "a name or a function"),
    "npt.ArrayLike": Rule(array, "an array of numbers"),
    "npt.ArrayLike | None": Rule(optional(array), "an array of numbers or None"),
    "npt.DTypeLike": Rule(dtype, "a dtype of numbers"),
    "int | Sequence[int]": Rule(_options, _pairs),
    "Ints": Rule(_options, _pairs),
    "Ints | None": Rule(optional(_options), f"{_pairs}, or None"),
    "Padding": Rule(either(_text, _options), f"{_pairs}, or text"),
    "Sequence[int]": Rule(_integers, "a sequence of integers"),
    "Sequence[int] | None": Rule(optional(_integers), "a sequence of integers or None"),
    "Sequence[Sequence[int]]": Rule(sequence(_integers), "a sequence of pairs of integers"),
    "Sequence[str]": Rule(sequence(_text), "a sequence of names"),
    "Sequence[str] | None": Rule(optional(sequence(_text)), "a sequence of names or None"),
    "Iterable[Any]": Rule(of(Iterable), "an iterable"),
    "Mapping[str, npt.ArrayLike]": Rule(of(Mapping), "a mapping of names to arrays"),
    "Mapping[str, Sequence[int]]": Rule(of(Mapping), "a mapping of names to shapes"),
    "Mapping[str, Sequence[int]] | None": Rule(optional(of(Mapping)), "a mapping of names to shapes or None"),
    "Progress | None": Rule(optional(callable), "a function or None"),
    "Sequence[slice]": Rule(sequence(of(slice)), "a sequence of slices"),
    "Activation": Rule(
        optional(either(_text, sequence(real))),
        "the name of an activation, its bounds (low, high) or None",
        lambda value: value if value is None or isinstance(value, str) else tuple(value),
    ),
    **dict.fromkeys(("ResizeMode", "Coordinates", "NearestMode", "Rounding"), Rule(_text, "text")),
    **dict.fromkeys(
        ("Accumulate", "Literal['ccorr', 'ssd']", "Literal['ccorr', 'ssd', 'ccoeff_normed']"),
        Rule(_text, "text"),
    ),
}
