"""The loop of a continuous archive, with its retries while the brokers, or the schema registry,
are away.

1. The first batch is not retried: a wrong address ends the command. Later it waits for who does
   not answer, until it is stopped.
2. One line when the waiting begins, one when they are back; between two tries it waits 1, 2, 4 ...
   seconds, at most a minute.
3. A retry loses and repeats nothing: every batch begins at the table's ledger. Any other failure
   ends the archive.
"""

from __future__ import annotations

from collections.abc import Callable

from replog_pipeline.errors import REGISTRY_AWAY, text_of
from replog_pipeline.jobs.archive.signals import Stopper
from replog_pipeline.progress import Progress
from replog_pipeline.sources.away import are_away

LONGEST_SECONDS = 60.0


def look_again(
    look: Callable[[], None], interval: float, stopper: Stopper, progress: Progress
) -> None:
    """`look` every `interval` seconds until the stopper is told.

    Raises what `look` raises, but for brokers that are away.
    """
    tries, back = 0, ""
    while not stopper.wait(backoff(tries) if tries else interval):
        try:
            look()
        except Exception as error:
            if not are_away(error):
                raise
            if not tries:
                away, back = said(error)
                progress.say(f"archive: {away}")
            tries += 1
        else:
            if tries:
                progress.say(f"archive: {back}")
            tries = 0


def said(error: Exception) -> tuple[str, str]:
    """When the waiting begins, and when it ends."""
    if REGISTRY_AWAY in text_of(error):
        return f"{REGISTRY_AWAY}; going on as soon as it does", "the schema registry is back"
    return "the brokers do not answer; going on as soon as they do", "the brokers are back"


def backoff(tries: int) -> float:
    """Seconds to wait after so many tries in vain (1 and more)."""
    return min(LONGEST_SECONDS, 2.0 ** (tries - 1))
