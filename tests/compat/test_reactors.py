"""Under each of Twisted's reactors that this system has: stock clients produce, read in a group and
read large records, connections are served by epoll's group where the system has it, slow turns are
counted where the reactor can be watched, and SIGTERM is a clean shutdown.
"""

from __future__ import annotations

import re
import select
import urllib.request
from pathlib import Path

import pytest

from tests.compat.broker_process import BrokerProcess
from tests.compat.clients import KafkaPython

REACTORS = {
    "select": "select",
    "poll": "poll",
    "epoll": "epoll",
    "kqueue": "kqueue",
    "asyncio": "select",  # of the module select it needs nothing else
}
WATCHED = ("poll", "epoll")
ROWS = [(b"%d" % number, b"v" * (1 + number % 5 * 60_000), ()) for number in range(40)]


class UnderReactor(BrokerProcess):
    reactor = ""

    def command(self) -> list[str]:
        twistd, *more = super().command()
        return [twistd, f"--reactor={self.reactor}", *more]


@pytest.mark.parametrize("reactor", REACTORS)
def test_a_broker_under(reactor: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if not hasattr(select, REACTORS[reactor]):
        pytest.skip(f"this system has no {reactor}")
    broker = UnderReactor(tmp_path)
    broker.reactor = reactor
    request.addfinalizer(broker.kill)
    broker.start()
    client = KafkaPython()
    client.produce(broker.bootstrap, "letters", "none", ROWS)
    assert sorted(client.consume(broker.bootstrap, "letters", "readers", 40)) == sorted(ROWS)
    with urllib.request.urlopen(f"http://{broker.run()['status']}/metrics", timeout=30) as page:
        metrics = page.read().decode()
    turns = re.findall(r"^replog_reactor_turns_total (.*)$", metrics, re.MULTILINE)
    assert [float(each) > 10 for each in turns] == [True] * (reactor in WATCHED)
    broker.stop()
    assert (Path(broker.data) / ".kafka_cleanshutdown").exists()
    said = broker.log.read_text()
    assert f"reactor class: twisted.internet.{reactor}reactor." in said, said
    assert "Traceback" not in said and "Unhandled" not in said, said
