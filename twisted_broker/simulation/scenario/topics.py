"""The administrative steps of a scenario: topics, settings, elections, reassignments, and ISR
changes as brokers propose them.

Requests go to broker 1, which forwards them to the controller. Each step gives a Deferred of `done`
or the name of an error. Not here: records (`clients`).
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.scenario.facts import THE_TOPIC
from twisted_broker.simulation.scenario.language import ScenarioError, Vocabulary
from twisted_broker.simulation.scenario.machines import numbers_of, settings_of
from twisted_broker.simulation.scenario.world import ScenarioWorld
from twisted_broker.wire.errors import error_of
from twisted_broker.wire.messages import broker_lifecycle, configs, reassignment, topics

_CREATE, _DELETE, _CONFIGS, _ELECT, _REASSIGN, _ALTER_PARTITION = 7, 5, 1, 2, 1, 3
_TOPIC_RESOURCE, _SET = 2, 0
_ELECTIONS = {"preferred": 0, "unclean": 1}
_TIMEOUT_MS = 30_000


def register(words: Vocabulary) -> None:
    """All lines of this module."""
    words.register("make topic <topic> on <replicas..> [with <settings..>]")(make_topic)
    words.register("delete topic <topic>")(delete_topic)
    words.register("set <topic> <settings..>")(set_topic)
    words.register("elect <kind> [of <topic>]")(elect)
    words.register("reassign <topic> to <replicas..>")(reassign)
    words.register("cancel reassignment of <topic>")(cancel_reassignment)
    words.register(
        "broker <broker> proposes isr <members..> [of <topic>] [under epoch <epoch>] [after "
        "change <change>] [with old incarnation of <old>]"
    )(propose_isr)


def _error_name(code: int) -> str:
    return error_of(code).name if code else "done"


def make_topic(
    world: ScenarioWorld, topic: str, replicas: str, settings: str = ""
) -> Deferred[str]:
    """A topic of one partition on these brokers, the first of which leads; it is held by all of
    them when the line ends.
    """
    numbers = numbers_of(replicas)
    assignment = topics.CreatableReplicaAssignment(partition_index=0, broker_ids=numbers)
    pairs = [
        topics.CreatableTopicConfig(name=name, value=value)
        for name, value in settings_of(settings).items()
    ]
    wanted = topics.CreatableTopic(
        name=topic,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[assignment],
        configs=pairs,
    )
    asked = world.send(
        1, topics.CreateTopicsRequest(topics=[wanted], timeout_ms=_TIMEOUT_MS), _CREATE
    )
    answer: list[str] = []
    asked.addCallback(lambda response: answer.append(_error_name(response.topics[0].error_code)))
    name = TopicPartition(topic, 0)
    world.until(
        lambda: bool(answer) and (answer[0] != "done" or _is_held(world, name, numbers)),
        f"{topic} is held by {replicas}",
    )
    if answer[0] == "done":
        world.topic_ids[topic] = world.image.topics_by_name[topic].id
    done: Deferred[str] = Deferred()
    done.callback(answer[0])
    return done


def _is_held(world: ScenarioWorld, name: TopicPartition, numbers: list[int]) -> bool:
    """By each of them, and all followers have fetched from their leader."""
    for number in numbers:
        broker = world.node(number).broker
        replicas = None if broker is None else broker.parts.replica_manager
        partition = None if replicas is None else replicas.partitions.get(name)
        if partition is None:
            return False
        if partition.is_leader and any(
            replica.log_end.offset < 0 for replica in partition.remote_replicas.values()
        ):
            return False
    return True


def delete_topic(world: ScenarioWorld, topic: str) -> Deferred[str]:
    """The topic is deleted."""
    request = topics.DeleteTopicsRequest(topic_names=[topic], timeout_ms=_TIMEOUT_MS)
    return world.send(1, request, _DELETE).addCallback(
        lambda answer: _error_name(answer.responses[0].error_code)
    )


def set_topic(world: ScenarioWorld, topic: str, settings: str) -> Deferred[str]:
    """Settings of a topic change while it runs."""
    changes = [
        configs.IncrementalAlterConfigsRequestAlterableConfig(
            name=name, config_operation=_SET, value=value
        )
        for name, value in settings_of(settings).items()
    ]
    resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=_TOPIC_RESOURCE, resource_name=topic, configs=changes
    )
    request = configs.IncrementalAlterConfigsRequest(resources=[resource])
    return world.send(1, request, _CONFIGS).addCallback(
        lambda answer: _error_name(answer.responses[0].error_code)
    )


def elect(world: ScenarioWorld, kind: str, topic: str = THE_TOPIC) -> Deferred[str]:
    """ElectLeaders: `preferred` or `unclean`."""
    if kind not in _ELECTIONS:
        raise ScenarioError(f"an election is {' or '.join(_ELECTIONS)}, not {kind}")
    named = [reassignment.TopicPartitions(topic=topic, partitions=[0])]
    request = reassignment.ElectLeadersRequest(
        election_type=_ELECTIONS[kind], topic_partitions=named, timeout_ms=_TIMEOUT_MS
    )

    def as_text(answer: Any) -> str:
        return _error_name(
            answer.error_code or answer.replica_election_results[0].partition_result[0].error_code
        )

    return world.send(1, request, _ELECT).addCallback(as_text)


def reassign(world: ScenarioWorld, topic: str, replicas: str) -> Deferred[str]:
    """The partition is to move to these brokers; the answer comes when it has begun."""
    return _reassigned(world, topic, numbers_of(replicas))


def cancel_reassignment(world: ScenarioWorld, topic: str) -> Deferred[str]:
    """The partition goes back to where it was."""
    return _reassigned(world, topic, None)


def _reassigned(world: ScenarioWorld, topic: str, replicas: list[int] | None) -> Deferred[str]:
    partition = reassignment.ReassignablePartition(partition_index=0, replicas=replicas)
    wanted = reassignment.ReassignableTopic(name=topic, partitions=[partition])

    def as_text(answer: Any) -> str:
        return _error_name(answer.error_code or answer.responses[0].partitions[0].error_code)

    request = reassignment.AlterPartitionReassignmentsRequest(
        timeout_ms=_TIMEOUT_MS, topics=[wanted]
    )
    return world.send(1, request, _REASSIGN).addCallback(as_text)


def propose_isr(
    world: ScenarioWorld,
    broker: str,
    members: str,
    topic: str = THE_TOPIC,
    epoch: str = "",
    change: str = "",
    old: str = "",
) -> Deferred[str]:
    """AlterPartition in a broker's name, with the newest epochs unless others are given.

    Answer: isr .., or an error.
    """
    image, registration = world.image, world.registration(TopicPartition(topic, 0))
    states = [
        broker_lifecycle.BrokerState(
            broker_id=number,
            broker_epoch=image.brokers[number].epoch - (str(number) in old.split()),
        )
        for number in numbers_of(members)
    ]
    partition = broker_lifecycle.AlterPartitionRequestPartitionData(
        partition_index=0,
        leader_epoch=int(epoch or registration.leader_epoch),
        partition_epoch=int(change or registration.partition_epoch),
        new_isr_with_epochs=states,
    )
    data = broker_lifecycle.AlterPartitionRequestTopicData(
        topic_id=image.topics_by_name[topic].id, partitions=[partition]
    )
    sender = image.brokers[int(broker)]
    request = broker_lifecycle.AlterPartitionRequest(
        broker_id=sender.id, broker_epoch=sender.epoch, topics=[data]
    )
    return world.send_to_controller(request, _ALTER_PARTITION).addCallback(_isr_answer)


def _isr_answer(answer: Any) -> str:
    if answer.error_code:
        return _error_name(answer.error_code)
    found = answer.topics[0].partitions[0]
    return (
        _error_name(found.error_code)
        if found.error_code
        else f"isr {' '.join(map(str, sorted(found.isr)))}"
    )
