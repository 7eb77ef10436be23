"""The two clusters' topics: what they are, and the requests that make the target's follow.

Owns `topics_of`, `apply_plan` and `check_target`.

1. The target must serve AppendMirrored: what it answers to ApiVersions is the check, before
   anything is changed there.
2. Each change is one request about one topic; what another made meanwhile (TOPIC_ALREADY_EXISTS)
   is looked at in the next pass.

Source: Kafka's admin requests, at the highest version that both sides know. Not here: what is to
be done (`plan`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twisted.internet.defer import CancelledError

from twisted_broker.consumer.cluster_client import ClusterClient, ClusterMetadata
from twisted_broker.mirror.errors import MirrorError
from twisted_broker.mirror.plan import TopicPlan, TopicState
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.wire.errors import BrokerError, ErrorCode, error_of
from twisted_broker.wire.header import APPEND_MIRRORED
from twisted_broker.wire.messages import configs, topics

_TOPIC, _SET, _DELETE = 2, 0, 1
_OWN = 1  # DYNAMIC_TOPIC_CONFIG
_TIMEOUT_MS = 30_000
_AT_A_TIME = 200


def not_ours(address: str, broker: BrokerEndPoint) -> MirrorError:
    """The refusal of a target that cannot hold a mirror."""
    return MirrorError(
        f"--to {address}: the target is not ours: {broker} does not keep offsets "
        "(AppendMirrored); only a cluster of twisted-broker can hold a mirror"
    )


async def check_target(client: ClusterClient, address: str) -> None:
    """Raises `MirrorError` where a broker of the target cannot take mirrored records."""
    found = await client.metadata([])
    for broker in found.brokers.values():
        if not await _keeps_offsets(client, broker):
            raise not_ours(address, broker)


async def _keeps_offsets(client: ClusterClient, broker: BrokerEndPoint) -> bool:
    """True of one that is away: whoever sends to it finds out (`target_writer`)."""
    try:
        await client.connection(broker).version(APPEND_MIRRORED, 0)
    except CancelledError:
        raise
    except Exception as error:
        return not isinstance(error, BrokerError) or error.code != ErrorCode.UNSUPPORTED_VERSION
    return True


async def topics_of(
    client: ClusterClient, metadata: ClusterMetadata, names: Iterable[str]
) -> dict[str, TopicState]:
    """Those of `names` that the cluster has. Raises BrokerError."""
    there = sorted(
        name
        for name in names
        if name in metadata.topics and metadata.topics[name].error == ErrorCode.NONE
    )
    found: dict[str, TopicState] = {}
    for start in range(0, len(there), _AT_A_TIME):
        asked = there[start : start + _AT_A_TIME]
        request = configs.DescribeConfigsRequest(
            resources=[
                configs.DescribeConfigsResource(
                    resource_type=_TOPIC, resource_name=name, configuration_keys=None
                )
                for name in asked
            ]
        )
        answer = await client.send_to_any(request, 4)
        for result in answer.results:
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue  # deleted meanwhile, or not known to that broker yet
            _raise(result)
            topic = metadata.topics[result.resource_name]
            found[result.resource_name] = TopicState(
                topic.topic_id,
                len(topic.partitions),
                {
                    each.name: each.value
                    for each in result.configs
                    if each.config_source == _OWN and each.value is not None
                },
                any(
                    each.name == "cleanup.policy" and "compact" in (each.value or "")
                    for each in result.configs
                ),
            )
    return found


async def apply_plan(
    client: ClusterClient, name: str, plan: TopicPlan, replication_factor: int
) -> None:
    """Raises BrokerError. `replication_factor` -1: the target's default."""
    if plan.create:
        made = topics.CreatableTopic(
            name=name,
            num_partitions=plan.partitions,
            replication_factor=replication_factor,
            configs=[
                topics.CreatableTopicConfig(name=key, value=value)
                for key, value in sorted(plan.settings.items())
            ],
        )
        answer = await client.send_to_any(
            topics.CreateTopicsRequest(topics=[made], timeout_ms=_TIMEOUT_MS), 7
        )
        _raise(answer.topics[0])
        return
    if plan.partitions:
        grown = topics.CreatePartitionsTopic(name=name, count=plan.partitions, assignments=None)
        answer = await client.send_to_any(
            topics.CreatePartitionsRequest(topics=[grown], timeout_ms=_TIMEOUT_MS), 3
        )
        _raise(answer.results[0])
    if plan.settings:
        changed = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=_TOPIC,
            resource_name=name,
            configs=[
                configs.IncrementalAlterConfigsRequestAlterableConfig(
                    name=key, config_operation=_DELETE if value is None else _SET, value=value
                )
                for key, value in sorted(plan.settings.items())
            ],
        )
        answer = await client.send_to_any(
            configs.IncrementalAlterConfigsRequest(resources=[changed]), 1
        )
        _raise(answer.responses[0])


def _raise(result: Any) -> None:
    if result.error_code:
        raise BrokerError(error_of(result.error_code), result.error_message)
