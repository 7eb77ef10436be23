"""The pages of one topic (`/topics/TOPIC`) and one partition (`/explain/TOPIC/PARTITION`).
Ring 1.

Owns what they show, and in which order.

1. At most `PAGE_ROWS` partitions; `?from=` chooses the first.
2. A partition's page says what its JSON says (`view.py`), in words.

Source: our own. Not here: the reasons (`replication/explain`), the form (`html.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from twisted.web.template import Tag, tags

from twisted_broker.image.entries import TopicImage
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.explain.explanation import Explanation
from twisted_broker.replication.explain.reasons import broker_names, duration
from twisted_broker.status.cluster_state import plural
from twisted_broker.status.html import (
    PAGE_ROWS,
    Pauses,
    Table,
    brokers_text,
    document,
    explain_link,
    facts,
    link,
    main_part,
    pages,
    short,
)
from twisted_broker.status.local_state import byte_text
from twisted_broker.status.overview_page import heading, image_of
from twisted_broker.status.view import BrokerView


async def topic_page(view: BrokerView, pauses: Pauses, name: str, first: int) -> bytes | None:
    """None when the metadata does not know the topic."""
    topic = image_of(view).topics_by_name.get(name)
    if topic is None:
        return None
    table = Table(
        "Partitions; offsets and sizes are those of the replica here",
        ("partition", ""),
        ("leader", "n"),
        ("replicas", ""),
        ("in sync", ""),
        ("role here", "wide"),
        ("log", "n wide"),
        ("high watermark", "n wide"),
        ("stored", "n wide"),
        ("what waits, and for what", "text"),
    )
    numbers = sorted(topic.partitions)
    shown = numbers[first : first + PAGE_ROWS]
    rows = (_partition(view, table, topic, number) for number in shown)
    return await document(
        f"{short(name)} · topic",
        0,
        heading(view),
        main_part(
            tags.h2("Topic ", tags.span(short(name), **{"class": "id"})),
            table.whole(pauses.rows(rows)),
            pages(first, len(shown), len(numbers), lambda number: f"?from={number}"),
        ),
    )


def _partition(view: BrokerView, table: Table, topic: TopicImage, number: int) -> Tag:
    name = TopicPartition(topic.name, number)
    known = topic.partitions[number]
    held = None if view.replicas is None else view.replicas.partitions.get(name)
    leader: Any = str(known.leader) if known.leader >= 0 else tags.span("none", **{"class": "bad"})
    is_whole = len(known.isr) >= len(known.replicas)
    in_sync = tags.span(brokers_text(known.isr), **({} if is_whole else {"class": "warn"}))
    cells = [explain_link(topic.name, number), leader, brokers_text(known.replicas), in_sync]
    if held is None:
        return table.row(*cells, "none", "", "", "", "")
    state = view.explanation(held, view.now(), waiting=False)
    has_log = state.log_start >= 0
    return table.row(
        *cells,
        state.role,
        f"{state.log_start:,} to {state.log_end:,}" if has_log else "–",
        f"{state.high_watermark:,}" if has_log else "–",
        byte_text(state.bytes),
        [tags.div(line) for line in _waits(state, len(view.watching(name)))],
    )


def _waits(state: Explanation, requests: int) -> Iterator[str]:
    if state.offline_because:
        yield f"offline: {state.offline_because}"
    for out in state.out_of_sync:
        yield f"broker {out.broker} is out of sync: {out.why}"
    if state.high_watermark_waits is not None:
        yield f"high watermark: {state.high_watermark_waits.why}"
    if state.fetching is not None and (state.fetching.phase != "fetching" or state.fetching.lag):
        yield state.fetching.why
    if state.moving is not None:
        yield state.moving.why
    if requests:
        yield f"{requests} requests wait" if requests > 1 else "1 request waits"


async def explain_page(view: BrokerView, pauses: Pauses, found: dict[str, Any]) -> bytes:
    """`found`: as `BrokerView.describe` gives it."""
    topic, number = found["topic"], found["partition"]
    name = f"{short(topic)}-{number}"
    return await document(
        f"{name} explained",
        0,
        heading(view),
        main_part(
            tags.p(
                link(("topics", topic), short(topic)),
                " · partition ",
                str(number),
                " · ",
                link(("explain", topic, str(number)), "as JSON", format="json"),
                **{"class": "soft"},
            ),
            tags.h2(name),
            tags.p(_role(found), id="role", **{"class": _kind(found)}),
            _metadata(found["metadata"]),
            *(() if found["role"] == "none" else _replica(pauses, found)),
        ),
    )


def _kind(found: dict[str, Any]) -> str:
    metadata = found["metadata"]
    if found["role"] == "offline" or metadata is None or metadata["leader"] < 0:
        return "health bad"
    is_whole = len(metadata["isr"]) >= len(metadata["replicas"])
    return "health" if is_whole else "health warn"


def _role(found: dict[str, Any]) -> str:
    broker, role, metadata = found["broker"], found["role"], found["metadata"]
    if role == "offline":
        why = found["offline_because"] or "its log directory, or the replica itself, failed"
        own = f"broker {broker} cannot use its replica: {why}"
    elif role == "none":
        own = f"broker {broker} holds no replica of it"
    elif role == "leader":
        own = f"broker {broker} leads it at epoch {found['leader_epoch']}"
    elif found["leader"] >= 0:
        own = f"broker {broker} follows broker {found['leader']}"
    else:
        own = f"broker {broker} follows nobody"
    if metadata is None:
        return f"{own}; its topic is deleted, the replica is not deleted yet"
    if metadata["leader"] < 0:
        return f"It has no leader; {own}"
    if role != "leader":
        own += f"; broker {metadata['leader']} leads it"
    if len(metadata["isr"]) < len(metadata["replicas"]):
        own += (
            f"; in sync are {brokers_text(metadata['isr'])} of {brokers_text(metadata['replicas'])}"
        )
    return own[0].upper() + own[1:]


def _metadata(metadata: dict[str, Any] | None) -> Any:
    if metadata is None:
        return ""
    return tags.section(
        tags.h2("In the metadata"),
        facts(
            ("leader", "none" if metadata["leader"] < 0 else str(metadata["leader"])),
            ("leader epoch", str(metadata["leader_epoch"])),
            ("replicas", brokers_text(metadata["replicas"])),
            ("in sync", brokers_text(metadata["isr"])),
            ("eligible beside them", brokers_text(metadata["eligible_leader_replicas"])),
            ("fenced", brokers_text(metadata["fenced"])),
            ("as of offset", f"{metadata['offset']:,}"),
        ),
    )


def _replica(pauses: Pauses, found: dict[str, Any]) -> Iterator[Any]:
    """This broker's own replica."""
    if found["log_start"] >= 0:
        yield tags.section(
            tags.h2(f"The replica of broker {found['broker']}"),
            facts(
                (f"{found['role']} since", _time(found["role_since_ms"])),
                ("log start", f"{found['log_start']:,}"),
                ("high watermark", f"{found['high_watermark']:,}"),
                ("last stable offset", f"{found['last_stable']:,}"),
                ("log end", f"{found['log_end']:,}"),
                ("stored", byte_text(found["bytes"])),
            ),
        )
    reasons = list(_reasons(found))
    if reasons:
        items = [tags.li(each) for each in reasons]
        yield tags.section(
            tags.h2("Why it is so"), tags.ul(pauses.rows(items), **{"class": "troubles"})
        )
    if found["followers"]:
        table = Table(
            "Followers, as this leader sees them",
            ("broker", ""),
            ("in sync", ""),
            ("log end", "n"),
            ("behind", "n"),
            ("last caught up", "wide"),
            ("last fetch", "wide"),
        )
        rows = (
            table.row(
                str(each["broker"]),
                "yes" if each["in_isr"] else tags.span("no", **{"class": "warn"}),
                _offset(each["log_end"]),
                _offset(each["behind"]),
                _time(each["last_caught_up_ms"]),
                _time(each["last_fetch_ms"]),
            )
            for each in found["followers"]
        )
        yield tags.section(tags.h2("Followers"), table.whole(pauses.rows(rows)))


