"""How long the first result of a model takes, in fresh processes: once with every pipeline to be made by the
driver, once with the pipelines of an earlier process.

    python benchmarks/first_call.py MODEL.onnx [--device NAME] [--runs 3] [--profile 25] [--json FILE]

Each line is the median in seconds of `import vkq.onnx`, of making the session (reading the model, opening the
device), of the first run (planning, packing and uploading weights, pipelines, one image) and of the second.
NVIDIA's own cache on disk is turned off; what vkq finds out about drivers and devices is known, and the
SPIR-V compiled. The JSON has the seconds of all. With --profile one more process of each kind prints
where Python spent the first call.
"""

import argparse
import cProfile
import hashlib
import itertools
import json
import os
import pstats
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS = ("import", "load", "first", "second")


def child(path: str, device: str | None, lines: int) -> None:
    profile = cProfile.Profile()
    times = [time.perf_counter()]
    import numpy as np

    import vkq.onnx

    times.append(time.perf_counter())
    if lines:
        profile.enable()
    session = vkq.onnx.InferenceSession(path, device)
    times.append(time.perf_counter())
    given = session.get_inputs()[0]
    feed = {given.name: np.zeros([1 if isinstance(d, str) else d for d in given.shape], given_type(given))}
    for _ in range(2):
        results = session.run(None, feed)
        times.append(time.perf_counter())
        profile.disable()
    said = {
        "device": f"{session.device.name}, {session.device.capabilities.driver}",
        "result": hashlib.sha256(b"".join(result.tobytes() for result in results)).hexdigest(),
        "seconds": [after - before for before, after in itertools.pairwise(times)],
    }
    print(json.dumps(said), flush=True)
    if lines:
        for order in ("cumtime", "tottime"):
            pstats.Stats(profile).sort_stats(order).print_stats(lines)


def given_type(given: Any) -> str:
    name = given.type.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32"}.get(name, name)


def process(arguments: list[str], folder: Path) -> str:
    environment = os.environ | {"VKQ_CACHE_DIR": str(folder), "__GL_SHADER_DISK_CACHE": "0"}
    command = [sys.executable, __file__, *arguments, "--child"]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def measured(
    arguments: list[str], folder: Path, cached: bool, runs: int, want: str
) -> dict[str, list[float]]:
    """The seconds of each step in every process."""
    rows = []
    for _ in range(runs):
        if not cached:
            shutil.rmtree(folder / "pipelines", ignore_errors=True)
        said = json.loads(process(arguments, folder))
        assert said["result"] == want, "two processes differ"
        rows.append(said["seconds"])
    return {step: [row[i] for row in rows] for i, step in enumerate(STEPS)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("--device")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--profile", type=int, default=0, metavar="LINES")
    parser.add_argument("--json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.model, options.device, options.profile)
    arguments = [options.model, *(["--device", options.device] if options.device else [])]
    found: dict[str, Any] = {"model": Path(options.model).name, "date": time.strftime("%Y-%m-%d")}
    with tempfile.TemporaryDirectory() as name:
        first = json.loads(process(arguments, Path(name)))
        found["device"] = first["device"]
        for cached in (False, True):
            what = f"pipelines {'cached' if cached else 'made'}"
            found[what] = measured(arguments, Path(name), cached, options.runs, first["result"])
            medians = {step: statistics.median(seconds) for step, seconds in found[what].items()}
            print(what, " ".join(f"{step} {s:.3f}" for step, s in medians.items()), flush=True)
            if options.profile:
                if not cached:
                    shutil.rmtree(Path(name) / "pipelines", ignore_errors=True)
                print(process([*arguments, "--profile", str(options.profile)], Path(name)), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
