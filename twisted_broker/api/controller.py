"""The controller's requests: one function each, as the API table names them.

1. Each decides on the newest view, writes, and answers when its records are durable.
2. A long request is decided on part by part, each part on the view of its time; an element's own
   records stay together, as its answer does.

Source: Kafka's `ControllerApis`; `RL 8.1`. Not here: decisions (the modules called), dispatch and
permission of other nodes (`api/dispatch.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

from twisted_broker.api import audit
from twisted_broker.api import controller_permissions as permissions
from twisted_broker.api import tokens as token_requests
from twisted_broker.api.acls import check_authorizer
from twisted_broker.api.context import RequestContext
from twisted_broker.api.throttling import permits
from twisted_broker.cluster import (
    acl_changes,
    alter_partition_decision,
    broker_registry,
    config_changes,
    feature_changes,
    heartbeat_decision,
    image_records,
    partition_requests,
    quota_changes,
    scram_changes,
    token_changes,
    topic_changes,
)
from twisted_broker.cluster.broker_registry import RegistrationDecision
from twisted_broker.cluster.cluster_view import ClusterView
from twisted_broker.cluster.controller import Controller
from twisted_broker.cluster.features import KRAFT_VERSION, SUPPORTED_FEATURES
from twisted_broker.cluster.heartbeat_decision import HeartbeatDecision
from twisted_broker.cluster.records import CONTROLLER_LEVEL
from twisted_broker.image.entries import ControllerRegistration, Endpoint, FeatureRange
from twisted_broker.security.acl import Operation
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import (
    acls,
    broker_lifecycle,
    cluster,
    configs,
    log_dirs,
    producer_ids,
    quorum,
    quotas,
    reassignment,
    sasl,
    tokens,
    topics,
)
from twisted_broker.wire.messages import fetch as fetch_messages
from twisted_broker.wire.messages.metadata_records import (
    FeatureLevelRecord,
    NoOpRecord,
    ProducerIdsRecord,
)
from twisted_broker.wire.primitives import new_uuid, uuid_text
from twisted_broker.wire.schema import Record

# Kafka's `ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE`: one record of the metadata log per 1,000
# producers.
PRODUCER_ID_BLOCK = 1000

_BROKERS, _CONTROLLERS = 1, 2
# Small: one topic of a part may have thousands of partitions.
_AT_A_TIME = 20
_PARTITIONS_AT_A_TIME = 200
# Records: to decide on more takes a turn of its own, and so does writing them.
_LONG_DECISION, _TRIES = 2000, 3
# a step of a decision is as long as so many elements of a request
_STEP_ELEMENTS = 200
_RECORDS = attrgetter("records")
T = TypeVar("T")
ResponseT = TypeVar("ResponseT")
Decision = tuple[list[Record], ResponseT]
"""Records to be written, and what is answered when they are."""


def _controller(context: RequestContext) -> Controller:
    found = context.broker.controller
    if found is None:
        raise BrokerError(ErrorCode.NOT_CONTROLLER)
    return found


async def fetch(
    context: RequestContext, request: fetch_messages.FetchRequest
) -> fetch_messages.FetchResponse:
    """Fetch of the metadata log; for nodes of the cluster only."""
    _check_cluster(context, Operation.CLUSTER_ACTION)
    return await _controller(context).raft_requests.fetch(request, context.version)


async def fetch_snapshot(
    context: RequestContext, request: quorum.FetchSnapshotRequest
) -> quorum.FetchSnapshotResponse:
    return await _controller(context).raft_requests.fetch_snapshot(request, context.version)


async def vote(context: RequestContext, request: quorum.VoteRequest) -> quorum.VoteResponse:
    return await _controller(context).raft_requests.vote(request, context.version)


async def begin_quorum_epoch(
    context: RequestContext, request: quorum.BeginQuorumEpochRequest
) -> quorum.BeginQuorumEpochResponse:
    return await _controller(context).raft_requests.begin_quorum_epoch(request, context.version)


async def end_quorum_epoch(
    context: RequestContext, request: quorum.EndQuorumEpochRequest
) -> quorum.EndQuorumEpochResponse:
    return await _controller(context).raft_requests.end_quorum_epoch(request, context.version)


async def add_raft_voter(
    context: RequestContext, request: quorum.AddRaftVoterRequest
) -> quorum.AddRaftVoterResponse:
    _check_cluster(context, Operation.ALTER)
    answer = await _controller(context).raft_requests.add_raft_voter(request)
    if not answer.error_code:
        audit.changed(context, "voter added", voter=request.voter_id)
    return answer


async def remove_raft_voter(
    context: RequestContext, request: quorum.RemoveRaftVoterRequest
) -> quorum.RemoveRaftVoterResponse:
    _check_cluster(context, Operation.ALTER)
    answer = await _controller(context).raft_requests.remove_raft_voter(request)
    if not answer.error_code:
        audit.changed(context, "voter removed", voter=request.voter_id)
    return answer


async def update_raft_voter(
    context: RequestContext, request: quorum.UpdateRaftVoterRequest
) -> quorum.UpdateRaftVoterResponse:
    return await _controller(context).raft_requests.update_raft_voter(request)


async def describe_quorum(
    context: RequestContext, request: cluster.DescribeQuorumRequest
) -> cluster.DescribeQuorumResponse:
    _check_cluster(context, Operation.DESCRIBE)
    return _controller(context).raft_requests.describe(request, context.version)


async def describe_cluster(
    context: RequestContext, request: cluster.DescribeClusterRequest
) -> cluster.DescribeClusterResponse:
    """KIP-919: the controllers, as they registered, and the cluster id, for those who may ALTER
    the cluster.

    Version 0 cannot request controllers, and has no error code that says so.
    """
    _check_cluster(context, Operation.ALTER)
    if request.endpoint_type == _BROKERS:
        code = (
            ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if context.version >= 1
            else ErrorCode.INVALID_REQUEST
        )
        raise BrokerError(code, "this listener belongs to a controller")
    if request.endpoint_type != _CONTROLLERS:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"unknown endpoint type {request.endpoint_type}",
        )
    controller = _controller(context)
    name = context.listener.name
    known = {
        each.id: each.listeners[name]
        for each in controller.committed.controllers.values()
        if name in each.listeners
    }
    # Its own registration may not be committed yet, nor anybody's where the metadata has none.
    known.update((controller.node_id, each) for each in controller.listeners if each.name == name)
    nodes = [
        cluster.DescribeClusterBroker(broker_id=node_id, host=each.host, port=each.port)
        for node_id, each in sorted(known.items())
    ]
    response = cluster.DescribeClusterResponse(
        error_message=None,
        endpoint_type=_CONTROLLERS,
        cluster_id=controller.cluster_id,
        controller_id=controller.leader_id,
        brokers=nodes,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.cluster_operations()
    return response


async def broker_registration(
    context: RequestContext, request: broker_lifecycle.BrokerRegistrationRequest
) -> broker_lifecycle.BrokerRegistrationResponse:
    """The broker's epoch is the offset of its registration record."""
    controller = _controller(context)

    def decision(view: ClusterView) -> Generator[None, None, RegistrationDecision]:
        return broker_registry.register(
            view,
            request,
            context.version,
            controller.sessions,
            controller.cluster_id,
            controller.log.end_offset,
            controller.runtime.now_ms(),
            controller.kraft_version,
        )

    outcome, prepared = await _in_steps(context, controller.decide(decision, _RECORDS))
    now_ms = controller.runtime.now_ms()
    controller.sessions.touch(request.broker_id, outcome.epoch, -1, now_ms)
    await controller.write(outcome.records, prepared)
    return broker_lifecycle.BrokerRegistrationResponse(broker_epoch=outcome.epoch)