def _reasons(found: dict[str, Any]) -> Iterator[Any]:
    waits = found["high_watermark_waits"]
    if waits is not None:
        yield f"the high watermark waits: {waits['why']}"
    if found["last_stable_waits"] is not None:
        yield f"the last stable offset waits: {found['last_stable_waits']['why']}"
    change = found["isr_change"]
    if change is not None:
        word = "joining" if change["kind"] == "expand" else "leaving"
        yield (
            f"{broker_names(change['brokers'])} {word} the ISR: requested from the controller "
            f"{duration(change['for_ms'])} ago"
        )
    for out in found["out_of_sync"]:
        lacks = [tags.li(each) for each in out["holds_back"] or ["it may join with its next fetch"]]
        yield [
            f"broker {out['broker']} is out of sync since {_time(out['since_ms'])} "
            f"({duration(out['for_ms'])}): {out['why']}",
            tags.ul(*lacks),
        ]
    if found["fetching"] is not None:
        yield found["fetching"]["why"]
    if found["moving"] is not None:
        yield found["moving"]["why"]
    cleaning = found["cleaning"]
    if cleaning is not None:
        yield f"compaction: {cleaning['why']}"
    for each in found["waiting"]:
        yield f"{each['request']} waits: {each['why']}"
    more = found["waiting_count"] - len(found["waiting"])
    if more > 0:
        yield f"and {plural(more, 'more request')} waiting"
    for each in islice(found["truncations"], PAGE_ROWS):
        yield (
            f"truncated at {_time(each['at_ms'])} from {each['from_offset']:,} to "
            f"{each['to_offset']:,}: {each['why']}"
        )


def _offset(offset: int) -> str:
    return "–" if offset < 0 else f"{offset:,}"


def _time(wall_ms: int) -> str:
    if wall_ms <= 0:
        return "–"
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
