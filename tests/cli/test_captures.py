"""Tests that commands print the text of the files in ``captures/``, which people review, on terminals of 80
and 120 columns.

The terminal is a pseudo-terminal, and a file holds the final content of its screen. Numbers, verdicts about
times and the width of gaps may differ (`alike`). ``VKQ_KEEP_CAPTURES=1 python -m pytest
tests/cli/test_captures.py`` writes the files again; review their differences.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import vkq
from tests.bench.test_compare import row, run
from tests.cli.terminal import rendered, terminal
from tests.cli.test_examples import commands, folder, short  # noqa: F401  fixtures
from tests.conftest import ROOT
from tests.onnx.test_remedies import detector
from vkq import cli
from vkq.bench.cases import select
from vkq.check import catalogue, replay, tuning, works
from vkq.cli import bench, check, devices, doctor, evaluate, quantize, report, shader_table, tune
from vkq.device import tuner, verdict

KEPT = Path(__file__).parent / "captures"
RESULTS = "benchmarks/results"
COMMANDS = {
    "bench-case": "bench linear[M=1,K=64,N=64] linear[M=5,K=64,N=64] --time 0.001",
    "bench-list": "bench few.yaml --time 0.001 --clock submit --no-ceilings",
    "bench-model": "bench model.onnx --time 0.001 --clock submit --no-ceilings",
    "bench-peer": "bench model.onnx --peer ort --time 0.001",
    "compare": "compare old.json new.json --all",
    "compare-slower": "compare before.json after.json",
    "completion": "completion bash",
    "check": "check linear[M=9,K=9,N=9] --path portable",
    "compare-layers": "compare-layers float.onnx model.onnx -i inputs.npz",
    "devices": "devices --device llvmpipe",
    "devices-why": "devices --device llvmpipe --why",
    "doctor": "doctor --times 1 --seconds 0",
    "eval": "eval model.onnx -c test.npz --float float.onnx",
    "export": "export model.onnx -o model.vkq --shape x=2x1x8x8 --for portable",
    "inspect": "inspect model.onnx",
    "inspect-float": "inspect float.onnx",
    "inspect-refused": "inspect detector.onnx",
    "match": "match photo.png pictures/a.png pictures/b.png",
    "plot": "plot run.json -o roofline.png",
    "quantize": "quantize float.onnx -c inputs.npz --fast -o made.onnx",
    "quantize-external": "quantize split.onnx -c inputs.npz --fast -o made-split.onnx",
    "report": "report --count 1 --time 0.001 --list linear[M=3,K=5,N=7] -o page.html",
    "run": "run model.onnx -i inputs.npz --compare onnxruntime",
    "run-profile": "run model.onnx --random --profile --repeat 3",
    "run-profile-names": "run named.onnx --random --profile",
    "shaders-build": "shaders build max_pool_q8 --output spirv",
    "shaders-check": "shaders check max_pool_q8",
    "shaders-list": "shaders list gemv_q8csw",
    "shaders-show": "shaders show max_pool_q8__pixels:16c",
    "shaders-stats": "shaders stats max_pool_q8",
    "shaders-stats-kept": f"shaders stats --compare {RESULTS}/compiled-radv-gfx1030.json",
    "tune": "tune linear[M=2,K=64,N=64] --dry-run",
    "tune-regret": "tune linear[M=2,K=64,N=64] --regret",
    "refused-file": "run nothing.onnx --random",
    "refused-option": "bench model.onnx --peer torch",
    "refused-shape": "run model.onnx --random --shape x=2x3x8x8",
}
# The rates are fixed, because the probe may not be able to measure some of them on a busy machine.
RATES = {"s8s8": 1.4e10, "u8s8": 3.1e10, "u8u8": 1e10, "float": 1e10, "fma": 8.6e9, "copy": 3.2e8}
# These commands print lines in an order that depends on times.
BY_TIME = ("bench-model", "run-profile", "run-profile-names", "tune", "tune-regret")
FEW = """summary: two K, and another scheme
cases:
  - {case: "linear[M=1,8,K=64,128,N=64]", reason: a sweep}
  - {case: "linear[M=1,K=64,N=64]", schemes: [q8csw], reason: float activations}
