"""Tests that shaders read and write only within their buffers. Other tests do not check this, because vkq
opens devices without robustBufferAccess. The tests run in a separate process, whose validation layer checks
bounds instead of synchronization."""

import os
import subprocess
import sys

import vkq

# In these layers, some subgroups have lanes without channels, and k and the rows do not fill blocks. Some
# images have rows of whole texels, and others have rows that end within a texel.
CODE = """
import re, sys
import numpy as np
import vkq
from vkq.device import vulkan
from vkq.runtime import programs
from vkq.shader.compile import text
from vkq.shader.glslang import find_compiler

device, rng = vkq.Device(sys.argv[1]), np.random.default_rng(1)
weight = lambda *shape: rng.integers(-127, 128, shape, dtype=np.int8)
floats = lambda *shape: rng.standard_normal(shape, np.float32)
q = vkq.QParams(0.05, 3)
vkq.Linear(weight(5, 7), 0.01, device=device)(floats(3, 7))
vkq.Linear(weight(34, 64), 0.01, device=device)(floats(9, 64).astype(np.float16))
vkq.Linear(weight(5, 9), 0.01, x_qparams=q, y_qparams=q, device=device)(weight(6, 9))
for size, options in ((8, {}), (7, {"stride": 2})):
    image = floats(2, 8, 5, size)
    vkq.Conv2d(weight(22, 8, 3, 3), 0.01, padding=1, device=device, **options)(image)
    vkq.Conv2d(weight(44, 4, 1, 1), 0.01, groups=2, device=device, **options)(image.astype(np.float16))
vkq.Conv2d(weight(6, 1, 3, 3), 0.01, padding=1, groups=6, device=device)(floats(1, 6, 5, 7))
vkq.Conv2d(weight(5, 3, 3, 3), 0.01, padding=1, x_qparams=q, y_qparams=q, device=device)(weight(1, 3, 5, 7))
print(*vulkan.validation_messages(), sep="\\n", end="|")

def beyond(variant):
    changed, count = re.subn(r"\\by\\[(?=[a-z])", "y[64u + ", text(variant))
    assert count
    return find_compiler().compile(changed, variant.source.name)

programs.compiled = beyond
vkq.dequantize(weight(5, 5), q, device=device)
print(len(vulkan.validation_messages()) > 0, "out of bounds" in vulkan.validation_messages()[-1])
"""


def test_shaders_stay_within_their_buffers(device: vkq.Device) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, device.name], capture_output=True, text=True, timeout=600,
        env={**os.environ, "VKQ_VALIDATION": "bounds"},
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == ("|True True\n", "", 0)
