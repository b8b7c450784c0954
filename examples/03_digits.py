"""A quantized ONNX model classifies handwritten digits with three lines of vkq.

train.py trained the model once, with other digits. The example compares the scores with ONNX Runtime's byte
for byte, and the accuracy with the float model's. Usage: 03_digits.py [DEVICE]
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime

import vkq.onnx

MODELS = Path(__file__).parent / "models"
BATCH = 32


def onnxruntime_scores(model: str, images: np.ndarray) -> np.ndarray:
    """Return the scores of ONNX Runtime on the CPU, with int8 activations computed in integers."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    session = onnxruntime.InferenceSession(MODELS / model, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": images})[0]


def drawn(image: np.ndarray) -> list[str]:
    """Return a digit as a drawing of characters."""
    return ["".join(" .:+#@"[int(v) * 5 // 16] * 2 for v in row) for row in image]


def main() -> None:
    with np.load(MODELS / "digits.npz") as file:
        pixels, labels = file["images"], file["labels"]
    images = (pixels[:, None] / 16).astype(np.float32)

    session = vkq.onnx.InferenceSession(MODELS / "digits.onnx", sys.argv[1] if len(sys.argv) > 1 else None)
    scores = np.stack(list(session.map(images, batch=BATCH)))

    found = scores.argmax(1)
    for rows in zip(*(drawn(pixel) for pixel in pixels[:4]), strict=True):
        print("   ".join(rows))
    print("   ".join(f"{f'-> {digit}':16}" for digit in found[:4]))
    want, real = (onnxruntime_scores(name, images) for name in ("digits.onnx", "digits.float.onnx"))
    print(
        f"{session.device.name}: {int((scores == want).sum())} of {want.size} scores equal to ONNX Runtime's"
    )
    print(f"accuracy on {len(labels)} unseen digits: {(found == labels).mean():.1%} in int8, ", end="")
    print(f"{(real.argmax(1) == labels).mean():.1%} in float32")
    if not np.array_equal(scores, want):
        sys.exit("the scores differ from ONNX Runtime's")


if __name__ == "__main__":
    main()
