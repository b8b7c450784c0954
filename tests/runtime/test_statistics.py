"""Tests of kernels by compiler statistics of RADV, Mesa's driver for AMD GPUs. RADV compiles for any named
GPU, so none need be present."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import vkq
from vkq.cli.shader_table import worse
from vkq.cli.shaders import COMPILE_SECONDS
from vkq.runtime.statistics import Compiler
from vkq.shader.catalog import catalog

TILED = "gemm_q8ta_q8csw__tiled:*.q8to.*"  # the tests count these variants' instructions
RADV = next(iter(Path("/usr/share/vulkan/icd.d").glob("radeon_icd.*.json")), None)
REQUIRED = os.environ.get("VKQ_REQUIRE_DEVICE", "0") not in ("", "0")


@cache
def navi21(pattern: str) -> dict[str, dict[str, Any]]:
    """Return the output of `vkq shaders stats` for gfx1030. It runs in a separate process, because the
    Vulkan loader chooses its drivers when it starts."""
    environment = {
        **os.environ,
        "VK_DRIVER_FILES": str(RADV),
        "RADV_FORCE_FAMILY": "navi21",
        "VKQ_VALIDATION": "0",
    }
    argv = [sys.executable, "-m", "vkq", "shaders", "stats", pattern, "--json"]
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    return {each["name"]: each["programs"][0] for each in json.loads(ended.stdout) if each["programs"]}


@pytest.fixture(autouse=True)
def radv() -> None:
    if RADV is None and not REQUIRED:
        pytest.skip("Mesa's RADV driver (mesa-vulkan-drivers) is not installed")


@pytest.mark.parametrize(("family", "name"), [("navi21", "gfx1030"), ("gfx1100", "gfx1100")])
def test_what_auto_takes_is_no_worse_than_what_is_kept(family: str, name: str) -> None:
    """The automatically chosen kernels have no worse statistics than those stored in benchmarks/results,
    which Debian 12's RADV gave; another version may compile differently."""
    kept = Path(__file__).parents[2] / "benchmarks" / "results" / f"compiled-radv-{name}.json"
    environment = {
        **os.environ, "VK_DRIVER_FILES": str(RADV), "RADV_FORCE_FAMILY": family, "VKQ_VALIDATION": "0"
    }  # fmt: skip
    argv = [sys.executable, "-m", "vkq", "shaders", "stats", "--json"]
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    now, before = json.loads(ended.stdout), json.loads(kept.read_text())
    assert {layer for layer, one in now["kernels"].items() if one["spills"]} == set()
    if now["driver"] == before["driver"]:
        assert worse(now, before, COMPILE_SECONDS) == []
    else:
        assert worse(now, now, COMPILE_SECONDS) == []


def test_no_variant_spills_a_register() -> None:
    found = navi21("*")
    assert len(found) > 40
    assert {name: program["spills"] for name, program in found.items() if program["spills"] != 0} == {}


@pytest.mark.parametrize(("tile", "dots"), [("4x4", 16), ("4x8", 32), ("8x8", 64)])
def test_the_signed_form_is_the_native_instruction_once_for_each_result_of_the_tile(
    tile: str, dots: int
) -> None:
    text = navi21(TILED)[f"gemm_q8ta_q8csw__tiled:s8s8.q8to.{tile}"]["text"]
    assert len(re.findall(r"v_dot4_i32_i8|v_dot4c_i32_i8", text)) == dots


def test_the_portable_form_has_no_dot_product_and_multiplies_in_float() -> None:
    text = navi21(TILED)["gemm_q8ta_q8csw__tiled:float.q8to.4x4"]["text"]
    assert "v_dot4" not in text
    assert len(re.findall(r"v_fma|v_mac|v_fmac|v_mad", text)) >= 64 - 16


def test_the_default_tile_keeps_half_of_the_waves() -> None:
    assert navi21(TILED)["gemm_q8ta_q8csw__tiled:s8s8.q8to.4x4"]["statistics"]["Subgroups per SIMD"] >= 16
    assert navi21(TILED)["gemm_q8ta_q8csw__tiled:s8s8.q8to.4x8"]["statistics"]["Subgroups per SIMD"] >= 8


def test_a_device_without_the_extension_is_refused_by_its_name() -> None:
    with Compiler() as device, pytest.raises(vkq.PathError, match="VK_KHR_pipeline_executable_properties"):
        device.executables(catalog().find("quantize_q8ta__word"))