async def controller_registration(
    context: RequestContext, request: broker_lifecycle.ControllerRegistrationRequest
) -> broker_lifecycle.ControllerRegistrationResponse:
    """Of a standby: one record, whatever it says of itself."""
    controller = _controller(context)
    if controller.view.image.metadata_version < CONTROLLER_LEVEL:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"controllers register from metadata.version {CONTROLLER_LEVEL} on",
        )
    await controller.write([image_records.controller_record(_registered(request))])
    return broker_lifecycle.ControllerRegistrationResponse(error_message=None)


def _registered(request: broker_lifecycle.ControllerRegistrationRequest) -> ControllerRegistration:
    return ControllerRegistration(
        request.controller_id,
        bytes(request.incarnation_id),
        {
            each.name: Endpoint(each.name, each.host, each.port, each.security_protocol)
            for each in request.listeners
        },
        {
            each.name: FeatureRange(each.min_supported_version, each.max_supported_version)
            for each in request.features
        },
    )


async def broker_heartbeat(
    context: RequestContext, request: broker_lifecycle.BrokerHeartbeatRequest
) -> broker_lifecycle.BrokerHeartbeatResponse:
    """Changes of state are durable before the broker is answered."""
    controller = _controller(context)
    now_ms = controller.runtime.now_ms()

    def decision(view: ClusterView) -> Generator[None, None, HeartbeatDecision]:
        return heartbeat_decision.heartbeat(view, request, controller.sessions, now_ms)

    beat, prepared = await _in_steps(context, controller.decide(decision, _RECORDS))
    if beat.records:
        end = controller.log.end_offset
        written = controller.write(beat.records, prepared)
        last = controller.log.end_offset - 1
        # Not where nothing was written: a later heartbeat begins it.
        if beat.enters_shutdown and last >= end:
            heartbeat_decision.note_shutdown_offset(
                controller.sessions, request.broker_id, request.broker_epoch, last, now_ms
            )
        await written
    if (
        beat.should_shut_down
    ):  # its next incarnation need not wait for the end of a session that no broker holds
        controller.sessions.forget(request.broker_id, request.broker_epoch)
    return broker_lifecycle.BrokerHeartbeatResponse(
        is_caught_up=beat.caught_up, is_fenced=beat.fenced, should_shut_down=beat.should_shut_down
    )


