"""The README as a package index shows it, where links relative to the repository lead nowhere.

Relative links and images get the address under `[project.urls]` in front, at the tag of the version that is built: the
page of an old version shows its own files.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

IMAGE = re.compile(r"(!\[[^\]]*\]\()(?!https?:)([^)]+)\)")
LINK = re.compile(r"(?<!!)(\[(?:!\[[^\]]*\]\([^)]*\)|[^\[\]])*\]\()(?!https?:)([^)]+)\)")


def readme_for_index(text: str, repository: str, version: str) -> str:
    """With absolute links.

    >>> readme_for_index("See [the idea](docs/idea.md).", "https://example.org/gumtrace", "1.2")
    'See [the idea](https://example.org/gumtrace/blob/v1.2/docs/idea.md).'
    >>> readme_for_index("![A tree](docs/tree.png)", "https://example.org/gumtrace", "1.2")
    '![A tree](https://example.org/gumtrace/raw/v1.2/docs/tree.png)'
    """
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)  # code, at odd places, stays as it is
    for i in range(0, len(parts), 2):
        part = IMAGE.sub(rf"\1{repository}/raw/v{version}/\2)", parts[i])
        parts[i] = LINK.sub(rf"\1{repository}/blob/v{version}/\2)", part)
    return "".join(parts)


class IndexReadme(MetadataHookInterface):
    def update(self, metadata: dict) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = readme_for_index(text, metadata["urls"]["Repository"], metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
