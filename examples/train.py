"""Train the models of the examples. This was done once; the examples themselves train nothing.

    pip install torch scikit-learn 'vkq[onnx]' onnxruntime scikit-image
    python examples/train.py

digits     recognizes scikit-learn's handwritten digits (8 x 8 pixels); a quarter of them is kept for the
           example, and is not used for training.
denoise    a fully convolutional network that removes the noise of a photograph of any size.

A model is trained in PyTorch, written as a float ONNX model with open sizes, and quantized to int8 by
`vkq.onnx.quantize`, which calls onnxruntime.quantization."""

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from skimage import data
from sklearn.datasets import load_digits

from vkq.onnx.quantize import quantize

MODELS = Path(__file__).parent / "models"
NOISE = 0.1


def train(layers: torch.nn.Module, loss_of, steps: int, rate: float = 3e-3) -> None:  # type: ignore[no-untyped-def]
    """Train with AdamW and a cosine schedule."""
    optimizer = torch.optim.AdamW(layers.parameters(), rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 500 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


def write(layers: torch.nn.Sequential, shape: list[int | str], path: Path) -> None:
    """Write a network of Conv2d, ReLU, mean over pixels, Flatten and Linear as an ONNX model."""
    nodes, weights, x = [], [], "x"

    def constant(tensor: torch.Tensor, name: str) -> str:
        weights.append(numpy_helper.from_array(tensor.detach().numpy().astype(np.float32), name))
        return name

    for i, layer in enumerate(layers):
        y = f"y{i}"
        if isinstance(layer, torch.nn.Conv2d):
            inputs = [x, constant(layer.weight, f"w{i}"), constant(layer.bias, f"b{i}")]
            pads = [layer.padding[0]] * 4
            nodes.append(helper.make_node("Conv", inputs, [y], pads=pads, strides=list(layer.stride)))
        elif isinstance(layer, torch.nn.ReLU):
            nodes.append(helper.make_node("Relu", [x], [y]))
        elif isinstance(layer, torch.nn.AdaptiveAvgPool2d):
            nodes.append(helper.make_node("GlobalAveragePool", [x], [y]))
        elif isinstance(layer, torch.nn.Flatten):
            nodes.append(helper.make_node("Flatten", [x], [y]))
        else:
            inputs = [x, constant(layer.weight, f"w{i}"), constant(layer.bias, f"b{i}")]
            nodes.append(helper.make_node("Gemm", inputs, [y], transB=1))
        x = y
    nodes[-1].output[0] = "y"
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    result = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph(nodes, path.stem.split(".")[0], [info], [result], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)


def digits() -> None:
    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    test, rest = order[: len(order) // 4], order[len(order) // 4 :]
    x, y = torch.from_numpy(images[rest]), torch.from_numpy(labels[rest])
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 24, 3, 2, padding=1),
        torch.nn.ReLU(), torch.nn.Conv2d(24, 32, 3, padding=1), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10),
    )  # fmt: skip

    def loss_of() -> torch.Tensor:
        chosen = torch.randint(len(x), (64,))
        shifts = tuple(torch.randint(-1, 2, (2,)).tolist())
        moved = torch.roll(x[chosen], shifts, (2, 3))
        return torch.nn.functional.cross_entropy(layers(moved), y[chosen], label_smoothing=0.05)

    train(layers, loss_of, 2000)
    path = MODELS / "digits.float.onnx"
    write(layers, ["N", 1, 8, 8], path)
    samples = [{"x": images[rest[i : i + 50]]} for i in range(0, 500, 50)]
    quantize(path, MODELS / "digits.onnx", samples)
    pixels = (images[test, 0] * 16).astype(np.uint8)
    np.savez_compressed(MODELS / "digits.npz", images=pixels, labels=labels[test].astype(np.uint8))


def denoise() -> None:
    pictures = [getattr(data, name)()[..., :3] for name in ("astronaut", "chelsea", "rocket")]
    photos = [torch.from_numpy(p.astype(np.float32) / 255).permute(2, 0, 1) for p in pictures]
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 5, padding=2), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3, padding=1),
        torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(16, 3, 3, padding=1),
    )  # fmt: skip

    def patches(count: int = 8, size: int = 40) -> torch.Tensor:
        found = []
        for _ in range(count):
            photo = photos[int(torch.randint(len(photos), ()))]
            top, left = (int(torch.randint(d - size, ())) for d in photo.shape[1:])
            found.append(photo[:, top : top + size, left : left + size])
        return torch.stack(found)

    def loss_of() -> torch.Tensor:
        clean = patches()
        return torch.nn.functional.mse_loss(layers(clean + NOISE * torch.randn_like(clean)), clean)

    train(layers, loss_of, 800)
    path = MODELS / "denoise.float.onnx"
    write(layers, ["N", 3, "H", "W"], path)
    noisy = [(p + NOISE * torch.randn_like(p)).numpy() for p in patches(32)]
    quantize(path, MODELS / "denoise.onnx", [{"x": p[None].astype(np.float32)} for p in noisy])
    path.unlink()  # delete the float model; the quantized model stays


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    MODELS.mkdir(exist_ok=True)
    digits()
    denoise()
    for file in sorted(MODELS.iterdir()):
        print(f"{file.name}: {file.stat().st_size} bytes")
