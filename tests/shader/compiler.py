"""A record of the compiler with which the shaders were last tested: its version, and the SPIR-V of two
fixed shaders. A phone's driver may refuse another compiler's output (ggml-org/llama.cpp#28635).

    python -m tests.shader.compiler    writes compiler.json again
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from vkq.shader.glslang import PROBE, find_compiler

FILE = Path(__file__).with_name("compiler.json")
RENEW = "python -m tests.shader.compiler"
LOOP = """#version 450
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint COUNT = 3;
layout(binding = 0) buffer B { int b[]; };
shared int sums[64];
int twice(int v) { return v + v; }
void main() {
  sums[gl_LocalInvocationID.x] = 0;
  for (uint i = 0; i < COUNT; i++) sums[gl_LocalInvocationID.x] += twice(b[i * 64u + gl_LocalInvocationID.x]);
  barrier();
  b[gl_LocalInvocationID.x] = sums[63u - gl_LocalInvocationID.x] * 3;
}
"""


def found() -> dict[str, str]:
    """Return the compiler's name and version, and a hash of the SPIR-V of each fixed shader."""
    compiler = find_compiler()
    shaders = {"matrices": PROBE, "loop": LOOP}
    hashes = {
        name: hashlib.sha256(compiler.compile(text, f"{name}.comp")).hexdigest()
        for name, text in shaders.items()
    }
    return {"compiler": compiler.name, **hashes}


def kept() -> dict[str, str]:
    """Return the content of compiler.json."""
    read: dict[str, str] = json.loads(FILE.read_text(encoding="utf-8"))
    return read


if __name__ == "__main__":
    FILE.write_text(json.dumps(found(), indent=2) + "\n", encoding="utf-8")
