"""In which order the histories of clients are read."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.faults.client_processes import ClientProcesses
from twisted_broker.simulation.checks.anomalies import find_anomalies


class Noting:
    """A client that goes on while others are read: `meanwhile` is called before it is."""

    def __init__(self, name: str, role: str) -> None:
        self.job = SimpleNamespace(name=name, role=role, group="")
        self.process = SimpleNamespace(poll=lambda: None)
        self.noted: list[str] = []
        self.meanwhile: Any = lambda: None

    def lines(self) -> list[str]:
        self.meanwhile()
        found, self.noted = self.noted, []
        return found


def test_what_is_polled_while_histories_are_read_was_sent(tmp_path: Path) -> None:
    """Its sender noted it before it was polled: who polls is read before who sends."""
    writer, reader = Noting("p", "produce"), Noting("c", "consume")
    copier = Noting("q", "copy")
    clients = ClientProcesses(tmp_path, "", "t", 1)
    clients.clients = [writer, copier, reader]  # type: ignore[list-item]

    def send_and_poll() -> None:
        writer.noted.append(json.dumps(["send", 1, "t", 1, [[0, "x"]]]))
        copier.noted.append(json.dumps(["begin", 1, 1, [["copies", 0, "y"]]]))
        copier.noted.append(json.dumps(["committing", 2, 1]))
        found = [["t", 0, [0], ["x"]], ["copies", 0, [0], ["y"]]]
        reader.noted.append(json.dumps(["poll", 3, found]))

    reader.meanwhile = send_and_poll
    clients.read()
    assert clients.history.polls and find_anomalies(clients.history, ended=False) == []
