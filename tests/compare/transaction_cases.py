"""Cases: transactions, their offsets and their markers.

1. Which ids a broker gives to producers is not compared: `OWN` is the id of the case's own producer
   in every answer.
2. A case goes on from a finished transaction only: `ended` waits for that.
3. WriteTxnMarkers names producers that no coordinator knows, and one with records on the partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.compare import group_cases
from tests.compare.differences import text
from tests.compare.side import Side
from twisted_broker.wire.errors import ErrorCode

OWN, MINUTE_MS = 1, 60_000
TRANSACTIONS = 1  # a kind of FindCoordinator
FOREIGN_ID, LONG_ID = 987_654_321, "x" * 300
Who = dict[str, Any]


def ready(side: Side) -> None:
    """The topic of transactions is there (whoever looks for a coordinator has it created), and the
    coordinator of all its partitions serves: of 500 ids each partition has some.
    """
    side.latest("FindCoordinator", key_type=TRANSACTIONS, coordinator_keys=["warm-up"])
    side.settled(
        "DescribeTransactions",
        lambda answer: all(
            each.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            for each in answer.transaction_states
        ),
        transactional_ids=[f"warm-up-{number}" for number in range(500)],
    )


def producer(side: Side, suffix: str = "a", timeout_ms: int = MINUTE_MS) -> Who:
    """A transactional id that has a producer, as requests name it; its epoch is above 0."""
    name = side.name(suffix)
    for _ in range(2):
        answer = side.settled(
            "InitProducerId",
            lambda answer: not answer.error_code,
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
        )
    assert answer.producer_epoch > 0, f"{side.kind}: {answer}"
    return {
        "transactional_id": name,
        "producer_id": answer.producer_id,
        "producer_epoch": answer.producer_epoch,
    }


def added(side: Side, who: Who, topic: str, *partitions: int) -> None:
    """Partitions are in the producer's transaction, which begins with the first."""
    topics = [{"name": topic, "partitions": list(partitions)}]
    answer = side.latest("AddPartitionsToTxn", transactions=[who | {"topics": topics}])
    found = answer.results_by_transaction[0].topic_results[0].results_by_partition
    assert not any(each.partition_error_code for each in found), f"{side.kind}: {answer}"


def added_group(side: Side, who: Who, group: str) -> None:
    answer = side.latest("AddOffsetsToTxn", group_id=group, **who)
    assert not answer.error_code, f"{side.kind}: {answer}"


def written(side: Side, who: Who, topic: str, sequence: int, *values: bytes) -> None:
    """Records of the producer's transaction on partition 0."""
    data = side.batch(
        *values,
        producer_id=who["producer_id"],
        producer_epoch=who["producer_epoch"],
        base_sequence=sequence,
        is_transactional=True,
    )
    wanted = {"topic_id": side.id_of(topic), "partition_data": [{"index": 0, "records": data}]}
    answer = side.latest(
        "Produce",
        transactional_id=who["transactional_id"],
        acks=-1,
        timeout_ms=10_000,
        topic_data=[wanted],
    )
    assert not answer.responses[0].partition_responses[0].error_code, f"{side.kind}: {answer}"


def state_of(side: Side, who: Who, *states: str) -> Any:
    """The transaction once it is in one of the states."""
    return side.settled(
        "DescribeTransactions",
        lambda answer: answer.transaction_states[0].transaction_state in states,
        transactional_ids=[who["transactional_id"]],
    ).transaction_states[0]


def finished(side: Side, who: Who) -> Who:
    """The producer as it is once its transaction is over: the epoch may be a new one."""
    found = state_of(side, who, "Empty", "CompleteCommit", "CompleteAbort")
    return who | {"producer_id": found.producer_id, "producer_epoch": found.producer_epoch}


def ended(side: Side, who: Who, committed: bool = True) -> Who:
    answer = side.latest("EndTxn", committed=committed, **who)
    assert not answer.error_code, f"{side.kind}: {answer}"
    return finished(side, who)


def strangers(asked: Callable[..., Any], who: Who) -> None:
    """Those that may not: `asked(label, **fields)` is the API's request of the producer `who`."""
    asked("unknown id", transactional_id="nobody")
    asked("empty id", transactional_id="")
    asked("long id", transactional_id=LONG_ID)
    asked("another producer", producer_id=FOREIGN_ID)
    asked("producer -1", producer_id=-1)
    asked("epoch behind", producer_epoch=who["producer_epoch"] - 1)
    asked("epoch ahead", producer_epoch=who["producer_epoch"] + 1)
    asked("epoch -1", producer_epoch=-1)


