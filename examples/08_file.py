"""A model as one file: exported, inspected and played by libvkq, which needs neither Python nor a compiler.

The file holds plans for the device at hand and for any Vulkan device, and a known answer that each plan must
give before it is used. Python plays it here, examples/c/digit.c in C. Usage: 08_file.py [DEVICE]
"""

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
            (first,) = model.run(None, {"x": images[:1]})  # another batch of the file, with the same weights
    print(f"digits {labels.tolist()}, found {scores.argmax(1).tolist()}")
    (want,) = vkq.onnx.InferenceSession(MODELS / "digits.onnx", which).run(None, {"x": images})
    equal = np.array_equal(scores, want) and np.array_equal(first, want[:1])
    print("the bytes of the session" if equal else "the bytes differ from the session's")
    sys.exit(not equal)


if __name__ == "__main__":
    main()
