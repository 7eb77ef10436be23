"""The simulated controller's knowledge of its cluster: read, written, and told to brokers.

Owns `ControllerContext`; `Moved`, which every call raises that finds another controller; the
content of a topic's node (`topic_json`).

1. Every write is fenced by `/controller_epoch`. A decision names the version of the `state` that
   was read for it: where that is another one by now it is decided anew, or the controller has
   moved.
2. What a controller knows goes with its term: `reset`.

Source: KRAFT 2.1, 2.2; Kafka 3.9's `ControllerContext`, `KafkaZkClient`. Not here: what is decided
(the modules beside it), requests on their way (`simulation/zookeeper/controller_channels.py`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.simulation.zookeeper.controller_channels import (
    Assigned,
    ControllerChannels,
    Leadership,
    LiveBroker,
)
from twisted_broker.simulation.zookeeper.session import SimZooKeeper
from twisted_broker.zookeeper.port import BadVersionError, NodeExistsError, NoNodeError
from twisted_broker.zookeeper.protocol_versions import InterBrokerProtocol
from twisted_broker.zookeeper.znodes import (
    BROKER_IDS,
    PartitionStateNode,
    read_state,
    state_json,
    state_path,
)

TOPICS = "/brokers/topics"
NO_LEADER = -1


class Moved(Exception):
    """Another one is controller, or this one's session is over."""


class _Checked:
    """Calls to ZooKeeper that raise `Moved` where the controller resigned while they were under
    way.
    """

    def __init__(self, context: ControllerContext, client: SimZooKeeper) -> None:
        self._context, self._client = context, client

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self._client, name)

        async def checked(*arguments: Any, **keywords: Any) -> Any:
            term = self._context.term
            try:
                return await call(*arguments, **keywords)
            finally:
                if term != self._context.term:
                    raise Moved

        return checked


