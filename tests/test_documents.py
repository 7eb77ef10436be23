"""What documents point to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "benchmarks" / "README.md"]
)


def relative_links(document: Path) -> list[str]:
    """The links of a page of Markdown to other files, without what follows a #."""
    found = re.findall(r"\]\(([^)\s]+)\)", document.read_text())
    return [link.partition("#")[0] for link in found if not re.match(r"[a-z]+:|#", link)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files(document: Path) -> None:
    for link in relative_links(document):
        assert (document.parent / link).exists(), link


def test_the_readme_has_links() -> None:
    """The test above is not empty, and a user finds the license, changes and how to take part."""
    assert {"LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"} <= set(
        relative_links(ROOT / "README.md")
    )
