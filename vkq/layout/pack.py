"""Layouts: the order of the int8 elements of an array in the words of a device buffer.

Each layout is a YAML file in ``layouts/``. It is the source of the NumPy functions ``pack`` and ``unpack``,
of the GLSL index functions (``#include "layout/<name>.glslh"``) and of the drawings in
``layouts/README.md``, so that they cannot disagree.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vkq.errors import ArgumentError, DTypeError
from vkq.layout.spec import LANES, LayoutSpec, Part

Int8x4: np.dtype[np.int32] = np.dtype("<i4")
"""The word type: four int8 in one int32, lowest byte first, whatever the byte order of the host."""


def int8x4_pack(lanes: ArrayLike) -> NDArray[np.int32]:
    """Join groups of four int8 into Int8x4 words.

    Args:
        lanes: int8 array of shape (..., 4). Element 0 of the last axis becomes the lowest byte. The array is
            not modified.

    Returns:
        A new array of ``Int8x4`` (int32), shape (...).

    Raises:
        DTypeError: the dtype is not int8.
        ArgumentError: the size of the last axis is not 4.

    >>> hex(int(int8x4_pack(np.array([1, 2, 3, 4], np.int8))))
    '0x4030201'
    """
    array = _array(lanes, np.dtype(np.int8), "int8x4_pack: lanes")
    if array.shape[-1:] != (LANES,):
        raise ArgumentError(
            f"int8x4_pack: lanes has shape {array.shape}; its last axis must be {LANES} long, one value per"
            " byte."
        )
    return np.array(array, order="C").view(Int8x4)[..., 0]


def int8x4_unpack(words: ArrayLike) -> NDArray[np.int8]:
    """Split Int8x4 words into four int8 each, the lowest byte first: the inverse of :func:`int8x4_pack`.

    Args:
        words: int32 array of any shape (...), in either byte order. The array is not modified.

    Returns:
        A new int8 array of shape (..., 4).

    Raises:
        DTypeError: the dtype is not int32.

    >>> int8x4_unpack(np.array(-2, np.int32)).tolist()
    [-2, -1, -1, -1]
    """
    array = _array(words, Int8x4, "int8x4_unpack: words")
    return np.array(array, dtype=Int8x4, order="C")[..., np.newaxis].view(np.int8)


class Layout(LayoutSpec):
    """A layout of int8 elements in Int8x4 words. Layouts are immutable; :func:`layout` returns them.

    Attributes:
        name: the name, such as ``kPackedInt8_4W4C``.
        summary: one line that says what the layout is for.
        dims: the names of the dims of an array, such as ``("n", "c", "h", "w")``.
        order: the parts of an element's position (`vkq.layout.spec`), outermost first. The index of a word
            is the row-major index over these parts.
        lane: the part that selects the byte in the word.

    >>> image = np.arange(6, dtype=np.int8).reshape(1, 1, 2, 3)
    >>> words = layout("kPackedInt8_4W").pack(image, fill=-1)
    >>> [f"{word & 0xffffffff:08x}" for word in words.tolist()]
    ['ff020100', 'ff050403']
    >>> bool((layout("kPackedInt8_4W").unpack(words, image.shape) == image).all())
    True
    """

    def pack(self, array: ArrayLike, fill: int = 0) -> NDArray[np.int32]:
        """Pack an int8 array into words.

        Args:
            array: int8 array with one axis for each dim of the layout. It may have any strides, and be
                read-only or memory-mapped. It is not modified.
            fill: the value of the padding bytes, in [-128, 127]: 0 for weights, the zero point for
                activations.

        Returns:
            A new one-dimensional array of ``words(array.shape)`` words, of dtype ``Int8x4`` (int32).

        Raises:
            DTypeError: the array is not int8, or *fill* is not a whole number.
            ArgumentError: the array has another number of dims, or *fill* is out of range.
        """
        source = _array(array, np.dtype(np.int8), f"{self.name}.pack: array")
        shape = self.checked_shape(source.shape, "pack: the array's shape")
        lanes = np.full((*self._word_shape(shape), LANES), _int8(fill, f"{self.name}.pack: fill"), np.int8)
        for from_array, from_lanes in self._lane_regions(lanes, shape):
            from_lanes[...] = source[from_array]
        digits = lanes.view(Int8x4).reshape([part.extent(shape) for part in self._digits()])
        axes = [self._digits().index(part) for part in self.order]
        words: NDArray[np.int32] = digits.transpose(axes).reshape(-1)
        return words

    def unpack(self, words: ArrayLike, shape: Sequence[int]) -> NDArray[np.int8]:
        """Unpack an array of *shape* from words, without the padding bytes: the inverse of :meth:`pack`.

        Args:
            words: one-dimensional int32 array of ``words(shape)`` elements, in either byte order. It is not
                modified.
            shape: one size for each dim of the layout.

        Returns:
            A new C-contiguous int8 array of *shape*.

        Raises:
            DTypeError: the words are not int32.
            ArgumentError: the number of words is not ``words(shape)``, or *shape* does not have one size for
                each dim.
        """
        source = _array(words, Int8x4, f"{self.name}.unpack: words")
        shape = self.checked_shape(shape, "unpack: shape")
        if source.shape != (self.words(shape),):
            raise ArgumentError(
                f"{self.name}.unpack: words has shape {source.shape} but an array of shape {shape}"
                f" {self.dims_text()} takes {self.words(shape)} words; pass one dimension of that length."
            )
        digits = source.reshape(self.extents(shape)).transpose(
            [self.order.index(part) for part in self._digits()]
        )
        lanes = int8x4_unpack(digits).reshape(*self._word_shape(shape), LANES)
        array = np.empty(shape, np.int8)
        for from_array, from_lanes in self._lane_regions(lanes, shape):
            array[from_array] = from_lanes
        return array

    def drawing(self, shape: Sequence[int]) -> str:
        """Return a text that shows the words of an array of *shape*, which should be small.

        Each line has the words of one position along the outer parts of ``order``; the innermost part counts
        the words of a line. A word is written with its highest byte first. An element is a hexadecimal
        number, whose formula is in the first line. Padding is ``--``.
        """
        shape = self.checked_shape(shape, "drawing: shape")
        strides = _drawing_strides(shape)
        numbers = {
            element: sum(map(operator.mul, element, strides)) for element in product(*map(range, shape))
        }
        width = max([2, *(len(f"{number:x}") for number in numbers.values())])
        cells = [["-" * width] * LANES for _ in range(self.words(shape))]
        for element, number in numbers.items():
            word, lane = self.index(*element, shape=shape)
            cells[word][LANES - 1 - lane] = f"{number:0{width}x}"
        formula = " + ".join(
            dim if stride == 1 else f"0x{stride:x}*{dim}"
            for dim, stride, size in zip(self.dims, strides, shape, strict=True)
            if size > 1
        )
        title = f"{self.name} of {self.dims_text()} = {shape}: {len(cells)} words, element = {formula or 0}"
        return "\n".join([title, *self._drawing_rows(["".join(cell) for cell in cells], shape)])

    def _drawing_rows(self, words: Sequence[str], shape: Sequence[int]) -> Iterator[str]:
        *outer, inner = [part.text(self.dims) for part in self.order]
        *extents, run = self.extents(shape)
        yield f"{' '.join(f'{name:>3}' for name in outer)} | {inner} = 0, 1, ..."
        for row, digits in enumerate(product(*map(range, extents))):
            yield (
                f"{' '.join(f'{digit:>3}' for digit in digits)} |"
                f" {' '.join(words[row * run : (row + 1) * run])}"
            )

    def _digits(self) -> list[Part]:
        """Return the parts of ``order``, sorted by dim; those of a dim from outermost to innermost."""
        return sorted(self.order, key=lambda part: (part.dim, -part.divisor))

    def _word_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the padded shape. The size of the lane's dim is in words."""
        return [
            size // LANES if dim == self.lane.dim else size for dim, size in enumerate(self.padded(shape))
        ]

    def _lane_regions(
        self, lanes: NDArray[np.int8], shape: Sequence[int]
    ) -> Iterator[tuple[Any, NDArray[np.int8]]]:
        """Yield pairs (index into an array of this shape, view of *lanes*) that select the same elements.
        All pairs together cover the array. *lanes*: the bytes of the array's words, (word shape..., 4)."""
        inside: list[slice | int] = [slice(size) for size in shape]
        dim = self.lane.dim
        # If the bytes of a word are adjacent in the array, the whole array is one region, a fast copy for
        # NumPy.
        if dim == len(shape) - 1:
            yield tuple(inside), lanes.reshape(self.padded(shape))[tuple(inside)]
            return
        for lane in range(LANES):
            count = len(range(lane, shape[dim], LANES))
            from_array, from_lanes = list(inside), [*inside, lane]
            from_array[dim], from_lanes[dim] = slice(lane, None, LANES), slice(count)
            yield tuple(from_array), lanes[tuple(from_lanes)]


