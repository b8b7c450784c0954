"""Tests that the structs of `vkq.device.structs` have the memory layout of the C structs. A C compiler
checks the layout with Vulkan's header. This file declares the structs that Debian 12's header lacks, as in
the specification."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from vkq.device.structs import CORE, DRIVER, FEATURES, IDENTITY, PROPERTIES, Struct

ALL = (*FEATURES, *PROPERTIES, IDENTITY, DRIVER)
NEWER = """
#ifndef VK_KHR_cooperative_matrix
#define VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR 1000506000
typedef struct { VkStructureType sType; void* pNext;
  VkBool32 cooperativeMatrix, cooperativeMatrixRobustBufferAccess; }
  VkPhysicalDeviceCooperativeMatrixFeaturesKHR;
#endif
#ifndef VK_KHR_shader_bfloat16
#define VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR 1000141000
typedef struct { VkStructureType sType; void* pNext;
  VkBool32 shaderBFloat16Type, shaderBFloat16DotProduct, shaderBFloat16CooperativeMatrix; }
  VkPhysicalDeviceShaderBfloat16FeaturesKHR;
#endif
"""
# struct name -> the end of its VK_STRUCTURE_TYPE, where the rule in `number` does not give it
NUMBERS = {
    "8BitStorageFeatures": "8BIT_STORAGE_FEATURES",
    "16BitStorageFeatures": "16BIT_STORAGE_FEATURES",
    "ShaderFloat16Int8Features": "SHADER_FLOAT16_INT8_FEATURES",
    "ShaderBfloat16FeaturesKHR": "SHADER_BFLOAT16_FEATURES_KHR",
    "ShaderSMBuiltinsPropertiesNV": "SHADER_SM_BUILTINS_PROPERTIES_NV",
    "ShaderCoreProperties2AMD": "SHADER_CORE_PROPERTIES_2_AMD",
    "ShaderCoreBuiltinsPropertiesARM": "SHADER_CORE_BUILTINS_PROPERTIES_ARM",
    "Maintenance3Properties": "MAINTENANCE_3_PROPERTIES",
    "Maintenance4Properties": "MAINTENANCE_4_PROPERTIES",
    "Maintenance4Features": "MAINTENANCE_4_FEATURES",
    "IDProperties": "ID_PROPERTIES",
    "CooperativeMatrixFeaturesKHR": "COOPERATIVE_MATRIX_FEATURES_KHR",
    "PipelineExecutablePropertiesFeaturesKHR": "PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR",
}


def number(name: str) -> str:
    """Return the name of a struct's VK_STRUCTURE_TYPE_... constant."""
    words = "".join(f"_{c}" if c.isupper() and i else c for i, c in enumerate(name)).upper()
    return f"VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_{NUMBERS.get(name, words)}"


def lines(one: Struct) -> list[str]:
    """Return C assertions that fail to compile if the struct's layout differs."""
    kind = f"VkPhysicalDevice{one.name}"
    checks = [f"{number(one.name)} == {one.number}", f"sizeof({kind}) == 16 + {(one.words + 1) // 2 * 8}"]
    for field, place in one.fields.items():
        checks.append(f"offsetof({kind}, {field}) == 16 + {4 * place}")
        if one not in (IDENTITY, DRIVER):
            checks.append(f"sizeof((({kind}*)0)->{field}) == {8 if one.wide else 4}")
    return [f'_Static_assert({check}, "{one.name}");' for check in checks]


@pytest.mark.parametrize("wrong", [None, "place", "number", "words"])
def test_structs_are_those_of_the_header(tmp_path: Path, wrong: str | None) -> None:
    """The structs match the header. A wrong entry in the table makes the C compiler fail."""
    core = [f"offsetof(VkPhysicalDeviceFeatures, {f}) == {4 * at}" for f, at in CORE.fields.items()]
    core.append(f"sizeof(VkPhysicalDeviceFeatures) == {4 * CORE.words}")
    text = [f'_Static_assert({check}, "core");' for check in core]
    for one in ALL:
        text += lines(one)
    last = ALL[0]
    changed = {
        "place": Struct(last.name, last.number, last.words, dict.fromkeys(last.fields, 1)),
        "number": Struct(last.name, last.number + 1, last.words, last.fields),
        "words": Struct(last.name, last.number, last.words + 2, last.fields),
    }
    if wrong is not None:
        text += lines(changed[wrong])
    source = tmp_path / "structs.c"
    source.write_text("\n".join(["#include <stddef.h>", "#include <vulkan/vulkan_core.h>", NEWER, *text]))
    command = ["cc", "-std=c11", "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode == 0) == (wrong is None), done.stderr
    if wrong is not None:
        assert f'static assertion failed: "{last.name}"' in done.stderr


def test_fields_are_read_and_set() -> None:
    one = Struct("Example", 7, 4, {"first": 0, "third": 2})
    assert one.asked == (7, bytes(16))
    assert one.enabling({"third": True, "other": True}) == (7, bytes([0] * 8 + [1, 0, 0, 0] + [0] * 4))
    assert one.read(bytes(range(16))) == {"first": 0x03020100, "third": 0x0B0A0908}
    wide = Struct("Wide", 7, 4, {"second": 2}, wide=True)
    assert wide.read(bytes(range(16))) == {"second": 0x0F0E0D0C0B0A0908}
