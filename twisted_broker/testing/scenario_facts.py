"""What stories say must be true: of a replica, of a partition as the controller has it, of a broker.

Owns the facts. A line tells a subject and some facts of it, `2: leads, end 3, hw 2`; each fact begins with the word that says which it is, and
is compared with what is found under that word.

    2: ...          the replica of topic t on broker 2, as its production objects have it (`2 of u: ...` for topic u)
    topic t: ...    partition 0 of t as the controller has committed it
    broker 2: ...   the machine, and the controller's picture of it

Leaves out: answers to clients (`scenario_clients`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.partition import Partition
from twisted_broker.testing.scenario_lines import StoryError, Vocabulary
from twisted_broker.testing.scenario_stage import Stage
from twisted_broker.wire.records import iterate_batches

THE_TOPIC = "t"
_READ_BYTES = 1 << 20
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
        raise StoryError(missing)


def soon(stage: Stage, facts: str, **subject: str) -> None:
    """Time runs until they are all true, to the very call that makes them true."""
    find = finder(stage, **subject)
    try:
        stage.until(lambda: not differing(facts, find), facts)
    except StoryError as late:
        raise StoryError(f"{late}; {differing(facts, find)}") from None


def throughout(stage: Stage, seconds: str, facts: str, **subject: str) -> None:
    """They are true now, and stay true at every moment for so long."""
    find, end = finder(stage, **subject), stage.now + float(seconds)
    while not (missing := differing(facts, find)):
        if not stage.cluster.sim.step(end):
            return
    raise StoryError(missing)


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
        return lambda word: _look(_BROKER, word, (stage, int(broker_id)))
    if not broker:
        return lambda word: _of_registration(word, stage.registration(name))
    return lambda word: _of_replica(word, stage, int(broker), name)


def _look(table: dict[str, Callable[[Any], str]], word: str, what: Any) -> str:
    if word not in table:
        raise StoryError(f"there is no fact `{word}` here, only {', '.join(sorted(table))}")
    return table[word](what)


# replicas


def _of_replica(word: str, stage: Stage, number: int, name: TopicPartition) -> str:
    broker = stage.node(number).broker
    replicas = None if broker is None else broker.parts.replica_manager
    partition = None if replicas is None else replicas.partitions.get(name)
    if replicas is not None and word in _MANAGER:
        return _MANAGER[word]((replicas, name))
    if partition is None or partition.offline or partition.log is None:
        if word not in _REPLICA:
            _look(_REPLICA, word, None)
        return "absent" if partition is None else "offline"
    return _look(_REPLICA, word, partition)


def _role(partition: Partition) -> str:
    if partition.is_leader:
        return "leads"
    return f"follows {partition.leader_id}" if partition.leader_id >= 0 else "follows nobody"


def _isr(partition: Partition) -> str:
    state = partition.isr_state
    pending = f" pending {_joined(state.proposed)}" if state.in_flight else ""  # type: ignore[union-attr]
    return f"isr {_joined(state.isr)}{pending}"


def _joined(numbers: Any) -> str:
    return " ".join(map(str, sorted(numbers))) or "none"


def values_of(records: Any, start: int = 0) -> list[str]:
    """The values of records from offset `start` on; padding is left out."""
    found = []
    for batch in iterate_batches(records or b"", partial_tail=True):
        found += [bytes(record.value or b"").rstrip(b".").decode() for record in batch.records(_READ_BYTES) if record.offset >= start]
    return found


def _records(partition: Partition) -> str:
    log = partition.log
    assert log is not None
    found: list[str] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, _READ_BYTES)
        assert data.slice is not None
        content = data.slice.read()
        data.slice.release()
        found += values_of(content, offset)
        offset = max(batch.last_offset for batch in iterate_batches(content)) + 1
    return f"records {' '.join(found) or 'none'}"


def _epochs(partition: Partition) -> str:
    assert partition.log is not None
    return "epochs " + " ".join(f"{epoch}@{start}" for epoch, start in partition.log.leader_epochs.entries())


def _fetcher(asked: Any) -> str:
    replicas, name = asked
    if replicas.fetchers is None or name in replicas.fetchers.failed:
        return "fetcher failed"
    states = [fetcher.state.partitions.get(name) for fetcher in replicas.fetchers.fetchers.values()]
    state = next((state for state in states if state is not None), None)
    return f"fetcher {'none' if state is None else state.phase.value}"


def _delayed(asked: Any) -> str:
    replicas, _ = asked
    purgatories = (replicas.produce_purgatory, replicas.fetch_purgatory, replicas.delete_records_purgatory)
    return f"delayed {' '.join(str(purgatory.waiting) for purgatory in purgatories)}"


_REPLICA: dict[str, Callable[[Any], str]] = {
    "leads": _role,
    "follows": _role,
    "offline": _role,
    "absent": _role,
    "isr": _isr,
    "epoch": lambda partition: f"epoch {partition.leader_epoch}",
    "end": lambda partition: f"end {partition.log.log_end_offset}",
    "hw": lambda partition: f"hw {partition.log.high_watermark}",
    "start": lambda partition: f"start {partition.log.log_start_offset}",
    "segments": lambda partition: f"segments {len(list(partition.log.segments))}",
    "flushed": lambda partition: f"flushed {partition.log.recovery_point}",
    "records": _records,
    "epochs": _epochs,
}
_MANAGER: dict[str, Callable[[Any], str]] = {"fetcher": _fetcher, "delayed": _delayed}


# partitions as the controller has them


def _of_registration(word: str, registration: Any) -> str:
    return "absent" if registration is None else _look(_REGISTRATION, word, registration)


_REGISTRATION: dict[str, Callable[[Any], str]] = {
    "leader": lambda found: f"leader {found.leader if found.leader >= 0 else 'none'}",
    "epoch": lambda found: f"epoch {found.leader_epoch}",
    "change": lambda found: f"change {found.partition_epoch}",
    "isr": lambda found: f"isr {_joined(found.isr)}",
    "elr": lambda found: f"elr {_joined(found.elr)}",
    "replicas": lambda found: f"replicas {' '.join(map(str, found.replicas))}",
    "adding": lambda found: f"adding {_joined(found.adding)}",
    "removing": lambda found: f"removing {_joined(found.removing)}",
    "recovered": lambda found: "recovering" if found.leader_recovery_state else "recovered",
    "recovering": lambda found: "recovering" if found.leader_recovery_state else "recovered",
    "absent": lambda found: "there",
}


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


_BROKER: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(("unregistered", "fenced", "leaving", "unfenced"), _fencing),
    **dict.fromkeys(("up", "down"), _process),
}
