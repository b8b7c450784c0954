"""Small PyTorch networks, one of each kind, for `tests.tflite.torched`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def normal(i: int, o: int, kernel: int = 3, stride: int = 1, act: type[nn.Module] = nn.ReLU, **options):
    padding = options.pop("padding", options.get("dilation", 1) * (kernel // 2))
    conv = nn.Conv2d(i, o, kernel, stride, padding, bias=False, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(o), act())


class Residual(nn.Module):
    def __init__(self, i: int, o: int, stride: int = 1):
        super().__init__()
        self.body = nn.Sequential(normal(i, o, 3, stride), normal(o, o, act=nn.Identity))
        self.short = nn.Identity() if stride == 1 else normal(i, o, 1, stride, nn.Identity)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


class Head(nn.Module):
    def __init__(self, body: nn.Module, channels: int, count: int = 7):
        super().__init__()
        self.body, self.last = body, nn.Linear(channels, count)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x).mean((2, 3)))


def resnet() -> nn.Module:
    body = nn.Sequential(normal(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1), Residual(8, 8), Residual(8, 12, 2))
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 10), nn.Softmax(-1))


class Inverted(nn.Module):
    """An inverted residual block, with an optional squeeze-and-excite gate."""

    def __init__(self, i: int, o: int, kernel: int, stride: int, act: type[nn.Module], gate=None):
        super().__init__()
        wide = 3 * i
        self.one = normal(i, wide, 1, act=act)
        self.two = normal(wide, wide, kernel, stride, act, groups=wide)
        self.gate = gate and nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 8, 1), act(), nn.Conv2d(8, wide, 1), gate()
        )
        self.three = normal(wide, o, 1, act=nn.Identity)
        self.same = i == o and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.two(self.one(x))
        y = self.three(y * self.gate(y) if self.gate else y)
        return x + y if self.same else y


def mobile2() -> nn.Module:
    rows = [Inverted(8, 8, 3, 1, nn.ReLU6), Inverted(8, 12, 3, 2, nn.ReLU6)]
    return Head(nn.Sequential(normal(3, 8, 3, 2, nn.ReLU6), *rows), 12)


def mobile3() -> nn.Module:
    rows = [Inverted(8, 8, 5, 1, nn.Hardswish, nn.Hardsigmoid), Inverted(8, 12, 3, 2, nn.Hardswish)]
    return Head(nn.Sequential(normal(3, 8, 3, 2, nn.Hardswish), *rows), 12)


def efficient() -> nn.Module:
    rows = [Inverted(8, 8, 3, 1, nn.SiLU, nn.Sigmoid), Inverted(8, 12, 5, 2, nn.SiLU, nn.Sigmoid)]
    return Head(nn.Sequential(normal(3, 8, 3, 2, nn.SiLU), *rows), 12)


class UNet(nn.Module):
    def __init__(self, learned: bool):
        super().__init__()
        self.one, self.two, self.three = normal(3, 6), normal(6, 8), normal(8, 12)
        self.up = nn.ConvTranspose2d(12, 8, 2, 2) if learned else nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(12, 8, 1)
        )  # fmt: skip
        self.last = nn.Sequential(normal(16, 8), nn.ConvTranspose2d(8, 6, 2, 2))
        self.end = nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.one(x)
        b = self.two(F.max_pool2d(a, 2))
        c = self.up(self.three(F.max_pool2d(b, 2)))
        return torch.sigmoid(self.end(torch.cat([self.last(torch.cat([c, b], 1)), a], 1)))


class Atrous(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(normal(3, 8, 3, 2), normal(8, 12, 3, 2))
        self.parts = nn.ModuleList([normal(12, 8, 1), normal(12, 8, dilation=2), normal(12, 8, dilation=4)])
        self.mean, self.end = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(12, 8, 1)), normal(32, 5, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.stem(x)
        mean = F.interpolate(self.mean(y), size=y.shape[2:], mode="bilinear", align_corners=False)
        y = self.end(torch.cat([*(part(y) for part in self.parts), mean], 1))
        y = F.interpolate(y, size=x.shape[2:], mode="bilinear", align_corners=False)
        return y, y.argmax(1)


class Encoder(nn.Module):
    """A BERT: word and position embeddings, attention of two heads, and a classifier of the first token."""

    def __init__(self, width: int = 16, tokens: int = 10):
        super().__init__()
        self.words, self.places = nn.Embedding(64, width), nn.Parameter(torch.randn(tokens, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.end = nn.Linear(width, 5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norms[0](self.words(ids) + self.places)
        return self.end(torch.tanh(self.rest(x)[:, 0]))

    def rest(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        q, k, v = (y.reshape(n, tokens, 2, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, width)
        x = self.norms[1](x + self.out(y))
        return self.norms[2](x + self.narrow(F.gelu(self.wide(x))))


class ViT(Encoder):
    def __init__(self):
        super().__init__(16, 16)
        self.patches = nn.Conv2d(3, 16, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.rest(self.patches(x).flatten(2).transpose(1, 2) + self.places).mean(1))


def keywords() -> nn.Module:
    one = [normal(8, 8, groups=8), normal(8, 8, 1)]
    return Head(nn.Sequential(normal(1, 8, (10), 2, padding=(4)), *one, nn.Dropout(0.2)), 8, 12)


class Waves(nn.Module):
    """WaveNet's layers: 1-D convolutions with growing dilation, and gates of tanh and sigmoid."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(4, 8, 3, padding=1)
        self.pairs = nn.ModuleList(nn.Conv1d(8, 16, 3, padding=d, dilation=d) for d in (1, 2, 4))
        self.last = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.first(x), 0.1)
        for pair in self.pairs:
            a, b = pair(x).chunk(2, 1)
            x = x + torch.tanh(a) * torch.sigmoid(b)
        return self.last(F.adaptive_avg_pool1d(x, 1).flatten(1))