async def unregister_broker(
    context: RequestContext, request: cluster.UnregisterBrokerRequest
) -> cluster.UnregisterBrokerResponse:
    _check_cluster(context, Operation.ALTER)
    controller = _controller(context)

    def decision(view: ClusterView) -> Generator[None, None, list[Record]]:
        return broker_registry.unregister(view, request.broker_id)

    steps = controller.decide(decision, lambda found: found)
    await controller.write(*await _in_steps(context, steps))
    audit.changed(context, "broker unregistered", broker=request.broker_id)
    return cluster.UnregisterBrokerResponse(error_message=None)


async def update_features(
    context: RequestContext, request: cluster.UpdateFeaturesRequest
) -> cluster.UpdateFeaturesResponse:
    _check_cluster(context, Operation.ALTER)
    controller = _controller(context)
    before = controller.view.image.features
    updates = [each for each in request.feature_updates if each.feature != KRAFT_VERSION]
    found = feature_changes.update_features(
        controller.view,
        updates,
        controller.node_id,
        SUPPORTED_FEATURES,
        controller.log.quorum.voters.ids,
    )
    for update in request.feature_updates:
        if update.feature == KRAFT_VERSION:
            found += _update_kraft_version(controller, update, request.validate_only)
    if not request.validate_only:
        await controller.write(found)
        for record in found:
            if isinstance(record, FeatureLevelRecord):
                audit.changed(
                    context,
                    "feature level changed",
                    feature=record.name,
                    before=before.get(record.name, 0),
                    after=record.feature_level,
                )
    return cluster.UpdateFeaturesResponse(
        error_message=None,
        results=[
            cluster.UpdatableFeatureResult(feature=update.feature, error_message=None)
            for update in request.feature_updates
        ],
    )


