"""What a table's maintenance came to."""

from __future__ import annotations

from dataclasses import dataclass

RETAIN_HOURS = 168
"""Delta's own default, and the least that it takes without being forced."""


@dataclass(frozen=True)
class Maintained:
    """`merged` small files became `into`; `removed`: files, or a Parquet table's attempts, that
    killed runs left or a merge replaced.
    """

    format: str
    merged: int
    into: int
    removed: int
