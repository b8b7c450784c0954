"""Attention to an int8 cache (`vkq.numerics.attention_int8`), in one or two dispatches. The first computes
attention to each part of the keys separately, the second combines the parts."""

from __future__ import annotations

import dataclasses
import functools

from ..layout.extent import Spec
from ..numerics.attention import LANES, Tile, span_of
from ..numerics.attention_int8 import Int8Rules
from ..runtime.builder import Builder, Value
from ..shader.expression import Expression
from ..shader.spec import Binding, PushConstant, Written
from .attention import AttentionSizes, Strides, joined_parts, rounds, rounds_of
from .attention_form import STRIDES, WORDS, Places
from .attention_int8_tiles import Int8AttentionKernel, Int8Form


@dataclasses.dataclass(frozen=True)
class Int8Operands:
    """The operands of attention to an int8 cache."""

    q: Value  # float32 (batch, queries, heads, width)
    k: Value  # (batch, groups, keys, words)
    v: Value  # (batch, groups, keys, words)
    lengths: Value  # int32 (batch,)
    bias: tuple[Value, Strides] | None = None  # broadcasts to (batch, heads, queries, keys); with its strides
    sink: Value | None = None  # (heads,)


def attended_int8(b: Builder, x: Int8Operands, rules: Int8Rules) -> Value:
    """Add attention to an int8 cache to a plan, and return the result (batch, queries, heads, width)."""
    batch, queries, heads, width = x.q.spec.shape
    groups, keys = x.k.spec.shape[1:3]
    y = b.new(Spec(x.q.spec.shape, "float32"))
    if not y.spec.size:
        return y
    sizes = AttentionSizes(batch, heads, groups, queries, keys, width, width)
    lines = heads // groups * queries
    span = span_of(lines, width)
    parts = -(-keys // span)
    apart = parts > 1 or x.sink is not None
    form = Int8Form(
        width, width, Tile.of(lines, width), ("float32", "int8", "int8"), True, x.bias is not None,
        rules.guarded, b.device.soft_float, span if parts > 1 else 0, apart, True, rules.causal,
        rules.causal and rules.follows, rules.softcap,
    )  # fmt: skip
    sums = b.words(batch * groups * parts * lines * (width + 2)) if apart else y
    slots = [x.q, x.k, x.v, *([x.bias[0]] if x.bias else []), x.lengths, sums]
    b.dispatch(b.device.program(written(form)), slots, _numbers(x, sizes, rules, parts), macs=rounds(sizes))
    if apart:
        rows = Strides(queries * heads * width, width, heads * width)
        joined_parts(b, sums, y, sizes, (parts, rules.guarded), rows, x.sink)
    return y


def _numbers(x: Int8Operands, s: AttentionSizes, rules: Int8Rules, parts: int) -> dict[str, int | float]:
    """Return the push constants."""
    push: dict[str, int | float] = {
        "matrices": s.batch * s.groups * parts, "groups": s.groups, "lines": s.heads // s.groups * s.queries,
        "queries": s.queries, "keys": s.keys, "scale": rules.scale, "start": 0, "window": rules.window,
        "k_column": 1, "b_column": x.bias[1].column if x.bias else 0,
    }  # fmt: skip
    rows = Strides(s.queries * s.heads * s.width, s.width, s.heads * s.width)
    bias = x.bias[1] if x.bias else Strides(0, 0, 0)
    caches = (Strides.of(one.spec.shape) for one in (x.k, x.v))
    for name, one in zip("qkvyb", (rows, *caches, rows, bias), strict=True):
        push |= {f"{name}_{stride}": getattr(one, stride) for stride in STRIDES}
    return push


@functools.lru_cache(256)
def written(form: Int8Form) -> Written:
    """Return the shader for a form."""
    tile = form.tile
    names = ["q", "k", "v", *["bias"] * form.biased, "lengths"]
    bindings = [Binding(i, name, "read", "uint") for i, name in enumerate(names)]
    bindings.append(Binding(len(names), "y", "write", "uint"))
    push = tuple(PushConstant(n, "float" if n == "scale" else "uint", 4 * i) for i, n in enumerate(WORDS))
    about = f"{form.width}.{tile.rows}x{tile.keys}" + ".bias" * form.biased + ".guarded" * form.guarded
    about += ".follows" * form.follows if form.ordered else ".all"
    about += ".softcap" * bool(form.softcap) + f".by{form.span}" * bool(form.span) + ".apart" * form.apart
    each = rounds_of(form.depth, tile)
    return Written(
        "attention_int8__tiles", f"attention_int8__tiles:{about}", "attention to an int8 cache",
        tuple(bindings), push, LANES, Expression(f"matrices * ((lines + {tile.rows - 1}) // {tile.rows})"),
        4 * Places.of(tile, form.part).end, lambda: Int8AttentionKernel(form).module(),
        f"{each} * (({form.span or 'keys'} + {tile.keys - 1}) // {tile.keys})",
    )  # fmt: skip
