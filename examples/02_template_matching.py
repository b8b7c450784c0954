"""Thirty crops of a photograph, each darker or brighter than the original, found again where they were cut,
with integer sums.

Every crop is compared with the photograph at every place (`vkq.integer.match_template`), exactly. The same
sums in float32, as an FFT gives them, are judged beside. The places found and the score map of one crop are
drawn into a PNG. Usage: 02_template_matching.py [DEVICE]
"""

import sys
import time
from pathlib import Path

import numpy as np
import scipy.signal
from PIL import Image, ImageDraw
from skimage import data

import vkq

OUT = Path(__file__).parent / "out"
SIZE = 40  # of a crop
CROPS = 30
SHOWN = 2  # the crop whose score map is drawn


def cut(photo: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(crops, their places): contrast and brightness changed, rounded to whole numbers, with a little
    noise."""
    rng = np.random.default_rng(7)
    room = np.array(photo.shape) - SIZE
    places = []
    while len(places) < CROPS:  # not from the empty sky, where any place is like another
        y, x = rng.integers(0, room)
        if photo[y : y + SIZE, x : x + SIZE].std() > 12:
            places.append((int(y), int(x)))
    crops = []
    for y, x in places:
        contrast, brightness = rng.uniform(0.4, 0.9), rng.uniform(0, 20)
        crop = contrast * photo[y : y + SIZE, x : x + SIZE] + brightness + rng.normal(0, 1.0, (SIZE, SIZE))
        crops.append(np.clip(np.rint(crop), 0, 255).astype(np.uint8))
    return np.stack(crops), np.array(places)


def best(scores: np.ndarray, smallest: bool = False) -> np.ndarray:
    """The place of the best score of each map."""
    flat = scores.reshape(len(scores), -1)
    at = flat.argmin(axis=1) if smallest else flat.argmax(axis=1)
    return np.stack(np.unravel_index(at, scores.shape[1:]), axis=1)


def draw(photo: np.ndarray, scores: np.ndarray, found: np.ndarray, places: np.ndarray) -> Image.Image:
    """The photograph with a frame at each place found (green: right), and the score map of one crop beside
    it."""
    picture = Image.fromarray(photo).convert("RGB")
    pen = ImageDraw.Draw(picture)
    for (y, x), truth in zip(found.tolist(), places.tolist(), strict=True):
        pen.rectangle(
            (x, y, x + SIZE - 1, y + SIZE - 1), outline="lime" if [y, x] == truth else "red", width=2
        )
    y, x = found[SHOWN].tolist()
    pen.rectangle((x - 3, y - 3, x + SIZE + 2, y + SIZE + 2), outline="yellow", width=2)
    canvas = np.zeros(photo.shape, np.uint8)
    half = SIZE // 2  # a score stands at the window's centre
    canvas[half : half + scores.shape[1], half : half + scores.shape[2]] = np.rint(
        127.5 * (scores[SHOWN] + 1)
    )
    side = Image.fromarray(canvas).convert("RGB")
    pen = ImageDraw.Draw(side)
    pen.ellipse((x + half - 9, y + half - 9, x + half + 9, y + half + 9), outline="yellow", width=2)
    both = Image.new("RGB", (2 * photo.shape[1] + 8, photo.shape[0]), "white")
    both.paste(picture, (0, 0))
    both.paste(side, (photo.shape[1] + 8, 0))
    return both


def main() -> int:
    photo = data.camera()
    crops, places = cut(photo)
    with vkq.Device(sys.argv[1] if len(sys.argv) > 1 else None) as device:
        start = time.perf_counter()
        scores = vkq.integer.match_template(photo, crops, "ccoeff_normed", device=device)
        elapsed = time.perf_counter() - start
        found = best(scores)
        exact = vkq.integer.match_template(photo, crops[SHOWN], device=device)
        difference = vkq.integer.match_template(photo, crops, "ssd", device=device)
        print(f"device   {device.name}")
    right = int((found == places).all(axis=1).sum())
    right_ssd = int((best(difference, smallest=True) == places).all(axis=1).sum())
    in_float = scipy.signal.correlate(
        photo.astype(np.float32), crops[SHOWN].astype(np.float32), "valid", "fft"
    )
    wrong = np.abs(in_float.astype(np.float64) - exact)
    OUT.mkdir(exist_ok=True)
    draw(photo, scores, found, places).save(OUT / "template_matching.png")
    macs = scores.size * SIZE * SIZE
    print(f"picture  {OUT / 'template_matching.png'}")
    print(
        f"time     {elapsed:.2f} s for {macs / 1e9:.1f} billion multiply-adds, integral images and"
        " normalization"
    )
    share = (wrong > 0).mean()
    print(
        f"float32  sums of one crop by FFT: wrong at {share:.0%} of {wrong.size} places, by up to"
        f" {wrong.max():g}"
    )
    print(f"ssd      {right_ssd} of {CROPS} crops found: squared differences do not allow for brightness")
    print(
        f"result   {right} of {CROPS} crops found exactly where they were cut (correlation coefficient, exact"
        " sums)"
    )
    return 0 if right == CROPS else 1


if __name__ == "__main__":
    sys.exit(main())
