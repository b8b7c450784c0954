"""Tests of resize: the reference equals ONNX Runtime in every mode, and the device equals the reference."""

from __future__ import annotations

import functools
import itertools
from typing import Any, get_args

import numpy as np
import pytest
from onnx import helper

import vkq
from vkq import QParams, Tensor
from vkq.layout.pack import activation_layouts
from vkq.ops import operand
from vkq.ops.resize import resized_as
from vkq.problem.resize import Coordinates, NearestMode, Resize, Rounding
from vkq.reference.resize import resize, resize_real

from ..onnx.networks import onnxruntime_results
from ..onnx.test_operators import model
from ..referees import ort_ops

COORDINATES = get_args(Coordinates)
NEAREST = get_args(NearestMode)


def random_resizes(rng: np.random.Generator, count: int) -> list[tuple[tuple[int, ...], dict[str, Any]]]:
    """Return random (shape, {size or scale}). Results are larger or smaller than the image. One case
    doubles the sizes, one keeps them."""
    cases: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        ((1, 3, 4, 5), {"scale": 2.0}),
        ((1, 2, 3, 4), {"size": (3, 4)}),
    ]
    while len(cases) < count:
        shape = (1, 3, *(int(v) for v in rng.integers(1, 9, 2)))
        scale = rng.uniform(0.5, 3, 2).astype(np.float32)
        if len(cases) % 2:
            cases.append((shape, {"size": tuple(int(v) for v in rng.integers(1, 20, 2))}))
        elif min(int(s * np.float32(d)) for s, d in zip(scale, shape[2:], strict=True)) >= 1:
            cases.append((shape, {"scale": tuple(float(v) for v in scale)}))
    return cases


def onnx_resize(x: np.ndarray, how: dict[str, Any], **attributes: Any) -> np.ndarray:
    if "size" in how:
        inputs = [x, None, None, np.array([*x.shape[:2], *how["size"]], np.int64)]
    else:
        inputs = [x, None, np.array([1, 1, *np.broadcast_to(how["scale"], 2)], np.float32)]
    return ort_ops.run("Resize", inputs, x.dtype.name, **attributes)


@functools.cache
def referee_takes_near_halves_as_halves() -> bool:
    """Return True if ONNX Runtime treats a coordinate whose fraction is nearly one half as one half, as
    version 1.31 does. The test coordinate is 3.4999998; see vkq.problem.resize.HALF_WITHIN."""
    x = np.arange(7, dtype=np.int8).reshape(1, 1, 7, 1)
    mode = {
        "mode": "nearest",
        "nearest_mode": "round_prefer_ceil",
        "coordinate_transformation_mode": "asymmetric",
    }
    return bool(onnx_resize(x, {"size": (2, 1)}, **mode)[0, 0, 1, 0] == 4)


def near_halves(how: Resize) -> bool:
    offs = [np.abs(how.original(axis) % 1 - 0.5) for axis in (0, 1)]
    return any(bool(((off > 0) & (off < 2e-6)).any()) for off in offs)


