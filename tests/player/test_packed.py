"""Tests of the packed parts of a file: content, size, and detection of damage."""

import dataclasses
import zlib
from pathlib import Path

import numpy as np
import pytest

import vkq
from tests.player.files import graph_of, only, product, rewritten
from vkq.errors import ModelError
from vkq.player import file
from vkq.player.export import exported
from vkq.player.packed import AS_IT_IS, DEFLATED, IN_COLUMNS, deflated, in_columns, packed, unpacked
from vkq.player.reader import contents

MODEL = Path(__file__).parents[2] / "examples/models/digits.onnx"


@pytest.fixture(scope="module")
def digits() -> bytes:
    with vkq.Device("llvmpipe") as device:
        return exported([graph_of(MODEL.read_bytes(), {"x": (1, 1, 8, 8)})], device, ("portable",))[0]


def test_shaders_come_back_in_a_fifth_of_their_bytes(digits: bytes) -> None:
    shaders = {program.spirv for plan in only(digits).plans for program in plan.programs}
    small = 0
    for spirv in shaders:
        packing, stored = in_columns(spirv)
        assert packing == IN_COLUMNS
        assert unpacked(stored, len(spirv), packing) == spirv
        small += len(stored)
    assert 5 * small < sum(map(len, shaders))


def test_a_file_is_about_as_large_as_its_model(any_device: vkq.Device) -> None:
    """A file is at most 10 % larger than its model, whose random weights cannot be compressed. The rest of
    the file is the shaders of two plans."""
    model = product(1024, 1024, 127)
    data, _ = exported([graph_of(model, {"x": (3, 1024)})], any_device)
    assert [plan.kind for plan in only(data).plans] == ["this", "portable"]
    assert len(data) < 1.1 * len(model)


def test_what_can_be_read_where_it_lies_is_packed_only_where_it_pays() -> None:
    noise = np.random.default_rng(0).bytes(4096)
    assert packed(noise) == (AS_IT_IS, noise)
    packing, stored = packed(noise * 4)
    assert packing == DEFLATED
    assert unpacked(stored, 4 * len(noise), packing) == noise * 4


@pytest.mark.parametrize(("level", "strategy"), [(0, 0), (9, zlib.Z_FIXED), (1, zlib.Z_HUFFMAN_ONLY)])
def test_libvkq_reads_every_kind_of_block(
    digits: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int, strategy: int
) -> None:
    """libvkq reads every kind of deflate block: stored, with the fixed Huffman code, and with a dynamic
    Huffman code (here without repetitions, unlike in most files)."""

    def by(data: bytes) -> bytes:
        stream = zlib.compressobj(level, zlib.DEFLATED, -15, 8, strategy)
        return stream.compress(data) + stream.flush()

    monkeypatch.setattr("vkq.player.packed.deflated", by)
    monkeypatch.setattr("vkq.player.packed.PAYS", 0)
    data, path = rewritten(only(digits)), tmp_path / "model.vkq"
    path.write_bytes(data)
    assert only(data).plans == only(digits).plans
    with vkq.load(path, "llvmpipe") as played:
        assert played.explain().startswith("portable: ")


def test_a_damaged_part_is_an_error_not_another_plan(
    digits: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged block raises an error, although the checksum is valid and another plan of the file works."""
    found, path = only(digits), tmp_path / "model.vkq"
    (plan,) = found.plans
    first, *rest = plan.programs
    words = np.frombuffer(first.spirv, np.uint32).copy()
    words[2] += 1  # changes the module's generator number
    marked = words.tobytes()
    plans = [dataclasses.replace(plan, programs=(dataclasses.replace(first, spirv=marked), *rest)), plan]

    def changed(change: object) -> str:
        def by(data: bytes) -> tuple[int, bytes]:
            packing, stored = in_columns(data)
            return packing, change(stored) if data == marked else stored  # type: ignore[operator]

        monkeypatch.setattr(file, "in_columns", by)
        data = rewritten(found, plans=plans)
        path.write_bytes(data)
        with pytest.raises(ModelError, match="a packed part"):
            contents(data)
        with pytest.raises(ModelError, match="the file is damaged: a packed part") as raised:
            vkq.load(path, "llvmpipe")
        return str(raised.value)

    assert "ends early" in changed(lambda stored: stored[:-9])
    assert "unknown block" in changed(lambda stored: bytes([stored[0] | 6]) + stored[1:])
    body = zlib.decompress(in_columns(marked)[1], -15)
    assert "longer than recorded" in changed(lambda stored: deflated(body + b"0000"))
    assert "shorter than recorded" in changed(lambda stored: deflated(body[:-4]))
    assert "instruction beyond its end" in changed(lambda stored: deflated(bytes(len(body))))
