"""Subscriptions by pattern: which topics a regular expression means.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `pattern_change`, `must_resolve`, `resolve_patterns`, `patterns_resolved`.

1. A whole name matches, in linear time and in steps (`linear_pattern.py`). A pattern that it does
   not take is INVALID_REGULAR_EXPRESSION.
2. A pattern is compiled when its first member brings it, and resolved apart: the result comes as a
   decision of its own. The last member that gives it up writes its tombstone.
3. All patterns of a group are resolved together, by one refresh at a time, which nothing but
   heartbeats starts. When they were is known in memory only.

Source: Apache Kafka 4.3.1 `GroupMetadataManager.maybeUpdateRegularExpressions`,
`handleRegularExpressionsResult`, `TopicRegexResolver`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import NamedTuple

from twisted_broker.coordinator.consumer.decision import Environment
from twisted_broker.coordinator.consumer.group import ConsumerGroup, ResolvedPattern
from twisted_broker.coordinator.consumer.records import (
    epoch_record,
    partition_metadata_tombstone,
    pattern_record,
    pattern_tombstone,
)
from twisted_broker.coordinator.group_decision import Decision
from twisted_broker.coordinator.record_codec import StoredRecord
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.linear_pattern import LinearPattern
from twisted_broker.wire.errors import BrokerError, ErrorCode

MIN_REFRESH_INTERVAL_MS = 10_000
MOST_PATTERNS = 100
# A step of about a millisecond, besides where a walk pauses by itself.
NAMES_PER_STEP = 500


class PatternChange(NamedTuple):
    """`is_resolved`: it changed to one whose topics are known, or to none."""

    records: tuple[StoredRecord, ...] = ()
    is_changed: bool = False
    is_resolved: bool = False


def pattern_change(group: ConsumerGroup, before: str, after: str) -> PatternChange:
    """A member that had the pattern `before` has `after`. Raises BrokerError."""
    if before == after:
        return PatternChange()
    counts = group.subscriptions.patterns
    if after and after not in counts:
        if len(counts) >= MOST_PATTERNS:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, f"A group takes {MOST_PATTERNS} patterns at most."
            )
        _compiled(after)
    is_last = bool(before) and counts[before] == 1
    records = (pattern_tombstone(group.group_id, before),) if is_last else ()
    return PatternChange(records, True, not after or after in group.patterns)


def _compiled(pattern: str) -> LinearPattern:
    try:
        return LinearPattern(pattern)
    except ValueError as error:
        raise BrokerError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error}.",
        ) from None


def must_resolve(group: ConsumerGroup, pattern: str, environment: Environment) -> bool:
    """Whether a heartbeat of a member with this pattern starts a refresh of the group's."""
    refresh = group.pattern_refresh
    subscribed = {*group.subscriptions.patterns, pattern} - {""}
    if not subscribed or refresh.is_running:
        return False
    if environment.wall_ms <= refresh.began_at_ms + MIN_REFRESH_INTERVAL_MS:
        return False
    return (
        not subscribed <= group.patterns.keys()
        or environment.topics_created_version > refresh.version
        or environment.wall_ms
        >= refresh.began_at_ms + environment.settings.pattern_refresh_interval_ms
    )


def resolve_patterns(
    patterns: Iterable[str],
    image: MetadataImage,
    may_describe: Callable[[str], bool],
    wall_ms: int,
) -> Generator[None, None, dict[str, ResolvedPattern]]:
    """The topics of each pattern, in steps. `may_describe`: whether the one whose heartbeat began
    this may see the topic.
    """
    result = {}
    work = 0
    for pattern in sorted(patterns):
        try:
            compiled = LinearPattern(pattern)
        except ValueError:
            continue  # Kafka wrote it: its syntax is richer; the topics that it found stay
        topics = []
        for name in image.topics_by_name:
            if (yield from compiled.steps(name)) and may_describe(name):
                topics.append(name)
            work += 1
            if work >= NAMES_PER_STEP:
                work = 0
                yield
        result[pattern] = ResolvedPattern(tuple(sorted(topics)), image.offset, wall_ms)
    return result


def patterns_resolved(
    group: ConsumerGroup, resolved: Mapping[str, ResolvedPattern], environment: Environment
) -> Generator[None, None, Decision]:
    """The records and the members' changes after a refresh, in steps."""
    if not group.members:
        return Decision()
    decision = Decision(metadata_mark=group.metadata_mark())
    known = dict(group.resolved())
    must_bump = False
    for pattern, each in resolved.items():
        if pattern not in group.subscriptions.patterns:
            continue  # given up meanwhile
        must_bump |= known.get(pattern, ()) != each.topics
        known[pattern] = each.topics
        decision.records.append(
            pattern_record(group.group_id, pattern, each.topics, each.version, each.timestamp_ms)
        )
    metadata_hash = yield from environment.hashes.of_group(
        environment.image, group.subscriptions.topics(known)
    )
    if must_bump or metadata_hash != group.metadata_hash:
        if group.has_partition_metadata:
            decision.records.append(partition_metadata_tombstone(group.group_id))
        decision.records.append(epoch_record(group.group_id, group.epoch + 1, metadata_hash))
    return decision
