"""Requests of a test's clients that are refused, lost, left without an answer or delayed.

Owns `FaultyDispatcher`, which stands in for the production one in a test's cluster: it puts a step
around each request function, and changes nothing else.

1. Refused: before any work, in the API's own form. Where a request has partitions, those that the
   rule names are refused and the others served: of what changes something they are taken out of
   the request; of a Fetch, which only reads, they are refused in the answer.
2. `applied`: the work is done, and the answer is an error all the same.
3. Lost: the connection is reset, before the work or after it.
4. Silence: the request is read and never answered; what comes behind it on its connection waits.

Source: our own. Not here: which requests (`request_rules.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from twisted_broker.api.dispatch import BoundRoute, Dispatcher
from twisted_broker.api.refusals import refusal, refuse_struct
from twisted_broker.log.segment_file import FileSlice
from twisted_broker.testing.cluster_calls import OWN_CLIENT
from twisted_broker.testing.group_members import NOTED, GroupMembers
from twisted_broker.testing.request_names import Names, elements, names_of, number_of, topic_of
from twisted_broker.testing.request_rules import RequestRules, Rule
from twisted_broker.wire.errors import BrokerError

_FETCH = "Fetch"


class FaultyDispatcher(Dispatcher):
    """`rules`, `members`: of the cluster."""

    def __init__(self, rules: RequestRules, members: GroupMembers, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._rules, self._members = rules, members

    def find(self, api_key: int, version: int) -> BoundRoute | None:
        found = super().find(api_key, version)
        if found is not None:
            function = found.call
            if found.route.name in NOTED:
                function = partial(self._noted, function)
            found.call = partial(self._called, found, function)
            found.at_once = None  # that way in would go past the rules
        return found

    async def _noted(self, function: Callable[..., Any], context: Any, request: Any) -> Any:
        answer = await function(context, request)
        self._members.note(context, request, answer)
        return answer

    async def _called(
        self, served: BoundRoute, function: Callable[..., Any], context: Any, request: Any
    ) -> Any:
        rules = self._rules.all
        if not rules or context.client_id == OWN_CLIENT or _is_of_a_replica(request):
            return await function(context, request)
        node, name = self.broker.node_id, served.route.name
        rules = [each for each in rules if each.is_for(node, name, context.client_id)]
        if not rules:
            return await function(context, request)
        names = names_of(request, self._topic_named)
        for rule in rules:
            if name == _FETCH and rule.topic is not None and rule.action == "fail":
                continue
            if rule.names(names) and rule.strikes():
                return await self._struck(rule, served, function, context, request, names)
        answer = await function(context, request)
        return self._refuse_read(rules, served, answer) if name == _FETCH else answer

    async def _struck(
        self,
        rule: Rule,
        served: BoundRoute,
        function: Callable[..., Any],
        context: Any,
        request: Any,
        names: Names,
    ) -> Any:
        if rule.action == "fail" and not rule.applied:
            return await self._refused(rule, served, function, context, request, names)
        if rule.action == "lose_request":
            return _reset(context)
        if rule.action == "silence":
            await Deferred()
        if rule.action == "delay":
            await deferLater(context.broker.runtime.clock, rule.seconds)
        answer = await function(context, request)
        if rule.action == "lose_answer":
            return _reset(context)
        if rule.action == "throttle":
            return _throttled(context, served, answer, rule)
        if rule.applied and answer is not None:
            self._mark(rule, served, answer)
        return answer

    async def _refused(
        self,
        rule: Rule,
        served: BoundRoute,
        function: Callable[..., Any],
        context: Any,
        request: Any,
        names: Names,
    ) -> Any:
        assert rule.error is not None
        if rule.topic is None or all(rule.holds(each) for each in names.partitions):
            raise BrokerError(rule.error)
        struck, rest = self._divided(request, rule)
        if struck is None:
            raise BrokerError(rule.error)
        answer = await function(context, rest)
        if answer is None:
            return None
        refused = refusal(struck, served.response_class, served.version, rule.error)
        for field in served.response_class.FIELDS:
            value = getattr(answer, field.name)
            if field.kind == "array" and field.is_in(served.version):
                value.extend(getattr(refused, field.name))
        return answer

    def _divided(self, request: Any, rule: Rule) -> tuple[Any, Any]:
        """What it strikes of a request, and the rest; (None, request) where its lists of topics
        cannot be divided.
        """
        for field in request.FIELDS:
            topics = getattr(request, field.name)
            if field.kind != "array" or "topic" not in field.name or not topics:
                continue
            struck, rest = copy.copy(request), copy.copy(request)
            taken: list[Any] = []
            kept: list[Any] = []
            for topic in topics:
                for part, goes in self._parts(topic, rule):
                    (taken if goes else kept).append(part)
            setattr(struck, field.name, taken)
            setattr(rest, field.name, kept)
            return struck, rest
        return None, request

    def _parts(self, topic: Any, rule: Rule) -> list[tuple[Any, bool]]:
        """A topic of a request, divided by partitions: (part, whether it is struck)."""
        name = topic_of(topic, self._topic_named)
        for field in topic.FIELDS:
            partitions = getattr(topic, field.name)
            if field.kind != "array" or "partition" not in field.name:
                continue
            divided: list[tuple[Any, bool]] = []
            for goes in (True, False):
                part = copy.copy(topic)
                own = [
                    each
                    for each in partitions
                    if (name is not None and rule.holds((name, number_of(each)))) == goes
                ]
                setattr(part, field.name, own)
                if own:
                    divided.append((part, goes))
            return divided
        return [(topic, name is not None and rule.holds((name, None)))]

    def _refuse_read(self, rules: list[Rule], served: BoundRoute, answer: Any) -> Any:
        for rule in rules:
            if rule.topic is None or rule.action != "fail" or answer is None:
                continue
            held = any(rule.holds((topic, n)) for topic, n, _ in self._elements(answer))
            if held and rule.strikes():
                self._mark(rule, served, answer)
        return answer

    def _mark(self, rule: Rule, served: BoundRoute, answer: Any) -> None:
        """Gives an answer the rule's error, where it has a place for one."""
        assert rule.error is not None
        marked = False
        for topic, number, part in self._elements(answer):
            if rule.holds((topic, number)) and part is not answer:
                _release(part)
                refuse_struct(part, served.version, rule.error, None)
                marked = True
        if not marked:
            refuse_struct(answer, served.version, rule.error, None)

    def _elements(self, answer: Any) -> list[tuple[str, int | None, Any]]:
        return [*elements(answer, self._topic_named)]

    def _topic_named(self, identity: bytes) -> str | None:
        assert self.broker.metadata is not None
        topic = self.broker.metadata.image.topics_by_id.get(identity)
        return None if topic is None else topic.name


def _is_of_a_replica(request: Any) -> bool:
    state = getattr(request, "replica_state", None)
    replica = getattr(request, "replica_id", -1) if state is None else state.replica_id
    return bool(replica >= 0 or getattr(request, "replica_id", -1) >= 0)


def _release(part: Any) -> None:
    """The records that it will not send."""
    records = getattr(part, "records", None)
    if type(records) is FileSlice:
        records.release()
    if records is not None:
        part.records = b""


def _reset(context: Any) -> None:
    context.connection.transport.abortConnection()


def _throttled(context: Any, served: BoundRoute, answer: Any, rule: Rule) -> Any:
    wait_ms = int(rule.seconds * 1000)
    if served.has_throttle_time and hasattr(answer, "throttle_time_ms"):
        answer.throttle_time_ms = wait_ms
    context.connection.throttle(wait_ms)
    return answer
