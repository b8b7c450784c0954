"""Measure how long the first result of a model takes in a fresh process: once if the driver compiles every
pipeline, and once with the pipelines that an earlier process stored.

    python benchmarks/first_call.py MODEL.onnx [--device NAME] [--runs 3] [--profile 25] [--json FILE] [--c]

Each line gives four medians in seconds: `import vkq.onnx`; making the session (it reads the model and opens
the device); the first run (it plans, packs and uploads weights, makes pipelines, and runs one image); and
the second run. "cpu" is the processor time of the whole process in seconds. The JSON has the seconds of
every process.

NVIDIA's own disk cache is turned off. Mesa's disk cache is deleted together with the pipelines, because it
is lavapipe's only pipeline cache. The probe's reports on the driver and the device, and the compiled
SPIR-V, are always in the cache before.

With --profile, one more process without and one with stored pipelines print where Python spent the first
call. With --c, a C program (`first_call.c`) is measured, too: it opens the device, loads a file of `vkq
export` and runs it twice. Processes of C and of Python alternate. With stored pipelines, libvkq does not
run the file's known answer again.
"""

import argparse
import cProfile
import hashlib
import itertools
import json
import os
import pstats
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STEPS = ("import", "load", "first", "second", "cpu")
C_STEPS = ("open", "load", "first", "second", "cpu")


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
    return ran([sys.executable, __file__, *arguments, "--child"], folder)


def ran(command: Sequence[str | Path], folder: Path) -> str:
    (folder / "pipelines/mesa").mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "VKQ_CACHE_DIR": str(folder), "__GL_SHADER_DISK_CACHE": "0",
        "MESA_SHADER_CACHE_DIR": str(folder / "pipelines/mesa"),
    }  # fmt: skip
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def spent() -> float:
    """Return the processor seconds of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class InC:
    """The compiled C program, and the file of the model that it runs."""

    def __init__(self, model: str, device: str | None, folder: Path):
        from vkq.cli import main as vkq
        from vkq.player.load import library

        self.folder = folder
        source, native = Path(__file__).with_suffix(".c"), Path(library()._name).parent
        build = ["cc", "-std=c11", "-O1", source, "-I", Path(__file__).parents[1] / "vkq/player/native"]
        link = ["-L", native, "-lvkq", f"-Wl,-rpath,{native}", "-o", folder / "program"]
        subprocess.run([*build, *link], check=True)
        vkq(["export", model, "-o", str(folder / "model.vkq"), *(["--device", device] if device else [])])
        if device:
            os.environ["VKQ_DEVICE"] = device

    def measured(self, want: str) -> list[float]:
        names = ("program", "model.vkq", "pipelines/c.bin", "results")
        before = spent()
        said = ran([self.folder / name for name in names], self.folder)
        assert hashlib.sha256((self.folder / "results").read_bytes()).hexdigest() == want, "C differs"
        return [*map(float, said.split()), spent() - before]


def measured(
    arguments: list[str], folder: Path, cached: bool, runs: int, want: str, in_c: InC | None
) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each step in every process, in Python and in C. If stored pipelines are
    measured, one process that is not counted fills the cache first."""
    rows, of_c = [], []
    for _ in range(runs + cached):
        if not cached:
            shutil.rmtree(folder / "pipelines", ignore_errors=True)
        before = spent()
        said = json.loads(process(arguments, folder))
        assert said["result"] == want, "two processes differ"
        rows.append([*said["seconds"], spent() - before])
        if in_c and not cached:
            shutil.rmtree(folder / "pipelines", ignore_errors=True)
        if in_c:
            of_c.append(in_c.measured(want))
    found = {"": {step: [row[i] for row in rows[cached:]] for i, step in enumerate(STEPS)}}
    if in_c:
        found[" in C"] = {step: [row[i] for row in of_c[cached:]] for i, step in enumerate(C_STEPS)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("--device")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--profile", type=int, default=0, metavar="LINES")
    parser.add_argument("--json")
    parser.add_argument("--c", action="store_true", help="a C program with the model's file, too")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.model, options.device, options.profile)
    arguments = [options.model, *(["--device", options.device] if options.device else [])]
    found: dict[str, Any] = {"model": Path(options.model).name, "date": time.strftime("%Y-%m-%d")}
    with tempfile.TemporaryDirectory() as name:
        first = json.loads(process(arguments, Path(name)))
        found["device"] = first["device"]
        in_c = InC(options.model, options.device, Path(name)) if options.c else None
        for cached in (False, True):
            what = f"pipelines {'cached' if cached else 'made'}"
            want = first["result"]
            for where, rows in measured(arguments, Path(name), cached, options.runs, want, in_c).items():
                found[what + where] = rows
                medians = {step: statistics.median(seconds) for step, seconds in rows.items()}
                told = " ".join(f"{step} {s:.3f}" for step, s in medians.items())
                print(what + where, told, flush=True)
            if options.profile:
                if not cached:
                    shutil.rmtree(Path(name) / "pipelines", ignore_errors=True)
                print(process([*arguments, "--profile", str(options.profile)], Path(name)), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
