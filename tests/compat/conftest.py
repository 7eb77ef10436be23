"""Brokers for the tests of this directory.

REPLOG_TEST_BOOTSTRAP=HOST:PORT runs those that share one against another broker.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compat.broker_process import BrokerProcess

BrokerFactory = Callable[..., BrokerProcess]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.clients)


class OtherBroker:
    """A broker that somebody else runs."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        host, _, port = bootstrap.rpartition(":")
        self.address = (host, int(port))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess | OtherBroker]:
    """One broker for all tests that need no restart; topics are told apart by their names."""
    other = os.environ.get("REPLOG_TEST_BOOTSTRAP")
    if other:
        yield OtherBroker(other)
        return
    process = BrokerProcess(tmp_path_factory.mktemp("broker"))
    process.start()
    yield process
    process.stop()


@pytest.fixture
def new_broker(tmp_path: Path) -> Iterator[BrokerFactory]:
    """Makes brokers of the test's own, and ends what is left of them."""
    made: list[BrokerProcess] = []

    def make(**settings: str) -> BrokerProcess:
        process = BrokerProcess(
            tmp_path / f"broker{len(made)}",
            {name.replace("_", "."): value for name, value in settings.items()},
        )
        made.append(process)
        return process

    make.log_tail = lambda: "\n".join(process.log_tail() for process in made)  # type: ignore[attr-defined]
    yield make
    for process in made:
        process.kill()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{uuid.uuid4().hex[:12]}"