class Boxes(nn.Module):
    """SSD's heads: boxes and scores at two scales, concatenated."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Sequential(normal(3, 8, 3, 2), normal(8, 12, 3, 2)), normal(12, 12, 3, 2)
        self.boxes = nn.ModuleList(nn.Conv2d(12, 8, 3, padding=1) for _ in range(2))
        self.scores = nn.ModuleList(nn.Conv2d(12, 6, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = self.one(x)
        maps = (a, self.two(a))
        rows = [
            torch.cat(
                [h(m).permute(0, 2, 3, 1).reshape(len(x), -1, n) for h, m in zip(heads, maps, strict=True)], 1
            )
            for heads, n in ((self.boxes, 4), (self.scores, 3))
        ]
        return rows[0], rows[1].softmax(-1)


class Yolo(nn.Module):
    """The parts of a YOLO network: split channels, parallel pools, a nearest resize, and distances that are
    the expectation of a softmax over bins."""

    def __init__(self):
        super().__init__()
        self.stem, self.deep = normal(3, 8, 3, 2, nn.SiLU), normal(8, 16, 3, 2, nn.SiLU)
        self.mid, self.join = normal(8, 8, act=nn.SiLU), normal(24, 16, 1, act=nn.SiLU)
        self.pool, self.head = normal(48, 8, 1, act=nn.SiLU), nn.Conv2d(16, 16, 1)
        self.bins = nn.Parameter(torch.arange(4.0), False)

    def forward(self, x: Tensor) -> Tensor:
        a = self.stem(x)
        one, two = self.deep(a).chunk(2, 1)
        y = self.join(torch.cat([one, two, two + self.mid(two)], 1))
        pools = [y]
        for _ in range(2):
            pools.append(F.max_pool2d(pools[-1], 5, 1, 2))
        y = F.interpolate(self.pool(torch.cat(pools, 1)), scale_factor=2, mode="nearest")
        y = self.head(torch.cat([y, a], 1)).flatten(2)
        return (y.reshape(len(x), 4, 4, -1).softmax(2) * self.bins.view(1, 1, 4, 1)).sum(2)


class ConvNext(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.deep = nn.Conv2d(3, 12, 4, 4), nn.Conv2d(12, 12, 7, padding=3, groups=12)
        self.norm, self.wide, self.narrow = nn.LayerNorm(12), nn.Linear(12, 24), nn.Linear(24, 12)
        self.scale, self.end = nn.Parameter(torch.rand(12)), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        y = self.narrow(F.gelu(self.wide(y))).permute(0, 3, 1, 2)
        return self.end((x + y * self.scale[:, None, None]).mean((2, 3)))


class Shuffle(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.deep = normal(3, 12, 3, 2), nn.Sequential(
            normal(6, 6, 1), normal(6, 6, groups=6, act=nn.Identity), normal(6, 6, 1)
        )  # fmt: skip
        self.end = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(2):
            a, b = x.chunk(2, 1)
            x = torch.cat([a, self.deep(b)], 1)
            n, c, h, w = x.shape
            x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.end(x.mean((2, 3)))


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = normal(3, 8)
        self.rows = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(), normal(c, 8, 1), nn.Conv2d(8, 4, 3, padding=1))
            for c in (8, 12, 16)
        )
        self.end = nn.Sequential(nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(20, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for row in self.rows:
            x = torch.cat([x, row(x)], 1)
        return self.end(x)


def larger() -> nn.Module:
    """Return a super-resolution network, which enlarges an image three times by PixelShuffle."""
    rows = [nn.Conv2d(1, 8, 5, padding=2), nn.Tanh(), nn.Conv2d(8, 8, 3, padding=1), nn.PReLU(8)]
    return nn.Sequential(*rows, nn.Conv2d(8, 9, 3, padding=1), nn.PixelShuffle(3))


def style() -> nn.Module:
    """Return a network with reflection padding, instance and group normalization, and ELU."""
    rows = [nn.ReflectionPad2d(2), nn.Conv2d(3, 8, 5), nn.InstanceNorm2d(8, affine=True), nn.ELU()]
    more = [nn.Conv2d(8, 8, 3, 2, 1), nn.GroupNorm(4, 8), nn.LeakyReLU(0.2), nn.Upsample(scale_factor=2)]
    return nn.Sequential(*rows, *more, nn.ReplicationPad2d(1), nn.Conv2d(8, 3, 3), nn.Tanh())


class Decoder(nn.Module):
    """A language model's layer: RMS normalization, rotary embeddings, a causal mask, and SiLU gates."""

    def __init__(self, width: int = 16, tokens: int = 8):
        super().__init__()
        self.words, self.qkv, self.out = nn.Embedding(64, width), nn.Linear(width, 48), nn.Linear(width, 16)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.gate, self.up, self.down = (
            nn.Linear(a, b, bias=False) for a, b in ((16, 32), (16, 32), (32, 16))
        )
        angle = torch.outer(torch.arange(tokens), 1e4 ** -(torch.arange(4) / 4)).repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        self.register_buffer("mask", torch.full((tokens, tokens), -100.0).triu(1))

    def turned(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        n, tokens, width = x.shape
        q, k, v = (y.view(n, tokens, 2, -1).transpose(1, 2) for y in self.qkv(self.norms[0](x)).chunk(3, -1))
        scores = self.turned(q) @ self.turned(k).transpose(-1, -2) / 8**0.5 + self.mask
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, tokens, width))
        y = self.norms[1](x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return x @ self.words.weight.T


class Attended(nn.Module):
    """Two gates (CBAM): one scales channels, from the mean and maximum over pixels; the other scales pixels,
    from the mean and maximum over channels."""

    def __init__(self):
        super().__init__()
        self.stem, self.end = normal(3, 8, 3, 2), nn.Linear(8, 4)
        self.gate, self.place = (
            nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8)),
            nn.Conv2d(2, 1, 7, padding=3),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        gate = torch.sigmoid(self.gate(x.mean((2, 3))) + self.gate(x.amax((2, 3))))
        x = x * gate[:, :, None, None]
        both = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return self.end((x * torch.sigmoid(self.place(both))).mean((2, 3)))


