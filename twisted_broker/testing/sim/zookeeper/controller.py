"""A controller that decides as Apache Kafka 3.9's does in ZooKeeper mode.

Owns `Controller`, one process that runs for it: its events, one after another, and what they do.

1. Whoever creates `/controller` is it. Every write of a decision is fenced by `/controller_epoch`,
   and names the version of the `state` that was read for it: one that fails is decided anew, or the
   controller has moved.
2. A leader comes out of the ISR: the first assigned replica that is alive and in it; of a topic
   that allows it any that is alive. A broker that dies, or came back under another epoch, leaves
   all ISRs but those in which it is alone.
3. What brokers have written themselves is read when `/isr_change_notification` says so; until then
   what is sent may be older.
4. A topic is deleted when all its replicas said that they deleted it.
5. Other than Kafka's, it keeps the broker epochs that it has handled in ZooKeeper. Kafka's next
   controller does not see that a broker restarted while there was none: that one leads on in the
   same leader epoch with what it has left, and no broker can tell.

Source: KRAFT 2.1-2.3; Kafka 3.9's `KafkaController`, `PartitionStateMachine`,
`ReplicaStateMachine`, `TopicDeletionManager`. Not here: sending
(`testing/sim/zookeeper/controller_channels.py`), the requests of brokers
(`testing/sim/zookeeper/machine.py`), quotas, log directories.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from twisted_broker.image.entries import Endpoint
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.testing.sim.zookeeper.controller_channels import (
    Assigned,
    ControllerChannels,
    Leadership,
    LiveBroker,
)
from twisted_broker.testing.sim.zookeeper.ensemble import CONTROLLER
from twisted_broker.testing.sim.zookeeper.session import SimZooKeeper
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import broker_lifecycle as lifecycle
from twisted_broker.wire.messages import zookeeper_controller as messages
from twisted_broker.wire.messages.producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from twisted_broker.zookeeper.cluster_state import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
)
from twisted_broker.zookeeper.port import (
    BadVersionError,
    ConnectionLossError,
    NodeExistsError,
    NoNodeError,
    SessionEvent,
)
from twisted_broker.zookeeper.protocol_versions import InterBrokerProtocol
from twisted_broker.zookeeper.znodes import (
    BROKER_IDS,
    PRODUCER_ID_BLOCK,
    PRODUCER_IDS_PER_BLOCK,
    PartitionStateNode,
    broker_json,
    broker_path,
    config_path,
    producer_block_json,
    read_config,
    read_producer_block,
    read_state,
    state_json,
    state_path,
)

TOPICS, ISR_CHANGES = "/brokers/topics", "/isr_change_notification"
DELETE_TOPICS, ELECT, REASSIGN = (
    "/admin/delete_topics",
    "/admin/preferred_replica_election",
    "/admin/reassign_partitions",
)
_AGAIN_SECONDS, _LOOK_SECONDS = 0.2, 1.0
NO_LEADER = -1
_KNOWN_BROKERS = "/known_brokers"


class Moved(Exception):
    """Another one is controller, or this one's session is over."""


