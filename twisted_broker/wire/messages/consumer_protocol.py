"""The messages in JoinGroup's and SyncGroup's opaque bytes. Each starts with a 16-bit
version (0-3); a reader takes the highest it knows.

ConsumerProtocolSubscription: 1 owned partitions (KIP-429); 2 generation (KIP-792); 3 rack
(KIP-881).
"""

from twisted_broker.wire.schema import Record, Struct, array, binary, int32, string


class ConsumerProtocolSubscriptionTopicPartition(Struct):
    topic: str = string("1+")
    partitions: list[int] = array(int32, "1+")


class ConsumerProtocolSubscription(Record, versions="0-3"):
    topics: list[str] = array(string, "0+")
    user_data: bytes | None = binary("0+", default=None, nullable="0+")
    owned_partitions: list[ConsumerProtocolSubscriptionTopicPartition] = array(
        ConsumerProtocolSubscriptionTopicPartition, "1+", ignorable=True
    )
    generation_id: int = int32("2+", default=-1, ignorable=True)
    rack_id: str | None = string("3+", default=None, nullable="3+", ignorable=True)


class ConsumerProtocolAssignmentTopicPartition(Struct):
    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class ConsumerProtocolAssignment(Record, versions="0-3"):
    assigned_partitions: list[ConsumerProtocolAssignmentTopicPartition] = array(
        ConsumerProtocolAssignmentTopicPartition, "0+"
    )
    user_data: bytes | None = binary("0+", default=None, nullable="0+")
