"""Make pictures of digits and discs on photographs, to train (train_scenes.py) and to measure accuracy.

from scenes import Scenes, kept_digits
scenes = Scenes(kept_digits(), size=48, seed=1).batch(16)
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from skimage import data

MODELS = Path(__file__).parent / "models"
PICTURES = ("astronaut", "chelsea", "rocket", "coffee", "grass", "gravel")
CLASSES = 10
INK, DISC = 1, 2  # classes of pixels; class 0 is the photograph

Digits = tuple[np.ndarray, np.ndarray]  # (images (count, 8, 8) from 0 to 1, the digit in each image)


def kept_digits() -> Digits:
    """Return the quarter of scikit-learn's digits that no model was trained with."""
    with np.load(MODELS / "digits.npz") as file:
        return file["images"].astype(np.float32) / 16, file["labels"].astype(np.int64)


def photographs() -> list[np.ndarray]:
    """Return scikit-image's pictures as (height, width, 3) from 0 to 1."""
    found = [getattr(data, name)() for name in PICTURES]
    return [np.float32(np.dstack([p] * 3) if p.ndim == 2 else p[..., :3]) / 255 for p in found]


def enlarge(digit: np.ndarray, size: int) -> np.ndarray:
    """Enlarge 8 x 8 pixels to size x size by linear interpolation."""
    at = np.clip((np.arange(size) + 0.5) * 8 / size - 0.5, 0, 7)
    weights = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(8)))
    return np.asarray(weights @ digit @ weights.T, np.float32)


@dataclass
class Scene:
    """One picture (3, size, size) and its labels. A digit has its value, its brightness (1 bright, 0 dark)
    and its box (centre x, centre y, width, height in pixels). A pixel has a class."""

    image: np.ndarray
    labels: list[int]
    bright: list[int]
    boxes: list[tuple[float, float, float, float]]
    ink: np.ndarray


class Scenes:
    """Random scenes; equal seeds give equal scenes. *most*: the maximum number of digits in a scene;
    *sides*: the minimum and maximum width of digits in pixels."""

    def __init__(
        self, digits: Digits, size: int, seed: int, most: int = 3, sides: tuple[int, int] = (14, 24)
    ):
        self.digits, self.size, self.most, self.sides = digits, size, most, sides
        self.random = np.random.default_rng(seed)
        self.photographs = photographs()

    def scene(self) -> Scene:
        random, size = self.random, self.size
        photograph = self.photographs[random.integers(len(self.photographs))]
        top, left = (random.integers(n - size) for n in photograph.shape[:2])
        image = 0.25 + 0.5 * photograph[top : top + size, left : left + size]
        made = Scene(image, [], [], [], np.zeros((size, size), np.int64))
        taken = np.zeros((size, size), bool)
        for i in range(int(random.integers(1, self.most + 1)) + (self.most > 1)):
            side = int(random.integers(self.sides[0], self.sides[1] + 1))
            y, x = (int(v) for v in random.integers(0, size - side + 1, 2))
            if taken[y : y + side, x : x + side].any():
                continue
            taken[y : y + side, x : x + side] = True
            self._draw(made, y, x, side, disc=i > 0 and random.random() < 0.3)
        made.image = np.ascontiguousarray(made.image.transpose(2, 0, 1))
        return made

    def _draw(self, made: Scene, y: int, x: int, side: int, disc: bool) -> None:
        """Draw a digit or a disc into a square. Its pixels are brighter or darker than all photographs."""
        random = self.random
        bright = int(random.random() < 0.5)
        color = random.uniform(0, 0.2, 3) + 0.8 * bright
        if disc:
            far = (np.arange(side) - (side - 1) / 2) / (side / 2)
            alpha = np.clip((1 - np.hypot(far[:, None], far)) * side / 2, 0, 1).astype(np.float32)
        else:
            which = int(random.integers(len(self.digits[0])))
            alpha = np.clip(1.2 * enlarge(self.digits[0][which], side), 0, 1)
            made.labels.append(int(self.digits[1][which]))
            made.bright.append(bright)
            made.boxes.append((x + side / 2, y + side / 2, side, side))
        part = made.image[y : y + side, x : x + side]
        part += alpha[..., None] * (color.astype(np.float32) - part)
        made.ink[y : y + side, x : x + side][alpha > 0.5] = DISC if disc else INK

    def batch(self, count: int) -> list[Scene]:
        return [self.scene() for _ in range(count)]


def images_of(scenes: list[Scene]) -> np.ndarray:
    """Return the pictures as one array (scenes, 3, size, size) from -1 to 1."""
    return np.stack([scene.image for scene in scenes]) * 2 - 1
