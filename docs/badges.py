"""The README's badges, from the files that make them true: python docs/badges.py writes docs/_static/badges/*.svg"""

import re
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "_static" / "badges"
LETTER = 6.3  # pixels, of the font below
BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{name}: {value}">
  <title>{name}: {value}</title>
  <clipPath id="round"><rect width="{width}" height="20" rx="3"/></clipPath>
  <g clip-path="url(#round)">
    <rect width="{left}" height="20" fill="#4d575f"/>
    <rect x="{left}" width="{right}" height="20" fill="#0b6aa8"/>
  </g>
  <g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
    <text x="{left_middle}" y="14">{name}</text>
    <text x="{right_middle}" y="14">{value}</text>
  </g>
</svg>
"""


def badges() -> dict[str, str]:
    """File name -> SVG."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    tested = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert tested is not None
    facts = {
        "python": f"{versions[0]} – {versions[-1]}",
        "torch": f"tested with {tested[1]}",
        "licence": project["license"],
    }
    return {f"{name}.svg": badge(name, value) for name, value in facts.items()}


def badge(name: str, value: str) -> str:
    left, right = (round(LETTER * len(text)) + 14 for text in (name, value))
    places = {"left": left, "right": right, "width": left + right}
    return BADGE.format(
        name=escape(name), value=escape(value), left_middle=left / 2, right_middle=left + right / 2, **places
    )


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    for file, text in badges().items():
        (OUT / file).write_text(text, encoding="utf-8")
