"""Tests of accuracy targets that a user's program or function evaluates."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import vkq
from tests.accuracy.test_search import samples, saved, short
from vkq.accuracy import quantize
from vkq.accuracy.goal import Goal, script
from vkq.cli import main
from vkq.errors import ArgumentError

SCRIPT = """
import sys

count = open(sys.argv[1], "rb").read().count(b"QuantizeLinear")
print("quantizations:", count)
sys.exit(int(count > {most}))
"""


def noise(real: Path, path: Path, feeds: list[dict[str, np.ndarray]]) -> float:
    a, b = (ort.InferenceSession(p) for p in (real, path))
    return float(sum(np.square(a.run(None, f)[0] - b.run(None, f)[0]).sum() for f in feeds))


def test_a_function_judges(tmp_path: Path) -> None:
    """A user's function evaluates candidates. A target of half the noise of the int8 model needs float
    layers. A target that the int8 model reaches needs none."""
    path, net = saved(short, tmp_path)
    feeds = samples(net.shape)
    plain = quantize(path, tmp_path / "plain.onnx", feeds, seconds=0)
    whole = noise(path, tmp_path / "plain.onnx", feeds)
    asked: list[float] = []

    def judge(candidate: Path) -> float:
        onnx.checker.check_model(onnx.load(candidate))
        asked.append(-noise(path, candidate, feeds))
        return asked[-1]

    said: list[str] = []
    report = quantize(
        path, tmp_path / "a.onnx", feeds, seconds=0, target_judge=judge, least=-whole / 2,
        progress=said.append,
    )  # fmt: skip
    assert report.reached
    assert report.kept
    assert noise(path, tmp_path / "a.onnx", feeds) <= whole / 2
    assert asked[0] == 0  # the float model is evaluated first
    assert min(asked) == pytest.approx(-whole)
    assert "the float model scores -0.0" in said
    report = quantize(path, tmp_path / "b.onnx", feeds, seconds=0, target_judge=judge, least=-2 * whole)
    assert report.reached
    assert report.kept == ()
    assert report.outputs == plain.outputs


def test_scores_are_held_against_those_of_the_float_model(tmp_path: Path) -> None:
    path, _ = saved(short, tmp_path)
    proto = onnx.load(path)
    for score in (200.0, -200.0):
        assert Goal(proto, None, None, lambda _, score=score: score).least == score - 1
    assert Goal(proto, None, None, lambda _: 200.0, 150.0).least == 150
    assert not Goal(proto, None, None).exists
    with pytest.raises(
        ArgumentError, match=r"rejects the float model: its score is 7.0; the target is at least 8"
    ):
        Goal(proto, None, None, lambda _: 7, 8.0)
    with pytest.raises(ArgumentError, match="rejects the float model: its score is False"):
        Goal(proto, None, None, lambda _: False)


def test_a_script_judges(tmp_path: Path, software_device: vkq.Device) -> None:
    path, net = saved(short, tmp_path)
    feeds = samples(net.shape)
    quantize(path, tmp_path / "plain.onnx", feeds, seconds=0)
    most = (tmp_path / "plain.onnx").read_bytes().count(b"QuantizeLinear") - 4
    (tmp_path / "judge.py").write_text(SCRIPT.format(most=most))
    words = ["quantize", str(path), "-c", str(tmp_path / "x"), "--device", software_device.name]
    (tmp_path / "x").mkdir()
    for i, feed in enumerate(feeds):
        np.save(tmp_path / "x" / f"{i}.npy", feed["x"])
    made = tmp_path / "made.onnx"
    words += ["--seconds", "0", "--target", str(tmp_path / "judge.py"), "-o", str(made)]
    assert main(words) == 0
    assert 0 < made.read_bytes().count(b"QuantizeLinear") <= most
    assert main([*words, "--fast"]) == 2
    assert main([*words[:-4], "--least", "3"]) == 2


def test_what_a_script_says(tmp_path: Path) -> None:
    def judged(text: str) -> object:
        (tmp_path / "judge.py").write_text(text)
        return script(tmp_path / "judge.py")(tmp_path / "some.onnx")

    assert judged("import sys; print('path', sys.argv[1]); print(0.5)") == 0.5
    assert judged("print(3); print('good')") is True
    assert judged("pass") is True
    assert judged("raise SystemExit(1)") is False
    with pytest.raises(ArgumentError, match="printed 2 and ended with exit code 3"):
        judged("print(2); raise SystemExit(3)")
    with pytest.raises(ArgumentError, match=r"(?s)judge.py failed, exit code 1:.*no module"):
        judged("raise ValueError('no module')")
    with pytest.raises(ArgumentError, match="there is no such file"):
        script(tmp_path / "none.py")
    shell = tmp_path / "judge"
    shell.write_text("#!/bin/sh\necho ${1##*/}\necho 7\n")
    with pytest.raises(ArgumentError, match="cannot be run"):
        script(shell)(Path("some.onnx"))
    os.chmod(shell, 0o755)
    assert script(shell)(Path("some.onnx")) == 7