def add_partitions_to_txn(side: Side, version: int) -> None:
    ready(side)
    topic = side.topic(partitions=4)
    who = producer(side)

    def one(*partitions: int, name: str = topic, **more: Any) -> dict[str, Any]:
        topics = [{"name": name, "partitions": list(partitions)}] * more.pop("times", 1)
        return {**who, "topics": topics, **more}

    def asked(label: str, *partitions: int, **more: Any) -> None:
        many(label, one(*partitions, **more))

    def many(label: str, *transactions: dict[str, Any]) -> None:
        first = next(iter(transactions), {})
        old = {
            f"v3_and_below_{name}": value
            for name, value in first.items()
            if name in ("transactional_id", "producer_id", "producer_epoch", "topics")
        }
        side.ask(label, transactions=list(transactions), **old)

    strangers(lambda label, **more: asked(label, 0, **more), who)
    asked("no such topic", 0, name="nobody")
    asked("bad name", 0, name="a b")
    asked("no such partition", 9)
    asked("partition -1", -1)
    asked("one of two is not there", 0, 9)
    asked("no topics", 0, topics=[])
    asked("no partitions")
    if version >= 4:
        asked("verified, none begun", 0, verify_only=True)
    asked("begins", 0)
    asked("again", 0)
    asked("two more", 1, 2)
    asked("named twice", 1, times=2)
    asked("a partition twice", 3, 3)
    strangers(lambda label, **more: asked(f"begun: {label}", 0, **more), who)
    if version >= 4:
        asked("verified", 0, verify_only=True)
        other = side.topic("other")
        asked("verified, not in it", 0, name=other, verify_only=True)
        asked("verified, no such topic", 0, name="nobody", verify_only=True)
        asked("verified, epoch behind", 0, verify_only=True, producer_epoch=-1)
        second = producer(side, "b")
        many("two", one(0), one(0, **second))
        many("two, one unknown", one(0), one(0, transactional_id="nobody"))
        many("one added, one verified", one(0), one(0, **second, verify_only=True))
        many("none")
    who.update(ended(side, who))
    asked("the next", 0)
    who.update(ended(side, who, committed=False))
    if version >= 4:
        asked("verified, ended", 0, verify_only=True)


def add_offsets_to_txn(side: Side, version: int) -> None:
    group_cases.ready(side)
    ready(side)
    who, group = producer(side), side.name("g")

    def asked(label: str, **more: Any) -> None:
        side.ask(label, **({"group_id": group} | who | more))

    strangers(asked, who)
    asked("begins")
    asked("again")
    asked("another group", group_id=side.name("h"))
    asked("empty group", group_id="")
    asked("long group", group_id=LONG_ID)
    strangers(lambda label, **more: asked(f"begun: {label}", **more), who)
    who.update(ended(side, who))
    asked("the next")
    ended(side, who, committed=False)


def end_txn(side: Side, version: int) -> None:
    ready(side)
    topic = side.topic()
    who = producer(side)

    def asked(label: str, committed: bool = True, **more: Any) -> Any:
        return side.ask(label, _own(who), **({"committed": committed} | who | more))

    def over(label: str, committed: bool) -> None:
        before = dict(who)
        added(side, who, topic, 0)
        asked(label, committed)
        who.update(finished(side, who))
        side.note(f"{label}: the epoch is a new one", who != before)
        asked(f"{label}, again", committed, **before)
        asked(f"{label}, the other way", not committed, **before)

    strangers(asked, who)
    asked("none begun, commit")
    added(side, who, topic, 0)
    strangers(lambda label, **more: asked(f"begun: {label}", **more), who)
    asked("the first")
    who.update(finished(side, who))
    over("commit", True)
    over("abort", False)
    asked("none begun, abort", False)
    who.update(finished(side, who))
    asked("none begun, abort again", False)


def _own(*producers: Who) -> Callable[[Any], None]:
    """Overwrites the ids of producers, wherever an answer has them."""

    def tidy(answer: Any) -> None:
        for each in (answer, *getattr(answer, "transaction_states", ())):
            given = getattr(each, "producer_id", None)
            ids = [who["producer_id"] for who in producers]
            if given in ids:
                each.producer_id = OWN + ids.index(given)

    return tidy


