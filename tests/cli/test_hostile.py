"""Tests that malicious input files of `vkq run` give an error message before their data is read."""

import io
import os
import pickle
import re
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from PIL import Image

import vkq
from vkq.cli import arrays, main, pictures

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n,3,8,8] x) => (float[n,3,8,8] y)
<float s = {0.1}, int8 z = {0}>
{ q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }"""
RIGHT = np.ones((1, 3, 8, 8), np.float32)


def npy(shape: tuple[int, ...], descr: object = "<f4", body: bytes = b"") -> bytes:
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (64 - (10 + len(header) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body


def npz(name: str = "x.npy", data: bytes = b"", flags: int = 0, method: int = 0, files: int = 1) -> bytes:
    """Return an archive whose header states these flags and this compression method, which may be wrong."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as packed:
        for i in range(files):
            packed.writestr(name if files == 1 else f"{i}{name}", data)
    blob = bytearray(whole.getvalue())
    central = blob.find(b"PK\x01\x02")
    blob[6] |= flags
    blob[central + 8] |= flags
    if method:
        blob[8] = blob[central + 10] = method
    return bytes(blob)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *more: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(more) + pixels + chunk(b"IEND", b"")


class Evil:
    def __reduce__(self) -> object:
        return os.system, ("touch PWNED",)


