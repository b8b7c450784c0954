"""Tests of loop iterations: every shader declares them, and no kernel runs more."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import vkq
from tests.device.reported import profile_says
from tests.shader import declared
from tests.shader.sample import sample
from vkq.errors import CompileError
from vkq.kernels import gemm
from vkq.reference.softmax import softmax_onnxruntime
from vkq.runtime.caches import WeakLruCache
from vkq.shader.compile import build, text
from vkq.shader.spec import Variant

LOOP = "for (int k = 0; k < p.offset; k++) value += 1.0;"
RNG = np.random.default_rng(36)


def looping(folder: Path, loop: str, iterations: str = "") -> Variant:
    body = f"#extension GL_EXT_control_flow_attributes : require\n  {loop}\n  if (DOUBLED)"
    changes = [("shared_bytes", f"{iterations}shared_bytes")]
    return sample(folder, *changes, glsl=("  if (DOUBLED)", body)).variants[0]


def test_a_loop_needs_a_declaration(tmp_path: Path) -> None:
    """The YAML must declare iterations if the shader has a loop without an unroll hint; loops with this
    hint are short."""
    bare = looping(tmp_path / "a", LOOP)
    with pytest.raises(CompileError, match=r"the SPIR-V has 1 loops; declare their iterations in the YAML"):
        build([bare], text(bare))
    for variant in (
        looping(tmp_path / "b", LOOP, "iterations: offset + 1\n"),
        looping(tmp_path / "c", "[[unroll]] for (int k = 0; k < TILE; k++) value += 1.0;"),
    ):
        build([variant], text(variant))


def test_rounds_of_a_dispatch(tmp_path: Path) -> None:
    variant = looping(tmp_path, LOOP, "iterations: ceil_div(offset, LOCAL_X) + EXTRA\n")
    assert variant.iterations({"offset": 17, "count": 1, "factor": 1.0}) == 6
    assert variant.iterations({"offset": 17}, {"LOCAL_X": 16}) == 5


def test_counted_loops_end_as_declared(tmp_path: Path) -> None:
    """With VKQ_DECLARED_LOOPS, the GLSL ends loops after the declared iterations."""
    glsl = declared.counted(looping(tmp_path, LOOP, "iterations: offset + EXTRA\n"), {"LOCAL_X": 8})
    assert "k = 0; vkq_goes_on() && (k < p.offset); k++" in glsl
    assert "int(++vkq_rounds) <= int(int(p.offset) + 3)" in glsl


@pytest.fixture
def counting(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[vkq.Device]:
    """Yield the device without cached plans and programs. Loops of new programs end after the declared
    iterations."""
    monkeypatch.setattr(device, "_plans", type(device._plans)(8))
    monkeypatch.setattr(device.programs, "_made", WeakLruCache(64))
    monkeypatch.setattr("vkq.runtime.programs.Programs._make", declared.make)
    yield device
    device.programs.clear()


def test_kernels_loop_no_longer_than_declared(counting: vkq.Device) -> None:
    """A linear layer, a pool and a depthwise convolution loop no longer than declared; with
    VKQ_DECLARED_LOOPS, all tests of kernels check this."""
    x = RNG.integers(-128, 128, (3, 517)).astype(np.int8)
    w = RNG.integers(-127, 128, (9, 517)).astype(np.int8)
    q = vkq.QParams(1.0)
    got = vkq.linear(x, w, np.float32(1), x_qparams=q, device=counting)
    np.testing.assert_array_equal(got, x.astype(np.float32) @ w.T.astype(np.float32))
    image = RNG.integers(-128, 128, (1, 3, 13, 11)).astype(np.int8)
    np.testing.assert_array_equal(
        vkq.max_pool2d(image, (13, 11), device=counting).ravel(), image.max((2, 3)).ravel()
    )
    kernel = np.ones((3, 1, 13, 11), np.int8)
    got = vkq.conv2d(image, kernel, np.float32(1), x_qparams=q, groups=3, device=counting)
    np.testing.assert_array_equal(got.ravel(), image.sum((2, 3), dtype=np.float32).ravel())


@pytest.mark.parametrize("texels", [False, True])
def test_long_sums_loop_no_longer_than_declared(
    counting: vkq.Device, texels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long sums loop no longer than declared. The portable path needs further iterations: after every 256
    words, its float32 sums are added to int32 sums."""
    profile_says(monkeypatch, gemm, texels=texels)
    x, w = (RNG.integers(-3, 4, (n, 4 * 256 * 70)).astype(np.int8) for n in (5, 3))
    got = vkq.linear(
        x, w, np.float32(1), x_qparams=vkq.QParams(1.0), device=counting, path="portable", method="tiled"
    )
    np.testing.assert_array_equal(got, x.astype(np.int64) @ w.T.astype(np.int64))


def test_long_rows_loop_no_longer_than_declared(counting: vkq.Device) -> None:
    x, q = RNG.integers(0, 256, (1, 20_001)).astype(np.uint8), vkq.QParams(0.01, 0, "uint8")
    y = vkq.QParams(1e-4, 0, "uint8")
    got = vkq.softmax(x, -1, y, x_qparams=q, onnxruntime=True, device=counting)
    np.testing.assert_array_equal(got, softmax_onnxruntime(x, q, -1, y))
