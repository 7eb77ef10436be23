"""What a broker says at its registration of its stop before (RL 8.2, KIP-966): the epoch that
all directories agree on, or nothing.
"""

from __future__ import annotations

from errno import EIO
from typing import Any

import pytest

from tests.log.test_log_manager import World, create, fill
from tests.memory_broker import MemoryBroker
from twisted_broker.cluster.lifecycle import BrokerLifecycle
from twisted_broker.log import checkpoints
from twisted_broker.testing.sim.disk_faults import Fault


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
    assert world.manager().previous_broker_epoch() == 77
    assert World(world.files.after_kill()).manager().previous_broker_epoch() == -1


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
    assert world.manager().previous_broker_epoch() == -1
    assert ("/d2" in world.failed) == (what == "offline")


def test_the_registration_carries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """RL 8.2: previous broker epoch: -1 at the first start, the last one's after a stop in
    order, -1 after a kill.
    """
    told: list[int] = []
    real = BrokerLifecycle.start

    def start(self: BrokerLifecycle, *arguments: Any) -> None:
        told.append(arguments[-1])
        real(self, *arguments)

    monkeypatch.setattr(BrokerLifecycle, "start", start)
    house = MemoryBroker().start()
    epoch = house.broker.parts.metadata.image.brokers[1].epoch
    house.stop()
    again = MemoryBroker(house.files).start()
    assert again.broker.parts.metadata.image.brokers[1].epoch > epoch
    again.files._locks.clear()  # its process is dead
    MemoryBroker(again.files).start()
    assert told == [-1, epoch, -1]