def layouts_folder() -> Path:
    """Return the folder of the YAML files: ``vkq/layouts`` in an installed package, else ``layouts`` of the
    checkout."""
    package = Path(__file__).resolve().parents[1]
    return package / "layouts" if (package / "layouts").is_dir() else package.parent / "layouts"


@functools.cache
def _read_all() -> dict[str, Layout]:
    return {found.name: found for found in map(Layout.load, sorted(layouts_folder().glob("*.yaml")))}


def layouts() -> dict[str, Layout]:
    """Return {name: layout} of all layouts. The files are read once.

    >>> "kPackedInt8_4W4C" in layouts()
    True
    """
    return dict(_read_all())


def layout(name: str) -> Layout:
    """Return the layout called *name*. Raises ArgumentError with the existing names if there is none.

    >>> layout("kPackedInt8_4W4C").words((1, 5, 2, 3))
    16
    """
    found = _read_all().get(name)
    if found is None:
        raise ArgumentError(f"layout: no layout is called {name!r}; there are {', '.join(_read_all())}.")
    return found


@functools.cache
def activation_layouts() -> tuple[Layout, ...]:
    """Return the layouts of activations, which have the dims n, c, h, w, sorted by name. The index of a
    layout is its number in ``layout/any.glslh``."""
    return tuple(found for _, found in sorted(_read_all().items()) if found.dims == ("n", "c", "h", "w"))


def _array(value: ArrayLike, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    array = np.asarray(value)
    if array.dtype.newbyteorder("=") != dtype.newbyteorder("="):
        raise DTypeError(f"{what} has dtype {array.dtype}; it must be {dtype.name}: convert it first.")
    return array


def _int8(value: int, what: str) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        raise DTypeError(f"{what} is {value!r}; it must be a whole number.") from error
    if not -128 <= number <= 127:
        raise ArgumentError(f"{what} is {number}; it must be in [-128, 127].")
    return number


def _drawing_strides(shape: Sequence[int]) -> list[int]:
    """Return the row-major strides of *shape*, with its sizes rounded up to powers of 4. The hexadecimal
    number of an element then shows the element's coordinates."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * next(power for power in (4**i for i in range(32)) if power >= size))
    return strides
