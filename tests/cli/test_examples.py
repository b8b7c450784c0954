"""Tests that every example in a help text runs, with all its options and files. The work of an example is
reduced to one or two small cases of each list."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vkq
from tests.bench.test_compare import row, run
from tests.conftest import ROOT
from tests.device.test_tuner import tune_apart
from vkq.bench import selftest, stats
from vkq.check import catalogue, tuning, works
from vkq.check.cases import Case
from vkq.cli import bench, main, shaders
from vkq.probe import selftest as probe
from vkq.problem.names import parse
from vkq.select import registers

SMALL = 100_000  # maximum number of multiply-adds of a case that is run
TINY = parse("linear[M=2,K=8,N=8]")


def help_of(*words: str) -> str:
    text: list[str] = []
    with contextlib.redirect_stdout(SimpleNamespace(write=text.append, flush=lambda: None)):  # type: ignore[type-var]
        assert main(words) == 0
    return "".join(text)


def commands(*words: str) -> list[tuple[str, ...]]:
    """Return the subcommands that the help of a command lists."""
    listed = help_of(*words).partition("COMMAND\n")[2]
    return [(*words, name) for name in re.findall(r"^    ([a-z][a-z-]+)(?: |$)", listed, re.MULTILINE)]


def texts() -> dict[tuple[str, ...], str]:
    found = {}
    for words in [*commands(), *commands("shaders")]:
        if words != ("shaders",):
            with contextlib.suppress(SystemExit):
                text: list[str] = []
                with contextlib.redirect_stdout(SimpleNamespace(write=text.append, flush=lambda: None)):  # type: ignore[type-var]
                    main([*words, "--help"])
            found[words] = "".join(text)
    return found


def examples() -> list[list[str]]:
    """Return the arguments of every example, without environment variables, comments and redirections."""
    found = []
    for text in texts().values():
        for line in re.findall(r"^  ((?:\w+=\S+ )*vkq .*)$", text.partition("examples:\n")[2], re.MULTILINE):
            words = shlex.split(line, comments=True)
            words = words[words.index("vkq") + 1 :]
            found.append(words[: words.index(">")] if ">" in words else words)
    return found


EXAMPLES = examples()


def test_every_command_has_examples_and_they_are_found() -> None:
    assert len(EXAMPLES) > 40
    named = {words[0] for words in EXAMPLES}
    assert named == {words[0] for words in texts()}


MY_SAMPLES = """
import numpy as np

def typical():
    for i in range(3):
        yield {"x": np.full((1, 1, 8, 8), i / 3, np.float32)}
"""


MY_ACCURACY = """
import sys
import onnxruntime as ort

