"""Compile the shaders for the devices of `run.sh`, because the emulated arm64 Debian has no shader
compiler."""

from tests.device.reported import NAMES, reported
from vkq.kernels.auto_programs import auto_programs
from vkq.shader import stored
from vkq.shader.build import compile_all, modules
from vkq.shader.compile import cache_folder

if __name__ == "__main__":
    variants = {each.variant.name: each.variant for name in NAMES for each in auto_programs(reported(name))}
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    for file, spirv in compile_all(modules(variants.values())):
        stored.write(folder / file, spirv)
    print(f"{len(variants)} variants in {folder}")
