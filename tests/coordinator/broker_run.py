"""A coordinator on a memory store and a `Clock`, and the shortest ways to ask it."""

from __future__ import annotations

from random import Random

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from tests.coordinator.memory_store import MemoryStore
from twisted_broker.coordinator.coordinator_context import CoordinatorContext, CoordinatorSettings
from twisted_broker.coordinator.group_coordinator import GroupCoordinator, GroupListing
from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.coordinator.group_requests import (
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    SyncRequest,
)
from twisted_broker.coordinator.offset_metadata_manager import (
    CommitAnswer,
    CommitRequest,
    FetchedOffset,
    OffsetToCommit,
)
from twisted_broker.coordinator.rebalance import GroupSettings
from twisted_broker.turns import Turns
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.schema import run_whole

WALL_MS = 1_700_000_000_000


def subscription(*topics: str) -> bytes:
    """A consumer's subscription, version 0, without user data."""
    names = b"".join(len(t.encode()).to_bytes(2, "big") + t.encode() for t in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


class TurnClock(Clock):
    """A `Clock` that can run a single turn: what is due now, and not what those calls want done
    next.
    """

    def turn(self) -> None:
        for call in [call for call in self.calls if call.getTime() <= self.seconds()]:
            self.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)


class BrokerRun:
    """One broker's coordinator; `restarted` gives the next one on the same store and the same
    time.
    """

    def __init__(
        self,
        store: MemoryStore | None = None,
        clock: TurnClock | None = None,
        lead: bool = True,
        **settings: int,
    ) -> None:
        self.store, self.clock = store or MemoryStore(), clock or TurnClock()
        group = GroupSettings(
            settings.pop("initial_rebalance_delay_ms", 0), settings.pop("max_size", 2**31 - 1)
        )
        context = CoordinatorContext(
            self.clock,
            self.wall_ms,
            Random(7),
            self.store,
            CoordinatorSettings(group=group, **settings),
            Turns(self.clock),
        )
        self.coordinator = GroupCoordinator(context)
        self.coordinator.start()
        if lead:
            self.lead_all()

    def wall_ms(self) -> int:
        return WALL_MS + int(self.clock.seconds() * 1000)

    def lead_all(self, epoch: int = 0) -> None:
        for index in range(self.store.partitions):
            self.coordinator.runtime.load(index, epoch)
        self.settle()

    def settle(self) -> None:
        """Lets everything happen that waits for no time."""
        while any(call.getTime() <= self.clock.seconds() for call in self.clock.getDelayedCalls()):
            self.clock.advance(0)

    def pass_ms(self, milliseconds: int) -> None:
        """Time goes from timer to timer, as a reactor sees it."""
        until = self.clock.seconds() + milliseconds / 1000
        while True:
            due = [
                call.getTime() for call in self.clock.getDelayedCalls() if call.getTime() <= until
            ]
            if not due:
                break
            self.clock.advance(max(min(due) - self.clock.seconds(), 0))
        self.clock.advance(until - self.clock.seconds())

    def restarted(self, **settings: int) -> BrokerRun:
        self.coordinator.stop()
        return BrokerRun(self.store, self.clock, **settings)

    def records(self, group_id: str) -> list[tuple[bytes | None, bytes | None]]:
        return self.store.records(partition_for(group_id, self.store.partitions))

    # requests
    def join(
        self,
        group: str = "g",
        member: str = "",
        *,
        instance: str | None = None,
        topics: tuple[str, ...] = ("t",),
        kind: str = "consumer",
        session_ms: int = 10_000,
        known: bool = False,
        protocols: dict[str, bytes] | None = None,
        client: str = "client",
    ) -> Deferred[JoinAnswer]:
        return self.coordinator.join(
            group,
            JoinRequest(
                member,
                "",
                instance,
                client,
                "/127.0.0.1",
                session_ms,
                60_000,
                kind,
                {"range": subscription(*topics)} if protocols is None else protocols,
                known,
            ),
        )

    def sync(
        self,
        member: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        group: str = "g",
    ) -> Deferred[SyncAnswer]:
        return self.coordinator.sync(
            group,
            SyncRequest(member, None, generation, assignments=assignments or {}),
        )

    def stable(self, group: str = "g", **how: object) -> str:
        """A group of one in a stable generation; its member id."""
        joined: list[JoinAnswer] = []
        self.join(group, **how).addCallback(joined.append)
        self.settle()
        synced: list[SyncAnswer] = []
        self.sync(
            joined[0].member_id, joined[0].generation, {joined[0].member_id: b"all"}, group
        ).addCallback(synced.append)
        assert synced[0].error is ErrorCode.NONE and synced[0].assignment == b"all"
        return joined[0].member_id

    def listed(self) -> list[GroupListing]:
        return [listing for some in self.coordinator.listings() for listing in some]

    def commit(
        self,
        *offsets: OffsetToCommit,
        group: str = "g",
        member: str = "",
        generation: int = -1,
        **more: object,
    ) -> Deferred[CommitAnswer]:
        return self.coordinator.commit(
            CommitRequest(group, member, None, generation, offsets=offsets, **more)
        )

    def committed(self, group: str = "g", require_stable: bool = False) -> list[FetchedOffset]:
        """All that the group has committed."""
        wanted = [(*each, bytes(16)) for each in self.partitions(group)]
        return self.coordinator.fetch_offsets(group, wanted, require_stable)

    def partitions(self, group: str = "g") -> list[tuple[str, int]]:
        """What the group has offsets for, in order."""
        return list(run_whole(self.coordinator.committed_partitions(group)))

    def fetched(
        self, group: str = "g", require_stable: bool = False
    ) -> dict[tuple[str, int], int | ErrorCode]:
        found = self.committed(group, require_stable)
        return {
            (f.topic, f.partition): f.error or (f.committed.offset if f.committed else -1)
            for f in found
        }
