"""Pictures of the explorer for the site: python tests/helpers/explorer_pictures.py docs/_static/explorer"""

import sys
from pathlib import Path

from explored_page import Explored
from exploring import browser, serving

from gumtrace.explore.server import Server

DESKTOP = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
PICTURES = {  # the context, the structure, its frame, and where the picture begins (None: the whole page)
    "desktop": (DESKTOP, "arborescence", 7, None),
    "dark": (DESKTOP | {"color_scheme": "dark"}, "matching", 2, None),
    "phone": (PHONE, "spanning-tree", 3, ".gx-bar"),
    "phone-race": (PHONE, "spanning-tree", 3, ".gx-numbers"),
}


def main(folder: Path) -> None:
    with serving(Server(0)) as server, browser() as chrome:
        for name, (settings, structure, at, top) in PICTURES.items():
            page = chrome.new_page(reduced_motion="reduce", **settings)
            page.goto(server.url)
            page.wait_for_selector(".gx[data-ready]")
            explored = Explored(page)
            explored.open(structure)
            for _ in range(at):
                explored.press("ArrowRight")
            page.evaluate("document.activeElement.blur()")
            if top:
                page.locator(top).evaluate(
                    "(node) => scrollBy(0, node.getBoundingClientRect().top - (node.matches('.gx-bar') ? 0 : 100))"
                )
            page.screenshot(path=folder / f"{name}.png", full_page=top is None)
            page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
