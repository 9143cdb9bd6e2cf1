"""The README as a package index shows it, where links relative to the repository lead nowhere.

`[tool.hatch.metadata.hooks.custom]` in pyproject.toml may say where the files of the repository are published:

    links = "https://HOST/OWNER/gumtrace/blob/main/"    # pages
    images = "https://HOST/OWNER/gumtrace/raw/main/"    # files as they are

Relative links and images get these addresses in front. Without them a link becomes its text, and an image is left out,
so that no link on the index is broken.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

IMAGE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)")
LINK = re.compile(r"(?<!!)\[((?:!\[[^\]]*\]\([^)]*\)|[^\[\]])*)\]\((?!https?:)([^)]+)\)")


def readme_for_index(text: str, links: str = "", images: str = "") -> str:
    """With absolute links, or none.

    >>> readme_for_index("See [the idea](docs/idea.md).", links="https://example.org/")
    'See [the idea](https://example.org/docs/idea.md).'
    >>> readme_for_index("See [the idea](docs/idea.md).")
    'See the idea.'
    """
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)  # code, at odd places, stays as it is
    for i in range(0, len(parts), 2):
        part = IMAGE.sub(rf"![\1]({images}\2)" if images else "", parts[i])
        part = LINK.sub(lambda m: f"[{m[1]}]({links}{m[2]})" if links and m[1] else m[1], part)
        parts[i] = re.sub(r"\n{3,}", "\n\n", part)
    return "".join(parts)


class IndexReadme(MetadataHookInterface):
    def update(self, metadata: dict) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        addresses = {name: self.config.get(name, "") for name in ("links", "images")}
        metadata["readme"] = {"content-type": "text/markdown", "text": readme_for_index(text, **addresses)}
