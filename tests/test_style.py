"""What ruff does not see: shaders, layouts and the extension have lines as long as those of Python."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 110
FOLDERS = ("shaders", "layouts", "vkq/runtime/native")
SOURCES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".comp", ".glslh", ".glsl", ".cpp", ".hpp", ".yaml")
)


@pytest.mark.parametrize("folder", FOLDERS)
def test_lines_fit(folder: str) -> None:
    found = [path for path in SOURCES if path.is_relative_to(ROOT / folder)]
    assert found, folder
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in found
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS
    ]
    assert not long
