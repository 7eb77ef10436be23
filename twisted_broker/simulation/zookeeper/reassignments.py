"""How a simulated controller moves replicas.

Owns `REASSIGN`, the node under which an operator says where to, and `Reassignments`.

1. Replicas that come are assigned beside the old ones first; the old ones go, and stop, when all
   that come are in the ISR.

Source: KRAFT 2.2; Kafka 3.9's `KafkaController.onPartitionReassignment`. Not here: who leads
otherwise (`simulation/zookeeper/partition_leaders.py`).
"""

from __future__ import annotations

import json

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.zookeeper.controller_channels import Assigned, Leadership
from twisted_broker.simulation.zookeeper.controller_context import ControllerContext
from twisted_broker.simulation.zookeeper.controller_events import ControllerEvents
from twisted_broker.zookeeper.port import NoNodeError

REASSIGN = "/admin/reassign_partitions"
_LOOK_SECONDS = 1.0


class Reassignments:
    """See the module's card."""

    def __init__(self, context: ControllerContext, events: ControllerEvents) -> None:
        self._context, self._events = context, events
        self._looking = False
        self._begun: set[tuple[int, TopicPartition]] = set()
        """(controller epoch, partition): resumed once by each controller"""

    async def look(self) -> None:
        """Each as far as it can go now."""
        if not self._context.epoch:
            return
        found = await self._context.children(
            REASSIGN, lambda: self._events.put("reassign", self.look)
        )
        for entry in found:
            path = f"{REASSIGN}/{entry}"
            try:
                data, _ = await self._context.zookeeper.get(path)
            except NoNodeError:
                continue
            topic, _, number = entry.rpartition("-")
            name = TopicPartition(topic, int(number))
            if name not in self._context.states or topic in self._context.deleting:
                await self._context.remove(path)
            elif await self._reassign(name, tuple(json.loads(data))):
                self._context.counted("reassignment ended")
                await self._context.remove(path)
            elif not self._looking:
                self._looking = True
                self._context.runtime.clock.callLater(_LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._looking = False
        self._events.put("reassign", self.look)

    async def _reassign(self, name: TopicPartition, target: tuple[int, ...]) -> bool:
        """Whether it is done."""
        assigned = self._context.assigned[name]
        origin = tuple(each for each in assigned.replicas if each not in assigned.adding)
        adding = tuple(each for each in target if each not in origin)
        removing = tuple(each for each in origin if each not in target)
        step = Assigned((*target, *removing), adding, removing)
        mine = self._context.epoch, name
        if assigned != step or mine not in self._begun:
            self._begun.add(mine)
            if assigned != step:
                await self._context.write_assignment(name, step)
            # Also where the controller before wrote it and went: the leader knows only by a new
            # epoch whom it may take into the ISR.
            self._context.send_roles(await self._context.decide([name], _raise_epoch))
            return False
        await self._context.read_states([name])
        state = self._context.states[name]
        if not set(target) <= set(state.isr) or not set(target) <= self._context.live.keys():
            return False

        def lead_and_shrink(_: TopicPartition, before: Leadership) -> Leadership | None:
            if not set(target) <= set(before.isr):
                return None
            leader = before.leader if before.leader in target else target[0]
            isr = tuple(each for each in before.isr if each in target)
            return before._replace(leader=leader, leader_epoch=before.leader_epoch + 1, isr=isr)

        if not await self._context.decide([name], lead_and_shrink):
            return False
        self._context.send_roles([name], without=removing)
        epoch = self._context.states[name].leader_epoch
        for node_id in removing:
            self._context.sender.stop_replicas(node_id, [(name, epoch)], False)
            self._context.sender.stop_replicas(node_id, [(name, epoch)], True)
        await self._context.write_assignment(name, Assigned(target))
        self._context.send_roles(await self._context.decide([name], _raise_epoch))
        return True


def _raise_epoch(_: TopicPartition, state: Leadership) -> Leadership:
    return state._replace(leader_epoch=state.leader_epoch + 1)
