"""A consumer for Twisted programs, on the base of the replica fetchers: how records get from any
Kafka cluster into bounded queues, and out of them in order. docs/CONSUMER.md shows its use.

Public: the names of `__all__`, their arguments and errors.
"""

from twisted_broker.consumer.errors import (
    AuthenticationFailed,
    BrokersUnreachable,
    ConsumerError,
    ConsumerTimeout,
    InvalidSetting,
    LogTruncated,
    OffsetGone,
    TopicRecreated,
)
from twisted_broker.consumer.group_membership import CommitFailed
from twisted_broker.consumer.simple import SimpleConsumer
from twisted_broker.consumer.streams import (
    ConsumerConnector,
    ConsumerStream,
    DecoderFailed,
    MessageAndMetadata,
)

__all__ = [
    "AuthenticationFailed",
    "BrokersUnreachable",
    "CommitFailed",
    "ConsumerConnector",
    "ConsumerError",
    "ConsumerStream",
    "ConsumerTimeout",
    "DecoderFailed",
    "InvalidSetting",
    "LogTruncated",
    "MessageAndMetadata",
    "OffsetGone",
    "SimpleConsumer",
    "TopicRecreated",
]
