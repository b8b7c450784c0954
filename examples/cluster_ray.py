"""The work of 05_cluster.py with Ray: `map_batches` with a class, and one actor for each device.

Ray gives each actor a GPU number in CUDA_VISIBLE_DEVICES. Vulkan does not read this variable, so the actor
writes the number to VKQ_DEVICE before it opens the session. Needs `pip install "ray[data]"`. Usage:
cluster_ray.py"""

import os
from pathlib import Path

import numpy as np
import ray

import vkq.onnx

MODEL = Path(__file__).resolve().parent / "models" / "denoise.onnx"


class Denoise:
    """The actor: it opens the model once, then denoises batches."""

    def __init__(self, model: bytes):
        gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        if gpus:
            os.environ["VKQ_DEVICE"] = str(gpus[0])
        self.session = vkq.onnx.InferenceSession(model)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"y": self.session.run(None, {"x": batch["data"]})[0]}


def main() -> None:
    pictures = np.random.default_rng(0).random((24, 3, 64, 64), np.float32)
    gpus = int(ray.cluster_resources().get("GPU", 0)) if ray.is_initialized() or ray.init() else 0
    cleaned = ray.data.from_numpy(pictures).map_batches(
        Denoise,
        fn_constructor_args=(MODEL.read_bytes(),),
        batch_size=8,
        concurrency=gpus or 2,
        num_gpus=1 if gpus else 0,
    )
    y = np.stack([row["y"] for row in cleaned.take_all()])
    (want,) = vkq.onnx.InferenceSession(MODEL).run(None, {"x": pictures})
    print(f"{int((y == want).sum())} of {want.size} values are equal to one process'")


if __name__ == "__main__":
    main()