WHOLE = RIGHT.tobytes()
FILES = {
    "pickle.npy": (pickle.dumps(Evil()), "holds no array"),
    "pickle.npz": (npz(data=npy((1,), "|O", pickle.dumps(Evil()))), "holds no array"),
    "huge.npy": (npy((1 << 40,)), "holds no array"),
    "negative.npy": (npy((-1, 3, 8, 8), body=WHOLE), "holds no array"),
    "overflow.npy": (npy((1 << 32,) * 3), "holds no array"),
    "header.npy": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + b"{", "its header has 2147483648"),
    "code.npy": (b"\x93NUMPY\x01\x00\x24\x00__import__('os').system('touch PWN')", "holds no array"),
    "texts.npy": (npy((1,), "|S5", b"abcde"), "holds no array"),
    "fields.npy": (npy((1,), [("a", "<f4")], b"\0" * 4), "holds no array"),
    "short.npy": (npy((1, 3, 8, 8), body=b"\0" * 100), "100 bytes follow"),
    "empty.npy": (b"", "holds no array"),
    "type.npy": (npy((1, 3, 8, 8), "<f8", WHOLE * 2), "is float64; it must be float32"),
    "shape.npy": (npy((3, 8, 8), body=WHOLE), "has shape \\(3, 8, 8\\)"),
    "encrypted.npz": (npz(data=npy((1, 3, 8, 8), body=WHOLE), flags=1), "password required"),
    "method.npz": (npz(data=npy((1, 3, 8, 8), body=WHOLE), method=99), "compression method"),
    "many.npz": (npz(data=npy((1,), body=b"\0" * 4), files=5000), "has 5000 entries"),
    "text.npz": (npz("x", b"hello"), "holds no array"),
    "nothing.npz": (npz(files=0), "has the arrays \\[\\]"),
    "others.npz": (npz(data=npy((1, 3, 8, 8), body=WHOLE), files=2), "has the arrays"),
    "large.png": (png(60000, 60000), "is not a picture that can be read|60000 x 60000"),
    "wide.png": (png(1 << 27, 2), "pixels"),
    "cut.png": (png(100, 100)[:50], "is not a picture that can be read"),
    "none.png": (png(0, 0), "is not a picture that can be read"),
    "pixels.png": (png(100, 100), "is not a picture that can be read"),
    "text.png": (b"hello", "is not a picture that can be read"),
    "ztxt.png": (
        png(1, 1, chunk(b"zTXt", b"k\0\0" + zlib.compress(b"A" * (80 << 20)))), "is not a picture",
    ),
    "eps.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "is not a picture that can be read"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def here(software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Change to a folder with the model and a valid input."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VKQ_DEVICE", software_device.name)
    monkeypatch.setattr("vkq.runtime.opened._default", software_device)
    Path("m.onnx").write_bytes(onnx.parser.parse_model(MODEL).SerializeToString())
    np.save("right.npy", RIGHT)


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    data, message = FILES[name]
    Path(name).write_bytes(data)
    assert main(["run", "m.onnx", "-i", f"x={name}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("vkq: error: ")
    assert re.search(message, said), said
    assert not Path("PWNED").exists()


def test_right_files_of_every_kind() -> None:
    np.save("big.npy", RIGHT.astype(">f4"))
    np.save("order.npy", np.asfortranarray(RIGHT))
    np.savez("named.npz", x=RIGHT)
    np.savez_compressed("alone.npz", other=RIGHT)
    Image.new("RGB", (20, 30), (255, 0, 0)).save("picture.jpg")
    for one in ("right.npy", "big.npy", "order.npy", "named.npz", "alone.npz", "picture.jpg"):
        assert main(["run", "m.onnx", "-i", f"x={one}"]) == 0
    assert main(["run", "m.onnx", "-i", "named.npz"]) == 0
    assert main(["run", "m.onnx", "-i", "alone.npz"]) == 2


def test_an_array_that_unpacks_to_much_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array that has a wrong shape, or is too large, is refused after its header was read. Its data is
    never read."""
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as packed, packed.open("x.npy", "w") as file:
        file.write(npy((1 << 14, 3, 8, 8)))
        for _ in range(3):
            file.write(bytes(4 << 20))
    monkeypatch.setattr(arrays, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(np, "empty", lambda *_: pytest.fail("memory was asked for"))
    assert main(["run", "m.onnx", "-i", "x=bomb.npz"]) == 2


def test_ghostscript_is_never_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gs = tmp_path / "gs"
    gs.write_text(f"#!/bin/sh\ntouch {tmp_path}/PWNED\n")
    gs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    Path("eps.png").write_bytes(FILES["eps.png"][0])
    Path("pictures").mkdir()
    Path("pictures/eps.png").write_bytes(FILES["eps.png"][0])
    assert main(["run", "m.onnx", "-i", "x=eps.png"]) == 2
    with pytest.raises(vkq.ArgumentError), pictures.opened_picture(Path("pictures/eps.png")):
        pass
    assert not Path("PWNED").exists()


def test_random_numbers_are_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "m.onnx", "--random", "--shape", "x=2000000x3x8x8"]) == 2
    assert "a random input may have at most" in capsys.readouterr().err


@pytest.mark.parametrize("closed", ["1", "2", "0", "0, 1, 2"])
def test_closed_streams(closed: str, software_device: vkq.Device) -> None:
    """With closed standard streams the command still works, and no file gets the descriptor of a stream."""
    code = f"import os, sys; [os.close(i) for i in ({closed},)]; os.execv(sys.executable, sys.argv[1:])"
    command = [sys.executable, "-m", "vkq", "run", "m.onnx", "-i", "x=right.npy", "-o", "y.npz"]
    assert subprocess.run([sys.executable, "-c", code, *command], capture_output=True).returncode == 0
    assert (np.load("y.npz")["y"] == RIGHT).all()


def test_a_deleted_working_directory(software_device: vkq.Device, tmp_path: Path) -> None:
    code = "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')"
    code += "; os.execv(sys.executable, sys.argv[1:])"
    command = [sys.executable, "-m", "vkq", "run", f"{tmp_path}/m.onnx", "-i", f"x={tmp_path}/right.npy"]
    # an empty cache, so drivers are probed
    environment = {**os.environ, "VKQ_CACHE_DIR": f"{tmp_path}/cache"}
    child = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, env=environment
    )
    assert (child.returncode, child.stderr) == (0, "")