"""
# case -> (its time in us in before.json, the factor to its time in after.json). The names differ only in the
# middle, so a plain cut would make them equal.
TIMES = {
    f"conv2d[N=1,IC={c},H={h},W=14,OC={c},KH=1,KW=1]": (h, change)
    for h, (c, change) in itertools.product((114, 214), ((1024, 1.5), (2048, 0.5)))
}
FORKED = """
import os, warnings
import vkq.onnx
warnings.simplefilter("ignore")  # Python's own, of threads in a process that forks
session = vkq.onnx.InferenceSession("model.onnx")
if os.fork() == 0:
    try:
        session.run(None, {"x": __import__("numpy").zeros((1, 1, 8, 8), "float32")})
    except vkq.DeviceError as error:
        print(f"{type(error).__module__}.{type(error).__name__}: {error}", flush=True)
    os._exit(0)
os.wait()
"""
# The output of this command is a shell script: only its first lines are compared, and they may be wide.
FOR_A_SHELL = "completion"


def captured(words: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run the command; return the lines on the terminal when it has ended."""
    # --help raises SystemExit
    with terminal(columns, monkeypatch) as screen, contextlib.suppress(SystemExit):
        cli.main(words.split())
    return screen.seen[:5] if words.startswith(FOR_A_SHELL) else screen.seen


def here(text: str) -> str:
    """Return the text with this machine's paths replaced by fixed ones."""
    return text.replace(sys.executable, "/usr/bin/python3").replace(str(ROOT), "/home/me/vkq")


def alike(text: str) -> list[str]:
    """Return the words of a text that are the same in every run and on every machine.

    Numbers, the host, and the verdicts and warnings about times are removed.
    """
    text = re.sub(r"^warning: .*\n(?: {9}.*\n)*", "", text, flags=re.MULTILINE)
    text = re.sub(r"^(host|system|numpy|shader compiler) .*$", r"\1", text, flags=re.MULTILINE)
    text = re.sub(r"\b(faster|slower|equal)\b(?=\n|$)", "verdict", text)
    text = re.sub(r"[-+]?\d[\d,.]*(e[-+]\d+)?", "0", text)
    words = re.sub(r"\s+", " ", text).split(" ")  # numbers of other lengths may move line breaks
    return [re.sub(r"^-?inf$|^nan$", "0", word) for word in words if word]


def written(folder: Path) -> None:  # noqa: F811
    """Write the files that these commands name, in addition to the examples' files."""
    onnx.save(detector(), folder / "detector.onnx")
    (folder / "few.yaml").write_text(FEW)
    (folder / "split.onnx.data").unlink(missing_ok=True)  # delete the file: onnx would append to it
    onnx.save(
        onnx.load(folder / "float.onnx"), folder / "split.onnx", save_as_external_data=True,
        location="split.onnx.data", size_threshold=0,
    )  # fmt: skip
    named = onnx.load(folder / "model.onnx")
    for number, node in enumerate(named.graph.node):
        node.name = f"/model/encoder/layers/layers.{number}/residual/branch/convolution/{node.op_type}"
    onnx.save(named, folder / "named.onnx")
    before = [row(case, us) for case, (us, _) in TIMES.items()]
    after = [row(case, us * change) for case, (us, change) in TIMES.items()]
    for name, rows in (("before", before), ("after", after)):
        (folder / f"{name}.json").write_text(run(*rows).to_json())