def _update_kraft_version(
    controller: Controller, update: cluster.FeatureUpdateKey, validate_only: bool
) -> list[Record]:
    """Who votes goes into the log. Returns an empty record: with its commit the voters' is
    committed, too.
    """
    feature_changes.check_kraft_version(
        controller.view, update, controller.node_id, SUPPORTED_FEATURES
    )
    answer = controller.log.upgrade_kraft_version(update.max_version_level, validate_only)
    if answer.error is not ErrorCode.NONE:
        raise BrokerError(answer.error, answer.message)
    return [NoOpRecord()]


async def alter_partition(
    context: RequestContext, request: broker_lifecycle.AlterPartitionRequest
) -> broker_lifecycle.AlterPartitionResponse:
    controller = _controller(context)
    steps = controller.decide(
        lambda view: alter_partition_decision.alter_partition(view, request, context.version),
        itemgetter(0),
    )
    (found, response), prepared = await _in_steps(context, steps)
    await controller.write(found, prepared)
    return response


async def assign_replicas_to_dirs(
    context: RequestContext, request: log_dirs.AssignReplicasToDirsRequest
) -> log_dirs.AssignReplicasToDirsResponse:
    controller = _controller(context)
    steps = controller.decide(
        lambda view: alter_partition_decision.assign_replicas(view, request), itemgetter(0)
    )
    (found, response), prepared = await _in_steps(context, steps)
    await controller.write(found, prepared)
    return response


async def allocate_producer_ids(
    context: RequestContext, request: producer_ids.AllocateProducerIdsRequest
) -> producer_ids.AllocateProducerIdsResponse:
    """A block of 1,000 ids that no other broker gets."""
    controller = _controller(context)
    image = controller.view.image
    broker_registry.check_epoch(image, request.broker_id, request.broker_epoch)
    start = image.next_producer_id
    record = ProducerIdsRecord(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=start + PRODUCER_ID_BLOCK,
    )
    await controller.write([record])
    return producer_ids.AllocateProducerIdsResponse(
        producer_id_start=start, producer_id_len=PRODUCER_ID_BLOCK
    )


async def create_topics(
    context: RequestContext, request: topics.CreateTopicsRequest
) -> topics.CreateTopicsResponse:
    controller = _controller(context)
    counts = await _counted(context, (topic.name for topic in request.topics))
    refused = await permissions.refuse_creations(context, request, counts)
    response = topics.CreateTopicsResponse()
    wanted = 0
    async for topic in context.each(request.topics):
        if counts[topic.name] == 1:
            wanted += topic_changes.wanted_partitions(controller.view, topic)
    if wanted > topic_changes.MAX_PARTITIONS_PER_REQUEST:
        error = topic_changes.too_many()
        response.topics = [
            topics.CreatableTopicResult(
                name=topic.name, error_code=error.code, error_message=error.message, configs=[]
            )
            async for topic in context.each(request.topics)
        ]
        response.topics += refused
        return response
    permit = permits(context, 6)

    def decide(some: list[topics.CreatableTopic]) -> Decision[topics.CreateTopicsResponse]:
        part = topics.CreateTopicsRequest(topics=some, validate_only=request.validate_only)
        return topic_changes.create_topics(
            controller.view, part, controller.runtime.random, counts, permit
        )

    def done(some: list[topics.CreatableTopic], answer: topics.CreateTopicsResponse) -> None:
        if not request.validate_only:
            audit.topics_created(context, answer)

    async for some, found, answer in _written(context, request.topics, decide, done):
        response.topics += answer.topics
        context.elements_left -= 10 * len(some) + len(found) // 4
    await permissions.hide_configs(context, response)
    response.topics += refused
    return response


