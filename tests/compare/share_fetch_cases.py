"""Cases: share partitions and sessions (KIP-932).

Groups need no members: a leader does not ask. Their state is initialised by hand; the first fetch
of each share partition loads it.
"""

from __future__ import annotations

import time
from typing import Any

from tests.compare.group_cases import ready
from tests.compare.share_state_cases import EMPTY_ID
from tests.compare.side import Side

WAIT_SECONDS = 10.0
GAP, ACCEPT, RELEASE, REJECT, RENEW = 0, 1, 2, 3, 4
_LIMITS = {"min_bytes": 1, "max_bytes": 1_000_000, "max_records": 100, "batch_size": 100}


class Shared:
    """A topic of two partitions, and a group that shares it from offset 0 on."""

    def __init__(self, side: Side) -> None:
        ready(side)
        self.side, self.topic = side, side.topic(partitions=2)
        self.group = side.name("sg")
        side.settled(
            "FindCoordinator",
            lambda answer: not answer.coordinators[0].error_code,
            key_type=2,
            coordinator_keys=[f"{self.group}:{EMPTY_ID}:0"],
        )
        for partition in range(2):
            named = {"partition": partition, "state_epoch": 1, "start_offset": 0}
            side.settled(
                "InitializeShareGroupState",
                lambda answer: not answer.results[0].partitions[0].error_code,
                group_id=self.group,
                topics=[{"topic_id": side.id_of(self.topic), "partitions": [named]}],
            )

    def write(self, *sizes: int) -> None:
        values = (self.side.batch(*[b"v%d" % n for n in range(size)]) for size in sizes)
        self.side.write(self.topic, *values)

    def fields(
        self, member: str, epoch: int, *partitions: int, acks: Any = (), **more: Any
    ) -> dict[str, Any]:
        """`acks`: first and last offset in partition 0, and types."""
        names = ("first_offset", "last_offset", "acknowledge_types")
        batches = [dict(zip(names, each, strict=True)) for each in acks]
        wanted = [
            {"partition_index": index, "acknowledgement_batches": batches if not index else []}
            for index in (partitions or ((0,) if acks else ()))
        ]
        topics = [{"topic_id": self.side.id_of(self.topic), "partitions": wanted}]
        return {
            "group_id": self.group,
            "member_id": member,
            "share_session_epoch": epoch,
            "topics": topics if wanted else [],
        } | more

    def fetch_fields(self, member: str, epoch: int, *partitions: int, **more: Any) -> Any:
        return self.fields(member, epoch, *partitions, **({"max_wait_ms": 300} | _LIMITS | more))

    def load(self, member: str = "loader") -> None:
        """The share partitions are there; the member's session is closed again."""
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            fields = self.fetch_fields(member, 0, 0, 1, max_bytes=1, max_records=1)
            answer = self.side.latest("ShareFetch", **fields)
            found = [each for topic in answer.responses for each in topic.partitions]
            self.side.latest("ShareFetch", **self.fetch_fields(member, -1))
            if found and not any(each.error_code for each in found):
                time.sleep(0.3)
                return
            time.sleep(0.2)
        raise AssertionError(f"{self.side.kind}: {self.group} is not loaded")

    def take(self, member: str) -> None:
        """Opens a session of partition 0 and acquires all of it; not compared."""
        self.side.latest("ShareFetch", **self.fetch_fields(member, 0, 0))


def _quiet(answer: Any) -> None:
    """Hints of leaders that are none (GN 7.24), and the records' bytes but for their number."""
    for topic in answer.responses:
        for each in topic.partitions:
            if each.error_code not in (6, 74):
                each.current_leader.leader_id = each.current_leader.leader_epoch = 0
            if hasattr(each, "records"):
                each.records = b"%d" % len(each.records or b"")


