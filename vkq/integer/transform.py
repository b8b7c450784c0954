"""The exact integer correlation by number-theoretic transforms. Its cost hardly depends on the window's
size.

The transform is a Fourier transform modulo a prime. Without any rounding, it gives a cyclic convolution of
integers modulo the prime. If the range of all sums is smaller than the prime, the residue determines the
sum. Else two primes are used; their product must exceed the range. Images are divided into overlapping
blocks (overlap-save).

J. M. Pollard, The fast Fourier transform in a finite field, Mathematics of Computation 25 (1971).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..device.profiles import profile
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.plan import Resident
from ..shader.catalog import catalog
from . import work
from .images import Images, Part, words
from .work import Place, Range, Sizes

TRANSFORM = "transform"  # name of the path
ROOTS = 4096  # order of the root of unity, a multiple of the length of every axis of a block
# The primes p, each with a primitive root. p - 1 is a multiple of 2**26.
PRIMES = {2013265921: 31, 1811939329: 13}
SECOND, FIRST = PRIMES  # SECOND, the larger prime, is used alone if it is enough
# {length of an axis of a block: radices of the passes along the axis}
RADICES = {64: (8, 8), 128: (16, 8), 256: (16, 16), 512: (32, 16), 1024: (32, 32)}
R = 2**32  # modulus of Montgomery multiplication


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The division of an image into blocks."""

    size: tuple[int, int]  # (rows, columns) of a block
    step: tuple[int, int]  # (rows, columns) of the results of a block
    count: tuple[int, int]  # the number of blocks (down, across)

    @property
    def elements(self) -> int:
        return self.size[0] * self.size[1]

    @property
    def number(self) -> int:
        return self.count[0] * self.count[1]

    @property
    def push(self) -> dict[str, int | float]:
        """Return the push constants of the blocks."""
        return {
            "size_h": self.size[0], "size_w": self.size[1], "blocks_h": self.count[0],
            "blocks_w": self.count[1], "step_h": self.step[0], "step_w": self.step[1],
        }  # fmt: skip


def blocks_for(s: Sizes) -> Blocks | None:
    """Return the division into blocks with the fewest elements to transform, or None if the window is
    larger than every block."""
    able = [Blocks((h, w), *_steps((h, w), s)) for h in RADICES for w in RADICES if h >= s.kh and w >= s.kw]
    return min(able, key=lambda one: elements(one, s), default=None)