async def create_partitions(
    context: RequestContext, request: topics.CreatePartitionsRequest
) -> topics.CreatePartitionsResponse:
    controller = _controller(context)
    counts, budget = (
        await _counted(context, (topic.name for topic in request.topics)),
        topic_changes.MAX_PARTITIONS_PER_REQUEST,
    )
    refused = await permissions.refuse_growth(context, request, counts)
    response = topics.CreatePartitionsResponse()
    permit = permits(context, 3)
    added: dict[str, int] = {}

    def permit_and_count(name: str, partitions: int) -> None:
        permit(name, partitions)
        added[name] = partitions

    def decide(
        some: list[topics.CreatePartitionsTopic],
    ) -> Decision[topics.CreatePartitionsResponse]:
        part = topics.CreatePartitionsRequest(topics=some, validate_only=request.validate_only)
        return topic_changes.create_partitions(
            controller.view, part, controller.runtime.random, counts, budget, permit_and_count
        )

    def done(
        some: list[topics.CreatePartitionsTopic], answer: topics.CreatePartitionsResponse
    ) -> None:
        if not request.validate_only:
            audit.partitions_created(context, some, answer)

    async for some, found, answer in _written(context, request.topics, decide, done):
        response.results += answer.results
        budget -= sum(added.values())  # with `validate_only` there are no records
        added.clear()
        context.elements_left -= len(some) + len(found) // 4
    response.results += refused
    return response


async def delete_topics(
    context: RequestContext, request: topics.DeleteTopicsRequest
) -> topics.DeleteTopicsResponse:
    controller = _controller(context)
    named = await _counted(
        context,
        chain(
            request.topic_names,
            (bytes(each.topic_id) if each.name is None else each.name for each in request.topics),
        ),
    )
    refused = await permissions.refuse_deletions(
        context, request, context.version, controller.view.image, named
    )
    response = topics.DeleteTopicsResponse()
    permit = permits(context, 5)
    by_state = context.version >= 6

    def decide(some: list[Any]) -> Decision[topics.DeleteTopicsResponse]:
        part = (
            topics.DeleteTopicsRequest(topics=some)
            if by_state
            else topics.DeleteTopicsRequest(topic_names=some)
        )
        return topic_changes.delete_topics(controller.view, part, context.version, named, permit)

    def done(some: list[Any], answer: topics.DeleteTopicsResponse) -> None:
        audit.topics_deleted(context, answer)

    elements: Sequence[Any] = request.topics if by_state else request.topic_names
    async for some, found, answer in _written(context, elements, decide, done):
        response.responses += answer.responses
        context.elements_left -= len(some) + 10 * len(found)
    response.responses += refused
    return response


async def incremental_alter_configs(
    context: RequestContext, request: configs.IncrementalAlterConfigsRequest
) -> configs.IncrementalAlterConfigsResponse:
    counts = await _resources_counted(context, request)
    refused = await permissions.refuse_incremental(context, request, counts)
    change = config_changes.incremental_alter_configs
    responses = await _configs_altered(context, request, counts, change)
    return configs.IncrementalAlterConfigsResponse(responses=responses + refused)


async def alter_configs(
    context: RequestContext, request: configs.AlterConfigsRequest
) -> configs.AlterConfigsResponse:
    counts = await _resources_counted(context, request)
    refused = await permissions.refuse_alter(context, request, counts)
    responses = await _configs_altered(context, request, counts, config_changes.alter_configs)
    return configs.AlterConfigsResponse(responses=responses + refused)


async def _resources_counted(context: RequestContext, request: Any) -> Counter[tuple[int, str]]:
    return await _counted(
        context, ((each.resource_type, each.resource_name) for each in request.resources)
    )


async def _configs_altered(
    context: RequestContext,
    request: Any,
    counts: Counter[tuple[int, str]],
    change: Callable[[ClusterView, Any, Counter[tuple[int, str]]], Decision[Any]],
) -> list[Any]:
    """The answers. `change` decides on a part of the request."""
    controller = _controller(context)
    responses: list[Any] = []

    def decide(some: list[Any]) -> Decision[Any]:
        part = type(request)(resources=some, validate_only=request.validate_only)
        return change(controller.view, part, counts)

    def done(some: list[Any], answer: Any) -> None:
        if not request.validate_only:
            audit.settings_changed(context, some, answer)

    async for some, found, answer in _written(context, request.resources, decide, done):
        responses += answer.responses
        context.elements_left -= 2 * len(some) + 4 * len(found)
    return responses


