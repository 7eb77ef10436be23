"""Whether a condition of a test holds, in the cluster's process, and why it does not.

Owns `ConditionValues`, and what a broker that left or came back is waited for by.

1. What all brokers that run do not agree on is not known yet: neither a condition on it nor the
   opposite holds. The same for a topic that is not there, and a leader that does not serve.
2. It is looked at when something was done (`wakes.py`), in the brokers' own state: nothing is done
   by a look. But for the records of a topic: they are read when its high watermarks moved.
3. A time-out says the condition, the value now, and the reason as `replog explain` has it.

Ring 2. Source: our own; `replication/explain`. Not here: the form (`conditions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.image.entries import PartitionRegistration
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.explain.explanation import Explanation
from twisted_broker.replication.explain.reasons import broker_names, duration
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.server.kafka_server import KafkaServer
from twisted_broker.status.view import BrokerView
from twisted_broker.testing.conditions import check, parts_of, text_of, value_text
from twisted_broker.testing.known_groups import (
    DEAD,
    assigned_to,
    state_of_group,
    state_of_transaction,
)
from twisted_broker.testing.wakes import Wakes
from twisted_broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from twisted_broker.wire.errors import BrokerError

if TYPE_CHECKING:
    from twisted_broker.testing.cluster_calls import ClusterCalls

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda found, wanted: bool(found == wanted),
    "!=": lambda found, wanted: bool(found != wanted),
    ">=": lambda found, wanted: bool(found >= wanted),
    "<=": lambda found, wanted: bool(found <= wanted),
}


class _Unknown(Exception):
    """Not known yet; `str()` says why."""


class _Seen(NamedTuple):
    """A comparison that was looked at. `holds` None: not known."""

    holds: bool | None
    value: str
    form: dict[str, Any]


class ConditionValues:
    """Of one wait."""

    def __init__(self, calls: ClusterCalls, brokers: Sequence[KafkaServer], wakes: Wakes) -> None:
        self._calls, self._brokers, self._wakes = calls, brokers, wakes
        self._within = 0.0
        self._counted: dict[str, tuple[list[int], int]] = {}

    async def wait(self, form: dict[str, Any], within: float) -> None:
        """Ends when it holds. Raises TimeoutError, TypeError, ValueError."""
        check(form)
        self._within = within
        seen: list[_Seen] = []

        async def look() -> bool:
            seen.clear()
            return bool(await self._holds(form, seen))

        if not await self._wakes.until(look, within):
            raise TimeoutError(self._text(form, seen, within))

    async def _holds(self, form: dict[str, Any], seen: list[_Seen]) -> bool | None:
        word, parts = parts_of(form)
        if not word:
            seen.append(await self._seen(form))
            return seen[-1].holds
        found = [await self._holds(each, seen) for each in parts]
        if word == "not":
            return None if found[0] is None else not found[0]
        decides = word == "or"
        return decides if decides in found else None if None in found else not decides

    async def _seen(self, form: dict[str, Any]) -> _Seen:
        what, wanted = form["what"], form["value"]
        try:
            value = await self._value(what, form)
        except _Unknown as unknown:
            return _Seen(None, str(unknown), form)
        if what in ("isr", "group.assigned"):
            value, wanted = ({_hashed(each) for each in found} for found in (value, wanted))
        holds = _COMPARE[form["is"]](value, wanted)
        shown = sorted(value) if isinstance(value, set) else value
        return _Seen(holds, f"it is {value_text(what, shown)}", form)

    async def _value(self, what: str, form: dict[str, Any]) -> Any:
        """Raises _Unknown."""
        if what == "in_sync":
            return self._agreed(lambda image: not _out_of_sync(image))
        if what.startswith("group."):
            return self._of_group(form, what.removeprefix("group."))
        if what == "transaction.state":
            name = form["transactional_id"]
            coordinator = self._coordinator(name, TRANSACTIONS_TOPIC)
            return (
                "Dead" if coordinator is None else _known(state_of_transaction, coordinator, name)
            )
        if what == "requests":
            return self._calls.requests(form["api"])
        if what == "records":
            return await self._records(form["topic"])
        where = TopicPartition(form["topic"], form["partition"])
        if what == "isr":
            return self._agreed(lambda image: set(_registered(image, where).isr))
        if what == "leader":
            leader = self._leader(where)
            return None if leader is None else leader[0].config.node_id
        return self._end(where, what == "high_watermark")

    def _end(self, name: TopicPartition, of_readers: bool = True) -> int:
        """Raises _Unknown."""
        leader = self._leader(name)
        if leader is None:
            raise _Unknown(f"{name} has no leader")
        log = leader[1].leader_log
        assert log is not None
        return log.high_watermark if of_readers else log.log_end_offset

    def _agreed(self, value: Callable[[MetadataImage], Any]) -> Any:
        """What all brokers know. Raises _Unknown."""
        found = {each.config.node_id: value(_image(each)) for each in self._brokers}
        if not found:
            raise _Unknown("no broker runs")
        first, *others = found.values()
        if any(each != first for each in others):
            each_by_each = ", ".join(f"broker {node}: {known}" for node, known in found.items())
            raise _Unknown(f"the brokers do not know the same yet ({each_by_each})")
        return first

    def _leader(self, name: TopicPartition) -> tuple[KafkaServer, Partition] | None:
        """Who leads and knows so. Raises _Unknown."""
        node, epoch = self._agreed(
            lambda image: (_registered(image, name).leader, _registered(image, name).leader_epoch)
        )
        if node < 0:
            return None
        for broker in self._brokers:
            if broker.config.node_id == node and broker.broker_server is not None:
                found = broker.broker_server.replica_manager.partitions.get(name)
                if found is not None and found.is_leader and found.leader_epoch == epoch:
                    return broker, found
                raise _Unknown(f"broker {node} is about to lead {name}")
        raise _Unknown(f"broker {node} leads {name}, and does not run")

    async def _records(self, topic: str) -> int:
        count = self._agreed(lambda image: len(_topic(image, topic).partitions))
        names = [TopicPartition(topic, number) for number in range(count)]
        ends = [self._end(name) for name in names]
        known = self._counted.get(topic)
        if known is None or known[0] != ends:
            try:
                found = await self._calls.records(topic, within=self._within)
            except TimeoutError as error:
                raise _Unknown(str(error)) from None
            self._counted[topic] = known = (ends, len(found))
        return known[1]

    def _of_group(self, form: dict[str, Any], what: str) -> Any:
        coordinator = self._coordinator(form["group"], OFFSETS_TOPIC)
        if coordinator is None:
            return {"state": DEAD, "assigned": []}.get(what, 0)
        state, members, committed = _known(state_of_group, coordinator, form["group"])
        if what == "assigned":
            return assigned_to(coordinator, members, form["client"])
        if what == "lag":
            return sum(
                max(0, self._end(TopicPartition(*where)) - offset) for where, offset in committed
            )
        return state if what == "state" else len(members)

    def _coordinator(self, name: str, topic: str) -> KafkaServer | None:
        """Who has the group or transactional id of that name; None: nobody, as there is none.
        Raises _Unknown.
        """

        def partition(image: MetadataImage) -> int | None:
            found = image.topics_by_name.get(topic)
            return None if found is None else partition_for(name, len(found.partitions))

        number = self._agreed(partition)
        if number is None:
            return None
        leader = self._leader(TopicPartition(topic, number))
        if leader is None:
            raise _Unknown(f"{topic}-{number}, which has {name}, has no leader")
        return leader[0]

    # what a time-out says

    def _text(self, form: dict[str, Any], seen: Iterable[_Seen], within: float) -> str:
        head = f"{text_of(form)} does not hold after {within:g} s: "
        if not parts_of(form)[0]:
            (only,) = seen
            return head + "; ".join([only.value, *self._reasons(only.form)])
        told = []
        for each in seen:
            parts = [f"{text_of(each.form)}: {each.value}"]
            told.append("; ".join([*parts, *([] if each.holds else self._reasons(each.form))]))
        return head + "; ".join(told)

    def _reasons(self, form: dict[str, Any]) -> list[str]:
        """Where replication has one."""
        what = form["what"]
        try:
            if what == "in_sync":
                return [
                    f"{name}: {'; '.join(self._why_out(name)) or 'not in sync'}"
                    for name in _out_of_sync(_image(self._brokers[0]))[:3]
                ]
            if "partition" not in form:
                return []
            name = TopicPartition(form["topic"], form["partition"])
            if what == "high_watermark":
                waits = self._explained(name).high_watermark_waits
                return [] if waits is None else [waits.why]
            if what == "isr":
                return self._why_out(name)
            return self._why_no_leader(name) if what == "leader" else []
        except (_Unknown, IndexError):
            return []

    def _why_out(self, name: TopicPartition) -> list[str]:
        if self._leader(name) is None:
            return self._why_no_leader(name)
        return [
            f"broker {each.broker} is out of sync for {duration(each.for_ms)}: "
            + ", ".join([each.why, *each.holds_back])
            for each in self._explained(name).out_of_sync
        ]

    def _why_no_leader(self, name: TopicPartition) -> list[str]:
        if self._leader(name) is not None:
            return []
        image = _image(self._brokers[0])
        known = _registered(image, name)
        fenced = [each for each in known.replicas if (b := image.brokers.get(each)) and b.fenced]
        return [
            f"{name} has no leader: in sync is {broker_names(known.isr)}"
            + (f", and {broker_names(fenced)} fenced" if fenced else "")
        ]

    def _explained(self, name: TopicPartition) -> Explanation:
        found = self._leader(name)
        if found is None:
            raise _Unknown(f"{name} has no leader")
        broker, partition = found
        view = BrokerView(lambda: broker.parts)
        return view.explanation(partition, view.now(), waiting=False)


def _known(ask: Callable[[KafkaServer, str], Any], coordinator: KafkaServer, name: str) -> Any:
    """Raises _Unknown."""
    try:
        return ask(coordinator, name)
    except BrokerError as error:
        raise _Unknown(f"the coordinator of {name}: {error}") from None


def _hashed(each: Any) -> Any:
    return tuple(each) if isinstance(each, list) else each


def _image(broker: KafkaServer) -> MetadataImage:
    assert broker.broker_server is not None
    return broker.broker_server.observer.image


def _topic(image: MetadataImage, name: str) -> Any:
    found = image.topics_by_name.get(name)
    if found is None:
        known = sorted(each for each in image.topics_by_name if not each.startswith("__"))
        raise _Unknown(f"there is no topic {name} (there are: {', '.join(known) or 'none'})")
    return found


def _registered(image: MetadataImage, name: TopicPartition) -> PartitionRegistration:
    partitions = _topic(image, name.topic).partitions
    found: PartitionRegistration | None = partitions.get(name.partition)
    if found is None:
        raise _Unknown(f"topic {name.topic} has {len(partitions)} partitions, none is {name}")
    return found


def _partitions(image: MetadataImage) -> Iterator[tuple[TopicPartition, PartitionRegistration]]:
    for topic in image.topics_by_name.values():
        for number, known in topic.partitions.items():
            yield TopicPartition(topic.name, number), known


def _out_of_sync(image: MetadataImage) -> list[TopicPartition]:
    return [name for name, known in _partitions(image) if {*known.isr} != {*known.replicas}]


def unsettled(brokers: Sequence[KafkaServer]) -> str:
    """What these do not agree on about partitions, or do not do yet; empty: nothing."""
    for name, known in _partitions(_image(brokers[0])) if brokers else ():
        for broker in brokers:
            image = _image(broker)
            topic = image.topics_by_name.get(name.topic)
            if topic is None or topic.partitions.get(name.partition) != known:
                return f"broker {broker.config.node_id} does not know {name} as others do"
            if broker.config.node_id == known.leader and broker.broker_server is not None:
                own = broker.broker_server.replica_manager.partitions.get(name)
                if own is None or not own.is_leader or own.leader_epoch != known.leader_epoch:
                    return f"broker {known.leader} does not lead {name} yet"
    return ""


def out_of_isr(image: MetadataImage, node: int, leaders: set[int]) -> TopicPartition | None:
    """One that one of these leads, with this broker out of its ISR."""
    for name, known in _partitions(image):
        if known.leader in leaders and node in known.replicas and node not in known.isr:
            return name
    return None
