"""The decisions on one group with time, storage and waiting requests in the test's hands."""

from __future__ import annotations

from dataclasses import replace

from twisted_broker.coordinator.classic_group import ClassicGroup
from twisted_broker.coordinator.effects import (
    CancelTimer,
    CompleteRequest,
    Purpose,
    RebalanceStarted,
    ScheduleTimer,
    TimerKind,
    WriteGroup,
)
from twisted_broker.coordinator.group_metadata_manager import GroupMetadataManager
from twisted_broker.coordinator.group_records import GroupMetadata
from twisted_broker.coordinator.group_requests import (
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    SyncAnswer,
    SyncRequest,
)
from twisted_broker.coordinator.rebalance import GroupSettings
from twisted_broker.wire.errors import ErrorCode

RANGE = {"range": b"range-metadata"}


class Token:
    """One waiting request: `answer` is None until it is answered, and answering twice fails."""

    def __init__(self) -> None:
        self.answer: JoinAnswer | SyncAnswer | None = None

    @property
    def join(self) -> JoinAnswer:
        assert isinstance(self.answer, JoinAnswer), self.answer
        return self.answer

    @property
    def sync(self) -> SyncAnswer:
        assert isinstance(self.answer, SyncAnswer), self.answer
        return self.answer


class GroupRun:
    """Runs effects: timers by `advance`, records at once unless `hold_writes`."""

    def __init__(
        self, settings: GroupSettings | None = None, group: ClassicGroup | None = None
    ) -> None:
        self.now_ms = 1_000_000
        self.group = group or ClassicGroup("g", self.now_ms)
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.manager = GroupMetadataManager(lambda: self.settings)
        self.timers: dict[tuple[TimerKind, str], int] = {}
        self.started: list[RebalanceStarted] = []
        self.stored: list[GroupMetadata] = []
        self.waiting_writes: list[Purpose] = []
        self.hold_writes = False
        self.tokens: list[Token] = []
        self._ids = 0

    def run_effects(self) -> None:
        queue = self.manager.effects.queue
        while queue:
            done = queue.popleft()
            if isinstance(done, CompleteRequest):
                assert isinstance(done.token, Token) and done.token.answer is None
                done.token.answer = done.answer
            elif isinstance(done, ScheduleTimer):
                assert done.delay_ms >= 0
                self.timers[(done.kind, done.member_id)] = self.now_ms + done.delay_ms
            elif isinstance(done, CancelTimer):
                self.timers.pop((done.kind, done.member_id), None)
            elif isinstance(done, RebalanceStarted):
                self.started.append(done)
            else:
                assert isinstance(done, WriteGroup)
                self.stored.append(done.metadata)
                self.waiting_writes.append(done.purpose)
                if not self.hold_writes:
                    self.finish_write()

    def finish_write(self, error: ErrorCode = ErrorCode.NONE) -> None:
        self.manager.write_ended(self.group, self.waiting_writes.pop(0), error, self.now_ms)
        self.run_effects()

    def advance(self, milliseconds: int) -> None:
        """Lets time pass, timer by timer."""
        until = self.now_ms + milliseconds
        while self.timers and min(self.timers.values()) <= until:
            key = min(self.timers, key=self.timers.__getitem__)
            self.now_ms = max(self.now_ms, self.timers.pop(key))
            self.manager.timer_expired(self.group, *key, self.now_ms)
            self.run_effects()
        self.now_ms = until

    def token(self) -> Token:
        self.tokens.append(Token())
        return self.tokens[-1]

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: dict[str, bytes] | None = None,
        kind: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        known: bool = True,
        skip: bool = True,
    ) -> Token:
        self._ids += 1
        token = self.token()
        request = JoinRequest(
            member_id,
            f"{instance or 'client'}-{self._ids}",
            instance,
            "client",
            "/127.0.0.1",
            session_ms,
            rebalance_ms,
            kind,
            dict(RANGE if protocols is None else protocols),
            known,
            skip,
        )
        self.manager.membership.join(self.group, request, token, self.now_ms)
        self.run_effects()
        return token

    def join_twice(self, **how: object) -> tuple[str, Token]:
        """A dynamic member of today: asks for an id, comes back with it."""
        first = self.join(**how)
        assert first.join.error is ErrorCode.MEMBER_ID_REQUIRED
        return first.join.member_id, self.join(first.join.member_id, **how)

    def sync(
        self,
        member_id: str,
        generation: int | None = None,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        kind: str | None = None,
        name: str | None = None,
    ) -> Token:
        token = self.token()
        generation = self.group.generation if generation is None else generation
        request = SyncRequest(member_id, instance, generation, kind, name, assignments or {})
        self.manager.assignment.sync(self.group, request, token)
        self.run_effects()
        return token

    def heartbeat(
        self, member_id: str, generation: int | None = None, instance: str | None = None
    ) -> ErrorCode:
        generation = self.group.generation if generation is None else generation
        error = self.manager.membership.heartbeat(self.group, member_id, instance, generation)
        self.run_effects()
        return error

    def leave(self, *leavers: tuple[str, str | None]) -> list[LeaveAnswer]:
        answers = self.manager.membership.leave(self.group, list(leavers), self.now_ms)
        self.run_effects()
        return answers

    def stable(self, size: int = 1, **how: object) -> list[str]:
        """Brings `size` dynamic members into a stable generation; the first one leads."""
        joined = [self.join_twice(**how) for _ in range(size)]
        self.advance(0)
        for member_id, _ in joined:
            if self.group.state.value == "PreparingRebalance":
                self.join(member_id, **how)
        return self.synced([member_id for member_id, _ in joined])

    def synced(self, member_ids: list[str]) -> list[str]:
        leader = self.group.leader
        assert leader is not None
        assignment = {member_id: b"part of " + member_id.encode() for member_id in member_ids}
        for member_id in sorted(member_ids, key=lambda m: m == leader):
            self.sync(member_id, assignments=assignment if member_id == leader else None)
        assert self.group.state.value == "Stable"
        return member_ids

    def with_settings(self, **changes: int) -> None:
        self.settings = replace(self.settings, **changes)
