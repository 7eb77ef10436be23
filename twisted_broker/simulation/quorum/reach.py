"""The events that the seeds of clusters with three controllers must reach.

Owns `QUORUM_WANTED`, the table, and `QuorumReach`; `QuorumProbes`, which look where only these
clusters come.

Not here: counting (`simulation/reach.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted_broker.cluster.controller import Controller
from twisted_broker.cluster.metadata_log import MetadataLog
from twisted_broker.cluster.raft_manager import RaftManager
from twisted_broker.image.entries import BrokerRegistration
from twisted_broker.raft.elections import Elections
from twisted_broker.raft.messages import Answer, Vote
from twisted_broker.raft.states import FollowerState
from twisted_broker.simulation.fault_schedule import RARE, WANTED
from twisted_broker.simulation.probes import Probes
from twisted_broker.simulation.quorum.faults import CONTROLLER_FAULTS
from twisted_broker.simulation.reach import DARK, KINDS, Reach
from twisted_broker.wire.messages.metadata_records import AbortTransactionRecord

_OWN = {
    "another controller active": "after one that was",
    "controller renounced": "another one leads, or none",
    "vote granted": "to a candidate",
    "vote refused": "to a candidate",
    "pre-vote refused": "by a voter that hears its leader",
    "resigned in order": "it was stopped",
    "resigned alone": "it heard of no majority for a while",
    "voter truncated": "it held what was never committed",
    "voter fetched a snapshot": "what it missed was in no log any more",
    "transaction aborted by a failover": "its leader ended amid it",
    "controller registered": "with the active one",
}
_SAID = {
    "votes for": "vote granted",
    "truncated the metadata log": "voter truncated",
}
_BY_LUCK = ("verification outlived a marker",)
"""With one controller a hundred seeds reach it."""

QUORUM_WANTED: dict[str, str] = (
    {
        kind: what
        for kind, what in WANTED.items()
        if "metadata: " not in kind and kind not in (*RARE, *_BY_LUCK)
    }
    | _OWN
    | {f"fault: {name}": "it struck" for name in CONTROLLER_FAULTS}
)
"""What a run of many seeds must have reached."""
for _kind in (
    "fault: damage metadata",
    "by hand: metadata rebuilt",
    "by hand: meta.properties removed",
    "refused by the controller",
    "refused by a broker",
):
    QUORUM_WANTED.pop(_kind, None)


class QuorumReach(Reach):
    """The counts of one run."""

    def count(self, kind: str, times: int = 1) -> None:
        assert kind in _OWN or kind in KINDS or kind in DARK, kind
        self.counts[kind] += times


class QuorumProbes(Probes):
    """`session_lapsed(controller, broker)`: it is about to be fenced."""

    def __init__(
        self,
        session_lapsed: Callable[[Controller, BrokerRegistration], None],
        reach: Reach,
        *more: Any,
    ) -> None:
        super().__init__(reach, *more)
        self._session_lapsed = session_lapsed

    def _watch_cluster(self) -> None:
        super()._watch_cluster()
        self._after(RaftManager, "say", self._said)
        self._after(Controller, "_claim", self._claimed)
        self._after(Controller, "_renounce", lambda *_: self._count("controller renounced"))
        self._after(MetadataLog, "_finish_snapshot", self._fetched)
        self._after(Controller, "_fence", lambda _, *of: self._session_lapsed(*of))
        self._after(Elections, "vote", self._voted)
        self._after(MetadataLog, "append", self._aborted)
        self._after(
            Controller,
            "_follow",
            lambda _, controller, before, after: self._followed(before, after),
        )

    def _said(self, _: None, manager: RaftManager, line: str, is_warning: bool) -> None:
        for beginning, kind in _SAID.items():
            if line.startswith(beginning):
                self._count(kind)
        if line.startswith("resigns epoch"):
            is_asked = line.endswith("asked to")
            self._count("resigned in order" if is_asked else "resigned alone")

    def _claimed(self, _: Any, controller: Controller, *rest: object) -> None:
        self._count("another controller active", int(controller.log.epoch > 1))

    def _fetched(self, *_: object) -> None:
        self._count("voter fetched a snapshot")

    def _voted(self, answer: Answer, elections: Elections, request: Vote, now_ms: float) -> None:
        if answer.granted:
            return
        if not request.pre_vote:
            self._count("vote refused")
        elif isinstance(elections._quorum.state, FollowerState):
            self._count("pre-vote refused")

    def _aborted(self, _: int, log: MetadataLog, records: Any, *rest: object) -> None:
        if records and isinstance(records[0], AbortTransactionRecord):
            self._count("transaction aborted by a failover")

    def _followed(self, before: Any, after: Any) -> None:
        if after.controllers is not before.controllers:
            self._count("controller registered")
