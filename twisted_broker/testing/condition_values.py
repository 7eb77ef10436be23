"""Whether a condition of a test holds, in the cluster's process, and why it does not.

Owns `ConditionValues`, and what a broker that left or came back is waited for by.

1. What all brokers that run do not agree on is not known yet: neither a condition on it nor the
   opposite holds. The same for a topic that is not there, and a leader that does not serve.
2. It is looked at every 5 ms, in the brokers' own state. Requests are sent only for the records
   of a topic, when its high watermarks moved, and for groups.
3. A time-out says the condition, the value now, and the reason as `replog explain` has it.

Ring 2. Source: our own; `replication/explain`. Not here: the form (`conditions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.internet.task import deferLater

from twisted_broker.image.entries import PartitionRegistration
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.replication.explain.explanation import Explanation
from twisted_broker.replication.explain.reasons import broker_names, duration
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.server.kafka_server import KafkaServer
from twisted_broker.status.view import BrokerView
from twisted_broker.testing.conditions import check, parts_of, text_of, value_text

if TYPE_CHECKING:
    from twisted_broker.testing.cluster_calls import ClusterCalls

_PAUSE_SECONDS = 0.005
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

    def __init__(
        self, calls: ClusterCalls, brokers: Sequence[KafkaServer], runtime: Runtime
    ) -> None:
        self._calls, self._brokers, self._clock = calls, brokers, runtime.clock
        self._deadline = 0.0
        self._counted: dict[str, tuple[list[int], int]] = {}

    async def wait(self, form: dict[str, Any], within: float) -> None:
        """Ends when it holds. Raises TimeoutError, TypeError, ValueError."""
        check(form)
        self._deadline = self._clock.seconds() + within
        while True:
            seen: list[_Seen] = []
            if await self._holds(form, seen):
                return
            if self._clock.seconds() >= self._deadline:
                raise TimeoutError(self._text(form, seen, within))
            await deferLater(self._clock, _PAUSE_SECONDS)  # type: ignore[arg-type]

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
            return await self._of_group(form, what.removeprefix("group."))
        if what == "transaction.state":
            return await self._asked(
                self._calls.transaction_state(form["transactional_id"], within=self._left())
            )
        if what == "requests":
            return self._calls.requests(form["api"])
        if what == "records":
            return await self._records(form["topic"])
        name = TopicPartition(form["topic"], form["partition"])
        if what == "isr":
            return self._agreed(lambda image: set(_registered(image, name).isr))
        leader = self._leader(name)
        if what == "leader":
            return None if leader is None else leader[0].config.node_id
        if leader is None:
            raise _Unknown(f"{name} has no leader")
        log = leader[1].leader_log
        assert log is not None
        return log.high_watermark if what == "high_watermark" else log.log_end_offset

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
        ends = [await self._value("high_watermark", name._asdict()) for name in names]
        known = self._counted.get(topic)
        if known is None or known[0] != ends:
            found = await self._asked(self._calls.records(topic, within=self._left()))
            self._counted[topic] = known = (ends, len(found))
        return known[1]

    async def _of_group(self, form: dict[str, Any], what: str) -> Any:
        found = await self._asked(self._calls.group(form["group"], within=self._left()))
        if what == "assigned":
            return [
                where
                for each in found["members"]
                if form["client"] in (each["client_id"], each["id"])
                for where in each["assigned"]
            ]
        return len(found["members"]) if what == "members" else found[what]

    def _left(self) -> float:
        return max(0.0, self._deadline - self._clock.seconds())

    async def _asked(self, answer: Any) -> Any:
        try:
            return await answer
        except TimeoutError as error:
            raise _Unknown(str(error)) from None

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
