"""Runs the classes against one address, and writes what they found as a table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from tests.compare.side import SILENT
from tests.hostile.bystander import Bystander, Lap
from tests.hostile.target import Target, Wire

MOST_WAIT_SECONDS = 1.0
MOST_GROWTH = 200 << 20
UNHANDLED = (
    "Unhandled",
    "Traceback",
    "OutOfMemoryError",
    "Unexpected error handling",
    "Uncaught exception",
)
"""Words of a log that say so: Twisted's, Python's and Java's."""
_MOST_KINDS = 6


class Round:
    """One class in one pass: what it sends to, how much, and what it notes.

    `whole`: all of it, else what a test has time for; `stranger`: nobody logs in; `ordinary`:
    whoever logs in may not act as a broker; `log`: the server's, where it is at hand.
    """

    def __init__(
        self, target: Target, *, whole: bool, stranger: bool, ordinary: bool, log: Path | None
    ) -> None:
        self.target, self.whole, self.ordinary, self.log = target, whole, ordinary, log
        self.stranger = stranger
        self.sent: list[str] = []
        self.came_back: Counter[str] = Counter()
        self.violations: list[str] = []

    def wire(self) -> Wire:
        """A connection as the pass has it."""
        return self.target.stranger() if self.stranger else self.target.logged_in()

    @property
    def wants_login(self) -> bool:
        """Whether nothing of Kafka but a login is served here."""
        return self.stranger and self.target.has_sasl

    def many(self, whole: int, brief: int) -> int:
        return whole if self.whole else brief

    def says(self, what: str) -> None:
        """What is sent, for the table."""
        self.sent.append(what)

    def note(self, kind: str, count: int = 1) -> str:
        self.came_back[kind] += count
        return kind

    def must(self, holds: bool, what: str) -> None:
        if not holds and len(self.violations) < 20:
            self.violations.append(what)

    def result(self, frame: bytes, what: str = "", *, may_wait: bool = False) -> str:
        """Sends a frame on a connection of its own, and notes what comes back. `may_wait`: no
        answer is right as well, and not waited for long.
        """
        from tests.hostile.target import MOMENT, SECONDS

        kind = self.target.result(frame, self.wire, MOMENT if may_wait else SECONDS)
        self.must(may_wait or kind != SILENT, f"{what or frame[:8].hex()}: no answer")
        return self.note(kind)


Attack = Callable[[Round], None]


class Found(NamedTuple):
    """A class that ran; `growth` in bytes, where it was measured."""

    name: str
    sent: str
    came_back: str
    seconds: float
    lap: Lap
    growth: int | None
    violations: tuple[str, ...]


def run(
    attacks: Iterable[tuple[str, Attack]],
    target: Target,
    *,
    pid: int | None = None,
    log: Path | None = None,
    whole: bool = True,
    ordinary: bool = False,
    most_wait: float = MOST_WAIT_SECONDS,
    said: Callable[[str], None] = print,
) -> list[Found]:
    """Every class in each pass that there is. `ordinary`: as `Round` has it; `most_wait`: what is
    no violation, in seconds.
    """
    passes = (True, False) if target.has_sasl else (False,)
    bystander = Bystander(target.address, pid)
    attacks, found = list(attacks), []
    try:
        for stranger in passes:
            for name, attack in attacks:
                one = Round(target, whole=whole, stranger=stranger, ordinary=ordinary, log=log)
                where = " (before login)" if stranger else ""
                found.append(_run(name + where, attack, one, bystander, bool(pid), log, most_wait))
                said(line_of(found[-1]))
    finally:
        bystander.stop()
    return found


def _run(
    name: str,
    attack: Attack,
    one: Round,
    bystander: Bystander,
    measured: bool,
    log: Path | None,
    most_wait: float,
) -> Found:
    before = bystander.lap().now
    size = log.stat().st_size if log else 0
    began = time.monotonic()
    try:
        attack(one)
    except (OSError, PermissionError) as error:
        one.must(False, f"a connection could not be made: {error!r}")
    seconds = time.monotonic() - began
    lap = bystander.lap()
    if not lap.answered:  # of a class that took no time
        time.sleep(0.2)
        lap = bystander.lap()
    growth = lap.memory - before if measured else None
    one.must(lap.longest <= most_wait, f"another client waited {lap.longest:.2f} s")
    one.must(not lap.failed, "another client's connection broke")
    if growth is not None:
        one.must(growth < MOST_GROWTH, f"memory grew by {growth >> 20} MiB")
    for line in unhandled(log, size) if log else ():
        one.must(False, f"the log says: {line[:160]}")
    return Found(
        name,
        "; ".join(one.sent),
        shown(one.came_back),
        seconds,
        lap,
        growth,
        tuple(one.violations),
    )


def unhandled(log: Path, start: int) -> list[str]:
    """Lines of the log from there on that speak of an error nobody handled."""
    with log.open("rb") as file:
        file.seek(start)
        text = file.read().decode(errors="replace")
    return [line for line in text.splitlines() if any(word in line for word in UNHANDLED)]


def shown(kinds: Counter[str]) -> str:
    """The most frequent kinds, with their numbers."""
    parts = [f"{count} {kind}" for kind, count in kinds.most_common(_MOST_KINDS)]
    rest = sum(kinds.values()) - sum(count for _, count in kinds.most_common(_MOST_KINDS))
    return ", ".join([*parts, *([f"{rest} others"] if rest else [])])


def line_of(found: Found) -> str:
    memory = "" if found.growth is None else f", memory {found.growth / (1 << 20):+.0f} MiB"
    bad = "".join(f"\n    VIOLATION {each}" for each in found.violations)
    return (
        f"{found.name}: {found.came_back}; {found.seconds:.1f} s, "
        f"longest wait {found.lap.longest:.2f} s{memory}{bad}"
    )


def markdown(found: Iterable[Found]) -> str:
    """The table of a page."""
    rows = ["| class | sent | came back | s | longest wait, s | memory, MiB | violations |"]
    rows.append("|---|---|---|---|---|---|---|")
    for each in found:
        memory = "" if each.growth is None else f"{each.growth / (1 << 20):+.0f}"
        cells = (
            each.name,
            each.sent,
            each.came_back,
            f"{each.seconds:.1f}",
            f"{each.lap.longest:.2f}",
            memory,
            "; ".join(each.violations) or "none",
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"