async def alter_client_quotas(
    context: RequestContext, request: quotas.AlterClientQuotasRequest
) -> quotas.AlterClientQuotasResponse:
    _check_cluster(context, Operation.ALTER_CONFIGS)
    quota_changes.check_count(request.entries)
    controller = _controller(context)
    results: quota_changes.Results = {}

    def decide(some: list[quotas.AlteredEntry]) -> Decision[quota_changes.Results]:
        found, answer = quota_changes.alter_client_quotas(controller.view.image, some, results)
        return ([] if request.validate_only else found), answer

    def done(some: list[quotas.AlteredEntry], answer: quota_changes.Results) -> None:
        if not request.validate_only:
            audit.quotas_changed(context, answer)

    async for some, found, answer in _written(context, request.entries, decide, done):
        results.update(answer)
        context.elements_left -= 2 * len(some) + 4 * len(found)
    return quota_changes.answer(results)


async def elect_leaders(
    context: RequestContext, request: reassignment.ElectLeadersRequest
) -> reassignment.ElectLeadersResponse:
    _check_cluster(context, Operation.ALTER)
    controller = _controller(context)
    is_of_all, seen = request.topic_partitions is None, set[tuple[str, int]]()
    requested = partition_requests.to_elect(controller.view.image, request)
    response = reassignment.ElectLeadersResponse()
    results = response.replica_election_results
    async for name, numbers, is_more in _partitions(context, requested):
        part = reassignment.ElectLeadersRequest(
            election_type=request.election_type,
            topic_partitions=[reassignment.TopicPartitions(topic=name, partitions=numbers)],
        )
        found, answer = partition_requests.elect_leaders(controller.view, part, seen, is_of_all)
        await controller.write(found)
        audit.leaders_elected(context, request.election_type, answer)
        if is_more:
            results[-1].partition_result += answer.replica_election_results[0].partition_result
        else:
            results += answer.replica_election_results
    if not requested:  # the kind of election is checked all the same
        found, response = partition_requests.elect_leaders(controller.view, request)
        await controller.write(found)
    return response


async def alter_partition_reassignments(
    context: RequestContext, request: reassignment.AlterPartitionReassignmentsRequest
) -> reassignment.AlterPartitionReassignmentsResponse:
    _check_cluster(context, Operation.ALTER)
    controller = _controller(context)
    response = reassignment.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
    )
    seen = set[tuple[str, int]]()
    requested = [(each.name, each.partitions) for each in request.topics]
    async for name, some, is_more in _partitions(context, requested):
        part = reassignment.AlterPartitionReassignmentsRequest(
            allow_replication_factor_change=request.allow_replication_factor_change,
            topics=[reassignment.ReassignableTopic(name=name, partitions=some)],
        )
        found, answer = partition_requests.alter_reassignments(controller.view, part, seen)
        await controller.write(found)
        audit.reassigned(context, name, some, answer)
        if is_more:
            response.responses[-1].partitions += answer.responses[0].partitions
        else:
            response.responses += answer.responses
    return response


async def create_acls(
    context: RequestContext, request: acls.CreateAclsRequest
) -> acls.CreateAclsResponse:
    acl_changes.check_creations(request.creations)
    _check_cluster(context, Operation.ALTER)
    check_authorizer(context)
    controller = _controller(context)

    def decision(view: ClusterView) -> Generator[None, None, acl_changes.Creations]:
        return acl_changes.create_acls(
            view.image.acls,
            request.creations,
            lambda: new_uuid(controller.runtime.random.randbytes),
        )

    done, prepared = await _in_steps(context, controller.decide(decision, _RECORDS))
    await controller.write(done.records, prepared)
    async for record in context.each(done.records):
        audit.acl_changed(context, "acl created", record)
    return acls.CreateAclsResponse(results=done.results)


