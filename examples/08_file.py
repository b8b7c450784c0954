"""Export a model to one file, inspect the file, and run it with libvkq, which needs neither Python nor a
compiler.

The file contains plans for this device and for any Vulkan device. It also contains a known answer, with
which libvkq checks a plan before it uses the plan. This example runs the file from Python;
examples/c/digit.c runs it from C. Usage: 08_file.py [DEVICE]"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import vkq
import vkq.onnx

MODELS = Path(__file__).parent / "models"


def main() -> None:
    which = sys.argv[1] if len(sys.argv) > 1 else None
    with np.load(MODELS / "digits.npz") as file:
        pixels, labels = file["images"][:8], file["labels"][:8]
    images = (pixels[:, None] / 16).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.vkq"
        vkq_ = [sys.executable, "-m", "vkq"]
        chosen = ["--device", which] if which else []
        export = ["export", str(MODELS / "digits.onnx"), "-o", str(path), "--batch", "1", "8"]
        subprocess.run([*vkq_, *export, *chosen], check=True)
        with vkq.load(path, which) as model:
            print(model.explain().splitlines()[0])
            (scores,) = model.run(None, {"x": images})
            # The file also has a plan for batch size 1, which shares the weights.
            (first,) = model.run(None, {"x": images[:1]})
    print(f"digits {labels.tolist()}, found {scores.argmax(1).tolist()}")
    (want,) = vkq.onnx.InferenceSession(MODELS / "digits.onnx", which).run(None, {"x": images})
    equal = np.array_equal(scores, want) and np.array_equal(first, want[:1])
    print("the bytes of the session" if equal else "the bytes differ from the session's")
    sys.exit(not equal)


if __name__ == "__main__":
    main()
