"""DescribeLogDirs (35): what lies in this broker's log directories.

1. A directory that failed is listed with KAFKA_STORAGE_ERROR and without its partitions.
2. Version 3 and later refuse as a whole what earlier versions answer with an empty list.

Source: Kafka's `ReplicaManager.describeLogDirs`; KIP-113, KIP-827, KIP-1066. Not here: replicas on
the move, cordoned directories.
"""

from __future__ import annotations

from collections.abc import Iterable

from twisted_broker.api.context import RequestContext
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.log import Log
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
            context.elements_left -= min(SLICE_ELEMENTS, len(topic.partitions) - start)
            if context.elements_left < 0:
                await context.next_turn()
    wanted = None if request.topics is None else named
    manager = context.log_manager
    logs: dict[str, list[Log]] = {directory.path: [] for directory in manager.directories.online()}
    for log in manager:
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
        total, usable = context.runtime.files.free_bytes(path)
    except OSError:
        return log_dirs_messages.DescribeLogDirsResult(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=path
        )
    topics: dict[str, log_dirs_messages.DescribeLogDirsTopic] = {}
    for log in sorted(logs, key=lambda log: log.topic_partition):
        context.elements_left -= 1
        if context.elements_left < 0:
            await context.next_turn()
        name, number = log.topic_partition
        topic = topics.setdefault(name, log_dirs_messages.DescribeLogDirsTopic(name=name))
        lag = max(0, log.log_end_offset - log.high_watermark)
        topic.partitions.append(
            log_dirs_messages.DescribeLogDirsPartition(
                partition_index=number,
                partition_size=log.size_in_bytes,
                offset_lag=lag,
                is_future_key=False,
            )
        )
    return log_dirs_messages.DescribeLogDirsResult(
        log_dir=path, topics=list(topics.values()), total_bytes=total, usable_bytes=usable
    )