@pytest.fixture
def place(
    folder: Path, short: None, software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch,  # noqa: F811
) -> Path:  # fmt: skip
    """Return a folder with the files that commands read, and change to it. Shorten the work of commands,
    hide the measurements of other tests, and fix the probe's rates."""
    c = dataclasses.replace(software_device.capabilities, choices=())
    known = verdict.report_of(c)
    assert known is not None
    monkeypatch.setitem(verdict._reports, c.key, dataclasses.replace(known, rates=RATES, clock="gpu"))
    monkeypatch.setitem(tuner._stores, c.key, tuner.Store())
    monkeypatch.setattr(software_device, "capabilities", c)
    written(folder)
    made = shader_table.read(ROOT / RESULTS / "compiled-radv-gfx1100.json")
    monkeypatch.setattr(shader_table, "measure", lambda which: made)
    monkeypatch.setattr(bench.cases, "select", select)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("VKQ_DEVICE", software_device.name)
    for module in (bench, check, devices, doctor, evaluate, quantize, report, tune):
        # use one device for both widths, so that shaders are compiled once
        monkeypatch.setattr(module, "Device", lambda which: contextlib.nullcontext(software_device))
    monkeypatch.setattr(tuning, "TRIED", 9)
    monkeypatch.setattr(tuning, "best", lambda trials: trials[0])  # tuning always chooses the default
    every = works.works
    monkeypatch.setattr(works, "REPLAYED", ("linear[M=1,K=130,N=37]/seed=3",))
    monkeypatch.setattr(replay, "works", lambda *given: itertools.islice(every(*given), 5))
    monkeypatch.setattr(report, "random_checks", lambda *_: [catalogue.check_of("linear[M=1,K=9,N=9]")])
    monkeypatch.setattr(report, "_plot", lambda result: "")
    return folder


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_as_kept(name: str, columns: int, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = captured(COMMANDS[name], columns, monkeypatch)
    text = "\n".join(here(line) for line in [f"$ vkq {COMMANDS[name]}", *seen]) + "\n"
    kept = KEPT / f"{name}.{columns}.txt"
    if os.environ.get("VKQ_KEEP_CAPTURES"):
        KEPT.mkdir(exist_ok=True)
        kept.write_text(text, encoding="utf-8")
    ordered = sorted if name in BY_TIME else list
    assert ordered(alike(text)) == ordered(alike(kept.read_text(encoding="utf-8")))
    if name != FOR_A_SHELL:
        read = [line for line in seen if not line.startswith("vkq: error")]  # errors are not wrapped
        assert max(map(len, read), default=0) <= columns
    assert str(place) not in text, "as typed: nobody wants to read more of a path than he wrote"


def test_every_file_is_of_a_command_and_every_command_has_one() -> None:
    assert {path.name for path in KEPT.iterdir()} == {
        "forked.txt",
        *(f"{name}.{columns}.txt" for name in COMMANDS for columns in (80, 120)),
    }
    typed = {tuple(words.split()[:2]) for words in COMMANDS.values()}
    assert {words for (words,) in commands()} == {words for words, *_ in typed}
    assert set(commands("shaders")) <= typed


def test_a_forked_run_as_kept(folder: Path, software_device: vkq.Device) -> None:  # noqa: F811
    """In a forked child, running a model prints the error of the captured file forked.txt."""
    said = subprocess.run(
        [sys.executable, "-c", FORKED], cwd=folder, capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "VKQ_DEVICE": software_device.name, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert not said.stderr
    if os.environ.get("VKQ_KEEP_CAPTURES"):
        (KEPT / "forked.txt").write_text(said.stdout, encoding="utf-8")
    assert alike(said.stdout) == alike((KEPT / "forked.txt").read_text(encoding="utf-8"))


def test_sizes_are_of_all_files(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reported size of a model includes the file with its external weights."""
    sizes = {}
    for name in ("quantize", "quantize-external"):
        (written,) = [line for line in captured(COMMANDS[name], 80, monkeypatch) if "written" in line]
        sizes[name] = [int(number) for number in re.findall(r"\d+", written)]
    files = [(place / name).stat().st_size for name in ("split.onnx", "split.onnx.data")]
    assert sizes["quantize"] == [(place / name).stat().st_size for name in ("made.onnx", "float.onnx")]
    assert sizes["quantize-external"] == [(place / "made-split.onnx").stat().st_size, sum(files)]
    assert files[1] > files[0] / 2


def test_what_counts_as_alike() -> None:
    assert alike("a 1.5 us,  12 of 3\nhost  a CPU\n") == alike("a 0.7 us, 1 of 99\nhost  another\n")
    assert alike("warning: drift\n         goes on\nb\n") == alike("b\n")
    assert alike("takes 0.2 of it, faster\n") == alike("takes 1.0 of it, equal\n")
    assert alike("a b") != alike("a c")


def test_a_screen_shows_what_was_written_last() -> None:
    assert rendered("one\r\n\r\x1b[K7/9\r\x1b[Ktwo \r\nabc\rd\n") == ["one", "two", "dbc"]


@pytest.mark.parametrize("columns", [80, 120])
def test_help_fits(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The help of each command fits the columns, except for examples, which are lines to copy."""
    for words in [*commands(), *commands("shaders")]:
        seen = captured(" ".join([*words, "--help"]), columns, monkeypatch)
        assert seen[0].startswith(f"usage: vkq {' '.join(words)}")
        prose = [line for line in seen if not re.search(r"^  (\w+=\S+ )*vkq ", line)]
        assert max(map(len, prose)) <= columns, words
