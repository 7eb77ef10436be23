"""What a broker says at its registration of its stop before (RL 8.2, KIP-966): the epoch that
all directories agree on, or nothing.
"""

from __future__ import annotations

from errno import EIO
from typing import Any

import pytest

from tests.log.test_log_manager import World, create, failure, fill
from tests.memory_broker import MemoryBroker
from twisted_broker.cluster.broker_lifecycle_manager import BrokerLifecycleManager
from twisted_broker.cluster.controller import Controller
from twisted_broker.log import checkpoints
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.log.log_manager import LogManager
from twisted_broker.net.listeners import OpenListeners
from twisted_broker.server import controller_server
from twisted_broker.server.kraft_membership import KRaftMembership
from twisted_broker.server.metadata_publisher import BrokerMetadataPublisher
from twisted_broker.server.socket_server import SocketServer
from twisted_broker.simulation.disk_faults import Fault


def stopped(epoch: int = 77) -> World:
    world = World()
    manager = world.manager()
    fill(create(manager), 3)
    world.stop(manager, epoch)
    return world


def test_after_a_clean_stop_it_is_the_epoch_of_that_life() -> None:
    """RL 8.2: the marks of all directories tell it; after the next start without a stop there is
    none.
    """
    world = stopped()
    assert world.manager().directories.previous_broker_epoch() == 77
    assert World(world.files.after_kill()).manager().directories.previous_broker_epoch() == -1


@pytest.mark.parametrize("what", ["older", "missing", "unreadable", "offline"])
def test_a_directory_that_does_not_agree_makes_it_unknown(what: str) -> None:
    """RL 8.2, as Kafka: a directory that was away for a life lacks what was written in it: the
    controller must take the stop for an unclean one.
    """
    world = stopped()
    if what == "older":
        checkpoints.write_clean_shutdown(world.files, "/d2", 12)
    elif what == "missing":
        world.files.remove("/d2/.kafka_cleanshutdown")
    elif what == "unreadable":
        world.files.open("/d2/.kafka_cleanshutdown", create=False).write_at(0, (b"?",))
    else:
        world.files.faults.append(Fault(EIO, path="/d2"))
    assert world.manager().directories.previous_broker_epoch() == -1
    assert ("/d2" in world.failed) == (what == "offline")


def test_the_registration_carries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """RL 8.2: previous broker epoch: -1 at the first start, the last one's after a stop in
    order, -1 after a kill.
    """
    told: list[int] = []
    real = BrokerLifecycleManager.start

    def start(self: BrokerLifecycleManager, *arguments: Any) -> None:
        told.append(arguments[-1])
        real(self, *arguments)

    monkeypatch.setattr(BrokerLifecycleManager, "start", start)
    broker = MemoryBroker().start()
    epoch = broker.broker.parts.metadata.image.brokers[1].epoch
    broker.stop()
    again = MemoryBroker(broker.files).start()
    assert again.broker.parts.metadata.image.brokers[1].epoch > epoch
    again.files._locks.clear()  # its process is dead
    MemoryBroker(again.files).start()
    assert told == [-1, epoch, -1]


def test_a_process_that_never_registered_keeps_the_epoch_of_each_directory() -> None:
    """RL 8.2: its clean stop says nothing new, so the marks stay as they were; -1 stays -1."""
    world = stopped()
    checkpoints.write_clean_shutdown(world.files, "/d2", 12)
    world.stop(world.manager(), epoch=None)
    assert [checkpoints.read_clean_shutdown(world.files, path) for path in ("/d1", "/d2")] == [
        77,
        12,
    ]
    files: Any = world.manager().runtime.files
    killed = World(files.after_kill())
    killed.stop(killed.manager(), epoch=None)
    assert [checkpoints.read_clean_shutdown(killed.files, path) for path in ("/d1", "/d2")] == [
        -1,
        -1,
    ]


def test_a_load_that_is_refused_leaves_the_marks() -> None:
    """RL 8.2: two directories with one partition, and no topic ids, end the start; nothing was
    written to either, so both are as clean as before.
    """
    world = stopped()
    world.files.make_directories("/d2/a-0")
    world.files.remove("/d1/a-0/partition.metadata")
    for name in world.files.listdir("/d1/a-0"):
        content = world.files.content(f"/d1/a-0/{name}")
        world.files.open(f"/d2/a-0/{name}", create=True).write_at(0, (content,))
    manager = world.manager(start=False)
    assert "is in /d1/a-0 and in /d2/a-0" in str(failure(manager))
    world.stop(manager, epoch=None)
    assert [checkpoints.read_clean_shutdown(world.files, path) for path in ("/d1", "/d2")] == [
        77,
        77,
    ]
    world.files.remove_tree("/d2/a-0")
    assert world.manager().directories.previous_broker_epoch() == 77


_CONTROLLER_PORT = 9093
_STEPS: dict[str, tuple[Any, str]] = {
    "the logs": (LogManager, "_loaded"),
    "the metadata log": (controller_server, "opened_in_steps"),
    "the controller's port": (OpenListeners, "open"),
    "the controller": (Controller, "start"),
    "the parts of the broker": (KRaftMembership, "_controllers"),
    "the broker's port": (OpenListeners, "open"),
    "the addresses": (SocketServer, "set_advertised_listeners"),
    "registration": (BrokerLifecycleManager, "start"),
    "the first roles": (BrokerMetadataPublisher, "take"),
    "the fence": (BrokerLifecycleManager, "ready_to_unfence"),
    "letting clients in": (OpenListeners, "start_accepting"),
}


@pytest.mark.parametrize("step", _STEPS)
def test_a_start_that_fails_anywhere_keeps_the_places_in_isr_and_elr(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 8.2: whatever the failed start got to, the next registration names the epoch that the
    controller knows: the stop counts as clean.
    """
    broker = MemoryBroker().start()
    broker.stop()
    owner, name = _STEPS[step]
    real = getattr(owner, name)

    def fails(*arguments: Any, **more: Any) -> Any:
        if step == "the broker's port" and arguments[1].port == _CONTROLLER_PORT:
            return real(*arguments, **more)
        raise OSError(EIO, "no further")

    with monkeypatch.context() as broken:
        broken.setattr(owner, name, fails)
        failing = MemoryBroker(broker.files)
        with pytest.raises((OSError, LogDirFailure), match="no further"):
            failing.start()
    again = MemoryBroker(broker.files)
    told: list[tuple[int, int]] = []
    start = BrokerLifecycleManager.start

    def noted(self: BrokerLifecycleManager, *arguments: Any) -> None:
        told.append((arguments[-1], again.broker.parts.controller.image.brokers[1].epoch))
        start(self, *arguments)

    monkeypatch.setattr(BrokerLifecycleManager, "start", noted)
    again.start()
    ((previous, known),) = told
    assert previous == known
    again.stop()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"7",
        b'{"version":0}',
        b'{"version":1,"brokerEpoch":5}',
        b'{"version":-1,"brokerEpoch":5}',
        b'{"version":0,"brokerEpoch":"5"}',
    ],
)
def test_a_file_that_is_not_understood_has_no_epoch(content: bytes) -> None:
    """RL 8.2: only version 0 is known; anything else counts as an unclean stop."""
    world = stopped()
    file = world.files.open(f"/d1/{checkpoints.CLEAN_SHUTDOWN}", create=True)
    file.truncate(0)
    file.write_at(0, (content,))
    assert checkpoints.read_clean_shutdown(world.files, "/d1") == -1