def _steps(size: tuple[int, int], s: Sizes) -> tuple[tuple[int, int], tuple[int, int]]:
    step = size[0] - s.kh + 1, size[1] - s.kw + 1
    return step, (-(-s.oh // step[0]), -(-s.ow // step[1]))


def elements(one: Blocks, s: Sizes) -> int:
    """Return the number of elements of all transforms: of the images, the templates, and their products."""
    images, products = s.images * s.channels * one.number, s.images * s.templates * one.number
    return one.elements * (images + products + s.templates * s.channels)


class Transform:
    """The kernel of number-theoretic transforms, with the templates (T, C, KH, KW) on the device. Each call
    transforms the templates again: stored transforms would take much memory and save little time."""

    def __init__(
        self, device: Device, w: npt.NDArray[Any], bias: npt.NDArray[np.int64], sums: Range, wide: bool
    ):  # fmt: skip
        self.device, self.sums, self.wide, self.templates = device, sums, wide, len(w)
        self.primes = primes_for(sums)
        self._taps = Images.of_array(w)
        packed, numbers = words(w), bias.astype("<i8").view("<i4")
        self._weights = Resident(device, packed.nbytes, lambda: packed)
        self._bias = Resident(device, numbers.nbytes, lambda: numbers)

    def describe(self, s: Sizes) -> str:
        blocks = blocks_for(s)
        assert blocks is not None
        return f"number-theoretic transforms of {blocks.number} blocks of {blocks.size[0]}x{blocks.size[1]}"

    def cost(self, s: Sizes) -> float:
        """Return the estimated cost. The unit is the time of one multiply-add in `Tiles`."""
        blocks = blocks_for(s)
        assert blocks is not None
        each = profile(self.device.capabilities).transform_element_macs
        return len(self.primes) * each * elements(blocks, s)

    def numbers(self) -> str:
        """Return a text on the range of the sums and the modulus."""
        return f"sums in [{self.sums[0]}, {self.sums[1]}] modulo {' * '.join(map(str, self.primes))}"

    def adds(self, s: Sizes) -> bool:
        """Return False: each result is written once."""
        return False

    def scratch_bytes(self, part: Part, s: Sizes, templates: int = 1) -> int:
        """Return the bytes of all transforms: of the images, of *templates* templates, and of their
        products."""
        found = blocks_for(s)
        assert found is not None
        return 4 * len(self.primes) * elements(found, dataclasses.replace(s, templates=templates))

    def build(self, b: Builder, x: Value, part: Part, s: Sizes, y: Value, to: Place) -> None:
        """Add the correlation of images to a plan: transform the images, then transform and multiply the
        templates. As many templates are processed at once as fit into `BAND_BYTES`."""
        blocks = blocks_for(s)
        assert blocks is not None
        pads = {"pad_h": part.rows.pad, "pad_w": part.columns.pad, "first_image": part.first}
        images = [
            self._transformed(b, x, part.images, blocks, prime, {**pads, "count": part.count})
            for prime in self.primes
        ]
        whole = dataclasses.replace(blocks, count=(1, 1))
        taps = b.constant(self._weights)
        at_once = self._at_once(part, s)
        for first in range(0, self.templates, at_once):
            count = min(at_once, self.templates - first)
            own = {"pad_h": 0, "pad_w": 0, "first_image": first, "count": count}
            products = []
            for prime, image in zip(self.primes, images, strict=True):
                template = self._transformed(b, taps, self._taps, whole, prime, own, flipped=True)
                products.append(self._product(b, image, template, blocks, prime, s, count))
            self._store(b, products, blocks, s, first, count, y, to)

    def _at_once(self, part: Part, s: Sizes) -> int:
        fit = (n for n in range(self.templates, 1, -1) if self.scratch_bytes(part, s, n) <= work.BAND_BYTES)
        return next(fit, 1)

    def _transformed(
        self, b: Builder, x: Value, source: Images, blocks: Blocks, prime: int, push: dict[str, int],
        flipped: bool = False
    ) -> Value:  # fmt: skip
        images, channels, h, w = source.shape
        arrays = push["count"] * channels * blocks.number
        y = b.words(arrays * blocks.elements)
        constants = {**source.constants(), "FLIPPED": flipped}
        program = b.device.program(catalog().find("integer_transform_load__element"), constants)
        sizes = {"images": images, "channels": channels, "h": h, "w": w, "prime": prime}
        b.dispatch(program, [x, y], {**push, **sizes, **blocks.push}, y.bytes)
        self._passes(b, y, blocks, prime, arrays, "forward")
        return y

    def _passes(self, b: Builder, y: Value, blocks: Blocks, prime: int, arrays: int, way: str) -> None:
        """Add the passes of a transform to a plan. They work in place, along both axes of all blocks in
        *y*. *way*: "forward", or "inverse" with the reverse order of passes."""
        found = list(_axis_passes(blocks))
        for inner, radix, span in found if way == "forward" else reversed(found):
            variant = catalog().find("integer_transform_pass__radix", way=way, radix=f"r{radix}")
            push: dict[str, int | float] = {
                "runs": arrays * blocks.elements // radix, "inner": inner, "span": span, "prime": prime,
                "inverse": pow(prime, -1, R),
            }  # fmt: skip
            slots = [y, b.constant(self._roots(prime))]
            b.dispatch(b.device.program(variant), slots, push, 8 * y.bytes)

    def _roots(self, prime: int) -> Resident:
        return self.device.constant(("integer_roots", prime), 4 * ROOTS, lambda: roots(prime))

    def _product(
        self, b: Builder, image: Value, template: Value, blocks: Blocks, prime: int, s: Sizes, count: int
    ) -> Value:  # fmt: skip
        z = b.words(s.images * count * blocks.number * blocks.elements)
        push: dict[str, int | float] = {
            "elements": blocks.elements, "blocks": blocks.number, "templates": count, "channels": s.channels,
            "images": s.images, "prime": prime, "inverse": pow(prime, -1, R),
            "factor": pow(blocks.elements, -1, prime) * R * R % prime,
        }  # fmt: skip
        program = b.device.program(catalog().find("integer_transform_multiply__element"))
        b.dispatch(program, [image, template, z], push, z.bytes * s.channels)
        self._passes(b, z, blocks, prime, s.images * count * blocks.number, "inverse")
        return z

    def _store(
        self, b: Builder, products: list[Value], blocks: Blocks, s: Sizes, first: int, count: int, y: Value,
        to: Place
    ) -> None:  # fmt: skip
        modulus, prime = int(np.prod(self.primes, dtype=object)), self.primes[-1]
        push: dict[str, int | float] = {
            **to.push, **blocks.push, "images": s.images, "templates": count, "first_template": first,
            "oh": s.oh, "ow": s.ow, "prime": prime, "inverse": pow(prime, -1, R),
            "first_prime": self.primes[0], "first_inverse": 0, "most_low": self.sums[1] % R,
            "most_high": self.sums[1] // R, "modulus_low": modulus % R, "modulus_high": modulus // R,
        }  # fmt: skip
        if len(products) > 1:
            push["first_inverse"] = pow(self.primes[0], -1, prime) * R % prime
        constants = {"WIDE": self.wide, "TWO": len(products) > 1}
        program = b.device.program(catalog().find("integer_transform_store__element"), constants)
        b.dispatch(program, [products[0], products[-1], b.constant(self._bias), y], push, products[0].bytes)


def primes_for(sums: Range) -> tuple[int, ...]:
    """Return one prime that exceeds the range of the sums, two primes whose product exceeds it, or () if
    two primes are not enough."""
    spread = sums[1] - sums[0]
    ways: tuple[tuple[int, ...], ...] = ((SECOND,), (FIRST, SECOND))
    return next((way for way in ways if spread < np.prod(way, dtype=object)), ())


def _axis_passes(blocks: Blocks) -> Iterator[tuple[int, int, int]]:
    """Yield (inner, radix, span) of each pass of the forward transform: the passes along rows, then those
    along columns. *inner*: the distance of neighbours on the axis, in elements of the block. *span*: the
    distance of the operands of the pass, in elements of the axis."""
    for size, inner in ((blocks.size[1], 1), (blocks.size[0], blocks.size[1])):
        span = size
        for radix in RADICES[size]:
            span //= radix
            yield inner, radix, span


def roots(prime: int) -> npt.NDArray[np.uint32]:
    """Return the powers 0 to `ROOTS` - 1 of a root of unity of order `ROOTS` modulo *prime*, in Montgomery
    form (multiplied by 2**32)."""
    step = pow(PRIMES[prime], (prime - 1) // ROOTS, prime)
    powers = itertools.accumulate(
        itertools.repeat(step, ROOTS - 1), lambda a, b: a * b % prime, initial=R % prime
    )
    return np.fromiter(powers, np.uint32, ROOTS)