ort.InferenceSession(sys.argv[1])
print(0.98)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that the examples name."""
    path = tmp_path_factory.mktemp("examples")
    models = ROOT / "examples" / "models"
    shutil.copy(models / "digits.onnx", path / "model.onnx")
    shutil.copy(models / "digits.tflite", path / "model.tflite")
    shutil.copy(models / "digits.float.onnx", path / "float.onnx")
    shutil.copy(models / "digits.onnx", path / "int8.onnx")
    images = np.load(models / "digits.npz")["images"]
    np.savez(path / "inputs.npz", x=images[:1, None] / np.float32(16))
    (path / "pictures").mkdir()
    for number, name in enumerate(["photo.png", "pictures/a.png", "pictures/b.png"]):
        Image.fromarray((images[number] * 15).astype(np.uint8)).save(path / name)
    shutil.copytree(path / "pictures", path / "samples")
    for name in ("cat", "dog"):
        (path / "photos" / name).mkdir(parents=True)
        shutil.copy(path / "photo.png", path / "photos" / name)
    (path / "my_samples.py").write_text(MY_SAMPLES)
    (path / "my_accuracy.py").write_text(MY_ACCURACY)
    np.savez(path / "test.npz", x=images[:9, None] / np.float32(16), labels=np.arange(9))
    kept = run(
        row("linear[M=2,K=8,N=8]", 100, path="coopmat"), row("linear[M=4,K=8,N=8]", 100, path="coopmat")
    )
    for name in ("old", "new", "run", "a", "b"):
        (path / f"{name}.json").write_text(kept.to_json())
    rows = [{"net": "net", "batch": 1, "gpu_ms": 1.0, "torch_fp16_cuda_graph_ms": 2.0}]
    (path / "networks.json").write_text(json.dumps({"device": "a GPU", "networks": rows}))
    (path / "benchmarks" / "results").mkdir(parents=True)
    for kept_file in (ROOT / "benchmarks" / "results").glob("compiled-*.json"):
        shutil.copy(kept_file, path / "benchmarks" / "results")
    return path


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the work of every command."""
    chosen, select = bench.cases.select, catalogue.select
    random, matching = catalogue.random_checks, shaders._matching

    def small(*arguments: Any) -> list[Case]:
        found = chosen(*arguments)
        tiny = [case for case in found if case.problem.macs < SMALL]
        return tiny[:2] or [dataclasses.replace(case, problem=TINY) for case in found[:1]]

    def ceilings(device: vkq.Device, say: Callable[[str], None]) -> dict[str, float]:
        say("copy")  # shows a progress line, which the command must erase
        return {"copy": 1.0}

    monkeypatch.setattr(bench.cases, "select", small)
    monkeypatch.setattr(bench.ceilings, "measure", ceilings)
    monkeypatch.setattr(catalogue, "select", lambda pattern: select(pattern)[:2])
    for module in ("vkq.check.catalogue", "vkq.cli.report"):
        monkeypatch.setattr(f"{module}.random_checks", lambda count, seed: random(min(count, 2), seed))
    check_of = catalogue.check_of

    def light(name: str) -> catalogue.Check:
        found = check_of(name)
        return found if found.problem.macs < SMALL else dataclasses.replace(found, problem=TINY)

    monkeypatch.setattr(catalogue, "check_of", light)
    monkeypatch.setattr(works, "REPLAYED", works.REPLAYED[:1])
    monkeypatch.setattr(works, "LARGE", ())
    monkeypatch.setattr("vkq.probe.selftest.probe_again", probe.report_of)  # a new probe would take seconds
    monkeypatch.setattr("vkq.cli.report.TIMES", 1)
    equal, slower = (stats.Ratio(v, v, v, 9) for v in (1.0, 1.1))
    monkeypatch.setattr(selftest, "run", lambda *_, **__: selftest.Trials([equal] * 20, [slower] * 20))
    monkeypatch.setattr(shaders, "_matching", lambda pattern: matching(pattern)[:1])
    few = registers.candidates
    monkeypatch.setattr(registers, "candidates", lambda *given: few(*given)[:2])
    monkeypatch.setattr(tuning, "SAMPLE_S", 1e-4)
    monkeypatch.setattr(tuning, "TRIED", 2)


def run_shortened(
    words: list[str],
    folder: Path,
    device: vkq.Device,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: Path,
) -> None:
    """Run the command with little work on this device, in a folder with the files that examples name."""
    shutil.copytree(folder, place, dirs_exist_ok=True)
    monkeypatch.chdir(place)
    monkeypatch.setenv("VKQ_DEVICE", device.name)
    if words[0] == "tune":
        tune_apart(monkeypatch, place)
    words = [
        device.name if before == "--device" else word for before, word in itertools.pairwise(["", *words])
    ]
    if words[0] in ("bench", "report") and "--self-test" not in words:
        words += ["--time", "0.001"]
    if words[0] == "quantize":
        words += ["--seconds", "0"]
    if words[0] == "doctor":
        words += ["--times", "1", "--seconds", "0"]
    if "--count" in words:
        words[words.index("--count") + 1] = "20"
    code, said = main(words), capsys.readouterr()
    if words[:2] == ["shaders", "stats"] and code:  # lavapipe reports no statistics
        assert "VK_KHR_pipeline_executable_properties" in said.err
    elif "--debug" in words:  # the child process of --debug needs the validation layer
        assert code == 0
    else:
        assert (code, said.err) == (0, "")
        assert said.out


@pytest.mark.parametrize("words", EXAMPLES, ids=" ".join)
@pytest.mark.usefixtures("short")
def test_example(
    words: list[str],
    folder: Path,
    software_device: vkq.Device,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    run_shortened(words, folder, software_device, monkeypatch, capsys, tmp_path)
