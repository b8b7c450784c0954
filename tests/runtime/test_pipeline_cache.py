"""Tests of the pipeline cache on disk: a damaged or foreign file is ignored with one warning, and results
are right."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vkq
from tests.runtime import work
from vkq import cache, files
from vkq.cache import CacheWarning
from vkq.runtime import pipeline_cache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this test store pipelines in a temporary folder; return the folder."""
    monkeypatch.setattr(pipeline_cache, "path", lambda c: tmp_path / "pipelines" / f"{c.key}.bin")
    return tmp_path / "pipelines"


def run(device: vkq.Device) -> Path:
    with vkq.Device(device.name) as mine:
        work.linear(mine).check()
        return pipeline_cache.path(mine.capabilities)


def header(data: bytes, **fields: Any) -> bytes:
    """Return the cache's data with fields of its header replaced."""
    names = ("size", "version", "vendor", "device", "uuid")
    values = dict(zip(names, struct.unpack_from("<IIII16s", data), strict=True)) | fields
    return struct.pack("<IIII16s", *values.values()) + data[32:]


# FILES: damage of the file, checksum included. DATA: damage of the data, under a valid checksum.
FILES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda blob: b"",
    "truncated": lambda blob: blob[:-1],
    "a bit flipped": lambda blob: blob[:-1] + bytes([blob[-1] ^ 1]),
    "no seal": lambda blob: b"something else",
}
DATA: dict[str, Callable[[bytes], bytes]] = {
    "another vendor": lambda d: header(d, vendor=0x1234),
    "another device": lambda d: header(d, device=77),
    "another driver": lambda d: header(d, uuid=b"\x5a" * 16),
    "another header version": lambda d: header(d, version=2),
    "a header longer than the data": lambda d: header(d, size=len(d) + 1),
    "less than a header": lambda d: d[:31],
    "nothing": lambda d: b"",
}


def test_it_is_written_and_read(device: vkq.Device, folder: Path) -> None:
    path = run(device)
    data = cache.read(path)
    assert data is not None
    assert pipeline_cache.foreign(data, device.capabilities) is None
    loaded: list[bytes] = []

    class Context:
        def load_cache(self, data: bytes) -> None:
            loaded.append(data)

    assert pipeline_cache.load(Context(), device.capabilities) == len(data)
    assert loaded == [data]
    run(device)


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_made_again(device: vkq.Device, folder: Path, name: str) -> None:
    path = run(device)
    path.write_bytes(FILES[name](path.read_bytes()))
    with pytest.warns(CacheWarning, match="ignored and made again") as caught:
        run(device)
    assert len(caught) == 1
    run(device)  # a second warning would be an error


@pytest.mark.parametrize("name", DATA)
def test_foreign_data_never_reaches_the_driver(device: vkq.Device, folder: Path, name: str) -> None:
    path = run(device)
    good = cache.read(path)
    assert good is not None
    cache.write(path, DATA[name](good))
    with work.failing("vkCreatePipelineCache", 0):
        with pytest.warns(CacheWarning, match="ignored and made again") as caught:
            run(device)
        assert work.counted() == 1, "only the empty one was made"
    assert len(caught) == 1
    assert pipeline_cache.foreign(cache.read(path) or b"", device.capabilities) is None, "it was made again"


def test_data_that_the_driver_refuses_is_ignored(device: vkq.Device, folder: Path) -> None:
    run(device)
    with (
        work.failing("vkCreatePipelineCache", 2, -3),
        pytest.warns(CacheWarning, match="VK_ERROR_INITIALIZATION_FAILED"),
    ):
        run(device)


def test_a_folder_in_place_of_the_file(any_device: vkq.Device, folder: Path) -> None:
    path = pipeline_cache.path(any_device.capabilities)
    path.mkdir(parents=True)
    with pytest.warns(CacheWarning) as caught:
        run(any_device)
    assert len(caught) == 1, [str(w.message) for w in caught]


def test_a_file_that_cannot_be_read(
    any_device: vkq.Device, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(any_device)
    real = files.read

    def read(path: Path, most_bytes: int) -> bytes:
        if path.parent == folder:
            raise PermissionError(13, "no")
        return real(path, most_bytes)

    monkeypatch.setattr(files, "read", read)
    with pytest.warns(CacheWarning) as caught:
        run(any_device)
    assert len(caught) == 1


def read_only(*_: object) -> None:
    raise OSError(30, "Read-only file system")


def test_a_folder_that_cannot_be_written(
    any_device: vkq.Device, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vkq.files.replacing", read_only)
    with pytest.warns(CacheWarning, match="Read-only file system") as caught:
        run(any_device)
    run(any_device)  # a second warning would be an error
    assert len(caught) == 1


def test_a_warning_that_is_an_error_still_closes_the_device(
    any_device: vkq.Device, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vkq.files.replacing", read_only)
    mine = vkq.Device(any_device.name)
    work.linear(mine).check()
    with pytest.raises(CacheWarning):  # pytest's configuration: warnings are errors
        mine.close()
    assert mine.closed


def test_a_driver_that_cannot_give_its_cache_is_no_error(any_device: vkq.Device, folder: Path) -> None:
    with work.failing("vkGetPipelineCacheData", 1):
        path = run(any_device)
    assert not path.exists()
