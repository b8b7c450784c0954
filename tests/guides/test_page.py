"""Tests of the reading of pages. Every guide is run by ``make guides`` (this takes minutes), or its page
says that it is not run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.guides import page
from tests.guides.__main__ import DOCS, EXPLAINED, GUIDES, typed

PAGE = """# A guide

```sh
first "and" \\
  more        # a comment
```
```python
x = 1
```
words `code`

<!-- not typed: no such machine -->

```sh
never
```
```console
$ vkq devices
what it says
$ vkq doctor
```
```python
print(x)
```
```cpp
int never;
```
```yaml
    steps:
      - uses: never
      - run: one && two
      - run: |
          three
          four
```
"""


def test_blocks_become_a_script() -> None:
    made = page.script(PAGE)
    assert made.splitlines() == [
        'first "and" \\', "  more        # a comment", "",
        "vkq devices", "vkq doctor", "",
        "python - <<'END_OF_PROGRAM'", "x = 1", "print(x)", "END_OF_PROGRAM", "",
        "one && two", "three", "four",
    ]  # fmt: skip
    assert [block.why for block in page.blocks(PAGE)] == [None, None, "no such machine", None, None, None]


def test_a_dockerfile_becomes_what_docker_does() -> None:
    text = (
        "```dockerfile\nFROM debian:12\nRUN a \\\n && b\nCOPY one two /tmp/\nENV A=1 B=2\nWORKDIR /x\n"
        'CMD ["vkq", "run", "a b"]\n```\n'
    )
    assert page.base(text) == "debian:12"
    want = ["a && b", "cp -r one two /tmp/", "export A=1 B=2", "mkdir -p /x && cd /x", "vkq run 'a b'"]
    assert page.script(text).splitlines() == want
    with pytest.raises(ValueError, match="HEALTHCHECK"):
        page.script("```dockerfile\nHEALTHCHECK x\n```\n")


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: str(path.relative_to(DOCS)))
def test_each_guide_is_followed_or_says_that_it_is_not(path: Path) -> None:
    text, name = path.read_text(encoding="utf-8"), str(path.relative_to(DOCS))
    followed = name in {guide.page for guide in GUIDES}
    assert followed + page.says_why_not(text) + (path.stem in EXPLAINED) == 1
    if followed:
        assert text.count("not typed") == sum(block.why is not None for block in page.blocks(text))
    elif not page.says_why_not(text):  # tests/docs runs the python and console blocks of this page
        shells = [block for block in page.blocks(text) if block.kind in ("sh", "yaml", "dockerfile")]
        assert [block.text for block in shells if block.why is None] == [], "say why nobody types it"


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_what_is_typed_is_a_script(guide, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The script of a guide is valid bash, and runs a command of vkq or a program."""
    (tmp_path / "typed.sh").write_text(typed(guide))
    subprocess.run(["bash", "-n", tmp_path / "typed.sh"], check=True)
    assert re.search(r"^(vkq |\./|python )", typed(guide), re.MULTILINE), "a result of vkq's"


def test_names_are_of_one_guide() -> None:
    assert len({guide.name for guide in GUIDES}) == len(GUIDES)
