"""Pictures of the built site, to look at: python docs/screenshots.py writes docs/_static/screenshots/*.png

Needs a Chromium on the path. Pages are opened as files, wide and as on a phone.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SITE, OUT = HERE / "_build" / "html", HERE / "_static" / "screenshots"
PAGES = {"index": "index.html", "start": "start.html", "structure": "structures/spanning-tree.html"}
SIZES = {"desktop": (1280, 1600), "phone": (390, 1600)}
QUIET = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
QUIET += ["--disable-component-update", "--disable-sync", "--hide-scrollbars", "--no-sandbox"]


def take(browser: str, page: Path, picture: Path, width: int, height: int) -> None:
    with tempfile.TemporaryDirectory() as profile:
        where = [f"--user-data-dir={profile}", f"--window-size={width},{height}", f"--screenshot={picture}"]
        subprocess.run([browser, "--headless", *QUIET, *where, page.as_uri()], check=True, capture_output=True)


def main() -> int:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None or not SITE.exists():
        print("screenshots need a Chromium on the path, and the built site: make docs", file=sys.stderr)
        return 2
    OUT.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        for kind, (width, height) in SIZES.items():
            take(browser, SITE / page, OUT / f"{name}-{kind}.png", width, height)
            print(OUT / f"{name}-{kind}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
