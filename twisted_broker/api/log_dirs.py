"""DescribeLogDirs (35) and AlterReplicaLogDirs (34): what lies in this broker's log directories,
and moves between them.

1. A directory that failed is listed with KAFKA_STORAGE_ERROR and without its partitions.
2. Without permission version 3 and later refuse the whole request; earlier versions answer with an
   empty list.
3. A future replica is listed in its new directory, with its lag.
4. A partition that a request sends to two directories goes to the last one named.

Source: Kafka's `ReplicaManager.describeLogDirs`, `alterReplicaLogDirs`; KIP-113, KIP-827, KIP-1066.
Not here: what a move is (`replication.directory_moves`).
"""

from __future__ import annotations

from collections.abc import Iterable

from twisted_broker.api import audit
from twisted_broker.api.context import RequestContext
from twisted_broker.cluster.records import CORDON_LEVEL
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.log.log import Log
from twisted_broker.replication.directory_moves import alter_replica_log_dirs as alter
from twisted_broker.security.acl import Operation
from twisted_broker.turns import SLICE_ELEMENTS
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import log_dirs as log_dirs_messages


async def describe_log_dirs(
    context: RequestContext, request: log_dirs_messages.DescribeLogDirsRequest
) -> log_dirs_messages.DescribeLogDirsResponse:
    """Waits for nothing but its turns."""
    if not context.may_on_cluster(Operation.DESCRIBE):
        if context.version >= 3:
            raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return log_dirs_messages.DescribeLogDirsResponse()
    named: set[TopicPartition] = set()
    for topic in request.topics or ():
        context.elements_left -= 1
        for start in range(0, len(topic.partitions), SLICE_ELEMENTS):
            named |= {
                TopicPartition(topic.topic, number)
                for number in topic.partitions[start : start + SLICE_ELEMENTS]
            }
            if context.turn_is_over(min(SLICE_ELEMENTS, len(topic.partitions) - start)):
                await context.next_turn()
    wanted = None if request.topics is None else named
    manager = context.log_manager
    logs: dict[str, list[Log]] = {directory.path: [] for directory in manager.directories.online()}
    for log in (*manager, *manager.moves.futures.values()):
        if wanted is None or log.topic_partition in wanted:
            logs.setdefault(manager.directories.of(log).path, []).append(log)
    offline = set(manager.directories.offline())
    results = [
        await _online(context, path, logs[path]) for path in sorted(logs) if path not in offline
    ]
    results += [
        log_dirs_messages.DescribeLogDirsResult(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=path
        )
        for path in sorted(offline)
    ]
    return log_dirs_messages.DescribeLogDirsResponse(results=results)


async def _online(
    context: RequestContext, path: str, logs: Iterable[Log]
) -> log_dirs_messages.DescribeLogDirsResult:
    try:
        total, usable = context.broker.runtime.files.free_bytes(path)
    except OSError:
        return log_dirs_messages.DescribeLogDirsResult(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=path
        )
    topics: dict[str, log_dirs_messages.DescribeLogDirsTopic] = {}
    for log in sorted(logs, key=lambda log: log.topic_partition):
        if context.turn_is_over():
            await context.next_turn()
        name, number = log.topic_partition
        topic = topics.setdefault(name, log_dirs_messages.DescribeLogDirsTopic(name=name))
        lag, is_future = _lag(context, log)
        topic.partitions.append(
            log_dirs_messages.DescribeLogDirsPartition(
                partition_index=number,
                partition_size=log.size_in_bytes,
                offset_lag=lag,
                is_future_key=is_future,
            )
        )
    return log_dirs_messages.DescribeLogDirsResult(
        log_dir=path,
        topics=list(topics.values()),
        total_bytes=total,
        usable_bytes=usable,
        is_cordoned=context.metadata.image.metadata_version >= CORDON_LEVEL
        and path in context.broker.config.cordoned_directories,
    )


def _lag(context: RequestContext, log: Log) -> tuple[int, bool]:
    """(offset lag, whether it is a future log); the lag is -1 where no replica is in service."""
    partition = context.replica_manager.partitions.get(log.topic_partition)
    current = None if partition is None or partition.offline else partition.log
    is_future = context.log_manager.moves.future(log.topic_partition) is log
    if current is None:
        return -1, is_future
    if is_future:
        return current.log_end_offset - log.log_end_offset, True
    return max(0, current.high_watermark - log.log_end_offset), False


# Of a move that begins: a directory and four files are made.
_OF_A_MOVE = 20


async def alter_replica_log_dirs(
    context: RequestContext, request: log_dirs_messages.AlterReplicaLogDirsRequest
) -> log_dirs_messages.AlterReplicaLogDirsResponse:
    """Answers when the moves have begun."""
    paths: dict[TopicPartition, str] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            context.elements_left -= 1
            for number in topic.partitions:
                if context.turn_is_over():
                    await context.next_turn()
                paths[TopicPartition(topic.name, number)] = directory.path
    allowed = context.may_on_cluster(Operation.ALTER)
    topics: dict[str, log_dirs_messages.AlterReplicaLogDirTopicResult] = {}
    begun: dict[tuple[str, str], list[int]] = {}
    for name, path in paths.items():
        if context.turn_is_over(_OF_A_MOVE):
            await context.next_turn()
        error = ErrorCode.NONE if allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if allowed:
            error = _alter(context, name, path)
        if error is ErrorCode.NONE:
            begun.setdefault((name.topic, path), []).append(name.partition)
        topics.setdefault(
            name.topic, log_dirs_messages.AlterReplicaLogDirTopicResult(topic_name=name.topic)
        ).partitions.append(
            log_dirs_messages.AlterReplicaLogDirPartitionResult(
                partition_index=name.partition, error_code=error
            )
        )
    context.replica_manager.drain()
    for (topic_name, path), partitions in begun.items():
        audit.directories_altered(context, topic_name, path, partitions)
    return log_dirs_messages.AlterReplicaLogDirsResponse(results=list(topics.values()))


def _alter(context: RequestContext, name: TopicPartition, path: str) -> ErrorCode:
    try:
        alter(context.replica_manager, name, path)
    except LogDirFailure as error:
        context.replica_manager.directory_failed(error.directory, error.cause)
        return error.code
    except BrokerError as refusal:
        return refusal.code
    return ErrorCode.NONE