def write_txn_markers(side: Side, version: int) -> None:
    ready(side)
    topic = side.topic(partitions=2)
    who = producer(side)
    added(side, who, topic, 0)
    written(side, who, topic, 0, b"a", b"b")

    def one(*partitions: int, name: str = topic, **more: Any) -> dict[str, Any]:
        fields = {
            "producer_id": FOREIGN_ID,
            "producer_epoch": 3,
            "transaction_result": True,
            "coordinator_epoch": 0,
            "topics": [{"name": name, "partition_indexes": list(partitions)}],
        }
        return fields | more

    def many(label: str, *markers: dict[str, Any]) -> None:
        side.ask(label, _markers(who), markers=list(markers))

    def asked(label: str, *partitions: int, **more: Any) -> None:
        many(label, one(*partitions, **more))

    def shown(label: str) -> None:
        """What the partition has of transactions then."""
        topics = [{"name": topic, "partition_indexes": [0]}]
        (found,) = side.latest("DescribeProducers", topics=topics).topics[0].partitions
        rows = [
            (
                OWN if each.producer_id == who["producer_id"] else each.producer_id,
                each.producer_epoch,
                each.coordinator_epoch,
                each.current_txn_start_offset,
            )
            for each in found.active_producers
        ]
        side.note(f"{label}: then", sorted(rows))

    asked("no transaction", 0)
    asked("another partition", 1)
    shown("no transaction")
    asked("an epoch behind", 0, producer_epoch=1)
    asked("an epoch ahead", 0, producer_epoch=7, transaction_result=False)
    asked("coordinator's epoch ahead", 0, producer_epoch=7, coordinator_epoch=5)
    asked("coordinator's epoch behind", 0, producer_epoch=7, coordinator_epoch=2)
    asked("coordinator's epoch -1", 1, coordinator_epoch=-1)
    asked("no such partition", 9)
    asked("partition -1", -1)
    asked("one of two is not there", 1, 9)
    asked("no such topic", 0, name="nobody")
    asked("bad name", 0, name="a b")
    asked("producer -1", 1, producer_id=-1)
    asked("epoch -1", 1, producer_id=FOREIGN_ID + 1, producer_epoch=-1)
    asked("no partitions")
    asked("no topics", 0, topics=[])
    many("none")
    many("two", one(1, producer_id=55), one(1, producer_id=56))
    many("two of one producer", one(0, producer_id=57), one(1, producer_id=57))
    if version >= 2:
        for level in (0, 1, 2, 9):
            asked(f"transaction version {level}", 1, producer_id=60, transaction_version=level)
        asked("version 2, the same epoch", 1, producer_id=60, transaction_version=2)
        ahead = {"producer_id": 60, "transaction_version": 2, "producer_epoch": 4}
        asked("version 2, the next epoch", 1, **ahead)
    open_one = who | {"producer_epoch": who["producer_epoch"] + 1}
    del open_one["transactional_id"]
    shown("before the abort")
    asked("aborts one that is open", 0, transaction_result=False, **open_one)
    shown("aborts one that is open")


def _markers(who: Who) -> Callable[[Any], None]:
    def tidy(answer: Any) -> None:
        for marker in answer.markers:
            if marker.producer_id == who["producer_id"]:
                marker.producer_id = OWN

    return tidy


def txn_offset_commit(side: Side, version: int) -> None:
    group_cases.ready(side)
    ready(side)
    topic = side.topic(partitions=2)
    who, group, live = producer(side), side.name("g"), side.name("live")
    member, generation = group_cases.joined(side, live)

    def asked(label: str, name: str = topic, **more: Any) -> None:
        part = {
            "partition_index": more.pop("partition", 0),
            "committed_offset": more.pop("offset", 7),
            "committed_metadata": more.pop("metadata", "m"),
            "committed_leader_epoch": more.pop("epoch", -1),
        }
        wanted = {"name": name, "partitions": [part] * more.pop("times", 1)}
        side.ask(label, **({"group_id": group, "topics": [wanted]} | who | more))

    def shown(label: str, stable: bool) -> None:
        """The group's offset, as a consumer reads it then."""
        parts = [{"name": topic, "topic_id": side.id_of(topic), "partition_indexes": [0]}]
        (found,) = side.latest(
            "OffsetFetch",
            require_stable=stable,
            groups=[{"group_id": group, "topics": parts}],
        ).groups
        if found.error_code:
            side.note(label, text("error_code", found.error_code))
            return
        part = found.topics[0].partitions[0]
        value = part.committed_offset, part.metadata, text("error_code", part.error_code)
        side.note(label, value)

    if version < 5:  # where the group is not in the transaction: 5 adds it
        asked("group not in the transaction")
    strangers(asked, who)
    for each in (group, live):
        added_group(side, who, each)
    asked("an offset")
    shown("pending", stable=False)
    shown("pending, stable only", stable=True)
    strangers(lambda label, **more: asked(f"begun: {label}", **more), who)
    asked("leader epoch 3", epoch=3)
    for offset in (-1, -5, 0, 2**62):
        asked(f"offset {offset}", offset=offset)
    asked("no metadata", metadata=None)
    asked("long metadata", metadata="m" * 4097)
    asked("no such partition", partition=9)
    asked("partition -1", partition=-1)
    asked("no such topic", name="nobody")
    asked("bad name", name="a b")
    asked("named twice", times=2)
    asked("no partitions", times=0)
    asked("no topics", topics=[])
    asked("empty group", group_id="")
    if version >= 3:
        named = {"group_id": live, "member_id": member, "generation_id": generation}
        asked("a member", **named)
        asked("old generation", **(named | {"generation_id": 0}))
        asked("generation ahead", **(named | {"generation_id": 9}))
        asked("unknown member", **(named | {"member_id": "who"}))
        asked("unknown instance", **(named | {"group_instance_id": "i9"}))
        asked("a member without its id", **(named | {"member_id": ""}))
        asked("a member of nothing", member_id=member, generation_id=generation)
        asked("a generation of nobody", generation_id=4)
    asked("nobody of a live group", group_id=live)
    asked("the last", offset=11)
    who.update(ended(side, who))
    side.settled("OffsetFetch", _stable, require_stable=True, groups=[{"group_id": group}])
    shown("committed", stable=True)
    added_group(side, who, group)
    asked("another", offset=12)
    ended(side, who, committed=False)
    side.settled("OffsetFetch", _stable, require_stable=True, groups=[{"group_id": group}])
    shown("aborted", stable=True)