class _Checked:
    """Calls to ZooKeeper that raise `Moved` where the controller resigned while they were under
    way.
    """

    def __init__(self, controller: Controller, client: SimZooKeeper) -> None:
        self._controller, self._client = controller, client

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self._client, name)

        async def checked(*arguments: Any, **keywords: Any) -> Any:
            term = self._controller.term
            try:
                return await call(*arguments, **keywords)
            finally:
                if term != self._controller.term:
                    raise Moved

        return checked


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
        self._runtime, self.node_id, self._address = runtime, node_id, address
        self._protocol, self._client = protocol, zookeeper
        self._zookeeper = _Checked(self, zookeeper)
        self.term = 0
        self._note, self._counted, self._bug = note, counted, bug
        self._events: deque[tuple[Any, Callable[[], Awaitable[None]]]] = deque()
        self._busy = self._looking = False
        self.epoch = 0
        """0 while it is not the controller"""
        self._reset()

    def _reset(self) -> None:
        self._fence = -1
        self._channels: ControllerChannels | None = None
        self._shutting_down: set[int] = set()
        self._leaving: set[int] = set()
        """brokers that went, and whose replicas are not all out of the ISRs yet"""
        self._assigned: dict[TopicPartition, Assigned] = {}
        self._topic_ids: dict[str, bytes] = {}
        self._states: dict[TopicPartition, Leadership] = {}
        self._deleting: dict[str, set[tuple[TopicPartition, int]]] = {}
        """topic -> replicas whose deletion was not confirmed"""

    @property
    def _live(self) -> dict[int, LiveBroker]:
        return {} if self._channels is None else self._channels.brokers

    @property
    def _sender(self) -> ControllerChannels:
        """Raises Moved where this is no controller any more."""
        if self._channels is None:
            raise Moved
        return self._channels

    # the process

    def start(self) -> None:
        self._client.start(self._session_changed)

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            self._resign()
        elif event is SessionEvent.CONNECTED:
            self._put("session", self._new_session)

    def _resign(self) -> None:
        if self.epoch:
            self._note(f"is controller {self.epoch} no more")
        self.term += 1
        self.epoch = 0
        if self._channels is not None:
            self._channels.close()
        self._reset()

    def _put(self, what: Any, event: Callable[[], Awaitable[None]]) -> None:
        """Events of the same name that wait are one."""
        if what is not None and any(each[0] == what for each in self._events):
            return
        self._events.append((what, event))
        if not self._busy:
            self._busy = True
            ensureDeferred(self._work()).addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        self._busy = False
        self._bug(failure.getTraceback())

    async def _work(self) -> None:
        while self._events:
            what, event = self._events.popleft()
            try:
                await event()
            except Moved:
                self._resign()
                self._put("run", self._run_for_it)
            except ConnectionLossError:
                # What was done of it is seen when it is done again.
                self._events.appendleft((what, event))
                await self._pause(_AGAIN_SECONDS)
        self._busy = False

    def _pause(self, seconds: float) -> Deferred[None]:
        return deferLater(self._runtime.clock, seconds, lambda: None)  # type: ignore[arg-type]

    # becoming the controller

    async def _new_session(self) -> None:
        endpoint = Endpoint("PLAINTEXT", *self._address, 0)
        content = broker_json([endpoint], None, self._runtime.wall_ms(), self._protocol.features)
        path = broker_path(self.node_id)
        while True:
            try:
                await self._zookeeper.create(path, content, ephemeral=True)
                break
            except NodeExistsError:
                try:
                    _, stat = await self._zookeeper.get(path)
                except NoNodeError:
                    continue
                if stat.ephemeral_owner == self._client.session_id:
                    break
                await self._pause(_AGAIN_SECONDS)
        if self.epoch:
            self._look_at_all()  # the watches went with the connection
        else:
            await self._run_for_it()

    async def _run_for_it(self) -> None:
        if self.epoch:
            return
        data = json.dumps({"version": 2, "brokerid": self.node_id}).encode()
        try:
            epoch, fence = await self._zookeeper.elect(CONTROLLER, data)
        except NodeExistsError:
            there = await self._zookeeper.exists(
                CONTROLLER, lambda: self._put("run", self._run_for_it)
            )
            if there:
                await self._resign_own_node()
            else:
                self._put("run", self._run_for_it)
            return
        self.epoch, self._fence = epoch, fence
        self._note(f"is controller {epoch}")
        self._counted("controller elected")
        self._channels = ControllerChannels(
            self._runtime,
            self.node_id,
            epoch,
            self._protocol,
            lambda topic: self._topic_ids.get(topic, bytes(16)),
            self._refused,
        )
        self._put("begin", self._begin)

    async def _resign_own_node(self) -> None:
        """An election whose answer was lost is given up."""
        try:
            _, stat = await self._zookeeper.get(CONTROLLER)
            if stat.ephemeral_owner == self._client.session_id:
                await self._zookeeper.delete(CONTROLLER)
        except NoNodeError:
            self._put("run", self._run_for_it)

    def _refused(self, answer: Any) -> None:
        if answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH:
            self._counted("stale controller refused")
        elif answer.error_code == ErrorCode.STALE_BROKER_EPOCH:
            self._counted("stale broker epoch refused")

    async def _begin(self) -> None:
        """All is read; then everybody hears everything."""
        if not self.epoch:
            return
        for name in await self._children(ISR_CHANGES, None):
            await self._remove(f"{ISR_CHANGES}/{name}")
        brokers = await self._read_brokers()
        before = await self._brokers_before()
        bounced = [
            each for each in brokers.values() if before.get(each.id, each.epoch) != each.epoch
        ]
        for broker in brokers.values():
            if broker.id not in self._live and broker not in bounced:
                self._sender.add(broker)
        for topic in await self._children(TOPICS, None):
            await self._read_topic(topic)
        await self._read_states(self._assigned)
        # Followers need to know where their leaders are before they hear of them.
        self._update_metadata(self._live, ())
        # A replica that was deleted already must not be made again.
        await self._look_at_deletions()
        await self._elect_where_needed()
        holders = {each for assigned in self._assigned.values() for each in assigned.replicas}
        for node in sorted(holders - self._live.keys()):
            await self._take_out(node)
        for broker in bounced:
            self._counted("broker bounced")
            self._sender.add(broker)
        await self._note_brokers()
        self._update_metadata(self._live, self._states)
        self._resume_deletions()
        self._begin_replicas(self._live)
        await self._elect_where_needed()
        self._look_at_all()

    async def _brokers_before(self) -> dict[int, int]:
        """Broker epochs as the controller before this one had handled them."""
        try:
            data, _ = await self._zookeeper.get(_KNOWN_BROKERS)
        except NoNodeError:
            return {}
        return {int(node): epoch for node, epoch in json.loads(data).items()}

    async def _note_brokers(self) -> None:
        data = json.dumps({node: each.epoch for node, each in self._live.items()}).encode()
        try:
            await self._zookeeper.set(_KNOWN_BROKERS, data, -1, self._fence)
        except NoNodeError:
            await self._zookeeper.create(_KNOWN_BROKERS, data, fence=self._fence)
        except BadVersionError as error:
            raise Moved from error

    def _look_at_all(self) -> None:
        self._put("brokers", self._look_at_brokers)
        self._put("topics", self._look_at_topics)
        self._put("isr", self._look_at_isr_changes)
        self._put("delete", self._look_at_deletions)
        self._put("elect", self._look_at_elections)
        self._put("reassign", self._look_at_reassignments)

    # reading

    async def _children(self, path: str, changed: Callable[[], None] | None) -> list[str]:
        found: list[str]
        try:
            found = await self._zookeeper.children(path, changed)
        except NoNodeError:
            with suppress(NodeExistsError):
                await self._zookeeper.create(path, b"")
            found = await self._zookeeper.children(path, changed)
        return found

    async def _read_brokers(
        self, changed: Callable[[], None] | None = None
    ) -> dict[int, LiveBroker]:
        found = {}
        for name in await self._children(BROKER_IDS, changed):
            try:
                data, stat = await self._zookeeper.get(f"{BROKER_IDS}/{name}")
            except NoNodeError:
                continue
            content = json.loads(data)
            found[int(name)] = LiveBroker(int(name), stat.czxid, content["host"], content["port"])
        return found

    async def _read_topic(self, topic: str) -> bool:
        """False when it went meanwhile."""
        try:
            data, _ = await self._zookeeper.get(f"{TOPICS}/{topic}")
        except NoNodeError:
            return False
        content = json.loads(data)
        if self._protocol.topic_ids:
            self._topic_ids[topic] = bytes.fromhex(content["topic_id"])
        for number, replicas in content["partitions"].items():
            self._assigned[TopicPartition(topic, int(number))] = Assigned(
                tuple(replicas),
                tuple(content["adding_replicas"].get(number, ())),
                tuple(content["removing_replicas"].get(number, ())),
            )
        return True

    async def _read_states(self, names: Iterable[TopicPartition]) -> None:
        for name in list(names):
            path = state_path(name)
            try:
                data, stat = await self._zookeeper.get(path)
            except NoNodeError:
                self._states.pop(name, None)
                continue
            found = read_state(path, data)
            if found.controller_epoch > self.epoch:
                raise Moved
            self._states[name] = Leadership(
                found.leader,
                found.leader_epoch,
                found.controller_epoch,
                found.isr,
                found.recovering,
                stat.version,
            )

    # writing

    async def _remove(self, path: str) -> None:
        try:
            await self._zookeeper.delete(path, self._fence)
        except NoNodeError:
            pass
        except BadVersionError as error:
            raise Moved from error

    async def _decide(
        self,
        names: Iterable[TopicPartition],
        decide: Callable[[TopicPartition, Leadership], Leadership | None],
    ) -> dict[TopicPartition, Leadership]:
        """`decide` on each state as it is now, None: it stays; those that changed, written."""
        changed: dict[TopicPartition, Leadership] = {}
        for name in names:
            while True:
                await self._read_states([name])
                before = self._states.get(name)
                after = None if before is None else decide(name, before)
                if after is None:
                    break
                try:
                    written = await self._write(name, after)
                except BadVersionError:
                    await self._check_fence()
                    self._counted("controller lost a race for a state")
                    continue
                except NoNodeError:
                    break
                self._states[name] = changed[name] = written
                break
        return changed

    async def _write(self, name: TopicPartition, state: Leadership) -> Leadership:
        """Under this controller's epoch, where the node is still at the version that was read."""
        content = state_json(
            PartitionStateNode(
                state.leader, state.leader_epoch, self.epoch, state.isr, state.recovering
            )
        )
        version = await self._zookeeper.set(state_path(name), content, state.version, self._fence)
        return state._replace(controller_epoch=self.epoch, version=version)

    async def _check_fence(self) -> None:
        _, stat = await self._zookeeper.get("/controller_epoch")
        if stat.version != self._fence:
            raise Moved

    # sending

    def _known(
        self, names: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[Leadership, Assigned]]:
        return {
            name: (self._states[name], self._assigned[name])
            for name in names
            if name in self._states and name in self._assigned
        }

    def _send_roles(
        self, names: Iterable[TopicPartition], is_new: bool = False, without: Iterable[int] = ()
    ) -> None:
        """To all their replicas but those that go (`without`); to everybody as metadata."""
        known = self._known(names)
        if not known:
            return
        for node_id in self._live.keys() - set(without):
            mine = {name: each for name, each in known.items() if node_id in each[1].replicas}
            self._sender.leader_and_isr(node_id, mine, is_new)
        self._update_metadata(self._live, known)

    def _update_metadata(self, node_ids: Iterable[int], names: Iterable[TopicPartition]) -> None:
        self._sender.update_metadata(list(node_ids), self._known(names))

    def _begin_replicas(self, node_ids: Iterable[int]) -> None:
        """OnlineReplica: these brokers hear of all their replicas."""
        known = self._known(name for name in self._states if name.topic not in self._deleting)
        for node_id in node_ids:
            mine = {name: each for name, each in known.items() if node_id in each[1].replicas}
            self._sender.leader_and_isr(node_id, mine, False)

    # elections

    def _candidate(self, name: TopicPartition, isr: Iterable[int]) -> int:
        live = self._live
        return next(
            (
                each
                for each in self._assigned[name].replicas
                if each in live and each in isr and each not in self._shutting_down
            ),
            next(
                (each for each in self._assigned[name].replicas if each in live and each in isr),
                NO_LEADER,
            ),
        )

    async def _elect_where_needed(self) -> None:
        """New partitions get a state; those without a living leader another one."""
        made = [name for name in self._assigned if name not in self._states]
        for name in made:
            await self._make_state(name)
        self._send_roles((name for name in made if name in self._states), is_new=True)
        offline = [
            name
            for name, state in self._states.items()
            if state.leader not in self._live and name.topic not in self._deleting
        ]
        unclean = await self._allowing_unclean({name.topic for name in offline})

        def decide(name: TopicPartition, state: Leadership) -> Leadership | None:
            if state.leader in self._live:
                return None
            leader = self._candidate(name, state.isr)
            if leader >= 0:
                isr = tuple(each for each in state.isr if each in self._live)
                return state._replace(leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr)
            leader = self._candidate(name, self._assigned[name].replicas)
            if name.topic in unclean and leader >= 0:
                return state._replace(
                    leader=leader,
                    leader_epoch=state.leader_epoch + 1,
                    isr=(leader,),
                    recovering=self._protocol.topic_ids,
                )
            return None

        self._send_roles(await self._decide(offline, decide))
        self._update_metadata(self._live, offline)

    async def _make_state(self, name: TopicPartition) -> None:
        live = tuple(each for each in self._assigned[name].replicas if each in self._live)
        if not live or name.topic in self._deleting:
            return
        state = PartitionStateNode(live[0], 0, self.epoch, live)
        try:
            await self._zookeeper.create(state_path(name), state_json(state), fence=self._fence)
        except NodeExistsError:
            pass  # before the connection was lost
        except BadVersionError as error:
            raise Moved from error
        await self._read_states([name])

    async def _allowing_unclean(self, topics: Iterable[str]) -> set[str]:
        found = set()
        for topic in topics:
            path = config_path("topics", topic)
            try:
                data, _ = await self._zookeeper.get(path)
            except NoNodeError:
                continue
            if read_config(path, data).get("unclean.leader.election.enable") == "true":
                found.add(topic)
        return found

    async def _take_out(self, node_id: int) -> None:
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
            for name, each in self._assigned.items()
            if node_id in each.replicas and name.topic not in self._deleting
        ]
        self._send_roles(await self._decide(names, decide), without=[node_id])

    # events

    async def _look_at_brokers(self) -> None:
        if not self.epoch:
            return
        now = await self._read_brokers(lambda: self._put("brokers", self._look_at_brokers))
        for node, known in self._live.items():
            if now.get(node) != known:
                self._counted("broker bounced" if node in now else "broker gone")
                self._sender.remove(node)
                self._shutting_down.discard(node)
                self._leaving.add(node)
        if self._leaving:
            await self._elect_where_needed()
            for node in sorted(self._leaving):
                await self._take_out(node)
            self._leaving.clear()
            self._update_metadata(self._live, ())
        came = [node for node in now if node not in self._live]
        for node in came:
            self._note(f"sees broker {node} under epoch {now[node].epoch}")
            self._sender.add(now[node])
        if came:
            # Followers need to know where their leaders are before they hear of them.
            self._update_metadata((node for node in self._live if node not in came), ())
            self._update_metadata(came, self._states)
            self._begin_replicas(came)
            self._put("online", self._go_online)
        await self._note_brokers()

    async def _go_online(self) -> None:
        """What waited for a broker."""
        if self.epoch:
            await self._elect_where_needed()
            self._resume_deletions()
            self._put("reassign", self._look_at_reassignments)

    async def _look_at_topics(self) -> None:
        if not self.epoch:
            return
        found = await self._children(TOPICS, lambda: self._put("topics", self._look_at_topics))
        known = {name.topic for name in self._assigned}
        for topic in found:
            if topic not in known:
                await self._read_topic(topic)
        await self._elect_where_needed()

    async def _look_at_isr_changes(self) -> None:
        if not self.epoch:
            return
        names = await self._children(
            ISR_CHANGES, lambda: self._put("isr", self._look_at_isr_changes)
        )
        changed: set[TopicPartition] = set()
        for name in names:
            try:
                data, _ = await self._zookeeper.get(f"{ISR_CHANGES}/{name}")
            except NoNodeError:
                continue
            self._counted("ISR change announced")
            changed |= {
                TopicPartition(each["topic"], each["partition"])
                for each in json.loads(data)["partitions"]
            }
        changed &= self._assigned.keys()
        if changed:
            await self._read_states(sorted(changed))
            self._update_metadata(self._live, sorted(changed))
            self._put("reassign", self._look_at_reassignments)
        for name in names:
            await self._remove(f"{ISR_CHANGES}/{name}")

    async def _look_at_elections(self) -> None:
        """Preferred leaders, when an operator wants them."""
        if not self.epoch:
            return
        if not await self._zookeeper.exists(
            ELECT, lambda: self._put("elect", self._look_at_elections)
        ):
            return

        def decide(name: TopicPartition, state: Leadership) -> Leadership | None:
            preferred = self._assigned[name].replicas[0]
            if preferred == state.leader or preferred not in state.isr:
                return None
            if preferred not in self._live or preferred in self._shutting_down:
                return None
            return state._replace(leader=preferred, leader_epoch=state.leader_epoch + 1)

        names = [name for name in self._states if name.topic not in self._deleting]
        elected = await self._decide(names, decide)
        for _ in elected:
            self._counted("preferred leader elected")
        self._send_roles(elected)
        await self._remove(ELECT)
        self._put("elect", self._look_at_elections)

    # deletion

    async def _look_at_deletions(self) -> None:
        if not self.epoch:
            return
        found = await self._children(
            DELETE_TOPICS, lambda: self._put("delete", self._look_at_deletions)
        )
        for topic in found:
            if topic not in self._deleting:
                if not any(name.topic == topic for name in self._assigned):
                    await self._remove(f"{DELETE_TOPICS}/{topic}")
                    continue
                self._begin_deletion(topic)

    def _replicas_of(self, topic: str) -> set[tuple[TopicPartition, int]]:
        return {
            (name, replica)
            for name, each in self._assigned.items()
            if name.topic == topic
            for replica in each.replicas
        }

    def _begin_deletion(self, topic: str) -> None:
        self._note(f"deletes {topic}")
        self._deleting[topic] = self._replicas_of(topic)
        for name, state in self._states.items():
            if name.topic == topic:
                self._states[name] = state._replace(leader=LEADER_DURING_DELETE)
        self._update_metadata(self._live, [name for name in self._states if name.topic == topic])
        self._stop_replicas_of(topic, stop_first=True)

    def _stop_replicas_of(self, topic: str, stop_first: bool = False) -> None:
        for node_id in self._live:
            stops = [
                (name, EPOCH_DURING_DELETE)
                for name, replica in self._deleting[topic]
                if replica == node_id
            ]
            if stops and stop_first:
                self._sender.stop_replicas(node_id, stops, False)
            if stops:
                self._sender.stop_replicas(node_id, stops, True, self._deleted_by(topic, node_id))

    def _deleted_by(self, topic: str, node_id: int) -> Callable[[Any], None]:
        def answered(answer: Any) -> None:
            if answer.error_code or not self.epoch:
                return
            for each in answer.partition_errors:
                name = TopicPartition(each.topic_name, each.partition_index)
                if not each.error_code:
                    self._counted("replica deleted by StopReplica")
                    self._deleting.get(topic, set()).discard((name, node_id))
            if topic in self._deleting and not self._deleting[topic]:
                self._put(None, lambda: self._end_deletion(topic))

        return answered

    def _resume_deletions(self) -> None:
        for topic in self._deleting:
            self._stop_replicas_of(topic)

    async def _end_deletion(self, topic: str) -> None:
        if not self.epoch or topic not in self._deleting:
            return
        for path in (
            f"{TOPICS}/{topic}",
            config_path("topics", topic),
            f"{DELETE_TOPICS}/{topic}",
        ):
            await self._remove(path)
        self._note(f"deleted {topic}")
        self._counted("topic deleted")
        del self._deleting[topic]
        self._topic_ids.pop(topic, None)
        for name in [name for name in self._assigned if name.topic == topic]:
            del self._assigned[name]
            self._states.pop(name, None)
        self._put("topics", self._look_at_topics)

    # reassignment

    async def _look_at_reassignments(self) -> None:
        """Each as far as it can go now."""
        if not self.epoch:
            return
        found = await self._children(
            REASSIGN, lambda: self._put("reassign", self._look_at_reassignments)
        )
        for entry in found:
            path = f"{REASSIGN}/{entry}"
            try:
                data, _ = await self._zookeeper.get(path)
            except NoNodeError:
                continue
            topic, _, number = entry.rpartition("-")
            name = TopicPartition(topic, int(number))
            if name not in self._states or topic in self._deleting:
                await self._remove(path)
            elif await self._reassign(name, tuple(json.loads(data))):
                self._counted("reassignment ended")
                await self._remove(path)
            elif not self._looking:
                self._looking = True
                self._runtime.clock.callLater(_LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._looking = False
        self._put("reassign", self._look_at_reassignments)

    async def _reassign(self, name: TopicPartition, target: tuple[int, ...]) -> bool:
        """Whether it is done."""
        assigned = self._assigned[name]
        origin = tuple(each for each in assigned.replicas if each not in assigned.adding)
        adding = tuple(each for each in target if each not in origin)
        removing = tuple(each for each in origin if each not in target)
        step = Assigned((*target, *removing), adding, removing)
        if assigned != step:
            await self._write_assignment(name, step)
            self._send_roles(await self._decide([name], _raise_epoch))
            return False
        await self._read_states([name])
        state = self._states[name]
        if not set(target) <= set(state.isr) or not set(target) <= self._live.keys():
            return False

        def lead_and_shrink(_: TopicPartition, before: Leadership) -> Leadership | None:
            if not set(target) <= set(before.isr):
                return None
            leader = before.leader if before.leader in target else target[0]
            isr = tuple(each for each in before.isr if each in target)
            return before._replace(leader=leader, leader_epoch=before.leader_epoch + 1, isr=isr)

        if not await self._decide([name], lead_and_shrink):
            return False
        self._send_roles([name], without=removing)
        epoch = self._states[name].leader_epoch
        for node_id in removing:
            self._sender.stop_replicas(node_id, [(name, epoch)], False)
            self._sender.stop_replicas(node_id, [(name, epoch)], True)
        await self._write_assignment(name, Assigned(target))
        self._send_roles(await self._decide([name], _raise_epoch))
        return True

    async def _write_assignment(self, name: TopicPartition, assigned: Assigned) -> None:
        self._assigned[name] = assigned
        content = topic_json(
            {each: known for each, known in self._assigned.items() if each.topic == name.topic},
            self._topic_ids.get(name.topic),
        )
        try:
            await self._zookeeper.set(f"{TOPICS}/{name.topic}", content, -1, self._fence)
        except BadVersionError as error:
            raise Moved from error

    # requests of brokers

    async def serve(self, request: Any, version: int) -> Any:
        """The answer; as an event among the others."""
        answer: Deferred[Any] = Deferred()
        handlers: dict[Any, Callable[[Any], Awaitable[Any]]] = {
            messages.ControlledShutdownRequest: self._shut_down,
            lifecycle.AlterPartitionRequest: self._alter_partitions,
            AllocateProducerIdsRequest: self._allocate_producer_ids,
        }
        handler = handlers[type(request)]

        async def event() -> None:
            try:
                found = await handler(request)
            except Moved:
                answer.callback(_not_controller(request))
                raise
            answer.callback(found)

        self._put(None, event)
        return await answer

    def _refusal(self, broker_id: int, broker_epoch: int) -> ErrorCode:
        if not self.epoch:
            return ErrorCode.NOT_CONTROLLER
        live = self._live.get(broker_id)
        if live is None or broker_epoch < live.epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        return ErrorCode.NONE

    async def _shut_down(
        self, request: messages.ControlledShutdownRequest
    ) -> messages.ControlledShutdownResponse:
        refused = self._refusal(request.broker_id, request.broker_epoch)
        if refused is not ErrorCode.NONE:
            return messages.ControlledShutdownResponse(error_code=refused)
        leaving = request.broker_id
        self._shutting_down.add(leaving)

        def decide(name: TopicPartition, state: Leadership) -> Leadership | None:
            if state.leader != leaving:
                return None
            others = [each for each in state.isr if each not in self._shutting_down]
            leader = next(
                (each for each in self._assigned[name].replicas if each in others), NO_LEADER
            )
            if leader not in self._live:
                return None
            return state._replace(
                leader=leader, leader_epoch=state.leader_epoch + 1, isr=tuple(others)
            )

        held = [
            name
            for name, each in self._assigned.items()
            if leaving in each.replicas
            and len(each.replicas) > 1
            and name.topic not in self._deleting
        ]
        self._send_roles(await self._decide(held, decide))
        followed = [
            name for name in held if name in self._states and self._states[name].leader != leaving
        ]
        stops = [(name, self._states[name].leader_epoch) for name in followed]
        if stops:
            self._sender.stop_replicas(leaving, stops, False)
        await self._take_out_of(leaving, followed)
        left = [
            messages.RemainingPartition(topic_name=name.topic, partition_index=name.partition)
            for name in held
            if name in self._states and self._states[name].leader == leaving
        ]
        self._counted("controlled shutdown")
        return messages.ControlledShutdownResponse(remaining_partitions=left)

    async def _take_out_of(self, node_id: int, names: Iterable[TopicPartition]) -> None:
        def decide(_: TopicPartition, state: Leadership) -> Leadership | None:
            if node_id not in state.isr or len(state.isr) == 1 or state.leader == node_id:
                return None
            isr = tuple(each for each in state.isr if each != node_id)
            return state._replace(leader_epoch=state.leader_epoch + 1, isr=isr)

        self._send_roles(await self._decide(names, decide), without=[node_id])

    async def _alter_partitions(
        self, request: lifecycle.AlterPartitionRequest
    ) -> lifecycle.AlterPartitionResponse:
        refused = self._refusal(request.broker_id, request.broker_epoch)
        if refused is not ErrorCode.NONE:
            return lifecycle.AlterPartitionResponse(error_code=refused)
        by_id = {topic_id: topic for topic, topic_id in self._topic_ids.items()}
        response = lifecycle.AlterPartitionResponse()
        changed = []
        for topic in request.topics:
            answers = []
            for wanted in topic.partitions:
                name = TopicPartition(by_id.get(bytes(topic.topic_id), ""), wanted.partition_index)
                code = await self._alter_partition(name, request.broker_id, wanted)
                found = lifecycle.AlterPartitionResponsePartitionData(
                    partition_index=name.partition, error_code=code
                )
                if code is ErrorCode.NONE:
                    changed.append(name)
                    state = self._states[name]
                    found.leader_id, found.leader_epoch = state.leader, state.leader_epoch
                    found.isr, found.partition_epoch = list(state.isr), state.version
                    found.leader_recovery_state = int(state.recovering)
                answers.append(found)
            response.topics.append(
                lifecycle.AlterPartitionResponseTopicData(
                    topic_id=topic.topic_id, partitions=answers
                )
            )
        self._update_metadata(self._live, changed)
        if changed:
            self._put("reassign", self._look_at_reassignments)
        return response

    async def _alter_partition(
        self,
        name: TopicPartition,
        broker_id: int,
        wanted: lifecycle.AlterPartitionRequestPartitionData,
    ) -> ErrorCode:
        state = self._states.get(name)
        if state is None or name.topic in self._deleting:
            return ErrorCode.UNKNOWN_TOPIC_ID
        isr = tuple(wanted.new_isr) or tuple(each.broker_id for each in wanted.new_isr_with_epochs)
        if wanted.leader_epoch > state.leader_epoch:
            return ErrorCode.NOT_CONTROLLER
        if wanted.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        same = (isr, bool(wanted.leader_recovery_state)) == (state.isr, state.recovering)
        if broker_id == state.leader and same:
            return ErrorCode.NONE
        if wanted.partition_epoch < state.version:
            return ErrorCode.INVALID_UPDATE_VERSION
        if wanted.leader_recovery_state and len(isr) > 1:
            return ErrorCode.INVALID_REQUEST
        if any(each not in self._live or each in self._shutting_down for each in isr):
            return ErrorCode.INELIGIBLE_REPLICA
        try:
            self._states[name] = await self._write(
                name,
                state._replace(
                    isr=isr,
                    recovering=bool(wanted.leader_recovery_state),
                    version=wanted.partition_epoch,
                ),
            )
        except BadVersionError:
            await self._check_fence()
            await self._read_states([name])
            return ErrorCode.INVALID_UPDATE_VERSION
        except ConnectionLossError:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE

    async def _allocate_producer_ids(
        self, request: AllocateProducerIdsRequest
    ) -> AllocateProducerIdsResponse:
        refused = self._refusal(request.broker_id, request.broker_epoch)
        if refused is not ErrorCode.NONE:
            return AllocateProducerIdsResponse(error_code=refused)
        try:
            data, stat = await self._zookeeper.get(PRODUCER_ID_BLOCK)
            start = read_producer_block(data) + 1
            await self._zookeeper.set(
                PRODUCER_ID_BLOCK,
                producer_block_json(request.broker_id, start),
                stat.version,
                self._fence,
            )
        except NoNodeError:
            start = 0
            await self._zookeeper.create(
                PRODUCER_ID_BLOCK, producer_block_json(request.broker_id, 0), fence=self._fence
            )
        except BadVersionError as error:
            raise Moved from error
        return AllocateProducerIdsResponse(
            producer_id_start=start, producer_id_len=PRODUCER_IDS_PER_BLOCK
        )


def _raise_epoch(_: TopicPartition, state: Leadership) -> Leadership:
    return state._replace(leader_epoch=state.leader_epoch + 1)


def _not_controller(request: Any) -> Any:
    answers: Mapping[Any, Any] = {
        messages.ControlledShutdownRequest: messages.ControlledShutdownResponse,
        lifecycle.AlterPartitionRequest: lifecycle.AlterPartitionResponse,
        AllocateProducerIdsRequest: AllocateProducerIdsResponse,
    }
    return answers[type(request)](error_code=ErrorCode.NOT_CONTROLLER)


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
