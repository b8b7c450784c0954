"""Choose the tile and the workgroup size of matrix product kernels with tiles in registers. A choice is a
`Setting`; all settings give the same bits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..device.capabilities import Capabilities
from ..device.profiles import Profile, picks, profile
from ..device.tuner import is_asked, ranked
from ..errors import SpecError
from ..runtime.device import Device
from ..shader.catalog import catalog
from ..shader.spec import Value

SHADER, FLOAT_SHADER = "gemm_q8ta_q8csw__tiled", "gemm_q8csw__tiled"
KIND = "tile in registers"
# Default number of invocations of a workgroup. Every device supports 64.
INVOCATIONS = 64
FLOATS = "q8csw"  # the form of a product of float activations


@dataclasses.dataclass(frozen=True)
class Setting:
    """A tile (rows x columns of results of one invocation), and the size of the workgroup in x and y."""

    tile: str
    local_x: int
    local_y: int

    @property
    def local(self) -> dict[str, Value]:
        """The specialization constants for the workgroup size."""
        return {"LOCAL_X": self.local_x, "LOCAL_Y": self.local_y}

    def __str__(self) -> str:
        return f"{self.tile}, workgroup {self.local_x}x{self.local_y}"


@dataclasses.dataclass(frozen=True)
class ProductShape:
    """A matrix product: its dot form (or `FLOATS`), the type of its results ("q8to" or "f32"), and its sizes
    in blocks of four."""

    form: str
    out: str
    m4: int
    n4: int
    k4: int
    groups: int = 1


def choose_setting(device: Device, shape: ProductShape) -> Setting:
    """Return the setting for a product on a device: picked by name, else tuned, else the default."""
    c = device.capabilities
    best = default(c, shape)
    if not is_asked(KIND):
        return best
    others = sorted(candidates(c, _tiles(shape)), key=lambda one: _cost(profile(c), one, shape))
    return ranked(KIND, list(dict.fromkeys((best, *others))))[0]


def default(capabilities: Capabilities, shape: ProductShape) -> Setting:
    """Return the setting with the lowest estimated time, padding included. The candidates are the tiles of
    the profile's `register_tile_percent`, up to the profile's largest tile, with workgroup sizes that the
    profile does not exclude."""
    known = profile(capabilities)
    largest = known.tile_float if shape.form == FLOATS else known.tile
    if largest not in known.register_tile_percent:
        raise SpecError(
            f"profiles.yaml: the tile {largest} is missing in register_tile_percent, which has"
            f" {', '.join(known.register_tile_percent)}: add it there"
        )
    able = (tile for tile in known.register_tile_percent if tile in _tiles(shape))
    tiles = sorted((tile for tile in able if _results(tile) <= _results(largest)), key=_results)
    sizes = [(x, INVOCATIONS // x) for x in known.register_width_percent]
    settings = (Setting(tile, x, y) for tile in tiles for x, y in sizes if (x, y) not in known.avoid_local)
    return min(settings, key=lambda one: (_cost(known, one, shape), abs(one.local_x - one.local_y)))


def _results(tile: str) -> int:
    return math.prod(int(size) for size in tile.split("x"))


def _cost(known: Profile, setting: Setting, shape: ProductShape) -> int:
    """Return the estimated time of a product in arbitrary units: the number of results, padding included,
    times the profile's percentages for the tile and for the workgroup's width."""
    rows, columns = (int(size) for size in setting.tile.split("x"))
    rows, columns = rows * setting.local_y, columns * setting.local_x
    results = -(-4 * shape.m4 // rows) * rows * -(-4 * shape.n4 // columns) * columns
    tile, width = known.register_tile_percent, known.register_width_percent
    return results * tile.get(setting.tile, 100) * width.get(setting.local_x, 100)


def _tiles(shape: ProductShape) -> Sequence[str]:
    """Return the tiles for which the product's shader has variants."""
    return catalog().shaders[FLOAT_SHADER if shape.form == FLOATS else SHADER].axes["tile"]


def candidates(capabilities: Capabilities, tiles: Sequence[str]) -> list[Setting]:
    """Return every setting with one of these tiles that the device can run."""
    sizes = [(x, y) for count in (64, 128, 256) for y in (1, 2, 4, 8, 16) for x in [count // y] if x <= 64]
    limits, avoided = capabilities.properties, profile(capabilities).avoid_local
    most = [limits[f"maxComputeWorkGroupSize_{axis}"] for axis in "xy"]
    able = [
        (x, y) for x, y in sizes
        if x <= most[0] and y <= most[1] and x * y <= limits["maxComputeWorkGroupInvocations"]
        and (x, y) not in avoided
    ]  # fmt: skip
    return [Setting(tile, x, y) for tile in tiles for x, y in able]


def is_picked() -> bool:
    """Return True if a setting is picked by name in this context; other kernels are then not considered."""
    return KIND in picks()