class ControllerContext:
    """`counted(kind)` is called with what the controller did, `note(what)` for a trace."""

    def __init__(
        self,
        runtime: Runtime,
        node_id: int,
        protocol: InterBrokerProtocol,
        client: SimZooKeeper,
        note: Callable[[str], None],
        counted: Callable[[str], None],
    ) -> None:
        self.runtime, self.node_id, self.protocol = runtime, node_id, protocol
        self.note, self.counted = note, counted
        self.zookeeper = _Checked(self, client)
        self.term = self.epoch = 0
        """`epoch`: 0 while it is not the controller"""
        self.reset()

    def reset(self) -> None:
        """Nothing is known."""
        self.fence = -1
        self.has_begun = False
        """it has read everything, and watches"""
        self.channels: ControllerChannels | None = None
        self.shutting_down: set[int] = set()
        self.leaving: set[int] = set()
        """brokers that went, and whose replicas are not all out of the ISRs yet"""
        self.assigned: dict[TopicPartition, Assigned] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.states: dict[TopicPartition, Leadership] = {}
        self.deleting: dict[str, set[tuple[TopicPartition, int]]] = {}
        """topic -> replicas whose deletion was not confirmed"""

    def resign(self) -> None:
        """Its term is over."""
        if self.epoch:
            self.note(f"is controller {self.epoch} no more")
        self.term += 1
        self.epoch = 0
        if self.channels is not None:
            self.channels.close()
        self.reset()

    @property
    def live(self) -> dict[int, LiveBroker]:
        return {} if self.channels is None else self.channels.brokers

    @property
    def sender(self) -> ControllerChannels:
        """Raises Moved where this is no controller any more."""
        if self.channels is None:
            raise Moved
        return self.channels

    # reading

    async def children(self, path: str, changed: Callable[[], None] | None) -> list[str]:
        found: list[str]
        try:
            found = await self.zookeeper.children(path, changed)
        except NoNodeError:
            with suppress(NodeExistsError):
                await self.zookeeper.create(path, b"")
            found = await self.zookeeper.children(path, changed)
        return found

    async def read_brokers(
        self, changed: Callable[[], None] | None = None
    ) -> dict[int, LiveBroker]:
        found = {}
        for name in await self.children(BROKER_IDS, changed):
            try:
                data, stat = await self.zookeeper.get(f"{BROKER_IDS}/{name}")
            except NoNodeError:
                continue
            content = json.loads(data)
            found[int(name)] = LiveBroker(int(name), stat.czxid, content["host"], content["port"])
        return found

    async def read_topic(self, topic: str) -> bool:
        """False when it went meanwhile."""
        try:
            data, _ = await self.zookeeper.get(f"{TOPICS}/{topic}")
        except NoNodeError:
            return False
        content = json.loads(data)
        if self.protocol.topic_ids:
            self.topic_ids[topic] = bytes.fromhex(content["topic_id"])
        for number, replicas in content["partitions"].items():
            self.assigned[TopicPartition(topic, int(number))] = Assigned(
                tuple(replicas),
                tuple(content["adding_replicas"].get(number, ())),
                tuple(content["removing_replicas"].get(number, ())),
            )
        return True

    async def read_states(self, names: Iterable[TopicPartition]) -> None:
        for name in list(names):
            path = state_path(name)
            try:
                data, stat = await self.zookeeper.get(path)
            except NoNodeError:
                self.states.pop(name, None)
                continue
            found = read_state(path, data)
            if found.controller_epoch > self.epoch:
                raise Moved
            self.states[name] = Leadership(
                found.leader,
                found.leader_epoch,
                found.controller_epoch,
                found.isr,
                found.recovering,
                stat.version,
            )

    # writing

    async def remove(self, path: str) -> None:
        try:
            await self.zookeeper.delete(path, self.fence)
        except NoNodeError:
            pass
        except BadVersionError as error:
            raise Moved from error

    async def decide(
        self,
        names: Iterable[TopicPartition],
        decide: Callable[[TopicPartition, Leadership], Leadership | None],
    ) -> dict[TopicPartition, Leadership]:
        """`decide` on each state as it is now, None: it stays; those that changed, written."""
        changed: dict[TopicPartition, Leadership] = {}
        for name in names:
            while True:
                await self.read_states([name])
                before = self.states.get(name)
                after = None if before is None else decide(name, before)
                if after is None:
                    break
                try:
                    written = await self.write(name, after)
                except BadVersionError:
                    await self.check_fence()
                    self.counted("controller lost a race for a state")
                    continue
                except NoNodeError:
                    break
                self.states[name] = changed[name] = written
                break
        return changed

    async def write(self, name: TopicPartition, state: Leadership) -> Leadership:
        """Under this controller's epoch, where the node is still at the version that was read."""
        content = state_json(
            PartitionStateNode(
                state.leader, state.leader_epoch, self.epoch, state.isr, state.recovering
            )
        )
        version = await self.zookeeper.set(state_path(name), content, state.version, self.fence)
        return state._replace(controller_epoch=self.epoch, version=version)

    async def check_fence(self) -> None:
        _, stat = await self.zookeeper.get("/controller_epoch")
        if stat.version != self.fence:
            raise Moved

    async def write_assignment(self, name: TopicPartition, assigned: Assigned) -> None:
        self.assigned[name] = assigned
        content = topic_json(
            {each: known for each, known in self.assigned.items() if each.topic == name.topic},
            self.topic_ids.get(name.topic),
        )
        try:
            await self.zookeeper.set(f"{TOPICS}/{name.topic}", content, -1, self.fence)
        except BadVersionError as error:
            raise Moved from error

    # sending

    def known(
        self, names: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[Leadership, Assigned]]:
        return {
            name: (self.states[name], self.assigned[name])
            for name in names
            if name in self.states and name in self.assigned
        }

    def send_roles(
        self, names: Iterable[TopicPartition], is_new: bool = False, without: Iterable[int] = ()
    ) -> None:
        """To all their replicas but those that go (`without`); to everybody as metadata."""
        known = self.known(names)
        if not known:
            return
        for node_id in self.live.keys() - set(without):
            mine = {name: each for name, each in known.items() if node_id in each[1].replicas}
            self.sender.leader_and_isr(node_id, mine, is_new)
        self.update_metadata(self.live, known)

    def update_metadata(self, node_ids: Iterable[int], names: Iterable[TopicPartition]) -> None:
        self.sender.update_metadata(list(node_ids), self.known(names))

    def begin_replicas(self, node_ids: Iterable[int]) -> None:
        """OnlineReplica: these brokers hear of all their replicas."""
        known = self.known(name for name in self.states if name.topic not in self.deleting)
        for node_id in node_ids:
            mine = {name: each for name, each in known.items() if node_id in each[1].replicas}
            self.sender.leader_and_isr(node_id, mine, False)


def topic_json(assigned: Mapping[TopicPartition, Assigned], topic_id: bytes | None) -> bytes:
    """Of `/brokers/topics/T`."""
    value: dict[str, Any] = {
        "version": 3 if topic_id else 2,
        "partitions": {str(name.partition): list(it.replicas) for name, it in assigned.items()},
        "adding_replicas": {
            str(name.partition): list(it.adding) for name, it in assigned.items() if it.adding
        },
        "removing_replicas": {
            str(name.partition): list(it.removing) for name, it in assigned.items() if it.removing
        },
    }
    if topic_id:
        value["topic_id"] = topic_id.hex()
    return json.dumps(value).encode()
