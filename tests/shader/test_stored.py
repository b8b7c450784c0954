"""Tests of SPIR-V in compressed, sealed files."""

import zlib
from pathlib import Path

import numpy as np
import pytest

from vkq import cache
from vkq.cache import CacheWarning
from vkq.shader import stored

# most words in SPIR-V are small, too
WORDS = np.random.default_rng(0).integers(0, 1 << 16, 5000, np.uint32).tobytes()


@pytest.mark.parametrize("spirv", [b"", WORDS[:4], WORDS])
def test_a_module_comes_back(spirv: bytes, tmp_path: Path) -> None:
    stored.write(tmp_path / "a.spv", spirv)
    assert stored.read(tmp_path / "a.spv") == spirv
    assert stored.read(tmp_path / "b.spv") is None


def test_words_below_65536_take_half_of_their_bytes(tmp_path: Path) -> None:
    stored.write(tmp_path / "a.spv", WORDS)
    assert (tmp_path / "a.spv").stat().st_size < 0.51 * len(WORDS)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (WORDS, "incorrect header check"),
        (stored.compressed(WORDS)[:-1], "does not end where"),
        (stored.compressed(WORDS) + b"more", "does not end where"),
        (zlib.compress(b"12345"), "cannot reshape array of size 5"),
    ],
)
def test_another_content_is_ignored(data: bytes, problem: str, tmp_path: Path) -> None:
    cache.write(tmp_path / "a.spv", data)
    with pytest.warns(CacheWarning, match=f"a.spv is ignored and made again: .*{problem}"):
        assert stored.read(tmp_path / "a.spv") is None


def test_what_it_unpacks_to_is_bounded(tmp_path: Path) -> None:
    cache.write(tmp_path / "a.spv", zlib.compress(bytes(cache.MOST_FILE_BYTES + 4)))
    with pytest.warns(CacheWarning, match="does not end where"):
        assert stored.read(tmp_path / "a.spv") is None
