"""A controller that decides as Apache Kafka 3.9's does in ZooKeeper mode.

Owns `Controller`, one process that runs for it: how it becomes the controller, and what it looks at
when its watches fire.

1. Whoever creates `/controller` is it, until its session ends or a write finds a later one.
2. What brokers have written themselves is read when `/isr_change_notification` says so; until then
   what is sent may be older.
3. A broker that dies, or came back under another epoch, leaves the ISRs before it hears anything.
4. Other than Kafka's, it keeps the broker epochs that it has handled in ZooKeeper. Kafka's next
   controller does not see that a broker restarted while there was none: that one leads on in the
   same leader epoch with what it has left, and no broker can tell.

Source: KRAFT 2.1-2.3; Kafka 3.9's `KafkaController`. Not here: elections
(`simulation/zookeeper/partition_leaders.py`), topics that are deleted (`topic_deletions.py`),
replicas that move (`reassignments.py`), the requests of brokers (`broker_requests.py`), all beside
it; quotas, log directories.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from twisted_broker.image.entries import Endpoint
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.simulation.zookeeper.broker_requests import BrokerRequests
from twisted_broker.simulation.zookeeper.controller_channels import ControllerChannels
from twisted_broker.simulation.zookeeper.controller_context import (
    TOPICS,
    ControllerContext,
    Moved,
)
from twisted_broker.simulation.zookeeper.controller_events import ControllerEvents
from twisted_broker.simulation.zookeeper.ensemble import CONTROLLER
from twisted_broker.simulation.zookeeper.partition_leaders import PartitionLeaders
from twisted_broker.simulation.zookeeper.reassignments import Reassignments
from twisted_broker.simulation.zookeeper.session import SimZooKeeper
from twisted_broker.simulation.zookeeper.topic_deletions import TopicDeletions
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.zookeeper.port import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    SessionEvent,
)
from twisted_broker.zookeeper.protocol_versions import InterBrokerProtocol
from twisted_broker.zookeeper.znodes import broker_json, broker_path

ISR_CHANGES = "/isr_change_notification"
ELECT = "/admin/preferred_replica_election"
_KNOWN_BROKERS = "/known_brokers"


class Controller:
    """`address`: (host, port) of its listener; `note(what)` for a trace; `counted(kind)` with what
    it did; `bug(text)` with an error of its own.
    """

    def __init__(
        self,
        runtime: Runtime,
        node_id: int,
        address: tuple[str, int],
        protocol: InterBrokerProtocol,
        zookeeper: SimZooKeeper,
        note: Callable[[str], None],
        counted: Callable[[str], None],
        bug: Callable[[str], None],
    ) -> None:
        self._address, self._client = address, zookeeper
        context = ControllerContext(runtime, node_id, protocol, zookeeper, note, counted)
        events = ControllerEvents(runtime, self._moved, bug)
        self._context, self._events = context, events
        self._leaders = PartitionLeaders(context)
        self._reassignments = Reassignments(context, events)
        self._deletions = TopicDeletions(context, events, self._look_at_topics)
        self._requests = BrokerRequests(context, events, self._reassignments.look)

    @property
    def epoch(self) -> int:
        """0 while it is not the controller."""
        return self._context.epoch

    async def serve(self, request: Any, version: int) -> Any:
        """The answer to a broker's request."""
        return await self._requests.serve(request, version)

    def repeat_roles(self, node_id: int, random: Random) -> None:
        """A broker is told once more what is not so any more."""

        def leader_epoch(name: TopicPartition) -> int | None:
            state, assigned = context.states.get(name), context.assigned.get(name)
            if state is None or assigned is None or name.topic in context.deleting:
                return None
            return state.leader_epoch if node_id in assigned.replicas else None

        context = self._context
        if context.channels is not None:
            context.channels.repeat_roles(node_id, random, leader_epoch)

    # the process

    def start(self) -> None:
        self._client.start(self._session_changed)

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            self._context.resign()
        elif event is SessionEvent.CONNECTED:
            self._events.put("session", self._new_session)

    def _moved(self) -> None:
        self._context.resign()
        self._events.put("run", self._run_for_it)

    # becoming the controller

    async def _new_session(self) -> None:
        endpoint = Endpoint("PLAINTEXT", *self._address, 0)
        content = broker_json(
            [endpoint], None, self._context.runtime.wall_ms(), self._context.protocol.features
        )
        path = broker_path(self._context.node_id)
        while True:
            try:
                await self._context.zookeeper.create(path, content, ephemeral=True)
                break
            except NodeExistsError:
                try:
                    _, stat = await self._context.zookeeper.get(path)
                except NoNodeError:
                    continue
                if stat.ephemeral_owner == self._client.session_id:
                    break
                await self._events.pause()
        if self._context.has_begun:
            self._look_at_all()  # the watches went with the connection
        else:
            await self._run_for_it()

    async def _run_for_it(self) -> None:
        if self._context.epoch:
            if not self._context.has_begun:  # the connection was lost meanwhile
                await self._begin()
            return
        data = json.dumps({"version": 2, "brokerid": self._context.node_id}).encode()
        try:
            epoch, fence = await self._context.zookeeper.elect(CONTROLLER, data)
        except NodeExistsError:
            there = await self._context.zookeeper.exists(
                CONTROLLER, lambda: self._events.put("run", self._run_for_it)
            )
            if there:
                await self._resign_own_node()
            else:
                self._events.put("run", self._run_for_it)
            return
        self._context.epoch, self._context.fence = epoch, fence
        self._context.note(f"is controller {epoch}")
        self._context.counted("controller elected")
        self._context.channels = ControllerChannels(
            self._context.runtime,
            self._context.node_id,
            epoch,
            self._context.protocol,
            lambda topic: self._context.topic_ids.get(topic, bytes(16)),
            self._refused,
        )
        await self._begin()  # in this event: what waits was meant for the one before

    async def _resign_own_node(self) -> None:
        """An election whose answer was lost is given up."""
        try:
            _, stat = await self._context.zookeeper.get(CONTROLLER)
            if stat.ephemeral_owner == self._client.session_id:
                await self._context.zookeeper.delete(CONTROLLER)
        except NoNodeError:
            self._events.put("run", self._run_for_it)

    def _refused(self, answer: Any) -> None:
        if answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH:
            self._context.counted("stale controller refused")
        elif answer.error_code == ErrorCode.STALE_BROKER_EPOCH:
            self._context.counted("stale broker epoch refused")

    async def _begin(self) -> None:
        """All is read; then everybody hears everything. Done once more where it did not come to its
        end: what changed meanwhile was watched by nobody.
        """
        if not self._context.epoch:
            return
        for name in await self._context.children(ISR_CHANGES, None):
            await self._context.remove(f"{ISR_CHANGES}/{name}")
        brokers = await self._context.read_brokers()
        before = await self._brokers_before()
        bounced = [
            each for each in brokers.values() if before.get(each.id, each.epoch) != each.epoch
        ]
        for node, known in self._context.live.items():
            if brokers.get(node) != known:
                self._context.sender.remove(node)
        for broker in brokers.values():
            if broker.id not in self._context.live and broker not in bounced:
                self._context.sender.add(broker)
        for topic in await self._context.children(TOPICS, None):
            await self._context.read_topic(topic)
        await self._context.read_states(self._context.assigned)
        # Followers need to know where their leaders are before they hear of them.
        self._context.update_metadata(self._context.live, ())
        # A replica that was deleted already must not be made again.
        await self._deletions.look()
        await self._leaders.elect_where_needed()
        holders = {
            each for assigned in self._context.assigned.values() for each in assigned.replicas
        }
        for node in sorted(holders - self._context.live.keys()):
            await self._leaders.take_out(node)
        for broker in bounced:
            self._context.counted("broker bounced")
            self._context.sender.add(broker)
        await self._note_brokers()
        self._context.update_metadata(self._context.live, self._context.states)
        self._deletions.resume()
        self._context.begin_replicas(self._context.live)
        await self._leaders.elect_where_needed()
        self._context.has_begun = True
        self._look_at_all()

    async def _brokers_before(self) -> dict[int, int]:
        """Broker epochs as the controller before this one had handled them."""
        try:
            data, _ = await self._context.zookeeper.get(_KNOWN_BROKERS)
        except NoNodeError:
            return {}
        return {int(node): epoch for node, epoch in json.loads(data).items()}

    async def _note_brokers(self) -> None:
        data = json.dumps({node: each.epoch for node, each in self._context.live.items()}).encode()
        zookeeper, fence = self._context.zookeeper, self._context.fence
        try:
            try:
                await zookeeper.set(_KNOWN_BROKERS, data, -1, fence)
            except NoNodeError:
                await zookeeper.create(_KNOWN_BROKERS, data, fence=fence)
        except BadVersionError as error:
            raise Moved from error

    def _look_at_all(self) -> None:
        self._events.put("brokers", self._look_at_brokers)
        self._events.put("topics", self._look_at_topics)
        self._events.put("isr", self._look_at_isr_changes)
        self._events.put("delete", self._deletions.look)
        self._events.put("elect", self._look_at_elections)
        self._events.put("reassign", self._reassignments.look)

    # what watches tell

    async def _look_at_brokers(self) -> None:
        if not self._context.epoch:
            return
        now = await self._context.read_brokers(
            lambda: self._events.put("brokers", self._look_at_brokers)
        )
        for node, known in self._context.live.items():
            if now.get(node) != known:
                self._context.counted("broker bounced" if node in now else "broker gone")
                self._context.sender.remove(node)
                self._context.shutting_down.discard(node)
                self._context.leaving.add(node)
        if self._context.leaving:
            await self._leaders.elect_where_needed()
            for node in sorted(self._context.leaving):
                await self._leaders.take_out(node)
            self._context.leaving.clear()
            self._context.update_metadata(self._context.live, ())
        came = [node for node in now if node not in self._context.live]
        for node in came:
            self._context.note(f"sees broker {node} under epoch {now[node].epoch}")
            self._context.sender.add(now[node])
        if came:
            # Followers need to know where their leaders are before they hear of them.
            self._context.update_metadata(
                (node for node in self._context.live if node not in came), ()
            )
            self._context.update_metadata(came, self._context.states)
            self._context.begin_replicas(came)
            self._events.put("online", self._go_online)
        await self._note_brokers()

    async def _go_online(self) -> None:
        """What waited for a broker."""
        if self._context.epoch:
            await self._leaders.elect_where_needed()
            self._deletions.resume()
            self._events.put("reassign", self._reassignments.look)

    async def _look_at_topics(self) -> None:
        if not self._context.epoch:
            return
        found = await self._context.children(
            TOPICS, lambda: self._events.put("topics", self._look_at_topics)
        )
        known = {name.topic for name in self._context.assigned}
        for topic in found:
            if topic not in known:
                await self._context.read_topic(topic)
        await self._leaders.elect_where_needed()

    async def _look_at_isr_changes(self) -> None:
        if not self._context.epoch:
            return
        names = await self._context.children(
            ISR_CHANGES, lambda: self._events.put("isr", self._look_at_isr_changes)
        )
        changed: set[TopicPartition] = set()
        for name in names:
            try:
                data, _ = await self._context.zookeeper.get(f"{ISR_CHANGES}/{name}")
            except NoNodeError:
                continue
            self._context.counted("ISR change announced")
            changed |= {
                TopicPartition(each["topic"], each["partition"])
                for each in json.loads(data)["partitions"]
            }
        changed &= self._context.assigned.keys()
        if changed:
            await self._context.read_states(sorted(changed))
            self._context.update_metadata(self._context.live, sorted(changed))
            self._events.put("reassign", self._reassignments.look)
        for name in names:
            await self._context.remove(f"{ISR_CHANGES}/{name}")

    async def _look_at_elections(self) -> None:
        """Preferred leaders, when an operator wants them."""
        if not self._context.epoch:
            return
        if not await self._context.zookeeper.exists(
            ELECT, lambda: self._events.put("elect", self._look_at_elections)
        ):
            return

        await self._leaders.elect_preferred()
        await self._context.remove(ELECT)
        self._events.put("elect", self._look_at_elections)