def test_sizes_in_pairs_equal_onnxruntime() -> None:
    """Nearest resize equals ONNX Runtime's for input lengths 1 to 19 and output lengths up to 29 (only
    odd ones for an odd input length)."""
    compared = 0
    for coordinates, nearest_mode in itertools.product(COORDINATES, NEAREST[:2]):
        for given in range(1, 20):
            x = np.arange(2 * given, dtype=np.int8).reshape(1, 2, given, 1)
            for out in range(1, 30, 1 + (given % 2)):
                how = Resize.of(x.shape, (out, 1), coordinates=coordinates, nearest_mode=nearest_mode)
                if near_halves(how) and not referee_takes_near_halves_as_halves():
                    continue
                want = onnx_resize(
                    x,
                    {"size": (out, 1)},
                    mode="nearest",
                    nearest_mode=nearest_mode,
                    coordinate_transformation_mode=coordinates,
                )
                np.testing.assert_array_equal(resize(x, how), want, err_msg=str(how))
                compared += 1
    assert compared > 3000


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_reference_equals_onnxruntime(coordinates: Coordinates, dtype: str) -> None:
    rng = np.random.default_rng(50)
    for shape, how in random_resizes(rng, 40):
        x = rng.integers(0, 256, shape).astype(np.uint8).view(dtype)
        options: dict[str, Any] = {"coordinate_transformation_mode": coordinates}
        for nearest_mode in NEAREST:
            nearest = Resize.of(shape, **how, coordinates=coordinates, nearest_mode=nearest_mode)
            if near_halves(nearest) and not referee_takes_near_halves_as_halves():
                continue
            want = onnx_resize(x, how, mode="nearest", nearest_mode=nearest_mode, **options)
            np.testing.assert_array_equal(resize(x, nearest), want, err_msg=f"{shape} {how} {nearest_mode}")
        want = onnx_resize(x, how, mode="linear", **options)
        got = resize(x, Resize.of(shape, **how, mode="linear", coordinates=coordinates))
        np.testing.assert_array_equal(got, want, err_msg=f"{shape} {how}")


CASES = {  # (shape, arguments) -> reason for the case
    ((1, 3, 4, 5), (("scale", 2),)): "twice the size; the last word of channels is partial",
    ((2, 5, 7, 9), (("size", (3, 20)),)): "one axis becomes shorter, the other longer; two images",
    ((1, 8, 1, 1), (("size", (3, 3)),)): "from one pixel",
    ((1, 4, 6, 6), (("size", (1, 1)),)): "to one pixel",
    ((1, 1, 13, 17), (("scale", (1.7, 0.61)),)): "odd factors",
}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_device(device: vkq.Device, coordinates: Coordinates, dtype: str) -> None:
    for (shape, arguments), reason in CASES.items():
        x = np.random.default_rng(51).integers(0, 256, shape).astype(np.uint8).view(dtype)
        options: list[dict[str, Any]] = [{"nearest_mode": m} for m in NEAREST]
        options += [{"mode": "linear", "rounding": r} for r in get_args(Rounding)]
        for option in options:
            how = dict(arguments) | option | {"coordinates": coordinates}
            got = vkq.resize(x, **how, device=device)
            np.testing.assert_array_equal(got, resize(x, Resize.of(shape, **how)), err_msg=f"{reason} {how}")


