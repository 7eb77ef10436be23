"""Records of a coordinator that are in the log and not known to be committed, and the answers that
wait for them. Ring 1.

Owns `Commits`.

1. An answer about something leaves when the last records about it are committed. While it is not
   known whether they are, because the wait was too long, it is an error: another leader may not
   have them.
2. After `close` nothing is answered but NOT_COORDINATOR.
3. Memory: an entry exists while an append is under way.

Source: Apache Kafka 4.3.1 `CoordinatorRuntime.DeferredEventCollection`. Not here: the append, and
what it changes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from twisted_broker.coordinator.coordinator_context import AppendUndecided, append_error
from twisted_broker.wire.errors import BrokerError, ErrorCode

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Commit:
    """One append. `undecided`: the error of the answers that waited too long."""

    undecided: ErrorCode = ErrorCode.NONE
    waiting: list[tuple[Deferred[Any], Any]] = field(default_factory=list)

    def end(self, error: ErrorCode) -> None:
        waiting, self.waiting = self.waiting, []
        for answer, content in waiting:
            if error is ErrorCode.NONE:
                answer.callback(content)
            else:
                answer.errback(BrokerError(error))


class Commits(Generic[K]):
    """By what the records are about."""

    __slots__ = ("_commits", "_is_closed")

    def __init__(self) -> None:
        self._commits: dict[K, list[_Commit]] = {}
        self._is_closed = False

    def __contains__(self, key: K) -> bool:
        """Whether records about it are not known to be committed."""
        return key in self._commits

    def add(self, key: K, outcome: Deferred[int]) -> None:
        """An append that is in the log, or may be (`refusal` gives None)."""
        commit = _Commit()
        self._commits.setdefault(key, []).append(commit)
        outcome.addCallbacks(
            lambda _: self._end(ErrorCode.NONE, key, commit),
            lambda failure: self._failed(failure, key, commit),
        )

    def answer(self, key: K, answer: Deferred[Any], content: Any) -> None:
        """Answers when all that was added for it is committed."""
        commits = self._commits.get(key)
        if commits is None:
            answer.callback(content)
        elif commits[-1].undecided is not ErrorCode.NONE:
            answer.errback(BrokerError(commits[-1].undecided))
        else:
            commits[-1].waiting.append((answer, content))

    def close(self) -> None:
        """The partition is led elsewhere, or this broker ends."""
        self._is_closed = True
        commits, self._commits = self._commits, {}
        for commit in chain.from_iterable(commits.values()):
            commit.end(ErrorCode.NOT_COORDINATOR)

    def _end(self, error: ErrorCode, key: K, commit: _Commit) -> None:
        if not self._is_closed:
            self._commits[key].remove(commit)
            if not self._commits[key]:
                del self._commits[key]
            commit.end(error)

    def _failed(self, failure: Failure, key: K, commit: _Commit) -> None:
        error = append_error(failure)
        if isinstance(failure.value, AppendUndecided) and not self._is_closed:
            commit.end(error)
            commit.undecided = error
            failure.value.outcome().addBoth(lambda _: self._end(error, key, commit))
        else:
            self._end(error, key, commit)
