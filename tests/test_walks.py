"""The walks of docs/ARCHITECTURE.md are what happens: the calls from the socket to the file, as
they stand on the stack when a record's bytes are written, or its slice of a file is made.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import twisted_broker
from tests.memory_broker import MemoryBroker
from tests.test_broker import create, fetch, produce
from twisted_broker.log.memory import MemoryFile
from twisted_broker.log.segment_file import FileSlice
from twisted_broker.simulation.file import SimFile
from twisted_broker.simulation.scenario.__main__ import run_scenario

ROOT = Path(__file__).parent.parent
PACKAGE = Path(twisted_broker.__file__).parent
OUTSIDE = ("simulation/", "testing/", "log/memory.py")
"""The memory network and the memory disk: in production the reactor and the operating system."""


Call = tuple[str, str]
"""(file below the package, function)"""


def stack() -> list[Call]:
    """The calls of ours that are under way, outermost first."""
    found: list[Call] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            found.append((path.relative_to(PACKAGE).as_posix(), frame.f_code.co_name))
        frame = frame.f_back
    return found[::-1]


def walk(
    patch: pytest.MonkeyPatch,
    owner: type,
    method: str,
    act: Callable[[], object],
    begins_in: str = "net/connection.py",
) -> list[Call]:
    """The calls from a connection (`begins_in`) down to the first of `method` of a file or slice of
    topic t.
    """
    found: list[list[Call]] = []
    original = getattr(owner, method)

    def seen(self: Any, *arguments: Any, **named: Any) -> Any:
        result = original(self, *arguments, **named)
        file = self if isinstance(self, MemoryFile) else self.file
        if "/t-0/" in file.path and file.path.endswith(".log"):
            found.append(stack())
        return result

    patch.setattr(owner, method, seen)
    act()
    for stack_found in found:
        calls = [call for call in stack_found if not call[0].startswith(OUTSIDE)]
        for place, (file, _) in enumerate(calls):
            if file == begins_in:
                return calls[place:]
    raise AssertionError(f"no call of {method} came from {begins_in}")


def rows(section: str) -> list[list[str]]:
    """The files of each row of a section's first table: rows may name several calls of one file."""
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()
    part = re.split(r"^## ", text.split(f"## {section}", 1)[1], maxsplit=1, flags=re.M)[0]
    return [
        re.findall(r"`([^`]+)`", "|".join(line.split("|")[1:3]))
        for line in part.splitlines()
        if line.startswith("| `")
    ]


def named(section: str) -> list[Call]:
    """The calls that a section's table names."""
    return [(file, name) for *names, file in rows(section) for name in names]


def test_a_records_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 1: every call and every file from the connection to the write, in order."""
    broker = MemoryBroker().start()
    create(broker, "t")
    produce(broker, "t", b"first")  # readers are compiled, the log is open
    calls = walk(monkeypatch, MemoryFile, "write_at", lambda: produce(broker, "t", b"second"))
    assert calls == named("1. ")
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()
    files = {file for file, _ in calls}
    assert f"## 1. A record's way in: {len(calls)} calls in {len(files)} files" in text
    broker.stop()


def test_a_records_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 2: every call and every file from the connection to the slice of a file, in order."""
    broker = MemoryBroker().start()
    create(broker, "t")
    produce(broker, "t", b"first")
    assert fetch(broker, "t") == [b"first"]
    calls = walk(monkeypatch, FileSlice, "__init__", lambda: fetch(broker, "t"))
    assert calls == named("2. ")
    broker.stop()


def test_a_fetched_records_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Section 4: from the follower's connection to its leader down to the write, in order."""
    scenario = tmp_path / "follower.txt"
    scenario.write_text("brokers 2\nmake topic t on 1 2\nproduce a\nsoon 2: end 1\n")
    calls = walk(
        monkeypatch, SimFile, "write_at", lambda: run_scenario(scenario), begins_in="net/client.py"
    )
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()
    files = {file for file, _ in calls}
    size = f"{len(calls)} calls in {len(files)} files:"
    _, found, rest = text.partition(f"A fetched record goes from the socket to the disk in {size}")
    assert found, size
    listed = re.findall(r"((?:`\w+`,\s)*`\w+`) \(`([^`]+)`\)", rest.partition("\n\n")[0])
    assert calls == [(file, name) for names, file in listed for name in re.findall(r"\w+", names)]
