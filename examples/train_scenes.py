"""Train the networks on which the accuracy of quantization is measured. This was done once.

    pip install torch scikit-learn scikit-image onnx
    python examples/train_scenes.py [segment] [detect] [classify]

segment    MobileNetV3-like (hardswish, squeeze-and-excite): each pixel is photograph, digit or disc
detect     YOLO-like (SiLU, C2f, SPPF, a Concat of boxes and scores): boxes of bright and of dark digits
classify   EfficientNet-like (SiLU, squeeze-and-excite): the value of a digit

The scenes show digits of scikit-learn on photographs of scikit-image (scenes.py). Training does not use the
digits in models/digits.npz. Each network takes less than three minutes on two cores."""

import sys
import time

import numpy as np
import torch
from scenes import CLASSES, MODELS, Scene, Scenes, images_of
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from train import train

KINDS = 2  # number of the detector's classes: dark and bright digits
STRIDE, CELLS = 8, 6  # pixels per cell of the detector, and cells per row
# A cell must find a digit if the cell's middle is less than this many pixels from the digit's centre. A
# digit's centre is at most 5.7 pixels from the nearest middle (at a cell's corner), so at least one cell must
# find each digit. A digit centred on the edge between two cells must be found by both.
NEAR = 6.4


class Squeeze(nn.Module):
    """Squeeze-and-excite: multiply each channel by a gate, computed from the means of all channels."""

    def __init__(self, channels: int, gate: type[nn.Module], inner: type[nn.Module]):
        super().__init__()
        few = max(channels // 4, 4)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, few, 1), inner(), nn.Conv2d(few, channels, 1), gate()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


def block(
    inputs: int, outputs: int, act: type[nn.Module], k: int = 3, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Return the layers of a block: a convolution, a BatchNorm and an activation."""
    conv = nn.Conv2d(inputs, outputs, k, stride, k // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), act())


class Bottleneck(nn.Module):
    """MobileNet's block: a 1x1 convolution to more channels, a depthwise convolution, squeeze-and-excite,
    and a 1x1 convolution to fewer channels."""

    def __init__(
        self, inputs: int, wide: int, outputs: int, act: type[nn.Module], k: int = 3, stride: int = 1,
        gate: type[nn.Module] | None = None,
    ):  # fmt: skip
        super().__init__()
        self.adds = stride == 1 and inputs == outputs
        inner = nn.ReLU if gate is nn.Hardsigmoid else act
        self.layers = nn.Sequential(
            block(inputs, wide, act, 1),
            block(wide, wide, act, k, stride, groups=wide),
            Squeeze(wide, gate, inner) if gate else nn.Identity(),
            block(wide, outputs, nn.Identity, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.adds else y


class Segmenter(nn.Module):
    """MobileNetV3 with a light head of two scales. It maps (N, 3, 48, 48) to the scores of three classes."""

    def __init__(self) -> None:
        super().__init__()
        swish, gate = nn.Hardswish, nn.Hardsigmoid
        self.stem = block(3, 12, swish, stride=2)
        self.body = nn.Sequential(
            Bottleneck(12, 24, 16, nn.ReLU, stride=2, gate=gate),
            Bottleneck(16, 40, 20, swish, 5, gate=gate),
            Bottleneck(20, 48, 20, swish, 5, gate=gate),
            block(20, 20, swish, 1),
        )
        self.join = block(32, 14, swish)
        self.last = nn.Conv2d(14, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.stem(x)
        coarse = F.interpolate(self.body(fine), scale_factor=2.0, mode="bilinear")
        y = self.last(self.join(torch.cat([coarse, fine], 1)))
        return F.interpolate(y, scale_factor=2.0, mode="bilinear")


class C2f(nn.Module):
    """YOLOv8's C2f block: half of the channels pass through two convolutions with a residual sum; all
    results are concatenated."""

    def __init__(self, channels: int):
        super().__init__()
        self.half = half = channels // 2
        self.first, self.last = block(channels, channels, nn.SiLU, 1), block(3 * half, channels, nn.SiLU, 1)
        self.pair = nn.Sequential(block(half, half, nn.SiLU), block(half, half, nn.SiLU))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        a, b = y[:, : self.half], y[:, self.half :]
        found: Tensor = self.last(torch.cat([a, b, b + self.pair(b)], 1))
        return found


class Detector(nn.Module):
    """YOLOv8 with one scale. It maps (N, 3, 48, 48) to (N, 4 + classes, cells): centre, width and height in
    pixels, and a score from 0 to 1 for each class."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.SiLU
        self.body = nn.Sequential(
            block(3, 8, act, stride=2), block(8, 12, act, stride=2), C2f(12), block(12, 20, act, stride=2),
            C2f(20),
        )  # fmt: skip
        self.narrow, self.wide = block(20, 10, act, 1), block(40, 20, act, 1)
        self.boxes = nn.Sequential(block(20, 12, act), nn.Conv2d(12, 4, 1))
        self.scores = nn.Sequential(block(20, 16, act), nn.Conv2d(16, KINDS, 1))
        nn.init.constant_(self.scores[1].bias, -3.0)
        y, x = torch.meshgrid(torch.arange(float(CELLS)), torch.arange(float(CELLS)), indexing="ij")
        self.register_buffer("cells", torch.stack([x, y])[None] + 0.5)

    def raw(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = [self.narrow(self.body(x))]
        for _ in range(3):
            a.append(F.max_pool2d(a[-1], 5, 1, 2))
        y = self.wide(torch.cat(a, 1))
        return self.boxes(y).sigmoid(), self.scores(y)

    def forward(self, x: Tensor) -> Tensor:
        boxes, scores = self.raw(x)
        centre = (self.cells + (boxes[:, :2] * 2 - 1)) * STRIDE
        size = boxes[:, 2:] * (CELLS * STRIDE)
        return torch.cat([torch.cat([centre, size], 1).flatten(2), scores.sigmoid().flatten(2)], 1)


class Classifier(nn.Module):
    """EfficientNet. It maps (N, 3, 24, 24) to ten scores."""

    def __init__(self) -> None:
        super().__init__()
        act, gate = nn.SiLU, nn.Sigmoid
        self.layers = nn.Sequential(
            block(3, 12, act, stride=2),
            Bottleneck(12, 24, 12, act, gate=gate),
            Bottleneck(12, 48, 16, act, 5, stride=2, gate=gate),
            Bottleneck(16, 56, 16, act, gate=gate),
            block(16, 48, act, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, CLASSES),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


def scenes_of(size: int, count: int, most: int, sides: tuple[int, int]) -> list[Scene]:
    """Return *count* scenes with the digits that training may use."""
    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8) / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))  # the permutation of train.py
    rest = order[len(order) // 4 :]
    return Scenes((images[rest], labels[rest]), size, 0, most, sides).batch(count)


def detector_loss(net: Detector, x: Tensor, wanted: Tensor) -> Tensor:
    """Return the detector's loss. *wanted* (N, 5, cells, cells) has the box and the class + 1 of the digit
    that each cell must find; 0 means that the cell must find none."""
    boxes, scores = net.raw(x)
    kind = wanted[:, 4].long()
    there = kind > 0
    target = F.one_hot(kind, KINDS + 1)[..., 1:].permute(0, 3, 1, 2).float()
    loss = F.binary_cross_entropy_with_logits(scores, target, reduction="sum") / there.sum()
    off = F.smooth_l1_loss(boxes, wanted[:, :4], reduction="none", beta=0.02).sum(1)
    return loss + 10 * (off * there).sum() / there.sum()


def cells_of(scenes: list[Scene]) -> np.ndarray:
    """Return the wanted output of each cell of the detector, as `detector_loss` takes it."""
    wanted = np.zeros((len(scenes), 5, CELLS, CELLS), np.float32)
    middles = (np.arange(CELLS) + 0.5) * STRIDE
    for i, scene in enumerate(scenes):
        for (x, y, w, h), kind in zip(scene.boxes, scene.bright, strict=True):
            for row, column in np.argwhere(np.hypot(middles[:, None] - y, middles - x) < NEAR):
                inside = [((x - middles[column]) / STRIDE + 1) / 2, ((y - middles[row]) / STRIDE + 1) / 2]
                wanted[i, :, row, column] = [*inside, w / (CELLS * STRIDE), h / (CELLS * STRIDE), kind + 1]
    return wanted


def network(what: str) -> tuple[nn.Module, np.ndarray, np.ndarray, int]:
    """Return (the network, its inputs, the wanted outputs, the number of training steps)."""
    if what == "segment":
        scenes = scenes_of(48, 2500, 3, (14, 24))
        return Segmenter(), images_of(scenes), np.stack([s.ink for s in scenes]), 190
    if what == "detect":
        scenes = scenes_of(48, 12000, 2, (16, 26))
        return Detector(), images_of(scenes), cells_of(scenes), 2500
    scenes = scenes_of(24, 24000, 1, (16, 23))
    return Classifier(), images_of(scenes), np.array([s.labels[0] for s in scenes]), 2500


def make(what: str, batch: int = 32) -> None:
    """Train a network and write it, with folded BatchNorm and an open batch size."""
    net, images, wanted, steps = network(what)
    x, y = torch.from_numpy(images), torch.from_numpy(wanted)

    def loss_of() -> Tensor:
        chosen = torch.randint(len(x), (batch,))
        if isinstance(net, Detector):
            return detector_loss(net, x[chosen], y[chosen])
        return F.cross_entropy(net(x[chosen]), y[chosen])

    train(net, loss_of, steps, rate=8e-3)
    net.eval()
    path = MODELS / f"{what}.float.onnx"
    names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "N"}, "y": {0: "N"}}}
    torch.onnx.export(net, (x[:2],), str(path), opset_version=17, dynamo=False, **names)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in sys.argv[1:] or ["segment", "detect", "classify"]:
        torch.manual_seed(0)
        begun = time.monotonic()
        make(each)
        file = MODELS / f"{each}.float.onnx"
        print(f"{file.name}: {file.stat().st_size} bytes, {time.monotonic() - begun:.0f} s", flush=True)
