"""The fuzz targets. Each target reads untrusted bytes or text, and either returns or raises a `VkqError`. Any
other exception is a defect, and so is an input that needs more than a second or hundreds of megabytes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vkq import cache, cli, onnx, yamlfile
from vkq.bench import cases, compare, result
from vkq.check import catalogue
from vkq.device import drivers, tuner
from vkq.device.verdict import Verdict
from vkq.errors import VkqError
from vkq.layout.spec import LayoutSpec
from vkq.problem import names
from vkq.shader import compile as shader_compile
from vkq.shader import load, reflect
from vkq.shader.catalog import catalog
from vkq.shader.expression import Expression
from vkq.shader.float_controls import with_float_controls
from vkq.shader.specialize import specialized

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).with_name("corpus")


@dataclass(frozen=True)
class Target:
    """A fuzz target: ``run`` is the code under test, ``seeds`` are patterns of the files with the first
    inputs, and ``tokens`` are words that mutations insert."""

    run: Callable[[bytes, Path], None]
    seeds: tuple[str, ...]
    tokens: tuple[bytes, ...]

    def corpus(self, name: str) -> list[bytes]:
        """Return the seeds and the inputs that found defects (tests/fuzz/corpus/NAME), in a fixed order."""
        paths = [path for pattern in self.seeds for path in sorted(ROOT.glob(pattern))]
        kept = sorted((CORPUS / name).glob("*"))
        return [path.read_bytes()[:20_000] for path in [*paths, *kept]] or [b""]


def allowed(function: Callable[[], object]) -> None:
    """Call a function; a `VkqError` is allowed, because the function may refuse its input."""
    with contextlib.suppress(VkqError):
        function()


def yaml(data: bytes, folder: Path) -> None:
    path = folder / "a.yaml"
    path.write_bytes(data)
    _walk(yamlfile.load(path))


def _walk(node: yamlfile.Node) -> None:
    for function in (node.str, node.int, node.bool, node.scalar, lambda: node.mapping({"a"}, {"b"})):
        allowed(function)
    for children in (node.sequence, lambda: [value for _, value in node.items()]):
        with contextlib.suppress(VkqError):
            for child in children():
                _walk(child)


def layout(data: bytes, folder: Path) -> None:
    path = folder / "4C.yaml"
    path.write_bytes(data)
    spec = LayoutSpec.load(path)
    spec.glsl()
    shape = range(3, 3 + len(spec.dims))
    assert spec.words(shape) >= 0
    assert spec.index(*(size - 1 for size in shape), shape=shape)[0] < spec.words(shape)


def shader(data: bytes, folder: Path) -> None:
    (folder / "scale.comp").write_text("#version 450\nvoid main() {}\n")
    path = folder / "scale.yaml"
    path.write_bytes(data)
    for variant in load.load_shader(path).variants[:8]:
        allowed(lambda variant=variant: variant.workgroups({push.name: 7 for push in variant.push_constants}))
        allowed(lambda variant=variant: shader_compile.text(variant))


def include(data: bytes, folder: Path) -> None:
    """Write the parts of the data (separated by ``---`` lines) as files that may include each other, and
    expand the first."""
    for number, text in enumerate(data.split(b"\n---\n")[:8]):
        (folder / f"f{number}.glslh").write_bytes(text)
    shader_compile.expand(folder / "f0.glslh", [folder], {"layouts/x.glslh": "int x;\n"}, {"DEBUG": 1})


def name(data: bytes, folder: Path) -> None:
    text = data.decode(errors="replace")
    for function in (names.parse, cases.expand, catalogue.check_of, Expression):
        allowed(lambda function=function: function(text))
    allowed(lambda: Expression(text).evaluate({"m": 7, "n": -2, "TILE": 4}))
    allowed(lambda: cases.select([text]) if ".y" not in text else None)


def lists(data: bytes, folder: Path) -> None:
    """Write the parts of the data (separated by ``---`` lines) as lists that may include each other, and load
    the first."""
    for number, text in enumerate(data.split(b"\n---\n")[:8]):
        (folder / f"l{number}.yaml").write_bytes(text)
    assert len(cases.load_list(folder / "l0.yaml")) <= cases.MAX_CASES


def comparison(data: bytes, folder: Path) -> None:
    path = folder / "a.json"
    path.write_bytes(data)
    found = result.read(path)
    found.to_json()
    compare.compare(found, found)


def cached(data: bytes, folder: Path) -> None:
    """Read the data as a cache file: once unchanged, and once with a valid seal."""
    path = folder / "file.json"
    for blob in (data, cache.seal(data, path.name)):
        path.write_bytes(blob)
        for parse in (Verdict.parse, tuner.Store.parse, drivers._parse, json.dumps):
            cache._warned.clear()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", cache.CacheWarning)
                cache.read_json(path, parse)


def spirv(data: bytes, folder: Path) -> None:
    variant = catalog().find("selftest__arithmetic", test="requantize")
    allowed(lambda: with_float_controls(data, rte=True, denorm_preserve=True))
    allowed(lambda: specialized(data, {0: 1, 3: 0}))
    found = reflect.reflect(data, {0: 8, 1: 64})
    for problem in reflect.check(variant, found):
        assert isinstance(problem, str)


def model(data: bytes, folder: Path) -> None:
    """Read an ONNX file of these bytes; tests/onnx/mutate.py changes the content of valid files."""
    path = folder / "a.onnx"
    path.write_bytes(data)
    onnx.read(path)


def command(data: bytes, folder: Path) -> None:
    """Run a command line, one word a line. The commands open no device."""
    words = [w for w in data.decode(errors="replace").replace("\0", "").split("\n") if not w.startswith("/")][
        :12
    ]
    if words[:1] == ["compare"]:
        (folder / "a.json").write_text("{}")
    elif words[:2] not in (["check", "--list"], ["shaders", "list"]):
        return
    if any(re.fullmatch(r"0*\d{4,7}", word) for word in words):
        return  # a number of 4 to 7 digits could ask for thousands of cases
    before = os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code: object = cli.main(words)
    except SystemExit as ended:
        code = ended.code
    finally:
        os.chdir(before)
    assert code in (0, 1, 2)


def _tokens(text: str, *more: bytes) -> tuple[bytes, ...]:
    return (*(token.encode() for token in text.split()), *more)


_LONG = b"9" * 5000
_YAML = _tokens(
    "[ ] { } : , - ? | > & * ! % # ' \" ~ << ... --- 0x 1e999 .inf .nan true null 010 1:30",
    b"\n", b"\t", b"  ", _LONG, b"[" * 100, b"- " * 100, b"\xff", b"\xef\xbb\xbf", b"\\UFFFFFFFF", b"\\ud800",
)  # fmt: skip
_NAMES = _tokens(
    "linear conv2d [ ] , = x : M N K IC H W OC KH KW stride padding dilation groups /seed= 0 1 8 * -1 100000",
    _LONG, b"1:1000000", "²".encode(), b"ceil_div(", b"(", b")", b"//", b"%0",
)  # fmt: skip
_JSON = _tokens(
    '{ } [ ] , : "schema": null true NaN Infinity 1e999 -1 0 1 "" "rows": "failures"',
    _LONG, b"[" * 2000, b"\\ud800",
)  # fmt: skip
_WORDS = _tokens(
    "check --list shaders list compare a.json a.json --count --seed --fail-above 5% --clock --json --all",
    b"\n", b"nan", b"1e999", b"-5", _LONG, "²".encode(), b"*", b"[",
)  # fmt: skip
_GLSL = (
    b'#include "f1.glslh"\n', b'#include "f0.glslh"\n', b'#include "../x"\n', b'#include "layouts/x.glslh"\n',
    b"\n---\n", b"#version 450\n", b"#pragma once\n",
)  # fmt: skip
_SPIRV = tuple(
    (count << 16 | op).to_bytes(4, "little")
    for count in (1, 2, 4, 5)
    for op in (5, 16, 28, 30, 43, 52, 59, 71)
)
_ONNX = (
    *(bytes([number << 3 | kind]) for number in (1, 2, 5, 7, 9, 11) for kind in (0, 2, 5)),
    b"\xff\xff\xff\xff\x0f", b"Conv", b"QLinearConv", b"Reshape", b"If", b"../", b"\x00" * 100,
)  # fmt: skip

TARGETS: dict[str, Target] = {
    "yaml": Target(yaml, ("layouts/*.yaml", "shaders/gemm/*.yaml"), _YAML),
    "layout": Target(layout, ("layouts/*.yaml",), (*_YAML, b"c", b"w", b"/4", b"%4", b"%32/4", b"split")),
    "shader": Target(shader, ("shaders/*/*.yaml",), (*_YAML, b"source: ../x", b"axes:", b"except:", b"%0")),
    "include": Target(include, (), _GLSL),
    "name": Target(name, (), _NAMES),
    "list": Target(lists, ("benchmarks/*.yaml",), (*_YAML, *_NAMES, b"\n---\n", b"include: [l1, l1]\n")),
    "compare": Target(comparison, (), _JSON),
    "cache": Target(cached, (), _JSON),
    "spirv": Target(spirv, (), (*_SPIRV, bytes(4), bytes(8))),
    "onnx": Target(model, (), _ONNX),
    "command": Target(command, (), (*_WORDS, *_NAMES)),
}


def once(target: Target, data: bytes, folder: Path) -> None:
    """Try one input in a folder that is empty before and afterwards."""
    try:
        allowed(lambda: target.run(data, folder))
    finally:
        for entry in os.scandir(folder):
            os.unlink(entry)
