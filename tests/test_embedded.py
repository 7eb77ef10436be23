"""The public class: what it refuses, and how it starts, fails and stops, on the memory twin; with
real sockets and loops in tests/compat/test_embedded.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.application.service import IService, MultiService
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from zope.interface.verify import verifyObject

import twisted_broker
from tests.memory_broker import MemoryBroker
from twisted_broker import Broker, StartError, embedded, start_checks, tap
from twisted_broker.embedded import _reactor


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> MemoryBroker:
    """The world of the brokers that are made in the test."""
    world = MemoryBroker()

    async def close() -> None:
        assert world.network.ports == {}

    world.network.close = close  # type: ignore[attr-defined]
    monkeypatch.setattr(start_checks, "try_port", lambda endpoint: None)  # of this machine
    monkeypatch.setattr(embedded, "_reactor", lambda: world.clock)
    monkeypatch.setattr(tap, "MonotonicClock", lambda reactor: reactor)
    monkeypatch.setattr(tap, "production_runtime", lambda *_, **__: world.runtime)
    return world


IMPORTS = """
import sys, twisted_broker
assert twisted_broker.__version__
assert not any(name.startswith("twisted.") for name in sys.modules), sys.modules
from twisted_broker import *
assert Broker and StartError
assert "twisted.internet.reactor" not in sys.modules
Broker()
assert "twisted.internet.reactor" not in sys.modules
"""


def test_an_import_makes_no_reactor() -> None:
    """Of the package not even Twisted is loaded."""
    root = str(Path(twisted_broker.__file__).parents[1])
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, timeout=60, cwd=root)


def test_a_name_that_is_not_public() -> None:
    with pytest.raises(AttributeError, match="Cluster"):
        _ = twisted_broker.Cluster


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"settings": {"num.partitions": "many"}}, "setting num.partitions='many' is refused: "),
        ({"settings": {"num.partitions": [1]}}, "the setting num.partitions is a list: "),
        ({"settings": {"zookeeper.connect": "h:1"}}, "setting zookeeper.connect='h:1' is refused"),
        ({"settings": {"process.roles": "broker"}}, "setting controller.quorum"),
        ({"port": 65536}, "--port takes a number from 0 to 65535"),
        (
            {"settings": {"listeners": "PLAINTEXT://127.0.0.1:0"}, "port": 0},
            "port=0 contradicts the setting listeners=PLAINTEXT://127.0.0.1:0: give one",
        ),
        (
            {"settings": {"listeners": "PLAINTEXT://127.0.0.1:0"}, "host": "::1"},
            "host=::1 contradicts the setting listeners=",
        ),
        (
            {"settings": {"log.dirs": "/a"}, "data": Path("/b")},
            "data=/b contradicts the setting log.dirs=/a: give one of the two",
        ),
    ],
)
def test_wrong_settings_are_one_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(StartError) as refused:
        Broker(**given)
    assert str(refused.value).startswith(line) and "\n" not in str(refused.value)


def test_it_starts_and_stops_as_often_as_one_likes(world: MemoryBroker) -> None:
    broker = Broker({"num.partitions": 3, "auto.create.topics.enable": False}, port=9092)
    world.run(broker.stop())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="start it first"):
            _ = broker.bootstrap
        first, again = (ensureDeferred(broker.start()) for _ in range(2))
        assert not first.called
        world.run(first)
        world.run(again)
        assert broker.running and broker.bootstrap == "127.0.0.1:9092"
        assert broker.listeners == {
            "PLAINTEXT": broker.bootstrap,
            "CONTROLLER": broker.controller,
        }
        assert broker.status is not None and len(broker.cluster_id) == 22
        stops = [ensureDeferred(broker.stop()) for _ in range(2)]
        for each in stops:
            world.run(each)
        world.run(broker.stop())
        assert not broker.running and world.clock.getDelayedCalls() == []


def test_a_port_that_is_taken_is_raised(world: MemoryBroker) -> None:
    """The start gives all back, and may be tried again."""
    said: list[str] = []
    other = world.run(world.network.listen("127.0.0.1", 9092, None))
    broker = Broker(port=9092, on_failure=said.append)
    for _ in range(2):
        with pytest.raises(
            StartError, match=r"PLAINTEXT://127\.0\.0\.1:9092 cannot be listened on"
        ):
            world.run(broker.start())
        assert not broker.running and list(world.network.ports) == [("127.0.0.1", 9092)]
    other.stopListening()
    world.run(broker.start())
    world.run(broker.stop())
    assert said == []


@pytest.mark.parametrize("end", ["stop", "cancel"])
def test_a_start_that_is_given_up(world: MemoryBroker, end: str) -> None:
    """It waits for a controller that is not there."""
    address = {"process.roles": "broker", "controller.quorum.bootstrap.servers": "127.0.0.1:1"}
    broker = Broker(address)
    starting = ensureDeferred(broker.start())
    world.pass_time(1)
    assert not starting.called
    if end == "stop":
        world.run(broker.stop())
        with pytest.raises(StartError, match="it was stopped"):
            world.run(starting)
    else:
        starting.cancel()
        with pytest.raises(CancelledError):
            world.run(starting)
    assert not broker.running
    world.run(broker.stop())
    assert world.network.ports == {} and world.clock.getDelayedCalls() == []


async def within(broker: Broker, seen: list[bool], end: Callable[[], None]) -> None:
    async with broker as same:
        seen.append(same is broker and bool(broker.bootstrap))
        end()


def fail() -> None:
    raise ValueError("of the program")


@pytest.mark.parametrize("end", [lambda: None, fail])
def test_as_a_context_manager(world: MemoryBroker, end: Callable[[], None]) -> None:
    """It stops, and what the program raises stays what it is."""
    broker, seen = Broker(), list[bool]()
    inside: Deferred[None] = ensureDeferred(within(broker, seen, end))
    if end is fail:
        with pytest.raises(ValueError, match="of the program"):
            world.run(inside)
    else:
        world.run(inside)
    assert seen == [True] and not broker.running


def test_as_a_service(world: MemoryBroker) -> None:
    """It starts and stops with its parent."""
    parent, broker = MultiService(), Broker()
    assert verifyObject(IService, broker)
    broker.setServiceParent(parent)
    parent.startService()
    world.run(broker.start())
    assert broker.running and broker.bootstrap
    world.run(parent.stopService())
    assert not broker.running and world.network.ports == {}


def test_what_ends_a_broker_is_said_once(world: MemoryBroker) -> None:
    """It cannot go on while it serves, and cannot start as a service."""
    said: list[str] = []
    parent, broker = MultiService(), Broker(port=9092, on_failure=said.append)
    broker.setServiceParent(parent)
    world.run(broker.start())
    node = broker._node.broker
    node.shared.on_fatal("the disk is gone")
    node.shared.on_fatal("the disk is gone, again")
    world.run(broker.stop())
    assert said == ["the disk is gone"] and not broker.running and world.network.ports == {}
    world.network.listen("127.0.0.1", 9092, None)
    parent.startService()
    world.pass_time(1)
    assert len(said) == 2 and "cannot be listened on" in said[1] and not broker.running
    world.run(parent.stopService())


def test_outside_of_asyncio_it_takes_the_programs_reactor() -> None:
    from twisted.internet import reactor

    assert _reactor() is reactor
