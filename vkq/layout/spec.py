"""The formula of a layout: read it from a YAML file, check it, evaluate it for an element, and write it as
GLSL.

The YAML file lists *parts* of an element's position, outermost first. The index of a word is the row-major
index over these parts. A part of the dim ``c`` is one of:

- ``c``: the position;
- ``c/4``: the index of a block of 4;
- ``c%4``: the position inside a block of 4;
- ``c%32/4``: the index of a block of 4 inside a block of 32.

The part ``lane`` selects the byte in the word. `vkq.layout.pack` has the NumPy functions;
``layouts/README.md`` explains the files.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from vkq import yamlfile
from vkq.errors import ArgumentError, DTypeError
from vkq.yamlfile import Node

LANES = 4
"""Elements in a word."""

AnyLayout = TypeVar("AnyLayout", bound="LayoutSpec")

_DIM = re.compile(r"[a-z]+")
_PART = re.compile(r"(?P<dim>[a-z]+)(%(?P<modulus>[1-9][0-9]{0,4}))?(/(?P<divisor>[1-9][0-9]{0,4}))?")

_GLSL = """\
// {name}: {summary}.
// e = ({dims}) is an element of an array of sizes `extent`. Generated from the layout's YAML.
//   word = the row-major index over ({order}), lane = {lane_text}
#ifndef LAYOUT_{name}
#define LAYOUT_{name}

uint {name}_word({vec} e, {vec} extent) {{
  uint word = {first};
{fold}
  return word;
}}

uint {name}_lane({vec} e) {{
  return {lane};
}}

uint {name}_words({vec} extent) {{
  return {words};
}}

// The inverse; a padding lane or a word past the end gives an element outside `extent`. No size may be 0.
{vec} {name}_element(uint word, uint lane, {vec} extent) {{
  {vec} e = {vec}(0u);
{unfold}
  {outermost}
  {innermost}
  return e;
}}

#endif
"""


@dataclass(frozen=True)
class Part:
    """A part of an element's position along dim number ``dim``: the digit ``position % modulus / divisor``.

    ``modulus`` is None for the outermost part of a dim, the only part whose extent depends on the array.
    """

    dim: int
    modulus: int | None
    divisor: int

    def value(self, element: Sequence[int]) -> int:
        """Return the value of this part for the element at the indices *element* (one for each dim)."""
        position = element[self.dim]
        return (position if self.modulus is None else position % self.modulus) // self.divisor

    def extent(self, shape: Sequence[int]) -> int:
        """Return the number of values that this part can have in an array of *shape*."""
        return -(-(shape[self.dim] if self.modulus is None else self.modulus) // self.divisor)

    def text(self, dims: Sequence[str]) -> str:
        """Return the part in the YAML's form, such as ``c%32/4``."""
        modulus = "" if self.modulus is None else f"%{self.modulus}"
        return dims[self.dim] + modulus + (f"/{self.divisor}" if self.divisor > 1 else "")

    def glsl_value(self) -> str:
        """Return a GLSL expression with this part's value for the element ``e``."""
        modulus = "" if self.modulus is None else f" % {self.modulus}u"
        return f"e.{'xyzw'[self.dim]}{modulus}" + (f" / {self.divisor}u" if self.divisor > 1 else "")

    def glsl_extent(self) -> str:
        """Return a GLSL operand with the number of values of this part, in parentheses if needed. It reads
        the sizes of the array from the GLSL variable ``extent``."""
        if self.modulus is not None:
            return f"{self.modulus // self.divisor}u"
        size = f"extent.{'xyzw'[self.dim]}"
        return size if self.divisor == 1 else f"(({size} + {self.divisor - 1}u) / {self.divisor}u)"

    def glsl_add(self, digit: str) -> str:
        """Return a GLSL statement that adds this part to the element ``e``. *digit*: a GLSL operand with
        its value."""
        return f"e.{'xyzw'[self.dim]} += {digit}" + (f" * {self.divisor}u;" if self.divisor > 1 else ";")


