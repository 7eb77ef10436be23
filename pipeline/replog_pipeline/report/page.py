"""The report as one HTML page: what and when, totals, and a section per question with its plot, its
table and a word on how to read it.

1. One file: style and plots are in it, nothing is loaded from anywhere, no script runs.
2. A section without data is left out, or says why there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from replog_pipeline.report import tables
from replog_pipeline.report.style import STYLE
from replog_pipeline.report.tables import Table


@dataclass(frozen=True)
class Section:
    """`plots` are HTML already; `table` is shown folded when `folded`."""

    title: str
    note: str
    plots: Sequence[str] = ()
    table: Table | None = None
    folded: bool = False


@dataclass
class Page:
    """`facts` are (name, value) tiles."""

    title: str
    about: Sequence[str]
    facts: Sequence[tuple[str, str]]
    sections: list[Section] = field(default_factory=list)


def render(page: Page) -> str:
    """The whole page."""
    tiles = "".join(
        f'<div class="tile"><span class="soft">{escape(name)}</span><b>{escape(value)}</b></div>'
        for name, value in page.facts
    )
    about = "".join(f'<p class="soft">{escape(line)}</p>' for line in page.about)
    sections = "".join(map(_section, page.sections))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width, initial-scale=1">'
        f"<title>{escape(page.title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main><h1>{escape(page.title)}</h1>{about}<div "
        f'class="tiles">{tiles}</div>\n{sections}</main></body></html>\n'
    )


def _section(section: Section) -> str:
    table = ""
    if section.table is not None and section.table.rows:
        table = tables.html(section.table)
        if section.folded:
            table = (
                f"<details><summary>Table: {len(section.table.rows):,} "
                f"rows</summary>{table}</details>"
            )
    note = f'<p class="note">{escape(section.note)}</p>' if section.note else ""
    plots = "".join(section.plots)
    return f"<section><h2>{escape(section.title)}</h2>{note}{plots}{table}</section>\n"
