"""Run the commands of the guides in docs/ in clean systems: ``python -m tests.guides [PAGE ...]`` (make
guides).

``page.py`` reads the commands of a page. They run in a fresh root file system (``root.py``) as one script,
which stops at the first command that fails. The output must contain the page's final result (`Guide.ends`).
Files that the page assumes (a checkout, a wheel, a picture) are copied to the start folder. ``--print`` shows
the script and runs nothing.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from . import page
from .root import DEBIAN, UBUNTU, System, check, entered, unpacked

ROOT = Path(__file__).resolve().parents[2]
DOCS, WORK = ROOT / "docs", ROOT / "build" / "guides"
EXAMPLES = "examples/models"
EQUAL = r"\d+ of \d+ equal|all \d+ equal"
BEGIN = """
cd /root/here
apt-get update -qq
PS4='$ '
set -x
"""


@dataclass(frozen=True)
class Guide:
    """A page, the system in which its commands run, the files that must exist, and the output at the end."""

    page: str
    system: System
    ends: str  # a regular expression of the final result, which the output must contain
    wheel: str = ""  # the part of the wheel's file name with Python version and processor
    given: tuple[tuple[str, str], ...] = ()  # files to copy: (name in the system, path here)
    checkout: bool = False  # True if the commands run in a checkout
    before: str = ""  # commands that the page assumes were run before

    @property
    def name(self) -> str:
        """The name of the guide's folder; it also selects the guide on the command line."""
        return f"{Path(self.page).stem}-{self.system.suite}-{self.system.processor}"


READY = """apt-get install -qq libvulkan1 mesa-vulkan-drivers python3-venv >/dev/null
python3 -m venv venv && . venv/bin/activate && pip install -q vkq-*.whl onnx onnxruntime
"""
PHOTO = """pip install -q pillow
python -c "
import numpy as np; from PIL import Image
pixels = np.load('examples/models/digits.npz')['images'].astype(np.uint8)[:63].reshape(7, 9, 8, 8) * 15
photo = Image.fromarray(pixels.transpose(0, 2, 1, 3).reshape(56, 72)); photo.save('photo.png')
import os; os.makedirs('pictures'); photo.crop((8, 8, 24, 24)).save('pictures/a.png')
photo.crop((30, 20, 50, 40)).save('pictures/b.png')"
"""
MODEL = (("model.onnx", f"{EXAMPLES}/digits.onnx"),)
DIGITS = (("digits.onnx", f"{EXAMPLES}/digits.onnx"),)
FLOATS = "tests/tflite/models/floats.tflite"
TFLITE = (("model.tflite", f"{EXAMPLES}/digits.tflite"), ("float.tflite", FLOATS))
# If a wheel is installed, Python must not import vkq from the checkout, which has no compiled extension.
SHOWN = (("examples", "examples"),)
PLAYER = (("vkq/player/native", "vkq/player/native"), ("vkq/_version.py", "vkq/_version.py"))
BOOKWORM, NOBLE = "cp311-*_x86_64.whl", "cp312-*_x86_64.whl"
GUIDES = [
    Guide("start.md", DEBIAN, EQUAL, checkout=True),
    Guide("start.md", UBUNTU, EQUAL, checkout=True),
    Guide("install.md", DEBIAN, EQUAL, BOOKWORM, checkout=True),
    Guide("install.md", UBUNTU, EQUAL, NOBLE, checkout=True),
    Guide("deploy.md", DEBIAN, "^digit 2$", BOOKWORM, (*MODEL, *SHOWN, *PLAYER), before=READY),
    Guide("from-pytorch.md", DEBIAN, "^equal to PyTorch$", BOOKWORM, before=READY),
    Guide("tflite.md", UBUNTU, "verified", NOBLE, (*TFLITE, *SHOWN), before=READY + PHOTO),
    Guide("images.md", UBUNTU, "ccoeff", NOBLE, SHOWN, before=READY + PHOTO),
    Guide("serving.md", DEBIAN, "shapes_prepared", BOOKWORM, SHOWN, before=READY),
    Guide("guides/docker.md", UBUNTU, EQUAL, NOBLE, DIGITS),
    Guide("guides/ci.md", UBUNTU, EQUAL, NOBLE, MODEL),
]
# Pages that are no guides: tests/docs runs their code and commands. The reason why their shell blocks are
# not run is in the pages.
EXPLAINED = {
    "index", "api", "benchmarks", "changelog", "commands", "devices", "exactness", "layers", "machines",
    "models", "shaders", "trust",
}  # fmt: skip