def test_linear_without_trust_in_the_floats_of_the_device(
    device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_soft_float", True)
    x = np.random.default_rng(52).integers(-128, 128, (1, 5, 11, 9)).astype(np.int8)
    for scale, coordinates in itertools.product((1.3, 2.0, 0.7), COORDINATES):
        how = Resize.of(x.shape, scale=scale, mode="linear", coordinates=coordinates)
        got = vkq.resize(x, scale=scale, mode="linear", coordinates=coordinates, device=device)
        np.testing.assert_array_equal(got, resize(x, how))


REAL = {  # (shape, new size) -> quantization parameters of x and y
    ((1, 3, 4, 5), (8, 15)): (QParams(0.037, -5), QParams(0.037, -5)),  # float rounding decides many ties
    ((2, 20, 6, 7), (4, 9)): (QParams(0.3, 11), QParams(0.21, -100)),
    ((1, 5, 2, 3), (2, 3)): (QParams(0.02, 0), QParams(0.05, 3)),  # only the parameters change
    ((1, 1, 2, 2), (7, 9)): (QParams(1e-9, 0), QParams(1e-30, 0)),  # all results saturate
}


@pytest.mark.parametrize("soft", [False, True])
def test_between_real_numbers(device: vkq.Device, monkeypatch: pytest.MonkeyPatch, soft: bool) -> None:
    """DequantizeLinear, linear Resize and QuantizeLinear in one kernel equal ONNX Runtime's results, in
    both layouts."""
    monkeypatch.setattr(device, "_soft_float", soft)
    for (shape, size), (xq, yq) in REAL.items():
        for dtype, coordinates in itertools.product(("int8", "uint8"), COORDINATES):
            x = np.random.default_rng(53).integers(0, 256, shape).astype(np.uint8).view(dtype)
            a, y = (
                QParams(q.scale, q.zero_point + (128 if dtype == "uint8" else 0), dtype) for q in (xq, yq)
            )
            how = Resize.of(shape, size, mode="linear", coordinates=coordinates)
            want = resize_real(x, how, a, y)
            for layout in ("kPackedInt8_4W4C", "kPackedInt8_16C"):
                given = Tensor.from_numpy(x, device, layout=layout)
                got = operand.apply("resize", resized_as, {"x": given}, (how, (a, y)), device, None).numpy()
                np.testing.assert_array_equal(got, want, err_msg=f"{shape} {how}")
            if not soft:
                np.testing.assert_array_equal(want, onnx_between(x, how, a, y))


def onnx_between(x: np.ndarray, how: Resize, xq: QParams, yq: QParams) -> np.ndarray:
    """Return ONNX Runtime's result of DequantizeLinear, Resize and QuantizeLinear."""
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
        helper.make_node(
            "Resize",
            ["a", "", "", "size"],
            ["b"],
            mode="linear",
            coordinate_transformation_mode=how.coordinates,
        ),
        helper.make_node("QuantizeLinear", ["b", "ys", "yz"], ["y"]),
    ]
    constants = {
        "xs": np.float32(xq.scale), "xz": np.array(xq.zero_point, x.dtype), "ys": np.float32(yq.scale),
        "yz": np.array(yq.zero_point, x.dtype), "size": np.array(how.y_shape, np.int64),
    }  # fmt: skip
    data = model(nodes, {"x": x}, constants, x.dtype.name)
    return onnxruntime_results(data, {"x": x})[0]


def test_a_flat_image_may_lose_one_by_truncation(device: vkq.Device) -> None:
    """Truncation lowers some bytes of a constant image by one, as in ONNX Runtime, because the four weights
    may add up to less than 1 in float32. Rounding "even" keeps the image constant."""
    x = np.full((1, 4, 7, 7), 100, np.int8)
    cut = vkq.resize(x, scale=1.37, mode="linear", device=device)
    np.testing.assert_array_equal(
        cut, onnx_resize(x, {"scale": 1.37}, mode="linear", coordinate_transformation_mode="half_pixel")
    )
    assert set(np.unique(cut)) == {99, 100}
    assert set(np.unique(vkq.resize(x, scale=1.37, mode="linear", rounding="even", device=device))) == {100}


@pytest.mark.parametrize("name", [one.name for one in activation_layouts()])
def test_every_layout(device: vkq.Device, name: str) -> None:
    x, q = (
        np.random.default_rng(53).integers(0, 256, (2, 6, 5, 7)).astype(np.uint8),
        QParams(0.1, 100, "uint8"),
    )
    tensor = Tensor.from_numpy(x, device, name, q)
    for mode in ("nearest", "linear"):
        y = vkq.resize(tensor, (9, 10), mode=mode)
        assert y.qparams == q
        np.testing.assert_array_equal(y.numpy(), resize(x, Resize.of(x.shape, (9, 10), mode=mode)))


def test_refusals(device: vkq.Device) -> None:
    x = np.zeros((1, 3, 8, 8), np.int8)
    for arguments, message in (
        ({}, "give one of the two"),
        ({"size": (4, 4), "scale": 2}, "give one of the two"),
        ({"scale": -1}, "one positive number"),
        ({"scale": 0.01}, "both must be at least 1"),
        ({"scale": 2, "mode": "cubic"}, "mode is 'cubic'; it must be one of nearest, linear"),
        ({"scale": 2, "coordinates": "tf"}, "coordinates is 'tf'"),
    ):
        with pytest.raises(vkq.ArgumentError, match=message):
            vkq.resize(x, **arguments, device=device)
    with pytest.raises(vkq.ArgumentError, match=r"x has shape \(3, 8, 8\)"):
        vkq.resize(x[0], scale=2, device=device)
