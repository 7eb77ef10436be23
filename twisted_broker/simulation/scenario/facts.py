"""The lines of a scenario that state facts: of a replica, of a partition as the controller has it,
of a broker.

Owns the facts. A line names a subject and some facts of it, `2: leads, end 3, hw 2`; each fact
begins with the word that names it, and is compared with what is found under that word.

    2: ...          the replica of topic t on broker 2, as its production objects have it
                    (`2 of u: ...` for topic u)
    topic t: ...    partition 0 of t as the controller has committed it
    broker 2: ...   the machine, and the broker as the controller's image has it
    transaction of p: ...   the transactional id p, as its coordinator has it: what is durable

Not here: how facts of a replica are read (`replicas`), answers to clients (`clients`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.scenario.language import Facts, ScenarioError, Vocabulary, joined
from twisted_broker.simulation.scenario.replicas import of_replica
from twisted_broker.simulation.scenario.world import ScenarioWorld
from twisted_broker.topic_names import TRANSACTIONS_TOPIC

THE_TOPIC = "t"
Find = Callable[[str], str]
"""A fact's word -> the fact as it is found."""


def register(words: Vocabulary) -> None:
    """All lines of this module."""
    for prefix, check in (("", now), ("soon ", soon), ("for <seconds> s ", throughout)):
        words.register(f"{prefix}transaction of <identity>: <facts..>")(check)  # no broker
        words.register(f"{prefix}<broker> [of <topic>]: <facts..>")(check)
        words.register(f"{prefix}topic <topic>: <facts..>")(check)
        words.register(f"{prefix}broker <broker_id>: <facts..>")(check)


def now(world: ScenarioWorld, facts: str, **subject: str) -> None:
    """These facts are true at this moment."""
    missing = first_difference(facts, finder(world, **subject))
    if missing:
        raise ScenarioError(missing)


def soon(world: ScenarioWorld, facts: str, **subject: str) -> None:
    """Time runs until they are all true, to the very call that makes them true."""
    find = finder(world, **subject)
    try:
        world.until(lambda: not first_difference(facts, find), facts)
    except ScenarioError as late:
        raise ScenarioError(f"{late}; {first_difference(facts, find)}") from None


def throughout(world: ScenarioWorld, seconds: str, facts: str, **subject: str) -> None:
    """They are true now, and stay true at every moment for so long."""
    find, end = finder(world, **subject), world.now + float(seconds)
    while not (missing := first_difference(facts, find)):
        if not world.cluster.sim.step(end):
            return
    raise ScenarioError(missing)


def first_difference(facts: str, find: Find) -> str:
    """The first fact that differs, "" when all are true."""
    for expected in facts.split(", "):
        found = find(expected.split()[0])
        if found != expected:
            return f"expected {expected}, found {found}"
    return ""


def finder(
    world: ScenarioWorld,
    broker: str = "",
    topic: str = THE_TOPIC,
    broker_id: str = "",
    identity: str = "",
) -> Find:
    """Looks facts of a subject up, again each time."""
    if identity:
        return lambda word: _of_transaction(word, coordinated(world, identity))
    name = TopicPartition(topic, 0)
    if broker_id:
        return lambda word: _BROKER.describe(word, (world, int(broker_id)))
    if not broker:
        return lambda word: _of_registration(word, world.registration(name))
    return lambda word: of_replica(word, world, int(broker), name)


# partitions as the controller has them


def _of_registration(word: str, registration: Any) -> str:
    return "absent" if registration is None else _REGISTRATION.describe(word, registration)


def _recovery(found: Any) -> str:
    return "recovering" if found.leader_recovery_state else "recovered"


_REGISTRATION = Facts(
    values={
        "leader": lambda found: found.leader if found.leader >= 0 else "none",
        "epoch": lambda found: found.leader_epoch,
        "change": lambda found: found.partition_epoch,
        "isr": lambda found: joined(found.isr),
        "elr": lambda found: joined(found.elr),
        "replicas": lambda found: " ".join(map(str, found.replicas)),
        "adding": lambda found: joined(found.adding),
        "removing": lambda found: joined(found.removing),
    },
    states={"recovered": _recovery, "recovering": _recovery, "absent": lambda found: "there"},
)


# brokers


def _fencing(asked: Any) -> str:
    world, number = asked
    found = None if world.image is None else world.image.brokers.get(number)
    if found is None:
        return "unregistered"
    return "fenced" if found.fenced else "leaving" if found.in_controlled_shutdown else "unfenced"


def _process(asked: Any) -> str:
    world, number = asked
    return "up" if world.node(number).is_up else "down"


_BROKER = Facts(
    values={},
    states={
        **dict.fromkeys(("unregistered", "fenced", "leaving", "unfenced"), _fencing),
        **dict.fromkeys(("up", "down"), _process),
    },
)


# transactional ids


def coordinated(world: ScenarioWorld, identity: str) -> Any:
    """An id as the leader of its partition of `__transaction_state` has it; None without."""
    topic = None if world.image is None else world.image.topics_by_name.get(TRANSACTIONS_TOPIC)
    if topic is None:
        return None
    index = partition_for(identity, len(topic.partitions))
    leader = topic.partitions[index].leader
    broker = world.node(leader).broker if leader >= 0 else None
    transactions = None if broker is None else broker.parts.transactions
    shard = None if transactions is None else transactions.states.shards.get(index)
    return None if shard is None else shard.transactions.get(identity)


def _of_transaction(word: str, found: Any) -> str:
    return "absent" if found is None else _TRANSACTION.describe(word, found)


_TRANSACTION = Facts(
    values={
        "state": lambda found: found.state.text,
        "epoch": lambda found: found.producer_epoch,
        "partitions": lambda found: (
            " ".join(sorted(each.topic for each in found.partitions)) or "none"
        ),
    },
    states={"absent": lambda found: "there"},
)
