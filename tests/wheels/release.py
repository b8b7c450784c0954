"""A record of the SPIR-V of each release: one hash, and the compiler that made it. A phone's driver may
refuse another compiler's output (ggml-org/llama.cpp#28635), so a release states its compiler.

    python -m tests.wheels.release FOLDER    records a folder that vkq.shader.build filled

release.json is written for the first release; from then on, `tests.wheels.build` compares with it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from vkq._version import __version__
from vkq.shader import stored
from vkq.shader.build import COMPILER, compiler_of

FILE = Path(__file__).with_name("release.json")


def spirv_hash(folder: Path) -> str:
    """Return a SHA-256 of the names and contents of all files except COMPILER, which names the compiler.
    SPIR-V is hashed uncompressed, because compressed bytes depend on the version of zlib."""
    hashed = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != COMPILER):
        content = hashlib.sha256(_content(path)).hexdigest()
        hashed.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return hashed.hexdigest()


def _content(path: Path) -> bytes:
    return (stored.read(path) or b"") if path.suffix == ".spv" else path.read_bytes()


def found(folder: Path) -> dict[str, str]:
    """Return the record of a folder: the compiler of its modules and their hash."""
    return {"compiler": compiler_of(folder), "spirv": spirv_hash(folder)}


def changed(folder: Path, file: Path = FILE, version: str = __version__) -> str | None:
    """Compare a folder with the record of this version. Return a text with the differences and the remedy, or
    None if nothing differs or there is no record."""
    before, now = _kept(file).get(version), found(folder)
    parts = [f"{name} {before[name]} -> {now[name]}" for name in now if before and before[name] != now[name]]
    if not parts:
        return None
    return (
        f"the SPIR-V of vkq {version} is another than {file.name} keeps ({'; '.join(parts)}). Where {version}"
        f" is released, raise vkq/_version.py; run the suite on a device of each kind; then"
        f" {_renew(folder, file)}"
    )


def check(folder: Path, file: Path = FILE, version: str = __version__) -> None:
    """Exit if the SPIR-V changed but the version did not. If there is no record for this version, say how to
    make one."""
    if said := changed(folder, file, version):
        sys.exit(said)
    if version not in _kept(file):
        none = "" if file.exists() else f"; the first release makes {file.name}"
        print(f"the SPIR-V of vkq {version} is not kept. Before a release: {_renew(folder, file)}{none}")


def _kept(file: Path) -> dict[str, dict[str, str]]:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def _renew(folder: Path, file: Path) -> str:
    return f"python -m tests.wheels.release {folder}, and commit {file.name}"


def keep(folder: Path, file: Path = FILE, version: str = __version__) -> None:
    """Record the hash and the compiler for this version."""
    kept = {**_kept(file), version: found(folder)}
    file.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
