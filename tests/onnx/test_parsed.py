"""Tests of files that are no ONNX models: the error names what a file seems to be, and a remedy."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import vkq
import vkq.onnx
from vkq.cli import main
from vkq.player.file import MAGIC


def _archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.zeros(3))
    return file.getvalue()


HEAD = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
FILES = {
    "vkq.load": MAGIC + bytes(64),
    "InferenceSession": b"\x20\0\0\0TFL3" + bytes(64),
    "format ORT": b"\x20\0\0\0ORTM" + bytes(64),
    "ZIP archive": _archive(),
    "pickle": pickle.dumps({"x": 1}, 2),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(64),
    "GGUF": b"GGUF\3\0\0\0" + bytes(64),
    "safetensors": len(HEAD).to_bytes(8, "little") + HEAD + bytes(4),
    "gzip": gzip.compress(b"model"),
    "git lfs pull": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    "XML or HTML": b"<!doctype html><html></html>",
    "JSON": b'{"model": 1}',
}


@pytest.mark.parametrize("name", FILES)
def test_kinds_of_files(name: str) -> None:
    with pytest.raises(vkq.ModelError, match=rf"not an ONNX model: the model is .*{name}"):
        vkq.onnx.read(FILES[name])


def test_the_command_line_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.vkq"
    path.write_bytes(FILES["vkq.load"])
    assert main(["run", str(path), "--random"]) != 0
    said = capsys.readouterr().err
    assert "model.vkq is a file of `vkq export`: open it with vkq.load" in said
