"""Tests of epilogues (lookup tables and sums) of convolutions and linear layers, in every kernel. Results
equal those of separate operators bit for bit."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

import vkq
from tests.cases import random_data
from tests.device.reported import picked
from vkq import QParams, Tensor
from vkq.device.profiles import preferred, profile
from vkq.kernels.after import AS_NUMBERS, through_table
from vkq.kernels.binary import sum_after
from vkq.kernels.implicit import Implicit
from vkq.layout.extent import BLOCKED
from vkq.numerics.elementwise import binary
from vkq.numerics.quantize import dequantize
from vkq.numerics.stored import signed
from vkq.numerics.tables import table_of
from vkq.ops import table
from vkq.problem.names import parse
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run
from vkq.runtime.plan import Plan
from vkq.select import registers
from vkq.shader.catalog import catalog

from . import emulated

Kind = Literal["lookup", "add", "sub", "lookup+add"]
# (problem, method, path). The numbers of channels and pixels are not multiples of a tile. The cases cover
# every form of the dot product and every kind of store.
KERNELS = [
    ("conv2d[N=1,IC=8,H=5,W=7,OC=10,KH=1,KW=1]", "pointwise", "dot_s8s8"),
    ("conv2d[N=2,IC=5,H=1,W=1,OC=6,KH=1,KW=1]", "pointwise", "dot_u8s8"),  # this case runs the GEMV kernel
    ("conv2d[N=1,IC=4,H=6,W=5,OC=6,KH=3,KW=3,padding=1]", "implicit", "dot_u8u8"),
    ("conv2d[N=1,IC=6,H=6,W=9,OC=12,KH=3,KW=3,groups=3]", "direct", "portable"),
    ("conv2d[N=1,IC=6,H=6,W=9,OC=12,KH=3,KW=3,groups=3]", "direct", "dot_u8s8"),
    ("conv2d[N=1,IC=6,H=7,W=6,OC=6,KH=3,KW=3,stride=2,padding=1,groups=6]", "depthwise", "portable"),
    ("conv2d[N=1,IC=3,H=7,W=6,OC=5,KH=3,KW=3,stride=2,padding=1]", "im2col", "dot_s8s8"),
    ("conv2d[N=1,IC=6,H=7,W=6,OC=6,KH=3,KW=3,stride=2,padding=1,groups=6]", "depthwise", "dot_s8s8"),
]
BLOCKS = [
    ("conv2d[N=2,IC=20,H=6,W=9,OC=20,KH=3,KW=3,padding=1,groups=5]", "dot_s8s8"),
    ("conv2d[N=2,IC=18,H=7,W=6,OC=18,KH=3,KW=3,stride=2,padding=1,groups=18]", "portable"),
    ("conv2d[N=2,IC=18,H=7,W=13,OC=18,KH=3,KW=3,stride=2,padding=1,groups=18]", "dot_s8s8"),
]
MATRIX = [
    "conv2d[N=1,IC=40,H=6,W=9,OC=20,KH=1,KW=1]",
    "conv2d[N=1,IC=24,H=9,W=11,OC=37,KH=3,KW=3,padding=1]",
    "conv2d[N=1,IC=300,H=6,W=6,OC=20,KH=1,KW=1]",  # several subgroups share the sum over k
]
TIES = 2.0  # scale of the sum / scale of its operands; with 2, half of all sums are ties


def planned(
    device: vkq.Device, name: str, kind: Kind, method: str, path: str, dtype: Any = "int8",
    first: bool = True, ratio: float = TIES, layout: str | None = None,
) -> tuple[Plan, list[Tensor], Any]:  # fmt: skip
    """Return (the plan of a convolution with an epilogue, its inputs, the oracle's result)."""
    p, rng = parse(name), np.random.default_rng(len(name))
    data = random_data(p, rng, dtype, "int8")
    own, other = data.y_q, QParams(data.y_q.scale, 7, dtype)
    yq = QParams(ratio * own.scale, 4, dtype)
    layer = vkq.Conv2d(
        data.w, data.w_scale, x_qparams=data.x_q, y_qparams=own, bias=data.bias, path=path, method=method,
        w_zero_point=data.w_zero_point, device=device, **data.options,
    )  # fmt: skip
    before, given = data.expected(own), rng.integers(0, 256, p.y_shape, np.uint8).view(dtype)
    b, tensors = Builder(device), [Tensor.from_numpy(data.x, device, layout)]
    x = b.input(tensors[0].spec)
    if kind == "lookup":
        entries = rng.integers(0, 256, 256, np.uint8).view(dtype)
        layer.finish(through_table(signed(entries), yq))
        return b.plan(layer.build(b, x)), tensors, entries[before.astype(int) - own.qmin]
    op: Any = kind.rpartition("+")[2]
    last = sum_after(op, own, other, yq, (0.0, 9e9), first, p.y_shape)
    if kind == "lookup+add":
        entries = rng.integers(0, 256, 256, np.uint8).view(dtype)
        last, before = through_table(signed(entries), own).then(last), entries[before.astype(int) - own.qmin]
    layer.finish(last)
    tensors.append(Tensor.from_numpy(given, device, layout))
    # Copy the residual, because the sum overwrites its operand.
    copied = table.looked_up(b, b.input(tensors[1].spec), table_of("identity", other, other), None)
    y = layer.build(b, x, copied)
    assert y.slot == copied.slot or layer.input_layout(p.x_shape) != copied.spec.layout
    one, two = ((before, own), (given, other)) if first else ((given, other), (before, own))
    return b.plan(y), tensors, binary(op, one[0], two[0], one[1], two[1], yq, (0.0, 9e9))


@pytest.mark.parametrize("kind", ["lookup", "add", "lookup+add"])
@pytest.mark.parametrize(("name", "method", "path"), KERNELS)
def test_every_kernel(device: vkq.Device, name: str, method: str, path: str, kind: Kind) -> None:
    plan, tensors, want = planned(device, name, kind, method, path)
    for _ in range(3):  # three runs, because a run must not change the inputs
        np.testing.assert_array_equal(run(plan, tensors).numpy(), want, strict=True)


@pytest.mark.parametrize("kind", ["lookup", "add"])
@pytest.mark.parametrize(("name", "method", "path"), [*KERNELS[:2], KERNELS[-1]])
def test_words_in_place_of_texels(device: vkq.Device, name: str, method: str, path: str, kind: Kind) -> None:
    """Words and texels give the same bytes. The test inverts the profile's choice: a device that prefers
    texels reads words, and a device that prefers words reads texels. Results equal the oracle's."""
    known = profile(device.capabilities)
    flipped = {"texels": not known.texels, "lane_loads": not known.lane_loads, "depthwise_lines": ()}
    with preferred(flipped):
        plan, tensors, want = planned(device, name, kind, method, path)
        assert ("texels" in plan.variants[-1]) == flipped["texels"]
        np.testing.assert_array_equal(run(plan, tensors).numpy(), want, strict=True)


@pytest.mark.parametrize("kind", ["lookup", "add", "lookup+add"])
@pytest.mark.parametrize(("name", "path"), BLOCKS)
def test_blocks_of_channels(device: vkq.Device, name: str, path: str, kind: Kind) -> None:
    """Direct kernels with an epilogue also store kPackedInt8_16C (blocks of 16 channels, rows without
    padding), and give the oracle's result."""
    plan, tensors, want = planned(device, name, kind, "auto", path, layout=BLOCKED)
    assert plan.result.layout == BLOCKED
    np.testing.assert_array_equal(run(plan, tensors).numpy(), want, strict=True)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("first", [True, False])
# Ratios of scales with many ties among the results, with few ties, and with results that are exact only if
# they come from a table.
@pytest.mark.parametrize("ratio", [TIES, 1.37, 2.0**-12])
@pytest.mark.parametrize("kind", ["add", "sub"])
def test_sums(any_device: vkq.Device, kind: Kind, ratio: float, first: bool, dtype: str) -> None:
    plan, tensors, want = planned(any_device, KERNELS[0][0], kind, "auto", "auto", dtype, first, ratio)
    np.testing.assert_array_equal(run(plan, tensors).numpy(), want, strict=True)


@pytest.mark.parametrize("kind", ["add", "sub"])
def test_sums_on_a_device_that_rounds_otherwise(
    device: vkq.Device, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_soft_float", True)
    plan, tensors, want = planned(device, KERNELS[0][0], kind, "auto", "auto", ratio=1.37)
    np.testing.assert_array_equal(run(plan, tensors).numpy(), want, strict=True)


def test_one_element(any_device: vkq.Device) -> None:
    """A sum of two single elements swaps its operands, as in ONNX Runtime, and gives the oracle's result."""
    name = "conv2d[N=1,IC=3,H=1,W=1,OC=1,KH=1,KW=1]"
    for first in (True, False):
        plan, tensors, want = planned(any_device, name, "add", "auto", "auto", "int8", first, 1.37)
        np.testing.assert_array_equal(run(plan, tensors).numpy(), want, strict=True)


@pytest.mark.parametrize("kind", ["lookup", "add"])
@pytest.mark.parametrize("setting", catalog().shaders[registers.SHADER].axes["tile"])
def test_every_tile_in_registers(any_device: vkq.Device, setting: str, kind: Kind) -> None:
    with picked(registers.Setting(setting, 8, 8)):
        plan, tensors, want = planned(any_device, KERNELS[0][0], kind, "auto", "portable")
    assert f".{setting}" in plan.variants[-1]
    np.testing.assert_array_equal(run(plan, tensors).numpy(), want, strict=True)


@pytest.mark.parametrize("kind", ["lookup", "add"])
@pytest.mark.parametrize("tile", ["64x64", "32x32"])
def test_both_tiles(any_device: vkq.Device, tile: str, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Implicit.__init__
    monkeypatch.setattr(Implicit, "__init__", lambda self, gemm: make(self, gemm, tile))
    plan, tensors, want = planned(any_device, KERNELS[2][0], kind, "implicit", "dot_s8s8")
    assert plan.variants[-1].endswith(tile)
    np.testing.assert_array_equal(run(plan, tensors).numpy(), want, strict=True)


@pytest.mark.parametrize("kind", ["lookup", "add", "lookup+add"])
@pytest.mark.parametrize("name", MATRIX)
def test_matrix_units(
    strict_device: vkq.Device, name: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not strict_device.capabilities.features["cooperativeMatrix"]:
        emulated.emulate(strict_device, monkeypatch, "16x8x32")
    plan, tensors, want = planned(strict_device, name, kind, "auto", "coopmat")
    assert "coopmat" in plan.variants[-1]
    np.testing.assert_array_equal(run(plan, tensors).numpy(), want, strict=True)


Linears = tuple[vkq.Linear, vkq.Linear, np.ndarray]  # (layer without epilogue, layer with one, x)


def linears(device: vkq.Device, rows: int, method: str, dtype: Any, path: str, last: Any) -> Linears:
    """Return (a layer, the same layer with an epilogue, their input x). *last*: a function from y's
    quantization parameters to the epilogue. The activation's upper bound, 20.7 scales, lies between two
    quantized results."""
    p, rng = parse(f"linear[M={rows},K=70,N=37]"), np.random.default_rng(rows)
    data = random_data(p, rng, dtype, "int8")
    options: Any = {"x_qparams": data.x_q, "y_qparams": data.y_q, "bias": data.bias, "method": method}
    options |= {"activation": (0.0, 20.7 * data.y_q.scale), "w_zero_point": data.w_zero_point}
    layer, ended = (vkq.Linear(data.w, data.w_scale, path=path, device=device, **options) for _ in range(2))
    ended.finish(last(data.y_q))
    return layer, ended, data.x


def as_numbers(device: vkq.Device, rows: int, method: str, dtype: Any, path: str = "auto") -> str:
    """Check that a linear layer whose epilogue stores float32 gives the result of the int8 layer followed
    by `dequantize`. Return the name of the kernel's variant."""
    layer, numbers, x = linears(device, rows, method, dtype, path, lambda q: AS_NUMBERS)
    q = layer.y_qparams
    want = dequantize(layer(x), q)
    assert want.max() > 20.7 * q.scale
    np.testing.assert_array_equal(numbers(x), want, strict=True)
    return numbers.explain(x.shape).variants[-1]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("rows", "method"), [(3, "gemv"), (7, "tiled"), (33, "staged")])
def test_numbers(device: vkq.Device, rows: int, method: str, dtype: str) -> None:
    reads_texels = method == "tiled" and profile(device.capabilities).texels
    assert ("texels" if reads_texels else method) in as_numbers(device, rows, method, dtype)


def test_numbers_of_matrix_units(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    if not strict_device.capabilities.features["cooperativeMatrix"]:
        emulated.emulate(strict_device, monkeypatch, "16x8x32")
    assert "coopmat" in as_numbers(strict_device, 33, "auto", "int8", "coopmat")


def through_tables(device: vkq.Device, rows: int, method: str, dtype: Any, path: str = "auto") -> str:
    """Check a linear layer whose epilogue has a lookup table for each output channel. Return the name of
    the kernel's variant."""
    entries = np.random.default_rng(rows).integers(0, 256, (37, 256), np.uint8).view(dtype)
    last = through_table(signed(entries), QParams(0.5, 4, dtype))
    layer, ended, x = linears(device, rows, method, dtype, path, lambda q: last)
    want = entries[np.arange(37), layer(x).astype(int) - layer.y_qparams.qmin]
    np.testing.assert_array_equal(ended(x), want, strict=True)
    return ended.explain(x.shape).variants[-1]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("rows", "method"), [(3, "gemv"), (7, "tiled"), (33, "staged")])
def test_a_table_for_each_channel(device: vkq.Device, rows: int, method: str, dtype: str) -> None:
    reads_texels = method == "tiled" and profile(device.capabilities).texels
    assert ("texels" if reads_texels else method) in through_tables(device, rows, method, dtype)


def test_tables_of_matrix_units(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    if not strict_device.capabilities.features["cooperativeMatrix"]:
        emulated.emulate(strict_device, monkeypatch, "16x8x32")
    assert "coopmat" in through_tables(strict_device, 33, "auto", "int8", "coopmat")


def test_all_that_can_have_a_last_step_read_what_they_overwrite() -> None:
    """The YAML of a kernel with an epilogue marks its output y as in_place, because the epilogue's sum reads
    y before it overwrites y. Because of this mark, the kernel waits for the dispatch that writes y."""
    for variant in catalog().variants.values():
        marked = [binding.name for binding in variant.bindings if binding.in_place]
        # These kernels compute large windows in several dispatches, each of which adds its partial sums
        # to y.
        with_sums = variant.shader.startswith(("conv2d_q8csw__direct", "conv2d_f32__direct"))
        tables_alone = variant.shader.startswith("conv2d_q8ta_q8csw__expand_depthwise")
        last_step = not tables_alone and bool({"AFTER", "CONTINUE"} & variant.specialization.keys())
        assert (marked == ["y"]) == (with_sums or last_step)
