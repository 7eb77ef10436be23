"""Faults of requests: which requests are struck, and by what.

Owns `RequestRules`, those in force in a cluster, and `Rule`, one of them.

1. A rule's filters go together: all of them must match. A request without what a filter names is
   never struck.
2. The first rule that strikes decides. `skip` requests pass before it does, it strikes `times`
   then; `probability` draws under `seed`.
3. Only what clients send is struck: nothing of brokers among themselves, nothing of the test's own
   `topic(..)` and `group(..)`.

Source: our own. Not here: what striking does (`faulty_dispatcher.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from difflib import get_close_matches
from random import Random
from typing import Any

from twisted_broker.api.routes import ROUTES
from twisted_broker.testing.request_names import Names, Where
from twisted_broker.wire.errors import ErrorCode

ACTIONS = ("fail", "lose_request", "lose_answer", "silence", "delay", "throttle")
_AFTERWARDS = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)
_APIS = {route.name for route in ROUTES if route.versions(False).max >= 0}
_ERRORS = {each.name for each in ErrorCode if each is not ErrorCode.NONE}


class Rule:
    """`number`: its name for the test. `hits`: how many requests it struck. Raises ValueError."""

    def __init__(
        self,
        number: int,
        action: str,
        api: str | Iterable[str] | None = None,
        *,
        error: str | None = None,
        applied: bool = False,
        seconds: float = 0.0,
        broker: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
        client_id: str | None = None,
        times: int | None = None,
        skip: int = 0,
        probability: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.number, self.action, self.hits = number, action, 0
        names = {api} if isinstance(api, str) else set(api or ())
        for each in names:
            _known("API", each, _APIS)
        self.apis = names
        self.error: ErrorCode | None = None
        if error is not None:
            _known("error", error, _ERRORS)
            self.error = ErrorCode[error]
        if applied and self.error not in _AFTERWARDS:
            right = ", ".join(each.name for each in _AFTERWARDS)
            raise ValueError(f"after the work no broker answers {error}, but one of {right}")
        if partition is not None and topic is None:
            raise ValueError(f"partition={partition} needs a topic")
        for name, value in (
            *(("times", times), ("skip", skip), ("the delay", seconds)),
            *(("probability", probability), ("seed", seed)),
        ):
            if value is not None and not isinstance(value, int | float):
                raise ValueError(f"{name} is a number, not {value!r}")
        if not 0 <= probability <= 1:
            raise ValueError(f"probability is between 0 and 1, not {probability}")
        for name, value in (("times", times), ("skip", skip), ("the delay", seconds)):
            if value is not None and value < (1 if name == "times" else 0):
                raise ValueError(f"{name} is {value}: a fault strikes once or more, and later")
        self.applied, self.seconds, self.broker = applied, seconds, broker
        self.topic, self.partition = topic, partition
        self._groups, self._transactions, self._client = group, transactional_id, client_id
        self._left, self._skip = times, skip
        self._probability, self._random = probability, Random(seed)

    @property
    def is_over(self) -> bool:
        """It has struck as often as it should."""
        return self._left == 0

    def is_for(self, broker: int, api: str, client_id: str | None) -> bool:
        """As far as that says."""
        return (
            not self.is_over
            and (not self.apis or api in self.apis)
            and self.broker in (None, broker)
            and self._client in (None, client_id)
        )

    def names(self, found: Names) -> bool:
        """Whether a request is about what it strikes."""
        return (
            (self.topic is None or any(self.holds(each) for each in found.partitions))
            and (self._groups is None or self._groups in found.groups)
            and (self._transactions is None or self._transactions in found.transactional_ids)
        )

    def holds(self, where: Where) -> bool:
        """Whether it strikes that partition."""
        topic, partition = where
        return self.topic in (None, topic) and (
            self.partition is None or partition is None or self.partition == partition
        )

    def strikes(self) -> bool:
        """Counts a request that it is for; whether it is struck."""
        if self._skip > 0:
            self._skip -= 1
            return False
        if self._probability < 1 and self._random.random() >= self._probability:
            return False
        if self._left is not None:
            self._left -= 1
        self.hits += 1
        return True


def _known(what: str, name: Any, names: set[str]) -> None:
    if name in names:
        return
    near = get_close_matches(str(name), names, 3, 0.5) or sorted(names)
    raise ValueError(f"there is no {what} {name!r}: did you mean {', '.join(near)}?")


_FILTERS = {*inspect.signature(Rule.__init__).parameters} - {"self", "number", "action", "api"}


class RequestRules:
    """Those in force, in the order of their making. `seed`: of those that name none."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self.all: list[Rule] = []
        self._by_number: dict[int, Rule] = {}

    def add(self, action: str, api: Any, **how: Any) -> int:
        """Its number. Raises ValueError."""
        if action not in ACTIONS:
            raise ValueError(f"there is no fault {action!r}: there are {', '.join(ACTIONS)}")
        for each in how:
            _known("filter", each, _FILTERS)
        rule = Rule(len(self._by_number) + 1, action, api, **{"seed": self._seed, **how})
        self._by_number[rule.number] = rule
        self.all.append(rule)
        return rule.number

    def lift(self, number: int) -> None:
        """It strikes no more."""
        rule = self._by_number[number]
        if rule in self.all:
            self.all.remove(rule)

    def is_over(self, number: int) -> bool:
        """It has struck as often as it should."""
        return self._by_number[number].is_over

    def hits(self, number: int) -> int:
        """How many requests it struck."""
        return self._by_number[number].hits
