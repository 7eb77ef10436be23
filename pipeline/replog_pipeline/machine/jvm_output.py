"""What a JVM prints while it starts: kept until it runs, so that of one that does not start there
is one line and not its stack.

1. Its standard output goes where its standard error goes: Delta says there what a VACUUM has
   deleted, and standard output belongs to the result.
2. A thread passes on what it prints, from the moment when it runs; of a start that fails nothing.

Not here: what Spark says in its own errors (`errors`).
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from threading import Event, Lock, Thread

MOST_LINES = 200
"""Kept of a start, the first ones."""
PATIENCE_SECONDS = 10.0
NO_CAUSE = re.compile(r"\s*(at |\.\.\. \d|NOTE: |Picked up |WARNING: |Warning: |Using )|\s*$")
BEFORE = re.compile(r'(Exception in thread "[^"]*" ([\w$]+\.)*[\w$]+: |Error: )')


class JvmOutput:
    """Use as a context around the start; then `pass_on`, or `cause`. Where this process has no
    standard error or output nothing is kept.
    """

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._runs, self._lock, self._ended = False, Lock(), Event()
        self._own: dict[int, int] = {}
        self._target = -1

    def __enter__(self) -> JvmOutput:
        try:
            self._own = {number: os.dup(number) for number in (1, 2)}
        except OSError:
            return self
        self._target = os.dup(self._own[2])
        read, write = os.pipe()
        for number in self._own:
            os.dup2(write, number)
        os.close(write)
        Thread(target=self._read, args=(read,), name="jvm output", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        for number, own in self._own.items():
            os.dup2(own, number)
            os.close(own)

    def pass_on(self) -> None:
        """It runs."""
        with self._lock:
            self._runs = True
            self._write(b"".join(self.lines))

    def cause(self) -> str:
        """Of a start that failed: the first line that says why; empty where none does."""
        if self._own:
            self._ended.wait(PATIENCE_SECONDS)
        texts = (line.decode(errors="replace") for line in self.lines)
        found = next((text for text in texts if not NO_CAUSE.match(text)), "")
        return BEFORE.sub("", found, count=1).strip()

    def _read(self, pipe: int) -> None:
        with os.fdopen(pipe, "rb") as printed:
            for line in printed:
                with self._lock:
                    if self._runs:
                        self._write(line)
                    elif len(self.lines) < MOST_LINES:
                        self.lines.append(line)
        self._ended.set()

    def _write(self, content: bytes) -> None:
        with suppress(OSError):
            os.write(self._target, content)
