"""Tests of the YAML loader: accepted files, and every kind of refusal with file and line."""

import os
from pathlib import Path
from typing import Any

import pytest

from vkq import yamlfile
from vkq.errors import SpecError
from vkq.shader.catalog import shaders_folder
from vkq.yamlfile import MAX_BYTES, Node, load


def read(tmp_path: Path, text: str | bytes) -> Node:
    path = tmp_path / "a.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load(path)


def test_values_keep_types_order_and_lines(tmp_path: Path) -> None:
    top = read(tmp_path, "b: 4x4\na: {on: 1, 8: s8s8}\n\nc: [0x10, -3, 0.5, true, 'off', \"12\"]\n")
    keys = top.mapping({"a", "b"}, {"c", "d"})
    assert list(keys) == ["b", "a", "c"]
    assert keys["b"].str() == "4x4"
    assert [(name, node.scalar()) for name, node in keys["a"].items()] == [("on", 1), ("8", "s8s8")]
    assert [node.scalar() for node in keys["c"].sequence()] == [16, -3, 0.5, True, "off", "12"]
    assert keys["c"].where == f"{tmp_path / 'a.yaml'}:4"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nb: &x 2\n", 2, "anchors"),
        ("a: 1\nb: *x\n", 2, "anchors"),
        ("a: !!python/object/apply:os.system ['true']\n", 1, "tag"),
        ("a: 1\nb: !!str 2\n", 2, "tag"),
        ("a: 1\n---\nb: 2\n", 2, "but found another document"),
        ("a: [1,\n", 2, "expected"),
        ("a: 1\n\tb: 2\n", 2, "cannot start any token"),
        ("[" * 40 + "]" * 40, 1, "deeper"),
        ("[" * 200_000, 1, "deeper"),
        ("", 1, "empty"),
        (b"a: 1\nb: \xff\n", 2, "UTF-8"),
        (b"a: \x00\n", 1, "not allowed"),
        (b"#" * (MAX_BYTES + 1), 1, "larger than"),
    ],
)
def test_files_refused(tmp_path: Path, text: str | bytes, line: int, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'a.yaml'}:{line}: ")
    assert message in str(caught.value)


def test_libyaml_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The readers with and without libyaml give the same nodes at the same lines, for the YAML of every
    shader."""
    paths = sorted(shaders_folder().glob("*/*.yaml"))[::6]
    quick = [_told(load(path).node) for path in paths]
    monkeypatch.setattr(yamlfile, "_Quick", None)
    assert quick == [_told(load(path).node) for path in paths]


def _told(node: Any) -> Any:
    value = node.value if isinstance(node.value, str) else [_told_entry(entry) for entry in node.value]
    return node.tag, node.start_mark.line, value


def _told_entry(entry: Any) -> Any:
    return tuple(map(_told, entry)) if isinstance(entry, tuple) else _told(entry)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.yaml:1: cannot be read: No such file"):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nz: 2\n", 2, "unknown key 'z'; the keys here are: a, b"),
        ("a: 1\na: 2\n", 2, "'a' appears a second time"),
        ("b: 1\n", 1, "the key 'a' is missing"),
        ("- a\n", 1, "found a list; a mapping"),
        ("a: 1\n? [b]\n: 2\n", 2, "keys must be plain text"),
        ("a: 1\n<<: {b: 2}\n", 2, "unknown key '<<'"),
    ],
)
def test_mappings_refused(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, text).mapping({"a"}, {"b"})
    assert f":{line}: " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "method", "message"),
    [
        ("1", "str", "found the number '1'; text"),
        ("true", "int", "a whole number"),
        ("0.5", "int", "a whole number"),
        ("1", "bool", "true or false"),
        ("{}", "str", "found a mapping"),
        ("a", "sequence", "a list is needed"),
        ("off", "scalar", "reads as YAML bool"),
        ("010", "scalar", "reads as YAML int"),
        ("1:30", "scalar", "reads as YAML int"),
        (".nan", "scalar", "reads as YAML float"),
        ("2020-01-01", "scalar", "reads as YAML timestamp"),
        ("~", "scalar", "reads as YAML null"),
    ],
)
def test_values_refused(tmp_path: Path, text: str, method: str, message: str) -> None:
    node = read(tmp_path, f"a: {text}\n").mapping({"a"})["a"]
    with pytest.raises(SpecError, match=r"a\.yaml:1: ") as caught:
        getattr(node, method)()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "9" * 5000, "has 5000 characters; a number has at most 20"),
        ("a: 0x" + "f" * 5000, "has 5002 characters; a number has at most 20"),
        ("a: 1.0e+999", "reads as YAML float"),
        ("a: 2" + "0" * 400 + ".0", "a number has at most 20"),
    ],
)
def test_numbers_are_bounded(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=r"a\.yaml:1: ") as caught:
        read(tmp_path, text).mapping({"a"})["a"].scalar()
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" + "1," * 30_000 + "]", "more than 20000 values"),
        ("a: b\n" * 20_000, "more than 20000 values"),
        ('a: "\\UFFFFFFFF"', ":1: "),
        ('a: "\\ud800"', "surrogate"),
    ],
)
def test_what_is_refused_is_refused_soon(
    tmp_path: Path, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is refused at its first invalid value; later values are not visited."""
    visited = 0
    compose = yamlfile._Plain.compose_node

    def counted(*arguments: Any) -> Any:
        nonlocal visited
        visited += 1
        return compose(*arguments)

    monkeypatch.setattr(yamlfile._Plain, "compose_node", counted)
    with pytest.raises(SpecError, match=message):
        read(tmp_path, text)
    assert visited <= yamlfile.MAX_NODES + 1


def test_files_that_never_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(SpecError, match=r":1: cannot be read: it is not a regular file"):
            load(path)
    with pytest.raises(SpecError, match="cannot be read: embedded null"):
        load(tmp_path / "a\0b")
