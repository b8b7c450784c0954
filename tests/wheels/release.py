"""The SPIR-V of each release, as one hash with the compiler that made it: a phone's driver may refuse another
compiler's output (ggml-org/llama.cpp#28635), so that a release says which it carries.

    python -m tests.wheels.release FOLDER    keeps those of a folder that vkq.shader.build filled
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from tests.shader import compiler
from vkq._version import __version__

FILE = Path(__file__).with_name("release.json")


def spirv_hash(folder: Path) -> str:
    """SHA-256 over the names and contents of all files."""
    hashed = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        hashed.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return hashed.hexdigest()


def found(folder: Path) -> dict[str, str]:
    """The compiler that the shaders were last tested with, and the hash."""
    return {"compiler": compiler.kept()["compiler"], "spirv": spirv_hash(folder)}


def changed(folder: Path, file: Path = FILE, version: str = __version__) -> str | None:
    """What differs from what is kept of this version, and what to do; None where nothing does."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    renew = f"python -m tests.wheels.release {folder}, and commit {file.name}"
    if version not in kept:
        return f"the SPIR-V of vkq {version} is not kept yet: {renew}"
    now = found(folder)
    parts = [
        f"{name} {kept[version][name]} -> {now[name]}" for name in now if kept[version][name] != now[name]
    ]
    if not parts:
        return None
    return (
        f"the SPIR-V of vkq {version} is another than was kept ({'; '.join(parts)}). Where {version} is"
        f" released, raise vkq/_version.py; run the suite on a device of each kind; then {renew}"
    )


def keep(folder: Path, file: Path = FILE, version: str = __version__) -> None:
    """Keeps them as this version's."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps({**kept, version: found(folder)}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
