"""Matrix units: what is decided on the host. Software drivers have none, so the kernels run where VKQ_TEST_DEVICE names a GPU."""

import dataclasses

import numpy as np
import pytest

import vkq
from tests.cases import random_data
from vkq.device.capabilities import CooperativeMatrix
from vkq.layout import layout
from vkq.ops import coopmat, select
from vkq.ops.implicit import chunked
from vkq.problem import parse

ROW = CooperativeMatrix(16, 8, 32, "s8", "s8", "s32", "s32", False, "subgroup")


def with_matrices(device: vkq.Device, *rows: CooperativeMatrix) -> object:
    return dataclasses.replace(device.capabilities, cooperative_matrices=rows)


def test_only_listed_shapes_are_used(any_device: vkq.Device) -> None:
    changes = {"m": 8, "a": "u8", "d": "u32", "saturating": True, "scope": "workgroup"}
    for name, value in changes.items():
        assert coopmat.advertised(with_matrices(any_device, dataclasses.replace(ROW, **{name: value}))) == ()
    both = with_matrices(any_device, dataclasses.replace(ROW, n=16), ROW)
    assert coopmat.advertised(both) == ("16x16x32", "16x8x32")


def test_refusal_names_the_missing_feature_or_shape(device: vkq.Device) -> None:
    if device.capabilities.features["cooperativeMatrix"]:
        assert coopmat.refusal(device) is None
        return
    assert coopmat.refusal(device) == "cooperativeMatrix is false"
    with pytest.raises(vkq.PathError, match=r"path coopmat cannot run on .*: cooperativeMatrix is false"):
        select.choose(device, "coopmat")


def test_chunks_of_channels_keep_every_weight() -> None:
    """The order of k is free: what counts is that x is read in the same one, (chunk, kh, kw, channel)."""
    weight = np.random.default_rng(3).integers(-128, 128, (5, 70, 2, 3), dtype=np.int8)
    got = chunked(weight, 64, 64).reshape(5, 2, 2, 3, 64)
    for channel in (0, 63, 64, 69):
        np.testing.assert_array_equal(got[:, channel // 64, :, :, channel % 64], weight[:, channel])
    assert not got[:, 1, :, :, 6:].any()


def test_sixteen_k_of_an_output_are_one_run() -> None:
    weight = np.arange(-100, 100, dtype=np.int8).reshape(1, 5, 40)
    words = layout("kPackedInt8_16K").pack(weight).view(np.int8).reshape(3, 16, 16)  # [k/16][n][k%16]
    np.testing.assert_array_equal(words[2, 4, :8], weight[0, 4, 32:])
    assert not words[2, :, 8:].any()
    assert not words[:, 5:].any()


@pytest.mark.parametrize("name", ["linear[M=257,K=200,N=129]", "conv2d[N=2,IC=40,H=19,W=37,OC=70,KH=3,KW=3,padding=1]"])
def test_exact_where_the_device_has_them(device: vkq.Device, name: str) -> None:
    """On a device without matrix units the path is refused, and auto gives the same bits by another one."""
    problem, able = parse(name), coopmat.refusal(device) is None
    data = random_data(problem, np.random.default_rng(4))
    make = vkq.Linear if name.startswith("linear") else vkq.Conv2d
    options = {"x_qparams": data.x_q, "y_qparams": data.y_q, "bias": data.bias, "device": device, **data.options}
    if not able:
        with pytest.raises(vkq.PathError, match="cooperativeMatrix"):
            make(data.w, data.w_scale, path="coopmat", **options)
    layer = make(data.w, data.w_scale, path="coopmat" if able else "auto", **options)
    assert ("coopmat" in layer.explain(problem.x_shape).variants[-1]) == able
    np.testing.assert_array_equal(layer(data.x), data.expected(data.y_q), strict=True)


def test_weight_zero_points_take_another_path(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_data(parse("linear[M=40,K=8,N=8]"), np.random.default_rng(6), w_zero_points="channel")
    monkeypatch.setattr(coopmat, "refusal", lambda device: None)
    monkeypatch.setattr(coopmat, "advertised", lambda capabilities: ("16x8x32",))
    assert select.choose(any_device).path == "coopmat"
    layer = vkq.Linear(data.w, data.w_scale, x_qparams=data.x_q, w_zero_point=data.w_zero_point, device=any_device)
    choice = layer.choice()
    assert choice.path != "coopmat"
    assert choice.reason == "coopmat takes no weight zero points, which need the sums of x"
    np.testing.assert_array_equal(layer(data.x), data.expected(None, bias=None), strict=True)
