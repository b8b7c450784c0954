"""Which tile and workgroup size the int8 matrix product takes on a device: tuned (`vkq tune`), preferred, or
the default.

What is chosen here changes speed and never a result: every setting gives the same bits, and `vkq tune` stores
none that it has not compared with the reference on that device. A stored setting that the device cannot run
is ignored.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import json
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .. import cache
from .._version import __version__
from ..device.capabilities import Capabilities
from ..device.profiles import Profile, profile
from ..errors import SpecError
from ..runtime.device import Device
from ..shader.catalog import catalog
from ..shader.spec import Value

SHADER, FLOAT_SHADER = "gemm_q8ta_q8csw__tiled", "gemm_q8csw__tiled"
INVOCATIONS = (
    64  # of a workgroup where nothing else is known: every device has them, and most schedule them well
)
FLOATS = "q8csw"  # the form of a product of float activations


@dataclasses.dataclass(frozen=True)
class Setting:
    """A tile (rows x columns of results of one invocation) and the workgroup's invocations in x and y."""

    tile: str
    local_x: int
    local_y: int

    @property
    def local(self) -> dict[str, Value]:
        """The specialization constants."""
        return {"LOCAL_X": self.local_x, "LOCAL_Y": self.local_y}

    def __str__(self) -> str:
        return f"tile {self.tile}, local size {self.local_x}x{self.local_y}"


@dataclasses.dataclass(frozen=True)
class ProductShape:
    """A matrix product in blocks of four, with its dot form (or `FLOATS`) and output ("q8to" or "f32")."""

    form: str
    out: str
    m4: int
    n4: int
    k4: int
    groups: int = 1

    @property
    def bucket(self) -> str:
        """Products that are tuned together: each size rounded up to a power of two."""
        sizes = (self.m4, self.n4, self.k4, self.groups)
        return ".".join([self.form, self.out, *(str(1 << max(0, size - 1).bit_length()) for size in sizes)])


_forced: contextvars.ContextVar[Setting | None] = contextvars.ContextVar("vkq_setting", default=None)
observer: contextvars.ContextVar[Callable[[ProductShape], None] | None] = contextvars.ContextVar(
    "vkq_shapes", default=None
)  # told of each
_tuned: dict[str, dict[str, Setting]] = {}  # by device, then bucket
_lock = threading.Lock()


def choose_setting(device: Device, shape: ProductShape) -> Setting:
    """The setting for a product on a device."""
    observe = observer.get()
    if observe:
        observe(shape)
    return _forced.get() or lookup(device, shape) or default(device.capabilities, shape)


def lookup(device: Device, shape: ProductShape) -> Setting | None:
    """The tuned setting, or None where the product's bucket was not tuned on this device and driver."""
    return stored(device.capabilities).get(shape.bucket)


