"""Little of the corpus against our broker, on each kind of listener, before and after login."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.broker_process import BrokerProcess
from tests.hostile import own
from tests.hostile.classes import CLASSES
from tests.hostile.run import markdown, run, unhandled
from tests.hostile.target import Target

pytestmark = pytest.mark.clients

PASSES = {
    "PLAINTEXT": tuple(CLASSES),
    "SASL": ("SASL phase", "frame lengths", "tagged fields", "names", "patterns", "authorisation"),
    "SECURE": ("SASL phase", "slow clients", "connection floods", "varints"),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    made = own.start(tmp_path_factory.mktemp("hostile"))
    yield made
    made.stop()


@pytest.mark.parametrize("listener", own.LISTENERS)
def test_the_corpus(broker: BrokerProcess, listener: str) -> None:
    """Others are served, memory stays, nothing is unhandled, and nothing is let in that must not
    be. That others wait for a second at most is seen by `make hostile`: here the machine is busy.
    """
    assert broker.process is not None
    found = run(
        [(name, CLASSES[name]) for name in PASSES[listener]],
        Target(own.address(broker, listener)),
        pid=broker.process.pid,
        log=broker.log,
        whole=False,
        ordinary=listener != "PLAINTEXT",
        most_wait=20,
    )
    assert not [f"{each.name}: {bad}" for each in found for bad in each.violations]
    assert len(found) == len(PASSES[listener]) * (1 if listener == "PLAINTEXT" else 2)
    assert all(each.lap.answered for each in found)
    table = markdown(found)
    assert len(table.splitlines()) == 2 + len(found) and "SASL phase" in table


def test_an_unhandled_error_is_seen(tmp_path: Path) -> None:
    """In what the log has since a class began."""
    log = tmp_path / "log"
    log.write_text("Unhandled before\n")
    size = log.stat().st_size
    log.write_text("Unhandled before\nfine\n[-] Unhandled Error\n")
    assert unhandled(log, size) == ["[-] Unhandled Error"]
