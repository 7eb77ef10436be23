"""The cluster as the metadata has it, for the page: troubles, brokers, topics.

Owns `ClusterState`, gathered from one image in pieces, and the words for its troubles.

1. A pure function of an image and the settings. `gather` pauses after every piece of about a
   millisecond; its size is bounded by brokers, `MOST_TROUBLES` and the rows of one page.
2. A broker that is away is one trouble, with the count of its replicas, not one for each of them.

Source: our own. Ring 0. Not here: what this broker knows of its own replicas (`local_state.py`),
HTML (`overview_page.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import NamedTuple

from twisted_broker.config import TOPIC_SETTINGS
from twisted_broker.image.entries import (
    NO_LEADER,
    RECOVERING,
    BrokerRegistration,
    PartitionRegistration,
    TopicImage,
)
from twisted_broker.image.metadata_image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from twisted_broker.replication.explain.reasons import broker_names

# Of one kind; the rest is counted.
MOST_TROUBLES = 10
_PARTITIONS_PER_PIECE = 200
_NAMES_PER_PIECE = 500
MIN_ISR = "min.insync.replicas"


class Trouble(NamedTuple):
    """Something an operator should look at. `topic` and `partition`, or `broker`: its subject,
    None where that is something else. `stands_for`: how many it is.
    """

    text: str
    is_serious: bool = True
    topic: str | None = None
    partition: int = -1
    stands_for: int = 1
    broker: int | None = None


class TopicRow(NamedTuple):
    """One topic: how many partitions it has, and how many of them are in which trouble."""

    name: str
    partitions: int
    fewest_replicas: int
    most_replicas: int
    offline: int
    under_minimum: int
    out_of_sync: int
    moving: int


@dataclass(slots=True)
class Counts:
    """Partitions of the whole cluster."""

    topics: int = 0
    partitions: int = 0
    offline: int = 0
    under_minimum: int = 0
    out_of_sync: int = 0
    moving: int = 0
    not_preferred: int = 0
    recovering: int = 0


@dataclass(slots=True)
class ClusterState:
    """`leaders`, `replicas`, `out_of_sync`, `lost`: partitions by broker; `lost`: those whose log
    directory is offline. `rows`: one page of the topics that match; `matching`: how many there are.
    """

    counts: Counts = field(default_factory=Counts)
    leaders: Counter[int] = field(default_factory=Counter)
    replicas: Counter[int] = field(default_factory=Counter)
    out_of_sync: Counter[int] = field(default_factory=Counter)
    lost: Counter[int] = field(default_factory=Counter)
    rows: list[TopicRow] = field(default_factory=list)
    matching: int = 0
    offline: list[Trouble] = field(default_factory=list)
    under_minimum: list[Trouble] = field(default_factory=list)
    lagging: list[Trouble] = field(default_factory=list)
    lagging_count: int = 0

    def troubles(self, image: MetadataImage) -> Iterator[Trouble]:
        """Causes before their effects, else the worst first."""
        yield from self._of_brokers(image)
        yield from _with_rest(self.offline, self.counts.offline, "partitions without a leader")
        yield from _with_rest(
            self.under_minimum,
            self.counts.under_minimum,
            f"partitions with fewer in-sync replicas than {MIN_ISR}",
        )
        yield from _with_rest(
            self.lagging, self.lagging_count, "partitions with replicas out of sync", False
        )

    def _of_brokers(self, image: MetadataImage) -> Iterator[Trouble]:
        for node in sorted(image.brokers):
            broker = image.brokers[node]
            out = self.out_of_sync[node]
            held = f"it holds {plural(self.replicas[node], 'replica')}"
            if broker.fenced:
                out_text = f", {out:,} of them out of sync" if out else ""
                yield Trouble(
                    f"broker {node} is fenced: no heartbeat of it counts; {held}{out_text}",
                    broker=node,
                )
            elif broker.in_controlled_shutdown:
                yield Trouble(f"broker {node} is shutting down; {held}", False, broker=node)
            if self.lost[node] and not broker.fenced:
                yield Trouble(
                    f"broker {node} has a log directory offline, with "
                    f"{plural(self.lost[node], 'replica')}: replace the disk, then restart it",
                    broker=node,
                )
        unknown = sorted(node for node in self.replicas if node not in image.brokers)
        for node in islice(unknown, MOST_TROUBLES):
            yield Trouble(
                f"broker {node} is not registered, but "
                f"{plural(self.replicas[node], 'replica')} should be on it"
            )


def plural(count: int, noun: str) -> str:
    """`1 replica`, `1,200 replicas`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _with_rest(
    found: list[Trouble], total: int, what: str, is_serious: bool = True
) -> Iterator[Trouble]:
    yield from found
    if total > len(found):
        more = total - len(found)
        yield Trouble(f"and {more:,} more {what}", is_serious, stands_for=more)


def _minimum(stored: Mapping[str, str], otherwise: int) -> int:
    """The value in force of the setting as it is stored."""
    text = stored.get(MIN_ISR)
    obeyed = None if text is None else TOPIC_SETTINGS[MIN_ISR].nearest(text)
    return otherwise if obeyed is None else int(obeyed)


