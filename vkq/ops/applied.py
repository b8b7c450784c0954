"""The functional forms of layers: a call makes a layer, applies it once, and frees it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, cast, overload

import numpy.typing as npt

from ..arguments import checked
from ..runtime.tensor import Tensor
from .layer import Layer

P = ParamSpec("P")


class Applied(Protocol[P]):
    """The type of a functional form, for type checkers. The arguments are x, the parameters of the layer's
    constructor, and *out* of the layer's call."""

    @overload
    def __call__(self, x: npt.ArrayLike | Tensor, *operands: P.args, **options: P.kwargs) -> Any: ...
    @overload  # Python has no type for "the parameters of P and the argument out"
    def __call__(
        self, x: npt.ArrayLike | Tensor, *operands: Any, out: Tensor | None, **options: Any
    ) -> Any: ...


def applied(layer: Callable[P, Layer[Any]]) -> Callable[[Callable[..., Any]], Applied[P]]:
    """Return a decorator that replaces a function by the functional form of *layer*. The form keeps the
    name and the docstring of the function.

    The signature is ``(x, <the parameters of the layer>, out=None)``, also for `inspect`, help() and the
    manual. The layer checks its arguments. The default device is that of x or *out*."""

    def form(named: Callable[..., Any]) -> Applied[P]:
        def call(x: Any, *operands: Any, out: Tensor | None = None, **options: Any) -> Any:
            for one in (x, out):
                if isinstance(one, Tensor) and options.get("device") is None:
                    options["device"] = one.device
            return layer(*operands, **options)(x, out=out)

        own = inspect.signature(layer)
        kind = inspect.Parameter
        x = kind("x", kind.POSITIONAL_OR_KEYWORD, annotation="npt.ArrayLike | Tensor")
        out = kind("out", kind.KEYWORD_ONLY, default=None, annotation="Tensor | None")
        parameters = {p.name: p for p in (x, *own.parameters.values(), out)}
        functools.update_wrapper(call, named)
        call.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
        types = {name: p.annotation for name, p in parameters.items()}
        call.__annotations__ = types | {"x": npt.ArrayLike | Tensor, "out": Tensor | None}
        found: Any = checked(call)
        # Tools that follow ``__wrapped__`` would look up type names in the wrong module.
        del found.__wrapped__
        return cast("Applied[P]", found)

    return form
