"""The documentation site: Sphinx over the pages of this repository, as they stand. `make docs`.

Its source is the repository's root, so links between pages are the same here and there; what they
lead to beside pages (a program, a folder) is named, not linked.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

project = "twisted-broker"
copyright = "the twisted-broker authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "docs/*.md",
    "examples/*/README.md",
]
html_theme = "furo"
html_title = "twisted-broker"
myst_heading_anchors = 3
default_role = "literal"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"

_LINK = re.compile(r"\[([^\]\n]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def _links(app: Any, page: str, source: list[str]) -> None:
    """Of what is no page: a folder with a page becomes that page, anything else its name."""
    here = posixpath.dirname(page)

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match.groups()
        if ":" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(here, target))
        if (ROOT / path).is_dir() and (ROOT / path / "README.md").exists():
            path, target = f"{path}/README.md", f"{target.rstrip('/')}/README.md"
        if path.endswith(".md") or path.endswith(".svg"):
            return f"[{text}]({target}{anchor or ''})"
        return text if "`" in text else f"{text} (`{path}`)"

    source[0] = _LINK.sub(link, source[0])


def setup(app: Any) -> None:
    """Sphinx calls it."""
    app.connect("source-read", _links)
