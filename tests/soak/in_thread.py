"""What a soak does beside its main loop: in a thread of its own, from the context's beginning to
its end.
"""

from __future__ import annotations

from threading import Event, Thread
from types import TracebackType
from typing import Self


class InThread:
    """Use as a context. `run` ends soon after `enough` is set, and the context waits for it."""

    def __init__(self, name: str) -> None:
        self.enough = Event()
        self._thread = Thread(target=self.run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        self.enough.set()
        self._thread.join()

    def run(self) -> None:
        raise NotImplementedError