async def delete_acls(
    context: RequestContext, request: acls.DeleteAclsRequest
) -> acls.DeleteAclsResponse:
    acl_changes.check_filters(request.filters)
    _check_cluster(context, Operation.ALTER)
    check_authorizer(context)
    controller = _controller(context)

    def decision(view: ClusterView) -> Generator[None, None, acl_changes.Deletions]:
        return acl_changes.delete_acls(view.image.acls, request.filters)

    done, prepared = await _in_steps(context, controller.decide(decision, _RECORDS))
    await controller.write(done.records, prepared)
    async for record in context.each(done.removed):
        audit.acl_changed(context, "acl deleted", record)
    return acls.DeleteAclsResponse(filter_results=done.results)


async def list_partition_reassignments(
    context: RequestContext, request: reassignment.ListPartitionReassignmentsRequest
) -> reassignment.ListPartitionReassignmentsResponse:
    """Answers what is durable."""
    _check_cluster(context, Operation.DESCRIBE)
    return partition_requests.list_reassignments(_controller(context).image, request)


async def alter_user_scram_credentials(
    context: RequestContext, request: sasl.AlterUserScramCredentialsRequest
) -> sasl.AlterUserScramCredentialsResponse:
    controller, changes = _controller(context), scram_changes.changes_of(request)
    if not context.may_on_cluster(Operation.ALTER):
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return scram_changes.refuse_all(changes, refused, refused.sentence)
    times = await _counted(context, (each.name for each in changes))
    response = sasl.AlterUserScramCredentialsResponse()

    def decide(
        some: list[scram_changes.Change],
    ) -> Decision[sasl.AlterUserScramCredentialsResponse]:
        return scram_changes.alter(controller.view.image, some, times)

    def done(
        some: list[scram_changes.Change], answer: sasl.AlterUserScramCredentialsResponse
    ) -> None:
        audit.scram_credentials_altered(context, some, answer)

    answered: dict[str, sasl.AlterUserScramCredentialsResult] = {}
    async for some, found, answer in _written(context, changes, decide, done):
        for each in answer.results:
            answered.setdefault(each.user, each)
        context.elements_left -= len(some) + 10 * len(found)
    response.results = list(answered.values())
    return response


async def create_delegation_token(
    context: RequestContext, request: tokens.CreateDelegationTokenRequest
) -> tokens.CreateDelegationTokenResponse:
    controller = _controller(context)
    owner = token_requests.owner_of(context, request)
    code = token_requests.creation_refused(context, owner)
    if code:
        return token_requests.not_created(context, owner, code)
    settings, wall_ms = context.broker.tokens, controller.runtime.wall_ms()
    try:
        done = token_changes.create(
            controller.view.image,
            settings,
            request,
            context.principal,
            owner,
            uuid_text(new_uuid(controller.runtime.random.randbytes)),
            wall_ms,
        )
    except BrokerError as error:
        return token_requests.not_created(context, owner, error.code, timestamp=0)
    await controller.write(done.records)
    token = done.token
    audit.changed(context, "delegation token created", token=token.token_id, owner=token.owner)
    response = token_requests.not_created(context, owner, ErrorCode.NONE)
    response.issue_timestamp_ms = token.issue_timestamp
    response.expiry_timestamp_ms = token.expiration_timestamp
    response.max_timestamp_ms = token.max_timestamp
    response.token_id = token.token_id
    assert settings.secret is not None
    response.hmac = settings.secret.hmac_of(token.token_id)
    return response


async def renew_delegation_token(
    context: RequestContext, request: tokens.RenewDelegationTokenRequest
) -> tokens.RenewDelegationTokenResponse:
    response = tokens.RenewDelegationTokenResponse()
    await _change_token(
        context, token_changes.renew, request.hmac, request.renew_period_ms, response
    )
    return response


