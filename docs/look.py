"""Check the built manual in a browser: `make docs-look`. No page may be wider than its window, at the width
of a phone and of a desktop, in light and dark mode. Screenshots are stored beside the pages."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTHS = {"phone": 390, "desktop": 1280}
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--allow-file-access-from-files", "--virtual-time-budget=4000",
]  # fmt: skip
# The page is shown in a frame of the wanted width, because the window of a headless browser is at least 500
# pixels wide.
FRAME = """<!doctype html><body style="margin:0"><iframe id="page" src="{page}" width="{width}" height="900"
style="border:0" onload="const d = this.contentDocument.documentElement;
document.title = 'scrollWidth=' + d.scrollWidth + ' innerWidth=' + this.contentWindow.innerWidth;
document.body.setAttribute('data-found', document.title)"></iframe></body>"""


def chromium(browser: str, *options: str) -> str:
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [browser, *FLAGS, f"--user-data-dir={profile}", *options],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path, help="the folder of the built pages")
    parser.add_argument("--browser", default=os.environ.get("CHROMIUM", "chromium"))
    parser.add_argument("--page", action="append", help="only pages whose name holds this")
    options = parser.parse_args()
    pages = [
        p for p in sorted(options.site.rglob("*.html")) if p.stem not in ("genindex", "search", "py-modindex")
    ]
    pages = [p for p in pages if not options.page or any(word in p.name for word in options.page)]
    shots = options.site / "_look"
    shots.mkdir(exist_ok=True)
    wide = 0
    for page in pages:
        for name, width in WIDTHS.items():
            frame = shots / "frame.html"
            frame.write_text(FRAME.format(page=page.resolve().as_uri(), width=width))
            said = chromium(options.browser, "--dump-dom", frame.resolve().as_uri())
            found = re.search(r"data-found=\"scrollWidth=(\d+) innerWidth=(\d+)", said)
            if found is None:
                print(f"{page}: the browser did not show it")
                return 1
            bad = int(found[1]) > int(found[2])
            wide += bad
            relative = page.relative_to(options.site)
            print(f"{'WIDE' if bad else 'fits'} {found[1]:>5} of {found[2]:>5}  {name:8} {relative}")
            shot = shots / f"{'-'.join(relative.with_suffix('').parts)}-{name}.png"
            chromium(
                options.browser, f"--window-size={max(width, 500)},1000", f"--screenshot={shot}",
                frame.resolve().as_uri(),
            )  # fmt: skip
    print(f"{len(pages)} pages, {wide} too wide; pictures in {shots}")
    return 1 if wide or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
