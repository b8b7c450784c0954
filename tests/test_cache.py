"""Tests of the validated cache: every kind of damage is detected, reported once, and repaired."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vkq import cache, files
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


def damage_name(path: Path) -> None:
    cache.write(path.with_name("other"), b"sealed too")
    os.replace(path.with_name("other"), path)


def damage_size(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # makes a sparse file of 1 TiB


def damage_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def damage_endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


DAMAGES = [damage_bit, damage_header, damage_length, damage_all, damage_kind]
DAMAGES += [damage_name, damage_size, damage_pipe, damage_endless]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_ignored_with_one_warning(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "file"
    cache.write(path, b"precious")
    damage(path)
    with pytest.warns(CacheWarning, match="ignored and made again"):
        assert cache.read(path) is None
    assert cache.read(path) is None  # without a second warning, which would fail the test
    # for *damage_kind*, this fails because a folder has the file's name; this failure was already reported
    cache.write(path, b"precious")
    assert [name for name in os.listdir(tmp_path) if name != "file"] == []
    if damage is not damage_kind:
        assert path.stat().st_size < 100
        assert cache.read(path) == b"precious"


def test_every_truncation_is_noticed() -> None:
    blob = cache.seal(b"some data", "name")
    assert cache.unseal(blob, "name") == b"some data"
    assert all(cache.unseal(blob[:size], "name") is None for size in range(len(blob)))
    assert cache.unseal(cache.seal(b"e data", "som"), "so") is None


def test_file_system_that_refuses_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("vkq.files.os.open", refuse)
    with pytest.warns(CacheWarning, match="cannot be written: Read-only file system"):
        cache.write(tmp_path / "a", b"data")
    cache.write(tmp_path / "b", b"data")  # without a second warning, which would fail the test
    with pytest.raises(OSError, match="Read-only"):
        cache.write_sealed(tmp_path / "a", b"data")


def test_unreadable_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files, "read", refuse)
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


@pytest.mark.parametrize("text", [b"{", b"", b"\xff", b"[" * 100_000, b"1" * 5000, b'{"a": 2}', b"[]", b"{}"])
def test_sealed_json_of_another_form_is_ignored(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "file.json"

    def parse(value: Any) -> int:
        if value["a"] != 1:
            raise ValueError("a is not 1")
        return 1

    cache.write(path, text)
    with pytest.warns(CacheWarning, match="ignored and made again: [A-Z]"):
        assert cache.read_json(path, parse) is None
    cache.write(path, b'{"a": 1}')
    assert cache.read_json(path, parse) == 1
    assert cache.read_json(tmp_path / "none", parse) is None


def test_what_was_used_longest_ago_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKQ_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "MOST_BYTES", 10_000)
    monkeypatch.setattr(cache, "_sizes", {})
    mine = [tmp_path / "spirv" / "not vkq's", tmp_path / "photos" / "1.jpg", tmp_path / "letter"]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 20_000)
        os.utime(path, (1, 1))
    for number in range(9):
        path = tmp_path / ("spirv" if number % 2 else "tune") / str(number)
        cache.write(path, bytes(1000))
        os.utime(path, (10 + number, 10 + number))
    assert cache.read(tmp_path / "tune" / "0") == bytes(1000)  # reading makes it the most recently used file
    cache.write(tmp_path / "pipelines" / "big", bytes(3000))
    kept = sorted(path.name for path in tmp_path.rglob("*") if path.is_file() and path not in mine)
    assert kept == ["0", "6", "7", "8", "big"]
    assert all(path.stat().st_size == 20_000 for path in mine)


def test_a_folder_that_is_no_cache_is_never_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_BYTES", 10)
    cache.write(tmp_path / "spirv" / "a", bytes(1000))
    cache.write(tmp_path / "spirv" / "b", bytes(1000))
    assert len(os.listdir(tmp_path / "spirv")) == 2


def test_the_data_reaches_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data of a file is written to disk before the file gets its name. Otherwise a power failure could
    leave an empty file under this name."""
    done: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr("os.fsync", lambda handle: (done.append("sync"), sync(handle)))
    monkeypatch.setattr("os.replace", lambda *names: (done.append("name"), replace(*names)))
    cache.write(tmp_path / "file", b"data")
    assert done == ["sync", "name"]


def test_writers_and_readers_in_processes(tmp_path: Path) -> None:
    """Two processes write one file; a reader always gets one of the two texts, and never a warning."""
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


def test_folders_are_for_their_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache.write(tmp_path / "cache" / "inner" / "probe" / "file", b"data")
    finally:
        os.umask(before)
    for folder in ("cache", "cache/inner", "cache/inner/probe"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "cache/inner/probe/file").stat().st_mode & 0o777 == 0o600