def gather(
    state: ClusterState,
    image: MetadataImage,
    default_minimum: int,
    wanted: str = "",
    first: int = 0,
    rows: int = 0,
) -> Iterator[None]:
    """Fills `state` from the image. `wanted`: part of the names of the topics in `rows`, whose case
    does not matter; `first`: the number of the first of them.
    """
    away = {node for node, each in image.brokers.items() if not each.may_be_in_isr}
    default = _minimum(image.config(BROKER_RESOURCE, ""), default_minimum)
    wanted, names = wanted.lower(), []
    since_pause = 0
    for name, topic in image.topics_by_name.items():
        if wanted in name.lower():
            names.append(name)
        minimum = _minimum(image.config(TOPIC_RESOURCE, name), default)
        state.counts.topics += 1
        since_pause += 1
        for number, each in topic.partitions.items():
            _count(state, image.brokers, away, topic, number, each, minimum)
            since_pause += 1
            if since_pause >= _PARTITIONS_PER_PIECE:
                since_pause = 0
                yield
    state.matching = len(names)
    ordered: list[str] = []
    yield from sorted_part(names, first, rows, ordered)
    for name in ordered:
        topic = image.topics_by_name[name]
        minimum = _minimum(image.config(TOPIC_RESOURCE, name), default)
        row = ClusterState()
        for number, each in topic.partitions.items():
            _count(row, image.brokers, away, topic, number, each, minimum)
            since_pause += 1
            if since_pause >= _PARTITIONS_PER_PIECE:
                since_pause = 0
                yield
        state.rows.append(_row(topic, row.counts))


def sorted_part(names: list[str], first: int, count: int, found: list[str]) -> Iterator[None]:
    """Appends `count` of the names, in their order from number `first` on, to `found`."""
    parts = []
    for start in range(0, len(names), _NAMES_PER_PIECE):
        parts.append(sorted(names[start : start + _NAMES_PER_PIECE]))
        yield
    for number, name in enumerate(islice(merge(*parts), first + count)):
        if number >= first:
            found.append(name)
        if number % _NAMES_PER_PIECE == _NAMES_PER_PIECE - 1:
            yield


def _row(topic: TopicImage, counts: Counts) -> TopicRow:
    sizes = {len(each.replicas) for each in topic.partitions.values()} or {0}
    return TopicRow(
        topic.name,
        len(topic.partitions),
        min(sizes),
        max(sizes),
        counts.offline,
        counts.under_minimum,
        counts.out_of_sync,
        counts.moving,
    )


def _count(
    state: ClusterState,
    brokers: Mapping[int, BrokerRegistration],
    away: set[int],
    topic: TopicImage,
    number: int,
    each: PartitionRegistration,
    minimum: int,
) -> None:
    counts, replicas, isr = state.counts, each.replicas, each.isr
    counts.partitions += 1
    for node, directory in zip(replicas, each.directories, strict=True):
        state.replicas[node] += 1
        broker = brokers.get(node)
        if broker is not None and not broker.has_online_directory(directory):
            state.lost[node] += 1
    if each.adding or each.removing:
        counts.moving += 1
    if each.leader == NO_LEADER:
        counts.offline += 1
        if len(state.offline) < MOST_TROUBLES:
            state.offline.append(_offline(topic.name, number, each, away))
    else:
        state.leaders[each.leader] += 1
        counts.not_preferred += each.leader != replicas[0]
        counts.recovering += each.leader_recovery_state == RECOVERING
        least = min(minimum, len(replicas))
        if len(isr) < least:
            counts.under_minimum += 1
            if len(state.under_minimum) < MOST_TROUBLES:
                state.under_minimum.append(
                    Trouble(
                        f"{topic.name}-{number} refuses acks=all: in sync is "
                        f"{broker_names(isr)}, {MIN_ISR} is {least}",
                        True,
                        topic.name,
                        number,
                    )
                )
    if len(isr) < len(replicas):
        _count_out_of_sync(state, brokers, away, topic, number, each)


def _count_out_of_sync(
    state: ClusterState,
    brokers: Mapping[int, BrokerRegistration],
    away: set[int],
    topic: TopicImage,
    number: int,
    each: PartitionRegistration,
) -> None:
    # A replica that is being added is out of sync until it has copied all: that is no trouble.
    out = [node for node in each.replicas if node not in each.isr and node not in each.adding]
    if not out:
        return
    state.counts.out_of_sync += 1
    state.out_of_sync.update(out)
    here = [node for node in out if node not in away and node in brokers]
    if here and each.leader != NO_LEADER:
        state.lagging_count += 1
        if len(state.lagging) < MOST_TROUBLES:
            state.lagging.append(
                Trouble(
                    f"{topic.name}-{number}: {broker_names(here)} "
                    f"{'is' if len(here) == 1 else 'are'} alive, but out of sync",
                    False,
                    topic.name,
                    number,
                )
            )


def _offline(topic: str, number: int, each: PartitionRegistration, away: set[int]) -> Trouble:
    could = each.isr or each.elr or each.last_known_elr
    fenced = [node for node in could if node in away]
    if not could:
        why = f"none of its replicas ({broker_names(each.replicas)}) may lead without loss"
    elif fenced:
        why = f"{broker_names(fenced)} could lead it without loss, but {_verb(fenced)} away"
    else:
        why = f"{broker_names(could)} could lead it, but cannot use {_its(could)} replica"
    return Trouble(f"{topic}-{number} has no leader: {why}", True, topic, number)


def _verb(nodes: Sequence[int]) -> str:
    return "is" if len(nodes) == 1 else "are"


def _its(nodes: Sequence[int]) -> str:
    return "its" if len(nodes) == 1 else "their"


def broker_state(broker: BrokerRegistration) -> str:
    """In one word or three."""
    if broker.fenced:
        return "fenced"
    return "shutting down" if broker.in_controlled_shutdown else "running"
