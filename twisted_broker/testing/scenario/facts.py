"""What stories say must be true: of a replica, of a partition as the controller has it, of a
broker.

Owns the facts. A line tells a subject and some facts of it, `2: leads, end 3, hw 2`; each fact
begins with the word that says which it is, and is compared with what is found under that word.

    2: ...          the replica of topic t on broker 2, as its production objects have it (`2 of u:
    ...` for topic u)
    topic t: ...    partition 0 of t as the controller has committed it
    broker 2: ...   the machine, and the controller's picture of it

Leaves out: how a replica is looked at (`scenario_replicas`), answers to clients
(`scenario_clients`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted_broker.interfaces import TopicPartition
from twisted_broker.testing.scenario.language import Facts, ScenarioError, Vocabulary, joined
from twisted_broker.testing.scenario.replicas import of_replica
from twisted_broker.testing.scenario.stage import Stage

THE_TOPIC = "t"
Find = Callable[[str], str]
"""A fact's word -> the fact as it is found."""


def teach(words: Vocabulary) -> None:
    """All lines of this module."""
    for prefix, perform in (("", now), ("soon ", soon), ("for <seconds> s ", throughout)):
        words.teach(f"{prefix}<broker> [of <topic>]: <facts..>")(perform)
        words.teach(f"{prefix}topic <topic>: <facts..>")(perform)
        words.teach(f"{prefix}broker <broker_id>: <facts..>")(perform)


def now(stage: Stage, facts: str, **subject: str) -> None:
    """These facts are true at this moment."""
    missing = differing(facts, finder(stage, **subject))
    if missing:
        raise ScenarioError(missing)


def soon(stage: Stage, facts: str, **subject: str) -> None:
    """Time runs until they are all true, to the very call that makes them true."""
    find = finder(stage, **subject)
    try:
        stage.until(lambda: not differing(facts, find), facts)
    except ScenarioError as late:
        raise ScenarioError(f"{late}; {differing(facts, find)}") from None


def throughout(stage: Stage, seconds: str, facts: str, **subject: str) -> None:
    """They are true now, and stay true at every moment for so long."""
    find, end = finder(stage, **subject), stage.now + float(seconds)
    while not (missing := differing(facts, find)):
        if not stage.cluster.sim.step(end):
            return
    raise ScenarioError(missing)


def differing(facts: str, find: Find) -> str:
    """What is not as told, "" when all is."""
    for expected in facts.split(", "):
        found = find(expected.split()[0])
        if found != expected:
            return f"expected {expected}, found {found}"
    return ""


def finder(stage: Stage, broker: str = "", topic: str = THE_TOPIC, broker_id: str = "") -> Find:
    """Looks facts of a subject up, anew each time."""
    name = TopicPartition(topic, 0)
    if broker_id:
        return lambda word: _BROKER.tell(word, (stage, int(broker_id)))
    if not broker:
        return lambda word: _of_registration(word, stage.registration(name))
    return lambda word: of_replica(word, stage, int(broker), name)


# partitions as the controller has them


def _of_registration(word: str, registration: Any) -> str:
    return "absent" if registration is None else _REGISTRATION.tell(word, registration)


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
    stage, number = asked
    found = None if stage.image is None else stage.image.brokers.get(number)
    if found is None:
        return "unregistered"
    return "fenced" if found.fenced else "leaving" if found.in_controlled_shutdown else "unfenced"


def _process(asked: Any) -> str:
    stage, number = asked
    return "up" if stage.node(number).is_up else "down"


_BROKER = Facts(
    values={},
    states={
        **dict.fromkeys(("unregistered", "fenced", "leaving", "unfenced"), _fencing),
        **dict.fromkeys(("up", "down"), _process),
    },
)
