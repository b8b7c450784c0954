"""Devices for the tests: each test with the parameter ``device`` runs on two independent software drivers,
under the validation layer."""

import gc
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]
# driver -> part of its device's name
DRIVERS = {"lavapipe": "llvmpipe", "swiftshader": "SwiftShader"}
EVERY = os.environ.get("VKQ_EVERY_DRIVER", "0") not in ("", "0")
REQUIRED = os.environ.get("VKQ_REQUIRE_DEVICE", "0") not in ("", "0")


def _environment() -> None:
    """Set environment variables before the Vulkan loader is opened: both drivers, the validation layer, and
    a cache folder for tests only, which later test runs reuse."""
    icds = [
        *Path("/usr/share/vulkan/icd.d").glob("lvp_icd.*.json"),
        ROOT / ".drivers" / "vk_swiftshader_icd.json",
    ]
    # VKQ_TEST_DEVICE is a part of a device's name: tests then run on this device, not on the software
    # drivers.
    if "VKQ_TEST_DEVICE" not in os.environ:
        os.environ.setdefault("VK_DRIVER_FILES", ":".join(str(p) for p in icds if p.exists()))
        os.environ.setdefault("VKQ_VALIDATION", "1")
    cache = os.environ.setdefault("VKQ_CACHE_DIR", str(ROOT / "build" / "test-cache"))
    # LLVM compiles lavapipe's shaders in a third of the time without optimization and with subgroups of 4
    # lanes, as on arm64. VKQ_EVERY_DRIVER=1 keeps the users' settings for both drivers. Each setting has a
    # cache of its own.
    if not EVERY:
        os.environ.setdefault("LP_NATIVE_VECTOR_WIDTH", "128")
        os.environ.setdefault("GALLIVM_PERF", "nopt")
    os.environ.setdefault("MESA_SHADER_CACHE_DIR", str(Path(cache) / f"mesa-{'every' if EVERY else '128'}"))


_environment()

import vkq  # noqa: E402  the environment comes first
from vkq.device import vulkan  # noqa: E402

_opened: dict[str, vkq.Device] = {}


def open_device(driver: str) -> vkq.Device:
    """Return the driver's device, opened once for the whole run. If the device is missing, skip the test, or
    fail with VKQ_REQUIRE_DEVICE=1."""
    if driver not in _opened:
        try:
            _opened[driver] = vkq.Device(DRIVERS.get(driver, driver))
        except vkq.NoDeviceError as error:
            if REQUIRED:
                pytest.fail(f"{driver} is required (VKQ_REQUIRE_DEVICE) and missing: {error}")
            pytest.skip(f"{driver} is not installed: {error}")
    return _opened[driver]


def lacks(why: str) -> NoReturn:
    """End a test that needs something that is not installed. Where the tests run on software drivers, the
    test fails; on another device (VKQ_TEST_DEVICE), it is skipped."""
    if REQUIRED or "VKQ_TEST_DEVICE" not in os.environ:
        pytest.fail(why)
    pytest.skip(why)


def share(items: Iterable[T], device: vkq.Device, of: int) -> list[T]:
    """Return all cases on lavapipe, and every *of*-th case on SwiftShader, which takes about a second to
    compile a kernel. With VKQ_EVERY_DRIVER=1, return all cases on every driver."""
    return list(items)[:: 1 if EVERY or "SwiftShader" not in device.name else of]


@pytest.fixture(autouse=os.environ.get("VKQ_DECLARED_LOOPS", "0") not in ("", "0"), scope="session")
def declared_loops() -> Iterator[None]:
    """In every shader, end each loop after the number of iterations that the shader's YAML states, as some
    drivers do."""
    from tests.shader import declared

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vkq.runtime.programs.Programs._make", declared.make)
        yield


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        chosen = os.environ.get("VKQ_TEST_DEVICE")
        metafunc.parametrize("device", [chosen] if chosen else list(DRIVERS), indirect=True, scope="session")


def _driver(item: pytest.Item) -> str | None:
    return item.callspec.params.get("device") if hasattr(item, "callspec") else None


def _chosen(item: pytest.Item) -> list[tuple[int, ...]]:
    """Return the ids of a test's parameter values, without ``device``. Parameters that one ``parametrize``
    lists together give one tuple."""
    left = dict(item.callspec.params)  # type: ignore[attr-defined]
    left.pop("device")
    marks = [mark.args[0] for mark in item.iter_markers("parametrize")]
    lists = [names.replace(",", " ").split() if isinstance(names, str) else list(names) for names in marks]
    together = [tuple(id(left.pop(name)) for name in names) for names in lists if names[0] in left]
    return together + [(id(value),) for value in left.values()]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the combinations of parameters that each driver runs.

    lavapipe runs every combination of a test's parameters. SwiftShader takes seconds to compile a kernel, so
    it runs fewer combinations, in which every value of each parameter occurs.

    SwiftShader also runs every combination of the tests in tests/runtime, and of a test that is named on the
    command line (``file::test``); VKQ_EVERY_DRIVER=1 runs everything.
    """
    if EVERY or any("::" in arg for arg in config.args):
        return
    found: dict[str, list[pytest.Item]] = {}
    for item in items:
        if "runtime" not in item.path.parts and _driver(item) == "swiftshader":
            found.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for cases in found.values():
        columns = [list(dict.fromkeys(column)) for column in zip(*map(_chosen, cases), strict=True)]
        if len(columns) > 1:
            least = min(map(len, columns))
            for item in cases:
                numbers = [column.index(one) for column, one in zip(columns, _chosen(item), strict=True)]
                left_out |= {item} if sum(numbers) % least else set()
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Exclude the tests from garbage collection. They are half a million objects that live as long as the
    process; each ``gc.collect()`` would take 0.5 s longer."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> vkq.Device:
    """An open device; the test runs once on each driver."""
    return open_device(request.param)


@pytest.fixture
def any_device() -> vkq.Device:
    """One open device, for tests that do not depend on the driver."""
    return open_device(os.environ.get("VKQ_TEST_DEVICE", "lavapipe"))


@pytest.fixture
def strict_device() -> vkq.Device:
    """One open device, for shaders that use private arrays across barriers. lavapipe may lose the contents
    of such arrays (tests/kernels/emulated.py)."""
    return open_device(os.environ.get("VKQ_TEST_DEVICE", "swiftshader"))


@pytest.fixture
def software_device() -> vkq.Device:
    """A CPU device, for tests of the choices that vkq makes on CPUs."""
    if "VKQ_TEST_DEVICE" in os.environ:
        pytest.skip("names what a CPU device takes; VKQ_TEST_DEVICE asks for another")
    return open_device("lavapipe")


@pytest.fixture(autouse=True)
def silent_validation() -> Iterator[None]:
    """Fail a test during which the validation layer (with synchronization validation) prints anything."""
    before = len(vulkan.validation_messages())
    yield
    said = vulkan.validation_messages()[before:]
    assert not said, "the validation layer said:\n" + "\n".join(said)
