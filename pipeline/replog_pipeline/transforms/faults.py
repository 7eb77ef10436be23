"""A finding in a table of batch headers, as every check of batches reports it."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """Its kind, the row of the table it is about, and what is wrong there."""

    kind: str
    row: int
    problem: str
