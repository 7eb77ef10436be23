"""What several tests of the APIs share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.logger import formatEvent, globalLogPublisher


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """The audit's lines, as they come."""
    found: list[str] = []

    def observe(event: Any) -> None:
        if event.get("log_namespace") == "replog.audit":
            found.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    yield found
    globalLogPublisher.removeObserver(observe)
