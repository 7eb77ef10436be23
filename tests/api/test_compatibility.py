"""docs/COMPATIBILITY.md says what the API table says."""

from __future__ import annotations

from pathlib import Path

from twisted_broker.api.compatibility import document, kafka_ranges
from twisted_broker.api.routes import ROUTES

PAGE = Path(__file__).parents[2] / "docs" / "COMPATIBILITY.md"


def test_the_page_is_up_to_date() -> None:
    """After a change of the table, `make docs` writes the page anew."""
    assert PAGE.read_text() == document()


def test_every_row_is_in_it_under_kafkas_name() -> None:
    """Each API of the table is known by key and name, and is in the page once."""
    text = document()
    for route in ROUTES:
        assert route.api_key >= 30_000 or kafka_ranges()[route.api_key][0] == route.name
        assert text.count(f"| {route.api_key} | {route.name} |") == 1