def default(capabilities: Capabilities, shape: ProductShape) -> Setting:
    """Without tuning: of the tiles up to the widest that the vendor likes, and the workgroups that it does
    not avoid, those that should take the least time, padding included."""
    known = profile(capabilities)
    tiles = list(known.register_tile_percent)
    shader, widest = (FLOAT_SHADER, known.tile_float) if shape.form == FLOATS else (SHADER, known.tile)
    built = catalog().shaders[shader].axes["tile"]
    if widest not in tiles:
        raise SpecError(
            f"profiles.yaml: the tile {widest} has no number in register_tile_percent, which has"
            f" {', '.join(tiles)}: give it one there, in its place from narrow to wide"
        )
    tiles = [tile for tile in tiles[: tiles.index(widest) + 1] if tile in built]
    sizes = [(x, INVOCATIONS // x) for x in known.register_width_percent]
    settings = (Setting(tile, x, y) for tile in tiles for x, y in sizes if (x, y) not in known.avoid_local)
    return min(settings, key=lambda one: (_cost(known, one, shape), abs(one.local_x - one.local_y)))


def _cost(known: Profile, setting: Setting, shape: ProductShape) -> int:
    """What the workgroups of a product take, in results, times 10,000."""
    rows, columns = (int(size) for size in setting.tile.split("x"))
    rows, columns = rows * setting.local_y, columns * setting.local_x
    results = -(-4 * shape.m4 // rows) * rows * -(-4 * shape.n4 // columns) * columns
    return results * known.register_tile_percent[setting.tile] * known.register_width_percent[setting.local_x]


def candidates(capabilities: Capabilities) -> list[Setting]:
    """Every setting that the device can run."""
    sizes = [(x, y) for count in (64, 128, 256) for y in (1, 2, 4, 8, 16) for x in [count // y] if x <= 64]
    tiles = catalog().shaders[SHADER].axes["tile"]
    return [
        s
        for s in (Setting(tile, x, y) for tile in tiles for x, y in sizes)
        if refusal(capabilities, s) is None
    ]


def refusal(capabilities: Capabilities, setting: Setting) -> str | None:
    """Why a setting cannot be used on the device, or None."""
    limits, local = capabilities.properties, (setting.local_x, setting.local_y)
    if setting.tile not in catalog().shaders[SHADER].axes["tile"]:
        return f"there is no tile {setting.tile}"
    if min(local) < 1 or local[0] * local[1] > limits["maxComputeWorkGroupInvocations"]:
        return f"a workgroup of {local[0]}x{local[1]} is above maxComputeWorkGroupInvocations"
    if local[0] > limits["maxComputeWorkGroupSize_x"] or local[1] > limits["maxComputeWorkGroupSize_y"]:
        return f"a workgroup of {local[0]}x{local[1]} is above maxComputeWorkGroupSize"
    known = profile(capabilities)
    if local in known.avoid_local:
        return f"{known.names[-1]}: {known.whys[-1]}"
    return None


@contextlib.contextmanager
def forced(setting: Setting) -> Iterator[None]:
    """Every product asked for in the block takes this setting: for tuning and for tests."""
    token = _forced.set(setting)
    try:
        yield
    finally:
        _forced.reset(token)


def is_forced() -> bool:
    """Whether a setting is `forced` here: kernels without settings then stay out of the way."""
    return _forced.get() is not None


def forced_setting() -> Setting | None:
    """The setting that is `forced` here, or None."""
    return _forced.get()


def stored(capabilities: Capabilities) -> Mapping[str, Setting]:
    """The tuned settings of a device by bucket."""
    with _lock:
        found = _tuned.get(capabilities.key)
        if found is None:
            found = _tuned[capabilities.key] = _load(capabilities)
        return found


def store(capabilities: Capabilities, settings: Mapping[ProductShape, Setting]) -> None:
    """Keeps settings for this device, driver and version of vkq, beside those that were tuned before, and
    meanwhile by other processes."""
    before, tuned = stored(capabilities), {shape.bucket: setting for shape, setting in settings.items()}
    with _lock:
        found = _tuned[capabilities.key] = {**before, **_load(capabilities), **tuned}
    text = json.dumps({bucket: dataclasses.asdict(setting) for bucket, setting in found.items()}, indent=1)
    cache.write(_path(capabilities), text.encode())


def _path(capabilities: Capabilities) -> Path:
    return cache.cache_dir() / "tune" / f"{capabilities.key}-{__version__}.json"


def _load(capabilities: Capabilities) -> dict[str, Setting]:
    path = _path(capabilities)
    found: dict[str, Setting] = {}
    for bucket, setting in (cache.read_json(path, _parse) or {}).items():
        reason = refusal(capabilities, setting)
        if reason is None:
            found[bucket] = setting
        else:
            warnings.warn(
                f"{path}: the setting for {bucket} is ignored: {reason}", cache.CacheWarning, stacklevel=2
            )
    return found


def _parse(value: Any) -> dict[str, Setting]:
    """Settings by bucket from the value of a JSON text; ValueError for another form."""
    found: dict[str, Setting] = {}
    for bucket, each in value.items() if isinstance(value, dict) else [("", None)]:
        if not isinstance(each, dict) or each.keys() != {"tile", "local_x", "local_y"}:
            raise ValueError("it is no mapping of settings")
        tile, *local = (each[name] for name in ("tile", "local_x", "local_y"))
        if type(tile) is not str or any(type(size) is not int for size in local):
            raise ValueError(f"a value of {bucket} has the wrong type")
        found[bucket] = Setting(tile, *local)
    return found
