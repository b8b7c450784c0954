"""Attention (`vkq.numerics.attention`) without a matrix of scores in memory. There are one or two
dispatches: the first computes attention to each part of the keys separately, the second combines the parts.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

from ..layout.extent import Spec
from ..numerics.attention import LANES, Seen, Tile, span_of
from ..runtime.builder import Builder, Value
from ..shader.expression import Expression
from ..shader.spec import Binding, PushConstant, Written
from .attention_form import PART, STRIDES, UNROLLED, WORDS, AttentionForm, Places
from .attention_join import JOIN_WORDS, JoinForm, join_module
from .attention_parts import PartsKernel


@dataclasses.dataclass(frozen=True)
class Strides:
    """The distances in elements between neighbours along each axis of an operand: batch, head, row (a query
    or key) and column."""

    batch: int
    head: int
    row: int
    column: int = 1

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Strides:
        """Return the strides of a contiguous array (batch, heads, rows, columns); 0 for an axis of one
        element."""
        steps = [math.prod(shape[i + 1 :]) if size > 1 else 0 for i, size in enumerate(shape)]
        return cls(steps[0], steps[1], steps[2], steps[3])


@dataclasses.dataclass(frozen=True)
class AttentionSizes:
    """The sizes of attention."""

    batch: int
    heads: int  # heads of the queries
    groups: int  # heads of the keys and values
    queries: int
    keys: int
    depth: int  # elements of a query or key
    width: int  # elements of a value

    @property
    def lines(self) -> int:
        """The number of rows of a matrix of scores: the queries of all heads that share a head of keys."""
        return self.heads // self.groups * self.queries


def attended(
    b: Builder,
    operands: tuple[Value, Value, Value],
    strides: tuple[Strides, Strides, Strides, Strides],
    sizes: AttentionSizes,
    y: Spec,
    scale: float,
    seen: Seen,
    bias: tuple[Value, Strides] | None = None,
    guarded: bool = False,
    places: Value | None = None,
) -> Value:
    """Add attention to a plan, and return the result.

    - *strides*: the strides of q, k, v and y. q, k and v are float32 or float16.
    - *bias*: float32, added to the scores.
    - *places*: the positions of the queries among the keys, int32 (batch or 1, queries), at least 0; None:
      the positions of *seen*. With *places*, *seen* must be causal.
    - *guarded*: a query with NaN weights gets the result 0.

    *y*: the spec of the result. If *y* is float16, the result is float32 nevertheless, unless a second
    dispatch combines parts and *width* is even."""
    lines, span = sizes.lines, span_of(sizes.lines, sizes.width)
    parts = -(-sizes.keys // span)
    apart = parts > 1
    result = b.new(y if apart and sizes.width % 2 == 0 else Spec(y.shape, "float32"))
    if not y.size:
        return result
    q, k, v = operands
    form = AttentionForm(
        sizes.depth, sizes.width, Tile.of(lines, sizes.width), (q.spec.dtype, k.spec.dtype, v.spec.dtype),
        seen.causal, bias is not None, guarded, b.device.soft_float, span if apart else 0, apart,
        places is not None,
    )  # fmt: skip
    push = numbers(sizes, (*strides, bias[1] if bias else None), scale, seen, places)
    push |= {"matrices": sizes.batch * sizes.groups * max(parts, 1), "k_column": strides[1].column}
    sums = b.words(sizes.batch * sizes.groups * parts * lines * (sizes.width + 2)) if apart else result
    slots = [*operands, *([bias[0]] if bias else []), *([places] if places else []), sums]
    b.dispatch(b.device.program(written(form)), slots, push, macs=rounds(sizes))
    if apart:
        joined_parts(b, sums, result, sizes, (parts, guarded), strides[3])
    return result


def numbers(
    sizes: AttentionSizes, strides: Sequence[Strides | None], scale: float, seen: Seen, places: Value | None
) -> dict[str, int | float]:
    """Return the push constants of attention. *strides*: those of q, k, v, y and the bias."""
    push: dict[str, int | float] = {
        "matrices": sizes.batch * sizes.groups, "groups": sizes.groups, "lines": sizes.lines,
        "queries": sizes.queries, "keys": sizes.keys, "scale": scale, "window": seen.window,
        "start": seen.start if places is None else Strides.of((*places.spec.shape, 1, 1)).batch,
    }  # fmt: skip
    given = [one or Strides(0, 0, 0, 0) for one in strides]
    for name, one in zip("qkvyb", given, strict=True):
        push |= {f"{name}_{stride}": getattr(one, stride) for stride in STRIDES}
    return push | {"b_column": given[4].column}


def joined_parts(
    b: Builder, sums: Value, y: Value, sizes: AttentionSizes, form: tuple[int, bool], strides: Strides,
    sink: Value | None = None,
) -> None:  # fmt: skip
    """Add the kernel that combines the parts of the keys (`join_module`) to a plan.

    - *form*: (number of parts, whether a query with NaN weights gets the result 0).
    - *strides*: the strides of y.
    - *sink*: float32 (heads,)."""
    parts, guarded = form
    half, how = y.spec.dtype == "float16", (b.device.soft_float, b.device.converts)
    joined = JoinForm(sizes.width, sink is not None, guarded, half, *how)
    push = {"count": y.spec.size >> half, "queries": sizes.queries, "groups": sizes.groups}
    push["lines"] = sizes.lines
    push |= {"parts": parts, **{f"y_{stride}": getattr(strides, stride) for stride in STRIDES}}
    slots = [sums, *([sink] if sink else []), y]
    b.dispatch(b.device.program(written_join(joined)), slots, push, macs=y.spec.size * parts * 32)


def rounds(sizes: AttentionSizes) -> int:
    """Return the number of multiply-adds of attention."""
    pairs = sizes.batch * sizes.heads * sizes.queries * sizes.keys
    return pairs * (sizes.depth + sizes.width)


@functools.lru_cache(256)
def written(form: AttentionForm) -> Written:
    """Return the shader for a form."""
    tile = form.tile
    names = ["q", "k", "v", *["bias"] * form.biased, *["places"] * form.placed]
    bindings = [Binding(i, name, "read", "uint") for i, name in enumerate(names)]
    bindings.append(Binding(len(names), "y", "write", "uint"))
    push = tuple(PushConstant(n, "float" if n == "scale" else "uint", 4 * i) for i, n in enumerate(WORDS))
    each = rounds_of(form.depth, tile)
    about = f"{form.depth}.{form.width}.{tile.rows}x{tile.keys}.{'-'.join(form.types)}"
    about += (".placed" if form.placed else ".causal") * form.causal
    about += ".bias" * form.biased + ".guarded" * form.guarded
    about += f".by{form.span}" * bool(form.span)
    return Written(
        "attention__tiles", f"attention__tiles:{about}", "attention in tiles of keys", tuple(bindings), push,
        LANES, Expression(f"matrices * ((lines + {tile.rows - 1}) // {tile.rows})"),
        4 * Places.of(tile, form.part).end, lambda: PartsKernel(form).module(),
        f"{each} * (({form.span or 'keys'} + {tile.keys - 1}) // {tile.keys})",
    )  # fmt: skip


def turns(sizes: AttentionSizes) -> int:
    """Return the number of loop iterations of an invocation."""
    tile = Tile.of(sizes.lines, sizes.width)
    span = min(sizes.keys, span_of(sizes.lines, sizes.width))
    return rounds_of(sizes.depth, tile) * -(-span // tile.keys)


def rounds_of(depth: int, tile: Tile) -> int:
    """Return the number of loop iterations of an invocation for one tile of keys."""
    own = 2 * (tile.keys // tile.lanes)  # an invocation loops over its scores twice
    return -(-depth // PART) * (PART // UNROLLED + 1) + own + tile.keys + 1


@functools.lru_cache(64)
def written_join(form: JoinForm) -> Written:
    """Return the shader that combines the parts of the keys."""
    bindings = [Binding(i, name, "read", "uint") for i, name in enumerate(["sums", *["sink"] * form.sunk])]
    bindings.append(Binding(len(bindings), "y", "write", "uint"))
    push = tuple(PushConstant(name, "uint", 4 * i) for i, name in enumerate(JOIN_WORDS))
    about = f"attention__join:{form.width}" + ".sink" * form.sunk + ".guarded" * form.guarded
    about += ".float16" * form.half
    return Written(
        "attention__join", about,
        "parts of attention joined", tuple(bindings), push, LANES,
        Expression(f"(count + {LANES - 1}) // {LANES}"), 0, lambda: join_module(form), "2 * parts",
    )  # fmt: skip