async def expire_delegation_token(
    context: RequestContext, request: tokens.ExpireDelegationTokenRequest
) -> tokens.ExpireDelegationTokenResponse:
    response = tokens.ExpireDelegationTokenResponse()
    await _change_token(
        context, token_changes.expire, request.hmac, request.expiry_time_period_ms, response
    )
    return response


async def _change_token(
    context: RequestContext,
    change: Callable[..., Generator[None, None, token_changes.TokenDecision]],
    given: bytes,
    period_ms: int,
    response: Any,
) -> None:
    """Decides on the change, writes it, and fills in `response`."""
    controller = _controller(context)
    if not token_requests.may_request(context):
        response.error_code = token_requests.NOT_ALLOWED
        response.expiry_timestamp_ms = token_requests.NO_TIME
        return
    settings, wall_ms = context.broker.tokens, controller.runtime.wall_ms()

    def decision(view: ClusterView) -> Generator[None, None, token_changes.TokenDecision]:
        return change(view.image, settings, given, period_ms, context.principal, wall_ms)

    done, prepared = await _in_steps(context, controller.decide(decision, _RECORDS))
    await controller.write(done.records, prepared)
    response.expiry_timestamp_ms = done.token.expiration_timestamp
    audit.changed(
        context,
        "delegation token " + ("removed" if done.is_removed else "expiry set"),
        token=done.token.token_id,
        owner=done.token.owner,
        until_ms=done.token.expiration_timestamp,
    )


async def _written(
    context: RequestContext,
    elements: Sequence[T],
    decide: Callable[[list[T]], Decision[ResponseT]],
    done: Callable[[list[T], ResponseT], None],
) -> AsyncIterator[tuple[list[T], list[Record], ResponseT]]:
    """Decides on the elements of a request, some at a time, the first at once; one empty part where
    there are none. Others are served in between.

    Gives each part, its records and its answer while they are written; the next is decided on
    when they are. `done(part, answer)` is called for each part that is durable.
    """
    controller = _controller(context)
    for start in range(0, len(elements) or 1, _AT_A_TIME):
        if context.elements_left < 0:
            await context.next_turn()
        some = list(elements[start : start + _AT_A_TIME])
        decided_on = controller.decided
        found, answer = decide(some)
        prepared = None
        for _ in range(_TRIES if len(found) > _LONG_DECISION else 0):
            # What was decided on may change meanwhile: then all is done again, at last in one turn.
            await context.next_turn()
            if controller.decided is decided_on:
                prepared = await context.in_slices(controller.prepare(found))
            if controller.decided is decided_on:
                break
            decided_on, prepared = controller.decided, None
            found, answer = decide(some)
        written = controller.write(found, prepared)
        yield some, found, answer
        await written
        done(some, answer)


async def _in_steps(context: RequestContext, steps: Generator[None, None, T]) -> T:
    """A decision about many partitions; others are served in between."""
    return await context.in_slices(steps, _STEP_ELEMENTS)


async def _counted(context: RequestContext, keys: Iterable[T]) -> Counter[T]:
    """How often the whole request names each."""
    found: Counter[T] = Counter()
    run: list[T] = []
    for key in keys:
        run.append(key)
        if context.turn_is_over():
            found.update(run)
            run.clear()
            await context.next_turn()
    found.update(run)
    return found


async def _partitions(
    context: RequestContext, requested: Iterable[tuple[str, Sequence[T]]]
) -> AsyncIterator[tuple[str, list[T], bool]]:
    """Gives of each topic its partitions, some at a time, and whether the topic was given before.
    Others are served in between.
    """
    for name, numbers in requested:
        for start in range(0, len(numbers) or 1, _PARTITIONS_AT_A_TIME):
            if context.elements_left < 0:
                await context.next_turn()
            some = list(numbers[start : start + _PARTITIONS_AT_A_TIME])
            context.elements_left -= 1 + len(some)
            yield name, some, start > 0


def _check_cluster(context: RequestContext, operation: Operation) -> None:
    if not context.may_on_cluster(operation):
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
