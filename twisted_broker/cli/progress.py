"""Progress of a long command: on standard error, only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ProgressCallback = Callable[[str, int], None]
"""`tell(what, bytes_done)`: called for each file as it is read."""


def silent(what: str, done: int) -> None:
    """Says nothing."""


@contextmanager
def progress() -> Iterator[ProgressCallback]:
    """A line that shows what is being read and how much was."""
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("reading") as status:
        yield lambda what, done: status.update(f"{what}  {done / 1e6:,.0f} MB read")
