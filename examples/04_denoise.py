"""A fully convolutional ONNX model removes the noise of a photograph of any size.

The model (11 KB, trained once by train.py) has open sizes. vkq prepares each size at its first use, and all
sizes share the weights. Usage: 04_denoise.py [DEVICE]. Writes out/noisy.png and out/denoised.png."""

import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image
from skimage import data

import vkq.onnx

HERE = Path(__file__).parent
NOISE = 0.1


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio of two pictures in [0, 1], in dB."""
    return float(-10 * np.log10(np.square(a - b).mean()))


def save(picture: np.ndarray, name: str) -> None:
    (HERE / "out").mkdir(exist_ok=True)
    pixels = (picture[0].transpose(1, 2, 0).clip(0, 1) * 255).astype(np.uint8)
    Image.fromarray(pixels).save(HERE / "out" / name)


def main() -> None:
    # this photograph was not used for training
    photo = (data.coffee().transpose(2, 0, 1)[None] / 255).astype(np.float32)
    noisy = photo + NOISE * np.random.default_rng(0).normal(size=photo.shape).astype(np.float32)

    path = HERE / "models" / "denoise.onnx"
    session = vkq.onnx.InferenceSession(path, sys.argv[1] if len(sys.argv) > 1 else None)
    (clean,) = session.run(None, {"x": noisy})
    start = time.perf_counter()
    session.run(None, {"x": noisy})
    took = 1e3 * (time.perf_counter() - start)

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    reference = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    sizes = [noisy, noisy[:, :, :97, :211]]  # the second size is prepared at its first call
    for x in sizes:
        (got,), (want,) = session.run(None, {"x": x}), reference.run(None, {"x": x})
        print(
            f"{x.shape[3]} x {x.shape[2]}: {int((got == want).sum())} of {want.size} values equal to"
            " ONNX Runtime's"
        )
        if not np.array_equal(got, want):
            sys.exit("the picture differs from ONNX Runtime's")
    print(
        f"{session.device.name}: {took:.1f} ms; {psnr(noisy, photo):.1f} dB before,"
        f" {psnr(clean, photo):.1f} dB after"
    )
    save(noisy, "noisy.png")
    save(clean, "denoised.png")


if __name__ == "__main__":
    main()
