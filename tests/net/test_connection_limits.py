"""Who is let in when connections or descriptors are used up (`net/connection_limits.py`): on two
listeners of one broker, or on one, in memory.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from twisted.internet.protocol import ClientFactory
from twisted.internet.task import Clock

from tests.net.echo import Far, framed
from twisted_broker.interfaces import Runtime
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.net.connection_limits import ConnectionCounts, ConnectionFactory
from twisted_broker.settings import INT_MAX
from twisted_broker.simulation.memory_network import MemoryNetwork

PORTS = {"CLIENTS": 9092, "BROKERS": 9091}


class Listeners:
    """`BROKERS` is the listener of other brokers; every request is echoed."""

    def __init__(
        self,
        *names: str,
        maximum: int = INT_MAX,
        per_host: int = INT_MAX,
        descriptors: int = INT_MAX,
        of_brokers: int = 2,
    ) -> None:
        self.clock = Clock()
        self.network = MemoryNetwork(self.clock)
        runtime = Runtime(
            clock=self.clock,
            wall_ms=lambda: 0,
            network=self.network,
            files=MemoryFileSystem(),
            disk=None,
            random=Random(1),
        )
        self.counts = ConnectionCounts(
            maximum,
            per_host,
            lambda: descriptors,
            names,
            inter_broker="BROKERS",
            of_brokers=of_brokers,
        )
        self.factories = {
            name: ConnectionFactory(
                runtime,
                lambda connection, frame: framed(bytes(frame)),
                self.counts,
                frame_limit=1000,
                idle_ms=10_000,
                name=name,
            )
            for name in names
        }
        for name, factory in self.factories.items():
            self.network.listen("127.0.0.1", PORTS[name], factory)

    def run(self, seconds: float = 0) -> None:
        self.clock.advance(seconds)
        while any(call.getTime() <= self.clock.seconds() for call in self.clock.getDelayedCalls()):
            self.clock.advance(0)

    def client(self, name: str, request: bytes = b"") -> Far | None:
        """None where it is refused; else the request is answered."""
        made: list[Any] = []
        connecting = self.network.connect(
            "127.0.0.1", PORTS[name], ClientFactory.forProtocol(Far), 1
        )
        connecting.addCallbacks(made.append, lambda failure: made.append(None))
        self.run()
        client: Far | None = made[0]
        if client is not None and request:
            client.transport.write(framed(request))
            self.run()
            assert client.data == framed(request)
        return client


LIMITS = {"maximum": 4}, {"descriptors": 4, "of_brokers": 0}
short_of = pytest.mark.parametrize("limit", LIMITS, ids=["connections", "descriptors"])


@short_of
def test_a_broker_takes_the_place_of_the_oldest_that_never_logged_in(
    limit: dict[str, int],
) -> None:
    """Clients that logged in stay, however old."""
    broker = Listeners("CLIENTS", "BROKERS", **limit)
    used = broker.client("CLIENTS", b"metadata")
    silent = [broker.client("CLIENTS") for _ in range(3)]
    assert broker.client("CLIENTS") is None, "a client takes nobody's place"
    first, second = (broker.client("BROKERS", b"fetch") for _ in range(2))
    assert first and second and used
    assert [each.lost for each in silent if each] == [True, True, False]
    assert not first.lost and not second.lost and not used.lost and broker.counts.total == 4


@short_of
def test_then_a_broker_takes_the_place_of_the_client_that_is_silent_the_longest(
    limit: dict[str, int],
) -> None:
    listeners = Listeners("CLIENTS", "BROKERS", **limit)
    broker = listeners.client("BROKERS", b"fetch")
    clients = [listeners.client("CLIENTS", b"metadata") for _ in range(3)]
    listeners.run(1)
    for number in (0, 2):
        client = clients[number]
        assert client
        client.transport.write(framed(b"again"))
        listeners.run()
    listeners.run(1)
    assert listeners.client("BROKERS", b"fetch") and broker
    assert [each.lost for each in clients if each] == [False, True, False] and not broker.lost


def test_what_brokers_may_have_is_bounded_by_descriptors_alone() -> None:
    """As in Kafka: where all connections are those of brokers, `max.connections` refuses none."""
    broker = Listeners("CLIENTS", "BROKERS", maximum=2, descriptors=4)
    brokers = [broker.client("BROKERS", b"fetch") for _ in range(4)]
    assert all(brokers) and broker.counts.total == 4
    assert broker.client("BROKERS") is None and broker.client("CLIENTS") is None
    assert not any(each.lost for each in brokers if each)


def test_brokers_have_descriptors_of_their_own() -> None:
    """Clients never get them; brokers get more only in the place of others."""
    broker = Listeners("CLIENTS", "BROKERS", descriptors=5, of_brokers=2)
    clients = [broker.client("CLIENTS", b"metadata") for _ in range(4)]
    assert [each is not None for each in clients] == [True, True, True, False]
    brokers = [broker.client("BROKERS", b"fetch") for _ in range(2)]
    assert all(brokers) and not any(each.lost for each in clients if each)
    assert broker.client("CLIENTS") is None
    assert broker.client("BROKERS", b"fetch")
    assert sum(each.lost for each in clients if each) == 1 and broker.counts.total == 5


def test_a_broker_is_held_to_the_limits_of_its_address_and_listener() -> None:
    broker = Listeners("CLIENTS", "BROKERS", per_host=2)
    assert broker.client("CLIENTS") and broker.client("BROKERS")
    assert broker.client("BROKERS") is None
    broker = Listeners("CLIENTS", "BROKERS")
    broker.counts.maximum_of_listeners["BROKERS"] = 2
    client, silent = broker.client("CLIENTS"), broker.client("BROKERS")
    assert broker.client("BROKERS", b"fetch") and silent and not silent.lost
    assert broker.client("BROKERS", b"fetch") and silent.lost, "of its own listener"
    assert broker.client("BROKERS") is None and client and not client.lost


@short_of
def test_where_brokers_and_clients_share_a_listener_only_the_unused_give_way(
    limit: dict[str, int],
) -> None:
    """Nobody knows which is which before it has spoken; who has spoken keeps its place."""
    broker = Listeners("BROKERS", **limit)
    silent = [broker.client("BROKERS") for _ in range(4)]
    used = [broker.client("BROKERS", b"metadata") for _ in range(4)]
    assert all(each and each.lost for each in silent)
    assert not any(each is None or each.lost for each in used)
    assert broker.client("BROKERS") is None and broker.counts.total == 4


def test_a_flood_costs_a_step_a_connection() -> None:
    """Who is known to be used is looked at once, not at each newcomer."""
    broker = Listeners("BROKERS", maximum=200)
    used = [broker.client("BROKERS", b"metadata") for _ in range(150)]
    flood = [broker.client("BROKERS") for _ in range(200)]
    assert not any(each is None or each.lost for each in used)
    assert sum(each is None or each.lost for each in flood) == 150
    assert len(broker.counts._unused["BROKERS"]) == 50


def test_listeners_that_come_later_count() -> None:
    broker = Listeners("BROKERS", maximum=1)
    assert broker.counts.protected == ""
    broker.counts.serve(["BROKERS", "CLIENTS"])
    assert broker.counts.protected == "BROKERS" == broker.counts.rates.protected
