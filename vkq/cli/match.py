"""``vkq match``: find the best place of small pictures (templates) in a picture, with exact integer sums."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from vkq.cli.common import Parsers, add_command, device_argument, output_file
from vkq.cli.pictures import opened_picture
from vkq.errors import ArgumentError
from vkq.graph.graph import Array

METHODS = ("ccoeff_normed", "ssd", "ccorr")
FRAME = (0, 200, 0)


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "match",
        run,
        "find the best place of each template in a picture, in gray, from exact integer sums",
        [
            "vkq match photo.png pictures/a.png",
            "vkq match photo.png pictures/a.png pictures/b.png --method ssd -o found.png",
        ],
    )
    parser.add_argument("image", metavar="IMAGE", type=Path)
    parser.add_argument("templates", metavar="TEMPLATE", type=Path, nargs="+")
    parser.set_defaults(several="templates")
    parser.add_argument(
        "--method", choices=METHODS, default=METHODS[0],
        help="the score of a place. ccoeff_normed: 1 if only brightness and contrast differ; ssd: 0 if equal;"
        " ccorr: the largest sum of products is best (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-o",
        "--output",
        type=output_file,
        metavar="FILE.png",
        help="write the image with a frame at each best place",
    )
    device_argument(parser)


def run(options: argparse.Namespace) -> int:
    from vkq.integer import match_template

    image = gray(options.image)
    templates = {path: gray(path) for path in options.templates}
    for path, template in templates.items():
        if template.dtype != image.dtype:
            raise ArgumentError(
                f"{path} has pixels of {template.dtype}, {options.image} of {image.dtype}; both must be equal"
            )
    found: dict[Path, tuple[Any, Array]] = {}
    # One call finds all templates that have the same size.
    for shape in dict.fromkeys(template.shape for template in templates.values()):
        paths = [path for path, template in templates.items() if template.shape == shape]
        stack = np.stack([templates[path] for path in paths])
        best = match_template(image, stack, options.method, best=True, device=options.device)
        found |= {path: (best.score[i], best.place[i]) for i, path in enumerate(paths)}
    print(f"{options.image}: {image.shape[1]} x {image.shape[0]}, {image.dtype}, {options.method}")
    print(f"{'x':>6} {'y':>6} {'size':>11} {'score':>14}  template")
    for path, (score, (y, x)) in ((path, found[path]) for path in templates):
        h, w = templates[path].shape
        told = f"{score:.6f}" if options.method == METHODS[0] else str(score)
        print(f"{x:6} {y:6} {f'{w} x {h}':>11} {told:>14}  {path}")
    if options.output:
        draw(options.image, [(*place, *templates[path].shape) for path, (_, place) in found.items()]).save(
            options.output
        )
        print(f"written {options.output}")
    return 0


def gray(path: Path) -> Array:
    """Read a picture, and return the brightness of its pixels (H, W): uint16 for a 16-bit grayscale file,
    else uint8."""
    with opened_picture(path) as picture:
        if picture.mode.startswith("I;16"):
            return np.asarray(picture).astype(np.uint16)
        return np.array(picture.convert("L"))


def draw(path: Path, places: list[tuple[int, int, int, int]]) -> Any:
    """Return the picture as a Pillow image, with a frame around each of the *places*, which are (y, x,
    height, width)."""
    from PIL import Image, ImageDraw

    pixels = gray(path)
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    shown = Image.fromarray(pixels).convert("RGB")
    pen = ImageDraw.Draw(shown)
    for y, x, h, w in places:
        pen.rectangle((int(x) - 1, int(y) - 1, int(x) + w, int(y) + h), outline=FRAME)
    return shown
