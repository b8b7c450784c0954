"""The validated cache: damage of every kind is noticed, told once, and made good."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from vkq import cache
from vkq.cache import CacheWarning


def test_round_trip_and_absence(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    assert cache.read(path) is None
    for data in (b"", b"x", os.urandom(100_000)):
        cache.write(path, data)
        assert cache.read(path) == data
    assert os.listdir(path.parent) == ["file"]


def test_cache_dir_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKQ_CACHE_DIR", str(tmp_path))
    assert cache.cache_dir() == tmp_path
    monkeypatch.setenv("VKQ_CACHE_DIR", "")
    assert cache.cache_dir().name == "vkq"


def damage_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def damage_header(path: Path) -> None:
    path.write_bytes(b"other" + path.read_bytes())


def damage_length(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damage_all(path: Path) -> None:
    path.write_bytes(b"")


def damage_kind(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = [damage_bit, damage_header, damage_length, damage_all, damage_kind]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_ignored_with_one_warning(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "file"
    cache.write(path, b"precious")
    damage(path)
    with pytest.warns(CacheWarning, match="ignored and made again"):
        assert cache.read(path) is None
    assert cache.read(path) is None  # any further warning would be an error here
    cache.write(path, b"precious")  # may fail, for a folder stands there; that was told already
    assert [name for name in os.listdir(tmp_path) if name != "file"] == []
    if damage is not damage_kind:
        assert cache.read(path) == b"precious"


def test_every_truncation_is_noticed() -> None:
    blob = cache.seal(b"some data")
    assert cache.unseal(blob) == b"some data"
    assert all(cache.unseal(blob[:size]) is None for size in range(len(blob)))


def test_file_system_that_refuses_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.warns(CacheWarning, match="cannot be written: Read-only file system"):
        cache.write(tmp_path / "a", b"data")
    cache.write(tmp_path / "b", b"data")  # any further warning would be an error here
    with pytest.raises(OSError, match="Read-only"):
        cache.write_sealed(tmp_path / "a", b"data")


def test_unreadable_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.warns(CacheWarning, match="Permission denied"):
        assert cache.read(tmp_path / "file") is None


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    cache.write(path, b"old")
    monkeypatch.setattr(
        "os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.warns(CacheWarning, match="No space left"):
        cache.write(path, b"new")
    assert cache.read(path) == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_writers_and_readers_in_processes(tmp_path: Path) -> None:
    """Two writers replace one file; a reader sees one of the two texts at every time, and never a warning."""
    code = (
        "import sys; from pathlib import Path; from vkq import cache\n"
        "for _ in range(60): cache.write(Path(sys.argv[1]), sys.argv[2].encode() * 50_000)"
    )
    path = tmp_path / "file"
    cache.write(path, b"a" * 50_000)
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), letter]) for letter in "ab"]
    seen = set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while any(writer.poll() is None for writer in writers):
            seen.add(cache.read(path))
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen <= {b"a" * 50_000, b"b" * 50_000}
    assert os.listdir(tmp_path) == ["file"]
