"""The work of the logs, the clients and the administrator of a seed: swarm testing.

Owns `add_workload`. Each seed draws which of all this is on, and how much of it: a run with
everything at once hides what shows only without the rest.

1. The draws have a `Random` of their own: what is added here does not change a seed's faults.
2. Sizes and times are so small that in a minute of simulated time a log rolls, is retained, is
   checkpointed and truncated many times.

Source: swarm testing (Groce et al., ISSTA 2012). Not here: faults and the cluster
(`simulation/options.py`).
"""

from __future__ import annotations

from random import Random

from twisted_broker.simulation.knobs import KNOBS
from twisted_broker.simulation.run_options import Options, Topic

_LOG_CHANGES: list[tuple[str, tuple[str, ...]]] = [
    ("internal.segment.bytes", ("300", "600", "2000")),
    ("segment.ms", ("1000", "5000", "60000")),
    ("index.interval.bytes", ("0", "200", "4096")),
    ("flush.messages", ("1", "5", "1000000")),
    ("compression.type", ("producer", "lz4", "gzip")),
    ("file.delete.delay.ms", ("0", "2000")),
]
_RETENTION_CHANGES: list[tuple[str, tuple[str, ...]]] = [
    ("retention.bytes", ("-1", "600", "3000")),
    ("retention.ms", ("-1", "5000", "20000")),
]
_ACTS = (
    "change min.insync.replicas",
    "change log settings",
    "delete records",
    "reassign",
    "elect preferred leaders",
)


def add_workload(options: Options) -> None:
    """Draws and sets what this seed does besides its faults."""
    random = Random(f"workload {options.seed} {options.brokers}")
    options.settings |= _broker_settings(random)
    for topic in options.topics:
        topic.settings |= _log_settings(random)
    _clients(random, options)
    _cluster(random, options)
    _administrator(random, options)
    options.knobs = {
        name: random.choice(knob.values) for name, knob in KNOBS.items() if random.random() < 0.3
    }


def _broker_settings(random: Random) -> dict[str, str]:
    settings = {
        "log.retention.check.interval.ms": str(random.choice((1000, 3000, 8000))),
        "log.flush.offset.checkpoint.interval.ms": str(random.choice((1000, 5000, 60000))),
        "log.flush.start.offset.checkpoint.interval.ms": str(random.choice((1000, 5000, 60000))),
        "replica.high.watermark.checkpoint.interval.ms": str(random.choice((500, 2000, 5000))),
        "group.min.session.timeout.ms": "1000",
        # Replicas are cleaned at different times; the checks here compare them batch by batch.
        # `tests/log/cleaner` has crashes at every step, and any log with any rounds.
        "log.cleaner.enable": "false",
        "num.replica.fetchers": str(random.choice((1, 1, 2))),
    }
    choices: list[tuple[float, str, tuple[int, ...]]] = [
        (0.6, "metadata.log.max.record.bytes.between.snapshots", (300, 1000, 5000)),
        (0.2, "metadata.log.max.snapshot.interval.ms", (3000, 10000)),
        (0.3, "log.flush.scheduler.interval.ms", (500, 3000)),
        (0.2, "replica.fetch.max.bytes", (200, 1000)),
        (0.3, "replog.max.open.segments", (8,)),
        (0.3, "leader.imbalance.check.interval.seconds", (3, 10)),
        (0.1, "max.incremental.fetch.session.cache.slots", (0, 1)),
    ]
    for chance, name, values in choices:
        if random.random() < chance:
            settings[name] = str(random.choice(values))
    return settings


def _log_settings(random: Random) -> dict[str, str]:
    settings = {
        "index.interval.bytes": str(random.choice((0, 200, 4096))),
        "file.delete.delay.ms": str(random.choice((0, 1000, 60000))),
    }
    if random.random() < 0.5:
        settings["internal.segment.bytes"] = str(random.choice((300, 500, 900)))
        if random.random() < 0.15:
            settings["preallocate"] = "true"
    elif random.random() < 0.5:
        settings |= {
            "segment.index.bytes": str(random.choice((24, 40, 80))),
            "index.interval.bytes": "0",
        }
    choices: list[tuple[float, str, tuple[str, ...]]] = [
        (0.3, "segment.ms", ("1000", "3000", "8000")),
        (0.35, "retention.bytes", ("500", "1500", "4000")),
        (0.3, "retention.ms", ("4000", "10000", "20000")),
        (0.2, "flush.messages", ("1", "3")),
        (0.15, "flush.ms", ("500", "3000")),
        (0.2, "compression.type", ("gzip", "lz4", "snappy", "zstd", "uncompressed")),
        (0.15, "message.timestamp.type", ("LogAppendTime",)),
    ]
    for chance, name, values in choices:
        if random.random() < chance:
            settings[name] = random.choice(values)
    return settings


def _clients(random: Random, options: Options) -> None:
    if random.random() < 0.35:
        options.acks = random.choice(([-1, 1], [-1, 0, 1], [-1, -1, 0]))
    options.in_flight = random.choice((1, 1, 2, 5))
    if random.random() < 0.4:
        options.codecs = [0, 1, 2, 3, 4]
    options.old_timestamps = random.random() < 0.3
    if random.random() < 0.5:
        options.members = random.randint(1, 3)


def _cluster(random: Random, options: Options) -> None:
    if random.random() < 0.4:
        options.directories = random.randint(2, 3)
    if options.brokers > 1 and random.random() < 0.2:
        options.controller_only = True
        options.broker_ids = [broker + 1 for broker in options.broker_ids]


def _administrator(random: Random, options: Options) -> None:
    options.acts = [act for act in _ACTS if random.random() < 0.4]
    options.act_seconds = random.choice((2.0, 4.0, 10.0))
    options.log_changes = list(_LOG_CHANGES)
    if random.random() < 0.3:
        options.log_changes += _RETENTION_CHANGES
    if random.random() < 0.35:
        settings = _log_settings(random) | {"min.insync.replicas": str(min(options.brokers, 2))}
        options.churn = [Topic("d0", random.randint(1, 2), options.brokers, settings)]
        options.acts.append("remake a topic")
    if options.liveness:  # a change may take away what a liveness run is owed
        options.acts = [act for act in options.acts if act != "change min.insync.replicas"]