class Points(nn.Module):
    """A point cloud network: linear layers for each point, and the maximum over all points."""

    def __init__(self):
        super().__init__()
        self.one, self.two = (
            nn.Sequential(nn.Linear(3, 16), nn.ReLU()),
            nn.Sequential(nn.Linear(16, 24), nn.ReLU()),
        )
        self.end = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.two(self.one(x)).amax(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.end = nn.GRUCell(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 8)
        for step in x.unbind(1):
            h = self.cell(step, h)
        return self.end(h)


PHOTO, IDS = (1, 3, 32, 32), (1, 10)
NETWORKS = {
    "resnet": (resnet, PHOTO), "mobile2": (mobile2, PHOTO), "mobile3": (mobile3, PHOTO),
    "efficient": (efficient, PHOTO), "unet": (lambda: UNet(True), PHOTO),
    "unet_bilinear": (lambda: UNet(False), PHOTO), "atrous": (Atrous, PHOTO), "bert": (Encoder, IDS),
    "vit": (ViT, (1, 3, 16, 16)), "keywords": (keywords, (1, 1, 49, 10)), "waves": (Waves, (1, 4, 40)),
    "boxes": (Boxes, PHOTO), "yolo": (Yolo, PHOTO), "convnext": (ConvNext, PHOTO),
    "shuffle": (Shuffle, PHOTO), "dense": (Dense, PHOTO), "larger": (larger, (1, 1, 12, 14)),
    "style": (style, PHOTO), "decoder": (Decoder, (1, 8)), "attended": (Attended, PHOTO),
    "points": (Points, (1, 20, 3)), "recurrent": (Recurrent, (1, 5, 6)),
}  # fmt: skip
