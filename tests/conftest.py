"""Devices for the tests: each test that takes ``device`` runs on two independent software drivers, under the
validation layer."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# driver -> a part of its device's name
DRIVERS = {"lavapipe": "llvmpipe", "swiftshader": "SwiftShader"}
REQUIRED = os.environ.get("VKQ_REQUIRE_DEVICE", "0") not in ("", "0")


def _environment() -> None:
    """Before the loader is opened: both drivers, the validation layer, a cache that outlives the run but is
    not the user's."""
    icds = [
        *Path("/usr/share/vulkan/icd.d").glob("lvp_icd.*.json"),
        ROOT / ".drivers" / "vk_swiftshader_icd.json",
    ]
    if (
        "VKQ_TEST_DEVICE" not in os.environ
    ):  # a real device by a part of its name, instead of the software ones
        os.environ.setdefault("VK_DRIVER_FILES", ":".join(str(p) for p in icds if p.exists()))
        os.environ.setdefault("VKQ_VALIDATION", "1")
    os.environ.setdefault("VKQ_CACHE_DIR", str(ROOT / "build" / "test-cache"))


_environment()

import vkq  # noqa: E402  the environment comes first
from vkq.device import vulkan  # noqa: E402

_opened: dict[str, vkq.Device] = {}


def open_device(driver: str) -> vkq.Device:
    """The driver's device, opened once for the whole run; a missing one is a failure under
    VKQ_REQUIRE_DEVICE=1."""
    if driver not in _opened:
        try:
            _opened[driver] = vkq.Device(DRIVERS.get(driver, driver))
        except vkq.NoDeviceError as error:
            if REQUIRED:
                pytest.fail(f"{driver} is required (VKQ_REQUIRE_DEVICE) and missing: {error}")
            pytest.skip(f"{driver} is not installed: {error}")
    return _opened[driver]


@pytest.fixture(autouse=os.environ.get("VKQ_DECLARED_LOOPS", "0") not in ("", "0"), scope="session")
def declared_loops() -> Iterator[None]:
    """Every shader's loops end where its YAML says that they do."""
    from tests.shader import declared

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vkq.runtime.programs.Programs._make", declared.make)
        yield


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        chosen = os.environ.get("VKQ_TEST_DEVICE")
        metafunc.parametrize("device", [chosen] if chosen else list(DRIVERS), indirect=True, scope="session")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> vkq.Device:
    """An open device; the test runs once for each driver."""
    return open_device(request.param)


@pytest.fixture
def any_device() -> vkq.Device:
    """One open device, for what does not depend on the driver."""
    return open_device(os.environ.get("VKQ_TEST_DEVICE", "lavapipe"))


@pytest.fixture
def strict_device() -> vkq.Device:
    """One open device, for shaders whose private arrays outlive barriers: lavapipe may lose them
    (tests/kernels/emulated.py)."""
    return open_device(os.environ.get("VKQ_TEST_DEVICE", "swiftshader"))


@pytest.fixture
def software_device() -> vkq.Device:
    """A CPU device, for tests that name what vkq chooses on one."""
    if "VKQ_TEST_DEVICE" in os.environ:
        pytest.skip("names what a CPU device takes; VKQ_TEST_DEVICE asks for another")
    return open_device("lavapipe")


@pytest.fixture(autouse=True)
def silent_validation() -> Iterator[None]:
    """Fails the test in which the validation layer (with synchronization validation) says anything."""
    before = len(vulkan.validation_messages())
    yield
    said = vulkan.validation_messages()[before:]
    assert not said, "the validation layer said:\n" + "\n".join(said)
