"""Fixtures for tests of files that `vkq export` writes."""

import ctypes
from collections.abc import Iterator

import pytest

import vkq
from vkq.player.load import check, library


@pytest.fixture
def opened(any_device: vkq.Device) -> Iterator[ctypes.c_void_p]:
    """Yield a device opened by libvkq."""
    device = ctypes.c_void_p()
    check(library().vkq_open(any_device.name.encode(), ctypes.byref(device)))
    yield device
    library().vkq_close(device)