def _stable(answer: Any) -> bool:
    """No offset of the group waits for the end of a transaction."""
    (group,) = answer.groups
    codes = [part.error_code for topic in group.topics for part in topic.partitions]
    return not any((group.error_code, *codes))


def describe_transactions(side: Side, version: int) -> None:
    ready(side)
    topic, other = side.topic(partitions=3), side.topic("u")
    who = producer(side)
    second = producer(side, "b", timeout_ms=30_000)

    def tidy(answer: Any) -> None:
        _own(who, second)(answer)
        for each in answer.transaction_states:
            each.transaction_start_time_ms = min(each.transaction_start_time_ms, 1)
            for found in each.topics:
                found.partitions.sort()

    def asked(label: str, *ids: str) -> None:
        side.ask(label, tidy, transactional_ids=list(ids))

    first = who["transactional_id"]
    asked("before the first", first)
    added(side, who, topic, 0, 2)
    added(side, who, other, 0)
    asked("begun", first)
    asked("two", first, second["transactional_id"])
    asked("named twice", first, first)
    asked("unknown id", "nobody")
    asked("empty id", "")
    asked("one of two is not there", first, "nobody")
    asked("none")
    who.update(ended(side, who))
    asked("committed", first)
    added(side, who, topic, 1)
    who.update(ended(side, who, committed=False))
    asked("aborted", first)


def list_transactions(side: Side, version: int) -> None:
    ready(side)
    topic = side.topic()
    empty, begun, over, undone = (producer(side, suffix) for suffix in ("a", "b", "c", "d"))
    for who in (begun, over, undone):
        added(side, who, topic, 0)
    ended(side, over)
    ended(side, undone, committed=False)

    def asked(label: str, **more: Any) -> None:
        """Only the ids of this case: those of others come and go."""
        fields: dict[str, Any] = {"state_filters": [], "producer_id_filters": []}
        answer = side.call("ListTransactions", version, fields | more)
        if hasattr(answer, "transaction_states"):
            _own(empty, begun, over, undone)(answer)
            answer.transaction_states = [
                each
                for each in answer.transaction_states
                if each.transactional_id.startswith(side.prefix)
            ]
        side.note(label, answer)

    asked("all")
    for state in ("Ongoing", "Empty", "CompleteCommit", "CompleteAbort", "ongoing", "what", ""):
        asked(f"state {state!r}", state_filters=[state])
    asked("two states", state_filters=["Ongoing", "Empty"])
    asked("a state and no state", state_filters=["Ongoing", "what"])
    asked("a producer", producer_id_filters=[begun["producer_id"]])
    asked("no such producer", producer_id_filters=[FOREIGN_ID, -1])
    asked(
        "a producer in no such state",
        producer_id_filters=[begun["producer_id"]],
        state_filters=["Empty"],
    )
    if version >= 1:
        for duration in (-5, 0, 3_600_000):
            asked(f"duration {duration}", duration_filter=duration)
    if version >= 2:
        prefix = side.prefix
        for pattern in (
            "",
            f"{prefix}-a",
            f"{prefix}-.",
            f"{prefix}-[bc]",
            "a",
            "nobody.*",
            "[",
            "*",
        ):
            asked(f"pattern {pattern!r}", transactional_id_pattern=pattern)
