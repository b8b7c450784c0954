"""Tests that vkq.explain lists the dispatches of any operator without running them."""

import numpy as np
import pytest

import vkq
from vkq.device.extension import native_module
from vkq.device.profiles import profile

Q = vkq.QParams(0.5)


def test_every_kind_of_operator_names_its_shaders(any_device: vkq.Device) -> None:
    image = vkq.Tensor.from_numpy(np.ones((1, 4, 8, 8), np.int8), any_device, qparams=Q)
    small = vkq.explain(vkq.resize, image, scale=2).variants
    assert vkq.explain(vkq.add, image, image, Q).variants == ("binary_q8__word:add.same",)
    assert vkq.explain(vkq.max_pool2d, image, 2).variants == ("max_pool_q8__pixels:4w4c",)
    assert len(small) == 1
    assert small[0].startswith("resize")
    told = vkq.explain(vkq.conv2d, image, np.ones((4, 4, 3, 3), np.int8), 1.0, x_qparams=Q, method="im2col")
    product = "texels" if profile(any_device.capabilities).texels else "tiled"
    assert [name.split(":")[0] for name in told.variants] == [
        "im2col_q8__gather",
        f"gemm_q8ta_q8csw__{product}",
    ]
    assert str(told).startswith(f"{any_device.name}: ")


def test_a_layer_and_numpy_arrays(any_device: vkq.Device) -> None:
    layer = vkq.Linear(np.ones((3, 8), np.int8), 1.0, x_qparams=Q, device=any_device)
    variants = vkq.explain(layer, np.ones((2, 8), np.float32), device=any_device).variants
    assert variants[0] == "quantize_q8ta__word"
    assert len(variants) == 2
    named = vkq.explain(vkq.max_pool2d, np.ones((1, 4, 8, 8), np.int8), 2, device=any_device.name)
    assert named.device == any_device.name


def test_nothing_is_submitted(any_device: vkq.Device) -> None:
    image = vkq.Tensor.from_numpy(np.ones((1, 4, 8, 8), np.int8), any_device)
    any_device.synchronize()
    native_module().inject("vkQueueSubmit", 0, 0)
    try:
        vkq.explain(vkq.max_pool2d, image, 2)
        assert native_module().injected_calls() == 0
    finally:
        native_module().inject("", 0, 0)


def test_what_the_operator_refuses_is_refused(any_device: vkq.Device) -> None:
    image = vkq.Tensor.from_numpy(np.ones((1, 4, 8, 8), np.int8), any_device)
    with pytest.raises(vkq.VkqError):
        vkq.explain(vkq.max_pool2d, image, 99)
