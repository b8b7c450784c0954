"""Tests of written files: a file is written completely or not at all."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from vkq import cli, files
from vkq.bench import plot
from vkq.cli.run import profile, save


def full(handle: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def drawn(target: Path) -> None:
    plot.bars("title", {"net": {"vkq": 1.0}}, target)


def traced(target: Path) -> None:
    profile(SimpleNamespace(profile=lambda feed, runs: [("a", "Relu", 1.0)]), {}, target, 1)


def benched(target: Path) -> None:
    cli.bench._write(target, "text")


@pytest.mark.parametrize("write", [drawn, traced, benched, lambda path: save(path, {"y": np.arange(3)})])
def test_a_full_disk_leaves_the_old_file(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "result.svg"
    target.write_text("old")
    with monkeypatch.context() as patched:
        patched.setattr("vkq.files.os.fsync", full)
        with pytest.raises(OSError, match=r"No space left on device.*result\.svg") as raised:
            write(target)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(target))
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["result.svg"]
    write(target)
    assert target.read_bytes() not in (b"old", b"")
    assert os.listdir(tmp_path) == ["result.svg"]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), ValueError("other"), FileNotFoundError(2, "x", "input")]
)
def test_what_fails_between_is_told_as_it_is(error: BaseException, tmp_path: Path) -> None:
    target = tmp_path / "y"
    target.write_text("old")
    with pytest.raises(type(error)) as raised, files.output(target) as file:  # noqa: PT012
        file.write_text("half")
        raise error
    assert raised.value is error
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["y"]


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "y.json", tmp_path / "link"
    with files.output(target) as file:
        file.write_text("new")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask
    target.chmod(0o640)
    link.symlink_to("y.json")
    with files.output(link) as file:
        assert file.suffix == ".json"
        file.write_text("newer")
    assert link.is_symlink()
    assert target.read_text() == "newer"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_what_is_no_regular_file_is_written_where_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with files.output(pipe) as file:
        assert file == pipe
        file.write_text("text")
    assert os.read(reader, 9) == b"text"
    os.close(reader)


def test_standard_output_is_not_replaced(tmp_path: Path) -> None:
    """Standard output is never replaced by a file, whether it is a pipe or redirected to a file."""
    code = (
        "from pathlib import Path; from vkq import files; print('before', flush=True)\n"
        "with files.output(Path('/dev/stdout')) as file, file.open('a') as out: out.write('inside\\n')"
    )
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (piped.stdout, piped.stderr) == ("before\ninside\n", "")
    with (tmp_path / "log").open("w") as log:
        subprocess.run([sys.executable, "-c", code], stdout=log, check=True)
    assert (tmp_path / "log").read_text() == "before\ninside\n"


def test_a_long_name(tmp_path: Path) -> None:
    target = tmp_path / ("é" * 124 + ".json")
    with files.output(target) as file:
        file.write_text("text")
    assert os.listdir(tmp_path) == [target.name]


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised, files.output(tmp_path / "no" / "y"):
        pass
    assert raised.value.filename == str(tmp_path / "no" / "y")