@dataclass(frozen=True)
class LayoutSpec:
    """The contents of a layout's YAML file. :class:`vkq.layout.Layout` describes the attributes."""

    name: str
    summary: str
    dims: tuple[str, ...]
    order: tuple[Part, ...]
    lane: Part

    @classmethod
    def load(cls: type[AnyLayout], path: Path) -> AnyLayout:
        """Read a layout's YAML file. Raises SpecError with file and line if it breaks a rule of
        ``layouts/README.md``."""
        return cls(*_parse(yamlfile.load(path), path.stem))

    def extents(self, shape: Sequence[int]) -> list[int]:
        """Return the extent of each part of ``order`` in an array of *shape*."""
        return [part.extent(shape) for part in self.order]

    def padded(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return *shape* with padding: every dim that is split into blocks is rounded up to whole blocks."""
        shape = self.checked_shape(shape, "padded: shape")
        block = {part.dim: part.divisor for part in self.order if part.modulus is None}
        return tuple(-(-size // block[dim]) * block[dim] for dim, size in enumerate(shape))

    def words(self, shape: Sequence[int]) -> int:
        """Return the number of Int8x4 words of an array of *shape*. It is 0 if a size is 0."""
        return math.prod(self.extents(self.checked_shape(shape, "words: shape")))

    def index(self, *element: int, shape: Sequence[int]) -> tuple[int, int]:
        """Return (index of the word, byte in the word, 0 for the lowest) of one element of an array of
        *shape*, by the formula. This implementation is simple and slow; tests compare the NumPy and GLSL
        functions with it.

        >>> from vkq.layout.pack import layout
        >>> layout("kPackedInt8_4C").index(0, 5, 1, 2, shape=(1, 6, 2, 3))
        (11, 1)
        """
        shape = self.checked_shape(shape, "index: shape")
        if len(element) != len(shape) or not all(
            0 <= at < size for at, size in zip(element, shape, strict=True)
        ):
            raise ArgumentError(
                f"{self.name}.index: element {element} is not in an array of shape {shape}; "
                f"give one position per dim {self.dims_text()}, each from 0 to below its size."
            )
        word = 0
        for part in self.order:
            word = word * part.extent(shape) + part.value(element)
        return word, self.lane.value(element)

    def glsl(self) -> str:
        """Return the text of the GLSL functions ``<name>_word``, ``<name>_lane``, ``<name>_words`` and
        ``<name>_element``, which ``layouts/README.md`` describes."""
        first, *rest = self.order
        fold = [f"  word = word * {part.glsl_extent()} + {part.glsl_value()};" for part in rest]
        unfold = [
            f"  {part.glsl_add(f'word % {part.glsl_extent()}')}\n  word /= {part.glsl_extent()};"
            for part in reversed(rest)
        ]
        return _GLSL.format(
            name=self.name,
            summary=self.summary,
            vec=f"uvec{len(self.dims)}",
            dims=", ".join(self.dims),
            order=", ".join(part.text(self.dims) for part in self.order),
            lane_text=self.lane.text(self.dims),
            first=first.glsl_value(),
            fold="\n".join(fold),
            lane=self.lane.glsl_value(),
            words=" * ".join(part.glsl_extent() for part in self.order),
            unfold="\n".join(unfold),
            outermost=first.glsl_add("word"),
            innermost=self.lane.glsl_add("lane"),
        )

    def dims_text(self) -> str:
        """Return a text with the names of the dims, such as ``(n, c, h, w)``."""
        return f"({', '.join(self.dims)})"

    def checked_shape(self, shape: Sequence[int], what: str) -> tuple[int, ...]:
        """Return *shape* as a tuple of ints. Raises an error unless it has one size for each dim, none
        negative. *what*: the name of the shape in error messages."""
        try:
            sizes = tuple(map(operator.index, shape))
        except TypeError as error:
            raise DTypeError(
                f"{self.name}.{what} is {shape!r}; it must be a sequence of whole numbers."
            ) from error
        if len(sizes) != len(self.dims) or min(sizes) < 0:
            raise ArgumentError(
                f"{self.name}.{what} is {sizes}; this layout takes {len(self.dims)} sizes {self.dims_text()},"
                " each 0 or more; reshape to that."
            )
        return sizes


def _parse(root: Node, stem: str) -> tuple[str, str, tuple[str, ...], tuple[Part, ...], Part]:
    """Return the fields of a LayoutSpec. *root*: the top value of the YAML file. *stem*: the name of the file
    without ``.yaml``."""
    entries = root.mapping({"name", "summary", "dims", "split", "order", "lane"})
    name, summary = entries["name"].str(), entries["summary"].str()
    if name != f"kPackedInt8_{stem}" or not re.fullmatch("[0-9A-Za-z]+", stem):
        raise entries["name"].error(
            f"the name is {name!r}; it must be 'kPackedInt8_' and the letters of the file name."
        )
    if len(summary.splitlines()) != 1:
        raise entries["summary"].error("the summary must be one line.")
    dims = tuple(_dim(node) for node in entries["dims"].sequence())
    if not 2 <= len(dims) <= 4 or len(set(dims)) < len(dims):
        raise entries["dims"].error(
            f"the dims are {', '.join(dims)}; there must be 2 to 4, to fit a uvec, each once."
        )
    split = {_dim_number(key, dims, node): node.int() for key, node in entries["split"].items()}
    order = tuple(_part(node, dims) for node in entries["order"].sequence())
    lane = _part(entries["lane"], dims)
    if (lane.modulus, lane.divisor) != (LANES, 1):
        must = f"{dims[lane.dim]}%{LANES}, the byte of a word of {LANES}"
        raise entries["lane"].error(f"the lane is {lane.text(dims)}; it must be {must}.")
    for dim in range(len(dims)):
        _check_cover(dim, split.get(dim, 1), (*order, lane), dims, entries["order"])
    if order[0].modulus is not None:
        raise entries["order"].error(
            f"the outermost part is {order[0].text(dims)}; it must be a whole dim or the blocks of one, so"
            " that a word past the end is an element outside the array."
        )
    return name, summary, dims, order, lane


def _check_cover(dim: int, split: int, parts: Sequence[Part], dims: Sequence[str], order: Node) -> None:
    """Raise an error unless the parts of dim number *dim* give each position exactly once: d/a, d%a/b,
    d%b/c, ..., d%z, where a is *split* and each divisor divides the previous divisor."""
    chain = sorted((part for part in parts if part.dim == dim), key=lambda part: -part.divisor)
    divisors = [part.divisor for part in chain]
    nested = all(outer > inner and outer % inner == 0 for outer, inner in pairwise(divisors))
    linked = [part.modulus for part in chain] == [None, *divisors[:-1]]
    if not (nested and linked and divisors[0] == split and divisors[-1] == 1):
        name = dims[dim]
        given = ", ".join(part.text(dims) for part in chain) or "nothing"
        rule = (
            f"{name}/{split} and the parts of {name}%{split}"
            if split > 1
            else f"{name} alone, for it is not split"
        )
        raise order.error(
            f"order and lane give {given} for the dim {name}; they must give {rule}, each exactly once."
        )


def _dim(node: Node) -> str:
    if not _DIM.fullmatch(node.str()):
        raise node.error(f"the dim {node.str()!r} must be lower-case letters.")
    return node.str()


def _dim_number(name: str, dims: Sequence[str], node: Node) -> int:
    if name not in dims:
        raise node.error(f"{name!r} is none of the dims {', '.join(dims)}.")
    return dims.index(name)


def _part(node: Node, dims: Sequence[str]) -> Part:
    match = _PART.fullmatch(node.str())
    if match is None:
        raise node.error(f"the part {node.str()!r} has none of the forms c, c/4, c%4, c%32/4.")
    modulus, divisor = match["modulus"], match["divisor"]
    return Part(_dim_number(match["dim"], dims, node), int(modulus) if modulus else None, int(divisor or 1))