def share_fetch(side: Side, version: int) -> None:
    shared = Shared(side)
    shared.load()
    fields = shared.fetch_fields

    def ask(label: str, **wanted: Any) -> None:
        side.ask(label, _quiet, **wanted)

    ask("no group", **fields("a", 0, 0, group_id=None))
    ask("no member", **fields("", 0, 0))
    ask("null member", **fields("a", 0, 0, member_id=None))
    ask("long member", **fields("x" * 37, 0, 0))
    ask("no session", **fields("a", 1, 0))
    ask("no session to close", **fields("a", -1))
    ask("acknowledging at once", **fields("a", 0, acks=[(0, 0, [ACCEPT])]))
    shared.write(3, 2)
    ask("open", **fields("a", 0, 0, 1))
    ask("nothing more", **fields("a", 1))
    ask("wrong epoch", **fields("a", 1))
    ask("acknowledge", **fields("a", 2, acks=[(0, 0, [ACCEPT]), (1, 2, [RELEASE, GAP])]))
    ask("again", **fields("a", 3, acks=[(0, 1, [ACCEPT])], max_wait_ms=0))
    ask("past what was acquired", **fields("a", 4, acks=[(3, 9, [ACCEPT])], max_wait_ms=0))
    ask("beyond", **fields("a", 5, acks=[(12, 14, [ACCEPT])], max_wait_ms=0))
    for number, acks in enumerate(_WRONG):
        ask(f"wrong {number}", **fields("a", 6 + number, acks=acks, max_wait_ms=0))
    epoch = 6 + len(_WRONG)
    ask("another member", **fields("b", 0, 0))
    ask("another's", **fields("b", 1, acks=[(3, 3, [ACCEPT])], max_wait_ms=0))
    ask("no such partition", **fields("a", epoch, 7))
    forgotten = [{"topic_id": side.id_of(shared.topic), "partitions": [7, 1]}]
    ask("forgotten", **fields("a", epoch + 1, forgotten_topics_data=forgotten))
    ask("renewing, with limits", **fields("a", epoch + 2, is_renew_ack=True))
    ask("close", **fields("a", -1, acks=[(3, 3, [ACCEPT])]))
    ask("what was released", **fields("b", 2))
    shared.write(6, 4, 10)
    ask("few", **fields("b", 3, max_records=2))
    ask("in parts", **fields("b", 4, max_records=5, batch_size=3))
    ask("nothing wanted", **fields("b", 5, max_records=0))
    shared.write(10)
    ask("by record", **fields("b", 6, max_records=4, share_acquire_mode=1))
    ask("by record, the rest", **fields("b", 7, share_acquire_mode=1))


_WRONG: tuple[Any, ...] = (
    [(3, 2, [ACCEPT])],
    [(3, 3, [ACCEPT]), (2, 2, [ACCEPT])],
    [(3, 4, [])],
    [(2, 4, [ACCEPT, ACCEPT])],
    [(3, 3, [5])],
    [(3, 3, [-1])],
    [(3, 3, [RENEW])],
)


def share_acknowledge(side: Side, version: int) -> None:
    shared = Shared(side)
    shared.load()
    fields = shared.fields

    def ask(label: str, **wanted: Any) -> None:
        side.ask(label, _quiet, **wanted)

    ask("no group", **fields("a", 1, 0, group_id=None))
    ask("no member", **fields("", 1, 0))
    ask("no session", **fields("a", 1, acks=[(0, 0, [ACCEPT])]))
    ask("opening", **fields("a", 0, acks=[(0, 0, [ACCEPT])]))
    shared.write(10)
    shared.take("a")
    ask("accept", **fields("a", 1, acks=[(0, 2, [ACCEPT])]))
    ask("each", **fields("a", 2, acks=[(3, 5, [ACCEPT, RELEASE, REJECT])]))
    ask("wrong epoch", **fields("a", 2, acks=[(6, 6, [ACCEPT])]))
    ask("twice", **fields("a", 3, acks=[(5, 5, [ACCEPT])]))
    ask("one of two", **fields("a", 4, acks=[(6, 6, [ACCEPT]), (4, 4, [ACCEPT])]))
    ask("past", **fields("a", 5, acks=[(6, 12, [ACCEPT])]))
    for number, acks in enumerate(_WRONG):
        ask(f"wrong {number}", **fields("a", 6 + number, acks=acks))
    epoch = 6 + len(_WRONG)
    ask("renew", **fields("a", epoch, acks=[(6, 7, [RENEW])], is_renew_ack=True))
    ask("no partitions", **fields("a", epoch + 1))
    ask("no such partition", **fields("a", epoch + 2, 7))
    shared.take("b")
    ask("another's", **fields("b", 1, acks=[(6, 6, [ACCEPT])]))
    ask("own", **fields("b", 2, acks=[(4, 4, [ACCEPT])]))
    ask("close", **fields("a", -1, acks=[(6, 6, [ACCEPT])]))
    ask("close again", **fields("a", -1))
