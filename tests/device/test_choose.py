"""Tests of the choice of the device, and of the errors if there is none."""

import dataclasses
import os
import subprocess
import sys

import pytest

import vkq
from tests.conftest import DRIVERS
from vkq.device import choose as module
from vkq.device import install_hint
from vkq.device.capabilities import Capabilities
from vkq.device.choose import choose_device
from vkq.device.drivers import NAMED
from vkq.device.query import devices


def names(monkeypatch: pytest.MonkeyPatch, *rows: tuple[str, str, str]) -> None:
    """Make the loader list these devices: (name, type, API version)."""
    monkeypatch.undo()
    real = devices()[0]
    found = [
        dataclasses.replace(real, index=i, name=n, device_type=t, api_version=v)
        for i, (n, t, v) in enumerate(rows)
    ]

    class Instance:
        def physical_devices(self) -> list[int]:
            return list(range(len(found)))

    def read(handle: int, index: int) -> Capabilities:
        return found[index]

    monkeypatch.setattr(module.vulkan, "instance", Instance)
    monkeypatch.setattr(module, "read", read)
    monkeypatch.setattr(module.vulkan, "refused_drivers", tuple)
    monkeypatch.setattr(module.verdict, "refusal", lambda c: None)
    monkeypatch.delenv("VKQ_DEVICE", raising=False)


MACHINE = (
    ("llvmpipe (LLVM 15)", "cpu", "1.3.0"),
    ("Old Card", "discrete", "1.0.3"),
    ("Intel Graphics 630", "integrated", "1.3.0"),
    ("NVIDIA GeForce RTX 3060", "discrete", "1.3.0"),
    ("NVIDIA GeForce RTX 3070", "discrete", "1.1.0"),
)


@pytest.mark.parametrize(("which", "index"), [
    (None, 3), ("", 3), (0, 0), ("0", 0), ("2", 2), ("nvidia", 3), ("3070", 4), ("INTEL", 2), ("llvm", 0),
    ("630", 2),
])  # fmt: skip
def test_by_preference_index_or_name(
    monkeypatch: pytest.MonkeyPatch, which: int | str | None, index: int
) -> None:
    names(monkeypatch, *MACHINE)
    assert choose_device(which)[1].index == index
    if isinstance(which, str):
        monkeypatch.setenv("VKQ_DEVICE", which)
        assert choose_device(None)[1].index == index
        assert choose_device(0)[1].index == 0, "an argument is stronger than the environment"


@pytest.mark.parametrize("which", [1, "Old", 7, -1, "7", "AMD", "²"])
def test_what_does_not_fit_is_told_with_what_there_is(
    monkeypatch: pytest.MonkeyPatch, which: int | str
) -> None:
    names(monkeypatch, *MACHINE)
    with pytest.raises(vkq.NoDeviceError) as caught:
        choose_device(which)
    text = str(caught.value)
    assert f"no device matches {which!r} and can run vkq" in text
    assert "1: Old Card (it offers Vulkan 1.0.3, vkq needs 1.1)" in text
    assert "3: NVIDIA GeForce RTX 3060;" in text
    monkeypatch.setenv("VKQ_DEVICE", str(which))
    with pytest.raises(vkq.NoDeviceError, match=r"\(from VKQ_DEVICE\)"):
        choose_device(None)


def test_none_at_all_and_none_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch)
    for name in NAMED:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(vkq.NoDeviceError, match="the loader shows no device; install a driver"):
        choose_device(None)
    names(monkeypatch, MACHINE[1])
    with pytest.raises(vkq.NoDeviceError, match=r"0: Old Card \(it offers Vulkan 1\.0\.3"):
        choose_device(None)


@pytest.mark.parametrize("which", [True, 1.0, b"llvm", ["llvm"]])
def test_other_types_are_refused(which: object) -> None:
    with pytest.raises(vkq.DTypeError, match="must be an index, a part of a device's name, or None"):
        vkq.Device(which)  # type: ignore[arg-type]


def test_the_environment_chooses_the_device(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (device.name, device.name.lower(), str(device.capabilities.index)):
        monkeypatch.setenv("VKQ_DEVICE", text)
        with vkq.Device() as mine:
            assert mine.name == device.name


def test_every_driver_has_a_device(software_device: vkq.Device) -> None:
    assert len({c.name for c in devices()}) >= len(DRIVERS)


# --------------------------------------------------------------------------------------- no loader, no driver

NO_LOADER = """
from vkq.device import vulkan
vulkan.LIBRARIES = ("libnothing.so.1", "libnothing.so")
"""
SAYS = """
import vkq, numpy as np
for use in (vkq.Device, vkq.default_device, lambda: vkq.quantize(np.ones(3, np.float32), vkq.QParams(1.0))):
    try:
        use()
        print("no error")
    except vkq.NoDeviceError as error:
        print(error)
"""
NOWHERE = {
    "no loader": (
        NO_LOADER,
        {},
        (
            "the Vulkan loader, libvulkan, could not be loaded (libnothing.so.1: cannot open shared object"
            " file: No such file or directory; libnothing.so: cannot open shared object file: No such file or"
            f" directory); install it: {install_hint.loader()}; and a driver: {install_hint.driver()}"
        ),
    ),
    "no driver": (
        "",
        {**dict.fromkeys(NAMED, ""), "XDG_DATA_DIRS": "/nonexistent", "XDG_DATA_HOME": "/nonexistent"},
        f"install a driver: {install_hint.driver()}",
    ),
    "a variable that names none": (
        "",
        {**dict.fromkeys(NAMED, ""), "VK_ICD_FILENAMES": "/nonexistent"},
        "VK_ICD_FILENAMES is '/nonexistent' and the loader looks nowhere else: unset it",
    ),
}


@pytest.mark.parametrize("name", NOWHERE)
def test_without_vulkan_vkq_says_why(name: str) -> None:
    prelude, environment, message = NOWHERE[name]
    env = {**os.environ, "VKQ_VALIDATION": "0", **environment}
    run = subprocess.run(
        [sys.executable, "-c", prelude + SAYS], env=env, capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert len(lines) == 3
    assert all(message in line for line in lines), lines
    cli = "import sys; from vkq.cli import main; sys.exit(main(sys.argv[1:]))"
    for options in (["devices"], ["devices", "--json"]):
        run = subprocess.run(
            [sys.executable, "-c", prelude + cli, *options],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (run.returncode, run.stderr) == (3, "")
        assert message in run.stdout


def test_the_second_name_of_the_loader_serves() -> None:
    """libvulkan.so is loaded if there is no libvulkan.so.1, as on Termux and Android."""
    code = """
from vkq.device import vulkan
first, second, *_ = vulkan.LIBRARIES
assert (first, second) == ("libvulkan.so.1", "libvulkan.so")
vulkan.LIBRARIES = ("libnothing.so.1", first)
import vkq
print(len(vkq.devices()) > 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_validation_without_its_layer_says_what_to_install(tmp_path: os.PathLike[str]) -> None:
    env = {**os.environ, "VKQ_VALIDATION": "1", "VK_LAYER_PATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", SAYS], env=env, capture_output=True, text=True, timeout=60)
    assert run.stdout.count("VK_ERROR_LAYER_NOT_PRESENT (-6): VKQ_VALIDATION=1 asks for the validation") == 3
    assert "install vulkan-validationlayers" in run.stdout


def test_an_index_of_many_digits_is_no_device() -> None:
    for which in (2**31, -(2**31), 10**5000):
        with pytest.raises(vkq.NoDeviceError, match=r"no device has an index of \d+ bits"):
            choose_device(which)
