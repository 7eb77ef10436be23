"""Who leads a partition and who is in its ISR, as Apache Kafka 3.9's controller decides it.

Owns `PartitionLeaders`: partitions get their first state, leaders are elected where there is none,
brokers that went leave the ISRs, preferred leaders return.

1. A leader comes out of the ISR: the first assigned replica that is alive and in it; of a topic
   that allows it any that is alive.
2. A broker leaves all ISRs but those in which it is alone.

Source: KRAFT 2.1; Kafka 3.9's `PartitionStateMachine`, `ReplicaStateMachine`. Not here: how a state
is written (`simulation/zookeeper/controller_context.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.zookeeper.controller_channels import Leadership
from twisted_broker.simulation.zookeeper.controller_context import (
    NO_LEADER,
    ControllerContext,
    Moved,
)
from twisted_broker.zookeeper.port import BadVersionError, NodeExistsError, NoNodeError
from twisted_broker.zookeeper.znodes import (
    PartitionStateNode,
    config_path,
    read_config,
    state_json,
    state_path,
)


class PartitionLeaders:
    """See the module's card."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def _candidate(self, name: TopicPartition, isr: Iterable[int]) -> int:
        live = self._context.live
        return next(
            (
                each
                for each in self._context.assigned[name].replicas
                if each in live and each in isr and each not in self._context.shutting_down
            ),
            next(
                (
                    each
                    for each in self._context.assigned[name].replicas
                    if each in live and each in isr
                ),
                NO_LEADER,
            ),
        )

    async def elect_where_needed(self) -> None:
        """New partitions get a state; those without a living leader another one."""
        made = [name for name in self._context.assigned if name not in self._context.states]
        for name in made:
            await self._make_state(name)
        self._context.send_roles(
            (name for name in made if name in self._context.states), is_new=True
        )
        offline = [
            name
            for name, state in self._context.states.items()
            if state.leader not in self._context.live and name.topic not in self._context.deleting
        ]
        unclean = await self._allowing_unclean({name.topic for name in offline})

        def decide(name: TopicPartition, state: Leadership) -> Leadership | None:
            if state.leader in self._context.live:
                return None
            leader = self._candidate(name, state.isr)
            if leader >= 0:
                isr = tuple(each for each in state.isr if each in self._context.live)
                return state._replace(leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr)
            leader = self._candidate(name, self._context.assigned[name].replicas)
            if name.topic in unclean and leader >= 0:
                return state._replace(
                    leader=leader,
                    leader_epoch=state.leader_epoch + 1,
                    isr=(leader,),
                    recovering=self._context.protocol.topic_ids,
                )
            return None

        self._context.send_roles(await self._context.decide(offline, decide))
        self._context.update_metadata(self._context.live, offline)

    async def _make_state(self, name: TopicPartition) -> None:
        live = tuple(
            each for each in self._context.assigned[name].replicas if each in self._context.live
        )
        if not live or name.topic in self._context.deleting:
            return
        state = PartitionStateNode(live[0], 0, self._context.epoch, live)
        try:
            await self._context.zookeeper.create(
                state_path(name), state_json(state), fence=self._context.fence
            )
        except NodeExistsError:
            pass  # before the connection was lost
        except BadVersionError as error:
            raise Moved from error
        await self._context.read_states([name])

    async def _allowing_unclean(self, topics: Iterable[str]) -> set[str]:
        found = set()
        for topic in topics:
            path = config_path("topics", topic)
            try:
                data, _ = await self._context.zookeeper.get(path)
            except NoNodeError:
                continue
            if read_config(path, data).get("unclean.leader.election.enable") == "true":
                found.add(topic)
        return found

    async def take_out(self, node_id: int) -> None:
        """OfflineReplica: a broker leaves the ISRs that have others."""

        def decide(name: TopicPartition, state: Leadership) -> Leadership | None:
            if node_id not in state.isr:
                return None
            isr = tuple(each for each in state.isr if each != node_id) or state.isr
            leader = NO_LEADER if state.leader == node_id else state.leader
            if (leader, isr) == (state.leader, state.isr):
                return None
            return state._replace(leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr)

        names = [
            name
            for name, each in self._context.assigned.items()
            if node_id in each.replicas and name.topic not in self._context.deleting
        ]
        self._context.send_roles(await self._context.decide(names, decide), without=[node_id])

    async def elect_preferred(self) -> None:
        """As an operator wants it."""

        def decide(name: TopicPartition, state: Leadership) -> Leadership | None:
            preferred = self._context.assigned[name].replicas[0]
            if preferred == state.leader or preferred not in state.isr:
                return None
            if preferred not in self._context.live or preferred in self._context.shutting_down:
                return None
            return state._replace(leader=preferred, leader_epoch=state.leader_epoch + 1)

        names = [name for name in self._context.states if name.topic not in self._context.deleting]
        elected = await self._context.decide(names, decide)
        for _ in elected:
            self._context.counted("preferred leader elected")
        self._context.send_roles(elected)
