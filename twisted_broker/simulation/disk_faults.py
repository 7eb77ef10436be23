"""Faults of a simulated disk while it is used: errors, and the death of the machine in the middle
of an operation.

Owns `Fault`, `Crash` and `DiskFaults`, which counts the operations that change a disk; faults and
crashes are placed by that count.

Source: RELIABILITY 6.2. Not here: what a crash leaves (`simulation/file.py`,
`simulation/durable_names.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random


class Crash(BaseException):
    """The machine stops here. Not an Exception: nothing may catch and go on."""


class Fault:
    """`error` (an errno) is raised by operations named `operation` ("" any) on paths containing
    `path`, after `skip` of them, `times` times.
    """

    def __init__(
        self, error: int, operation: str = "", path: str = "", skip: int = 0, times: int = 1 << 30
    ) -> None:
        self.error, self.operation, self.path, self.skip, self.times = (
            error,
            operation,
            path,
            skip,
            times,
        )

    def strikes(self, operation: str, path: str) -> bool:
        if self.operation not in ("", operation) or self.path not in path:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return self.times >= 0


class DiskFaults:
    """`crash_at`: the number of the changing operation during which the machine stops.

    `faults` may be changed at any time.
    """

    def __init__(self, random: Random, crash_at: int | None) -> None:
        self.random, self.crash_at = random, crash_at
        self.faults: list[Fault] = []
        self.operations = 0
        self.history: list[tuple[str, str]] = []
        """(operation, path) of each that changed the disk"""
        self.crashed: Callable[[], None] = lambda: None
        """called when the machine stops in an operation, before `Crash` is raised: nothing it does
        afterwards may count
        """

    def fault(self, operation: str, path: str) -> None:
        """Raises OSError when the operation is to fail."""
        for fault in self.faults:
            if fault.strikes(operation, path):
                raise OSError(fault.error, os.strerror(fault.error), path)

    def step(self, operation: str, path: str, torn: Callable[[float], None] | None = None) -> None:
        """Counts a changing operation; the machine may stop in it (`torn(part)` is called, 0 to 1
        of it was done), or it may fail.
        """
        if self.crash_at is not None and self.operations >= self.crash_at:
            if torn is not None:
                torn(self.random.random())
            self.crashed()
            raise Crash(f"at operation {self.operations}: {operation} {path}")
        self.operations += 1
        self.history.append((operation, path))
        self.fault(operation, path)
