"""The errors that a consumer's caller sees: one line each, with a way on.

Owns `ConsumerError` and its kinds. Not here: error codes of the protocol (`wire.errors`).
"""

from __future__ import annotations

from twisted_broker.interfaces import TopicPartition


class ConsumerError(Exception):
    """Something that the consumer does not mend by trying again."""


class InvalidSetting(ConsumerError):
    """A setting that is not known, is missing, or has a value that it cannot have."""


class BrokersUnreachable(ConsumerError):
    """None of the brokers that are known answered."""


class AuthenticationFailed(BrokersUnreachable):
    """Brokers answered, and none lets this client in, or none is trusted: TLS or SASL."""


class OffsetGone(ConsumerError):
    """No place to go on from: `auto.offset.reset` is none. `log_start`, `log_end`: what the leader
    has.
    """

    def __init__(
        self, topic_partition: TopicPartition, offset: int, log_start: int, log_end: int
    ) -> None:
        self.topic_partition, self.offset = topic_partition, offset
        self.log_start, self.log_end = log_start, log_end
        place = "there is no committed offset" if offset < 0 else f"offset {offset} is not there"
        super().__init__(
            f"{topic_partition}: {place}, the leader has {log_start} to {log_end}; commit an "
            "offset within these, or set auto.offset.reset to smallest or largest"
        )


class LogTruncated(ConsumerError):
    """The leader's log has another history from `end_offset` on than what was fetched up to
    `offset`; up to there its last leader epoch is `epoch`.
    """

    def __init__(
        self, topic_partition: TopicPartition, offset: int, epoch: int, end_offset: int
    ) -> None:
        self.topic_partition, self.offset = topic_partition, offset
        self.epoch, self.end_offset = epoch, end_offset
        super().__init__(
            f"{topic_partition}: the cluster lost records that were fetched: the leader's log "
            f"differs from offset {end_offset} on, fetched was up to {offset}; commit an offset "
            "from which to go on, or set auto.offset.reset to smallest or largest"
        )


class TopicRecreated(ConsumerError):
    """The topic was deleted and created again: an offset of the old one means nothing."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        super().__init__(
            f"{topic_partition}: the topic was deleted and created again; commit an offset of the "
            "new one, or set auto.offset.reset to smallest or largest"
        )


class ConsumerTimeout(ConsumerError):
    """No record came within `consumer.timeout.ms`; the stream can be read on."""


class OffsetMismatch(ConsumerError):
    """A chunk came for another offset than the one fetched next."""
