"""Who waits for a cluster looks when something was done in it, and at no other time."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock

from twisted_broker.testing.running_cluster import RunningCluster
from twisted_broker.testing.simulated.run import SETTINGS
from twisted_broker.testing.simulated.virtual_world import VirtualWorld
from twisted_broker.testing.wakes import Wakes


class Looking:
    """Somebody who waits until `holds`."""

    def __init__(self, within: float = 30.0) -> None:
        self.clock = Clock()
        self.wakes = Wakes(self.clock, self.clock)
        self.looks, self.holds, self.pauses = 0, False, 0.0
        self.found: list[Any] = []
        ensureDeferred(self.wakes.until(self.look, within)).addBoth(self.found.append)

    async def look(self) -> bool:
        self.looks += 1
        holds = self.holds
        if self.pauses:
            pause: Deferred[None] = Deferred()
            self.clock.callLater(self.pauses, pause.callback, None)
            await pause
        return holds


def test_nobody_looks_while_nothing_is_done() -> None:
    one = Looking()
    one.clock.pump([1.0] * 20)
    assert (one.looks, one.found) == (1, [])
    one.wakes.wake()
    one.wakes.wake()
    one.clock.advance(0)
    assert one.looks == 2  # once for what was done in one turn
    one.holds = True
    one.wakes.wake()
    assert one.looks == 2  # not in the middle of what is done
    one.clock.advance(0)
    assert one.found == [True] and not one.clock.getDelayedCalls()


def test_the_last_look_is_at_the_end() -> None:
    one = Looking(within=5.0)
    one.holds = True
    one.clock.advance(5.0)
    assert (one.looks, one.found) == (2, [True])
    another = Looking(within=5.0)
    another.clock.advance(5.0)
    assert another.found == [False] and not another.clock.getDelayedCalls()


def test_what_is_done_during_a_look_is_looked_at_after_a_pause_for_a_dear_one() -> None:
    one = Looking()
    one.pauses = 1.0
    one.wakes.wake()
    one.clock.advance(0)
    one.wakes.wake()
    one.holds, one.pauses = True, 0.0
    one.clock.advance(1.0)
    assert one.looks == 2 and not one.found
    one.clock.advance(0.005)
    assert (one.looks, one.found) == (3, [True])


def test_with_a_period_it_looks_also_without_being_told() -> None:
    one = Looking()
    one.wakes.period = 0.5
    one.wakes.wake()
    one.clock.advance(0)
    one.clock.pump([0.5, 0.5])
    assert one.looks == 4


def test_a_wait_ends_in_the_instant_of_the_change_after_few_looks() -> None:
    world = VirtualWorld(1)
    running = RunningCluster(1, SETTINGS, None, {"orders": 1}, world.made_for)

    def run(work: Any) -> Any:
        found: list[Any] = []
        ensureDeferred(work).addBoth(found.append)
        while not found:
            assert world.clock.step(1000.0)
        return found[0]

    run(running.start())
    wakes = running._wakes
    looked, began = wakes.looks, world.clock.now
    condition = {"what": "log_end", "topic": "orders", "partition": 0, "is": ">=", "value": 1}
    done: list[float] = []
    ensureDeferred(running.call("wait_until", {"condition": condition})).addBoth(
        lambda result: done.append(world.clock.now)
    )
    while world.clock.now < began + 10:
        world.clock.step(began + 10)
    idle = wakes.looks - looked
    assert idle < 500 and not done  # a look each 5 ms would be 2,000
    (partition,) = [
        each
        for name, each in running._running[0].broker_server.replica_manager.partitions.items()
        if name.topic == "orders"
    ]
    appended: list[float] = []
    ensureDeferred(running.call("produce", {"topic": "orders", "records": [{"value": "MQ=="}]}))
    while not done:
        assert world.clock.step(1000.0)
        log = partition.leader_log
        if not appended and log is not None and log.log_end_offset:
            appended.append(world.clock.now)
    assert done == appended
    run(running.stop())
