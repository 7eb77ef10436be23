"""Checks of the answers that clients got: nothing acknowledged is lost, repeated or reordered.

Owns `lost`, `repeated` and `reordered`. Each compares the Produce requests of a trace, and their
answers, with the records of a topic.

Source: our own. Not here: the trace (`trace.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from twisted_broker.testing.trace import Exchange
from twisted_broker.wire.legacy import iterate_entries
from twisted_broker.wire.records import MAX_OUTPUT_BYTES

_MOST = 5
"""anomalies that are told"""


class Sent(NamedTuple):
    """A record of a Produce. `stream`: who sent it, in an order. `offset`: what its client was
    told, None: nothing, or an error.
    """

    stream: str
    partition: int
    key: bytes | None
    value: bytes | None
    offset: int | None


def sent(exchanges: Sequence[Exchange], topic: str, topic_id: bytes) -> Iterator[Sent]:
    """The records that clients sent to a topic, in order."""
    for exchange in exchanges:
        if exchange.api != "Produce":
            continue
        told = dict(_told(exchange, topic, topic_id))
        for data in exchange.request.topic_data:
            if data.name != topic and data.topic_id != topic_id:
                continue
            for part in data.partition_data:
                base = told.get(part.index)
                count = 0
                for entry in iterate_entries(bytes(part.records or b"")):
                    for record in entry.records(MAX_OUTPUT_BYTES):
                        offset = None if base is None else base + count
                        count += 1
                        yield Sent(
                            _stream(exchange, entry),
                            part.index,
                            _bytes(record.key),
                            _bytes(record.value),
                            offset,
                        )


def _stream(exchange: Exchange, batch: Any) -> str:
    """Its producer, where that has an id; else its connection."""
    producer_id = getattr(batch, "producer_id", -1)
    who = exchange.client_id or "a client"
    if producer_id >= 0:
        return f"producer {producer_id} ({who})"
    return f"{who} on port {exchange.peer.client[1]}"


def _told(exchange: Exchange, topic: str, topic_id: bytes) -> Iterator[tuple[int, int]]:
    """Partition and first offset of what was acknowledged."""
    for response in exchange.answer.responses if exchange.answer is not None else ():
        if response.name == topic or response.topic_id == topic_id:
            for part in response.partition_responses:
                if not part.error_code and part.base_offset >= 0:
                    yield part.index, part.base_offset


def _bytes(content: Any) -> bytes | None:
    return None if content is None else bytes(content)


class Kept(NamedTuple):
    """A record of the topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def lost(sent: Sequence[Sent], kept: Sequence[Kept], starts: dict[int, int]) -> list[str]:
    """Acknowledged and not there; what lies below a log's start was deleted. `starts`: by
    partition.
    """
    there = {(each.partition, each.offset): each for each in kept}
    found = []
    for each in sent:
        if each.offset is None or each.offset < starts.get(each.partition, 0):
            continue
        held = there.get((each.partition, each.offset))
        if held is None or (held.key, held.value) != (each.key, each.value):
            instead = "nothing is there" if held is None else f"{_shown(held)} is there"
            found.append(
                f"{_shown(each)} of {each.stream} was acknowledged at offset "
                f"{each.offset} of partition {each.partition}: {instead}"
            )
    return _first(found)


def repeated(sent: Sequence[Sent], kept: Sequence[Kept]) -> list[str]:
    """Written more often than it was meant: a record that was sent again without being
    acknowledged before counts once.
    """
    meant: dict[tuple[int, bytes | None, bytes | None], int] = {}
    tried: dict[tuple[int, bytes | None, bytes | None], int] = {}
    for each in sent:
        name = (each.partition, each.key, each.value)
        meant[name] = meant.get(name, 0) + (each.offset is not None)
        tried[name] = tried.get(name, 0) + 1
    found = []
    places: dict[tuple[int, bytes | None, bytes | None], list[int]] = {}
    for record in kept:
        places.setdefault((record.partition, record.key, record.value), []).append(record.offset)
    for name, offsets in places.items():
        if name in tried and len(offsets) > max(1, meant[name]):
            found.append(
                f"{_text(name[1], name[2])} is {len(offsets)} times in partition {name[0]}, at "
                f"offsets {', '.join(map(str, offsets))}: it was sent {tried[name]} times and "
                f"acknowledged {meant[name]} times"
            )
    return _first(found)


def reordered(sent: Sequence[Sent], kept: Sequence[Kept]) -> list[str]:
    """Of one producer and one partition, in another order than it was sent first."""
    found = []
    streams: dict[tuple[str, int], dict[tuple[bytes | None, bytes | None], None]] = {}
    for each in sent:
        streams.setdefault((each.stream, each.partition), {})[each.key, each.value] = None
    for (stream, partition), names in streams.items():
        order = {name: number for number, name in enumerate(names)}
        last, seen = -1, set()
        for record in sorted(kept, key=lambda each: each.offset):
            name = (record.key, record.value)
            number = order.get(name)
            if record.partition != partition or number is None or name in seen:
                continue
            seen.add(name)
            if number < last:
                found.append(
                    f"{stream} sent {_shown(record)} before what lies before offset "
                    f"{record.offset} of partition {partition}"
                )
            last = max(last, number)
    return _first(found)


def _shown(record: Sent | Kept) -> str:
    return _text(record.key, record.value)


def _text(key: bytes | None, value: bytes | None) -> str:
    return f"record {value!r}" if key is None else f"record {key!r}: {value!r}"


def _first(found: list[str]) -> list[str]:
    more = len(found) - _MOST
    return found if more <= 0 else [*found[:_MOST], f"and {more} more"]
