"""Which host writes to a table on an object store: objects of rising numbers, each created on the
condition that there is none.

1. The holder of the newest number is the writer. It creates the next number every `RENEW_SECONDS`,
   and removes the one before. It has lost when another created it, or when it comes too late by its
   own clock: two requests each time, whatever the table has.
2. Who wants a number that another host holds watches it. A number that rises meanwhile is a writer
   that lives: refused. One that stands still for `LEASE_SECONDS` is a writer that died: the next
   number is created. No host's clock is compared with another's.
3. On its own host a writer knows by the lock of a file that the holder is dead: it does not wait.
4. A writer that cannot renew stops before its next batch. Not excluded: a writer that is held up
   for the length of a lease between that look and Delta's commit.
5. The last number stays, with the word that it is free: numbers never begin again.

Source: our own. Not here: the lock on one machine (`files`), conditions of stores (`hadoop_files`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from replog_pipeline.errors import PipelineError

FOLDER = "_replog/writer"
LEASE_SECONDS, RENEW_SECONDS, LOOK_SECONDS = 120.0, 30.0, 5.0
FREE = ""


class IObjects(Protocol):
    """Of a table, as much of `IFiles` as this needs."""

    def names(self, folder: str = "") -> list[str]: ...
    def read(self, name: str) -> bytes: ...
    def create(self, name: str, content: bytes) -> bool: ...
    def remove(self, name: str) -> None: ...
    def path(self, name: str = "") -> str: ...


class Lease:
    """Of one run. `host`: the same for all writers of this machine, and no other's."""

    def __init__(
        self,
        objects: IObjects,
        host: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.objects, self.host, self.clock, self.sleep = objects, host, clock, sleep
        self.number, self.renewed, self.is_lost = 0, 0.0, False

    def newest(self) -> tuple[int, str]:
        """(number, its holder); 0 and nobody where there was none."""
        names = [name for name in self.objects.names(FOLDER) if name.isdigit()]
        if not names:
            return 0, FREE
        return int(names[-1]), self.objects.read(f"{FOLDER}/{names[-1]}").decode()

    def take(self) -> None:
        """PipelineError where another host writes."""
        number, holder = self.newest()
        if holder not in (FREE, self.host):
            until = self.clock() + LEASE_SECONDS
            while self.clock() < until:
                self.sleep(LOOK_SECONDS)
                if self.newest()[0] != number:
                    raise self.refused()
        if not self.create(number + 1, self.host):
            raise self.refused()
        for name in self.objects.names(FOLDER):  # what a writer left that died between two requests
            if name.isdigit() and int(name) < number:
                self.objects.remove(f"{FOLDER}/{name}")

    def refused(self) -> PipelineError:
        return PipelineError(
            f"another machine's archive writes to {self.objects.path()}: a table has one writer; "
            "wait for it or stop it"
        )

    def create(self, number: int, holder: str) -> bool:
        began = self.clock()
        if not self.objects.create(f"{FOLDER}/{number:020d}", holder.encode()):
            return False
        self.number, self.renewed = number, began
        self.objects.remove(f"{FOLDER}/{number - 1:020d}")
        return True

    def renew(self) -> None:
        """A store that does not answer is asked again the next time."""
        self.is_lost = self.is_late() or not self.create(self.number + 1, self.host)

    def is_late(self) -> bool:
        """Whether another may have taken it."""
        return self.clock() - self.renewed >= LEASE_SECONDS

    def check(self) -> None:
        """PipelineError unless this is the writer still."""
        if self.is_lost or self.clock() - self.renewed > LEASE_SECONDS / 2:
            raise PipelineError(
                f"{self.objects.path()} was held up so long that another machine may write to it: "
                "start the archive again"
            )

    def release(self) -> None:
        if not self.is_lost and not self.is_late():
            self.create(self.number + 1, FREE)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Taken, renewed by a thread, and free again."""
        self.take()
        ended = threading.Event()

        def renewing() -> None:
            while not self.is_lost and not ended.wait(RENEW_SECONDS):
                with contextlib.suppress(Exception):  # `check` sees by the time that it failed
                    self.renew()

        thread = threading.Thread(target=renewing, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            with contextlib.suppress(Exception):  # else the next one waits for a lease
                self.release()
