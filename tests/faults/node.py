"""A broker or a controller as a process that faults happen to."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.compat.broker_process import BrokerProcess
from tests.faults.asking import Address
from tests.faults.relay import BEHIND

PATIENCE_SECONDS = 180
"""What a loaded machine must be able to keep to: longer waits are failures."""


class Node(BrokerProcess):
    """One process. `address` is where it listens itself, past the relays."""

    start_seconds = stop_seconds = PATIENCE_SECONDS

    def __init__(self, name: str, directory: Path, settings: dict[str, str], port: int = 0) -> None:
        super().__init__(directory, settings, port=port)
        self.name = name
        self.is_stopped = False

    @property
    def address(self) -> Address:
        return BEHIND, self.port

    def pause(self) -> None:
        """SIGSTOP: it is there, and does nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        self.is_stopped = True

    def go_on(self) -> None:
        if self.is_stopped and self.process is not None:
            self.process.send_signal(signal.SIGCONT)
        self.is_stopped = False

    def ask_to_leave(self) -> None:
        """SIGTERM, without waiting; `await_gone` does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def await_gone(self) -> None:
        assert self.process is not None
        self.process.wait(self.stop_seconds)
        self.process = None

    def end(self, number: signal.Signals) -> float:
        if number is not signal.SIGKILL:
            self.go_on()
        self.is_stopped = False
        return super().end(number)