def typed(guide: Guide) -> str:
    """Return the whole script: the guide's commands before the page, then the page's commands."""
    text = (DOCS / guide.page).read_text(encoding="utf-8")
    if (base := page.base(text)) and base != guide.system.name:
        sys.exit(f"{guide.page} is FROM {base}, typed in {guide.system}")
    return BEGIN + f"{guide.before}\n" + page.script(text)


def provided(guide: Guide, folder: Path, wheels: Path) -> None:
    """Copy the files that the page assumes."""
    folder.mkdir(parents=True)
    if guide.checkout:  # copy the working tree, with uncommitted changes
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True).stdout
        names = ["tar", "c", "--ignore-failed-read", "--null", "--files-from=-"]
        packed = subprocess.run(names, cwd=ROOT, input=listed, check=True, capture_output=True).stdout
        subprocess.run(["tar", "x", "-C", folder], input=packed, check=True)
    for name, path in guide.given:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / path).is_dir() else shutil.copy
        copy(ROOT / path, folder / name)
    if guide.wheel:
        found = sorted(wheels.glob(f"vkq-*-{guide.wheel}"))
        if not found:
            sys.exit(f"{guide.name} wants {wheels}/vkq-*-{guide.wheel}: make wheels")
        for place in (folder, folder / "dist"):
            place.mkdir(exist_ok=True)
            shutil.copy(found[-1], place)


def follow(guide: Guide, wheels: Path, seconds: float) -> str | None:
    """Run a guide; return why it failed, or None."""
    print(f"\n== {guide.page}, {guide.system}", flush=True)
    root = unpacked(guide.system, WORK, guide.name)
    provided(guide, root / "root/here", wheels)
    begun, said = time.monotonic(), []
    process = entered(root, guide.system, WORK, typed(guide))
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        said.append(line)
    timer.cancel()
    status, took = process.wait(), time.monotonic() - begun
    print(f"== {guide.name}: exit code {status} after {took:.0f} s", flush=True)
    if status:
        return f"exit code {status} after {took:.0f} s"
    shutil.rmtree(root)  # only after a success: a failed guide's folder is kept for inspection
    if not re.search(guide.ends, "".join(said), re.MULTILINE):
        return f"nothing said {guide.ends!r}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="a page, or a guide of --list (default: all)")
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="what make wheels made")
    parser.add_argument("--seconds", type=float, default=3600, help="for each guide")
    parser.add_argument("--list", action="store_true", help="the guides that are followed")
    parser.add_argument("--print", action="store_true", help="what would be typed")
    options = parser.parse_args()
    chosen = [one for one in GUIDES if not options.names or {one.name, one.page} & set(options.names)]
    if not chosen:
        sys.exit(f"no guide has this name: {', '.join(one.name for one in GUIDES)}")
    if options.list or options.print:
        for guide in chosen:
            print(f"{guide.name}: {guide.page} in {guide.system}")
            print(typed(guide) if options.print else "", end="")
        return
    WORK.mkdir(parents=True, exist_ok=True)
    check({guide.system for guide in chosen})
    failed = {guide.name: why for guide in chosen if (why := follow(guide, options.wheels, options.seconds))}
    print(f"\n{len(chosen) - len(failed)} of {len(chosen)} guides end as they say")
    for name, why in failed.items():
        print(f"  {name}: {why}; its root is kept in {WORK / name}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
