"""Find thirty crops of a photograph in this photograph, although each crop was made darker or brighter.

All sums are integers: `vkq.integer.match_template` compares every crop exactly with the photograph at every
position. The example also computes the sums with SciPy and OpenCV (if installed) and prints their errors.
It writes a PNG with the positions found and the score map of one crop.

    02_template_matching.py [--image PICTURE] [--device DEVICE]
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import scipy.signal
from PIL import Image, ImageDraw
from skimage import data

import vkq

try:
    import cv2
except ImportError:  # cv2 is in the package opencv-python-headless
    cv2 = None

OUT = Path(__file__).parent / "out"
SIZE = 40  # height and width of a crop in pixels
CROPS = 30
SHOWN = 2  # index of the crop whose score map is drawn


def cut(photo: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return crops with changed contrast and brightness and a little noise, rounded to integers, and the
    positions from which they were cut."""
    rng = np.random.default_rng(7)
    room = np.array(photo.shape) - SIZE
    places = []
    while len(places) < CROPS:  # skip empty sky, where all crops look alike
        y, x = rng.integers(0, room)
        if photo[y : y + SIZE, x : x + SIZE].std() > 12:
            places.append((int(y), int(x)))
    crops = []
    for y, x in places:
        contrast, brightness = rng.uniform(0.4, 0.9), rng.uniform(0, 20)
        crop = contrast * photo[y : y + SIZE, x : x + SIZE] + brightness + rng.normal(0, 1.0, (SIZE, SIZE))
        crops.append(np.clip(np.rint(crop), 0, 255).astype(np.uint8))
    return np.stack(crops), np.array(places)


def best(scores: np.ndarray) -> np.ndarray:
    """Return the position of the best score in each map."""
    at = scores.reshape(len(scores), -1).argmax(axis=1)
    return np.stack(np.unravel_index(at, scores.shape[1:]), axis=1)


def draw(photo: np.ndarray, scores: np.ndarray, found: np.ndarray, places: np.ndarray) -> Image.Image:
    """Draw the photograph with a frame at each position found (green if it is right), and next to it the
    score map of one crop."""
    picture = Image.fromarray(photo).convert("RGB")
    pen = ImageDraw.Draw(picture)
    for (y, x), truth in zip(found.tolist(), places.tolist(), strict=True):
        pen.rectangle(
            (x, y, x + SIZE - 1, y + SIZE - 1), outline="lime" if [y, x] == truth else "red", width=2
        )
    y, x = found[SHOWN].tolist()
    pen.rectangle((x - 3, y - 3, x + SIZE + 2, y + SIZE + 2), outline="yellow", width=2)
    canvas = np.zeros(photo.shape, np.uint8)
    half = SIZE // 2  # draw a score at the centre of its window
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


def in_float(photo: np.ndarray, crop: np.ndarray) -> dict[str, np.ndarray]:
    """Return the products of a crop with every window, as floating-point libraries compute them."""
    found = {}
    for dtype in (np.float32, np.float64):
        a, t = photo.astype(dtype), crop.astype(dtype)
        found[f"scipy's FFT in {np.dtype(dtype)}"] = scipy.signal.correlate(a, t, "valid", "fft")
    if cv2 is not None:
        found["OpenCV's matchTemplate"] = cv2.matchTemplate(photo, crop, cv2.TM_CCORR)
    return found


def tell_errors(sums_by_way: dict[str, np.ndarray], exact: np.ndarray) -> None:
    """Print how far floating-point sums are from the exact ones."""
    for what, sums in sums_by_way.items():
        wrong = np.abs(sums.astype(np.float64) - exact)
        rounded = np.abs(np.rint(sums) - exact).max() == 0
        print(
            f"sums     {what}: wrong at {(wrong > 0).mean():.0%} of {wrong.size} places, by up to"
            f" {wrong.max():.2g}; {'exact' if rounded else 'wrong'} when rounded"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--image", type=Path, help="any picture, made grey (default: scikit-image's camera)")
    parser.add_argument("--device", help="an index, or a part of a name")
    options = parser.parse_args()
    photo = np.asarray(Image.open(options.image).convert("L")) if options.image else data.camera()
    if min(photo.shape) < 3 * SIZE:
        parser.error(
            f"the picture is {photo.shape[1]}x{photo.shape[0]}; it must be {3 * SIZE} at least each way"
        )
    crops, places = cut(photo)
    with vkq.Device(options.device) as device:
        work = CROPS * SIZE**2 * (photo.shape[0] - SIZE + 1) * (photo.shape[1] - SIZE + 1)
        print(f"device   {device.name}: {work / 1e9:.1f} billion multiply-adds, seconds on a CPU", flush=True)
        # templates are kept on the device
        templates = vkq.integer.Templates(crops, x_dtype="uint8", device=device)
        start = time.perf_counter()
        scores = vkq.integer.match_template(photo, templates, "ccoeff_normed")
        elapsed = time.perf_counter() - start
        # with best=True, only the places are returned
        difference = vkq.integer.match_template(photo, templates, "ssd", best=True)
        exact = vkq.integer.match_template(photo, crops[SHOWN], device=device)
        print(templates.explain((1, 1, *photo.shape)))
    found = best(scores)
    right = int((found == places).all(axis=1).sum())
    right_ssd = int((difference.place == places).all(axis=1).sum())
    OUT.mkdir(exist_ok=True)
    draw(photo, scores, found, places).save(OUT / "template_matching.png")
    print(f"picture  {OUT / 'template_matching.png'}")
    macs = scores.size * SIZE * SIZE
    print(f"time     {elapsed:.2f} s for {macs / 1e9:.1f} billion multiply-adds and the normalization")
    tell_errors(in_float(photo, crops[SHOWN]), exact)
    print(f"ssd      {right_ssd} of {CROPS} crops found: squared differences do not allow for brightness")
    print(
        f"result   {right} of {CROPS} crops found exactly where they were cut (correlation coefficient, exact"
        " sums)"
    )
    return 0 if right == CROPS else 1


if __name__ == "__main__":
    sys.exit(main())
