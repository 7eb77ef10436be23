"""Transactions and compacted topics of a seed, and the faults that go with them.

Owns `add_transactions`.

1. Of what would make the committed records of a partition unknowable (directories lost, bits
   flipped, unclean elections) these seeds have nothing: the checks of transactions owe nothing
   after it, and other seeds have it.
2. Where logs are cleaned no wall clock is stepped: a tombstone has its time.
3. One in eight looks at coordinators that change while markers are under way: producers of version
   1, whose transactions share an epoch, and sessions that end soon; little else goes wrong.
4. One in eight looks at producers that begin again with the answer to the end of a transaction, in
   one partition, over connections of which some are slow: what a transaction asks then waits
   across the marker of the one before.

Not here: what else a seed does (`simulation/workload.py`).
"""

from __future__ import annotations

from random import Random

from twisted_broker.simulation.run_options import Options, Topic

_FAULTS = (
    "kill",
    "power",
    "flap",
    "crash",
    "stop",
    "pause",
    "handover",
    "partition",
    "one way",
    "cut",
    "stall",
    "slow disk",
    "hiccup",
    "half open",
    "late",
    "step clock",
)
_WITHOUT = ("retention.bytes", "retention.ms", "unclean.leader.election.enable")

_WITHOUT_ACTS = ("delete records", "remake a topic", "change min.insync.replicas")


def add_transactions(options: Options) -> None:
    """Draws and sets what a transactional seed does."""
    random = Random(f"transactions {options.seed} {options.brokers}")
    options.transactional = [random.choice((1, 2, 2)) for _ in range(random.randint(1, 2))]
    options.transaction_timeout_ms = random.choice((2000, 4000, 8000))
    options.settings["transaction.abort.timed.out.transaction.cleanup.interval.ms"] = "1000"
    # What non-transactional producers send lies between.
    options.idempotent, options.in_flight = options.idempotent[:1], 1
    options.pace_seconds = max(options.pace_seconds, 0.3)
    options.acks, options.codecs = [-1], [0]
    options.topics = options.topics[:1]
    options.unclean, options.churn = False, []
    for topic in options.topics:
        topic.partitions = min(2, topic.partitions)
        for name in _WITHOUT:
            topic.settings.pop(name, None)
        topic.settings["min.insync.replicas"] = str(min(options.brokers, 2))
    options.log_changes = [
        each for each in options.log_changes if not each[0].startswith("retention")
    ]
    options.acts = [act for act in options.acts if act not in _WITHOUT_ACTS]
    options.fault_seconds = max(options.fault_seconds, 3.0)
    options.burst_chance = min(options.burst_chance, 0.3)
    options.faults = [fault for fault in _FAULTS if random.random() < 0.5] or ["kill"]
    options.damages = ["transaction coordinator dies"] * 2
    options.damages += [kind for kind in ("slow reads", "slow writes") if random.random() < 0.3]
    options.damage_seconds = random.choice((4.0, 8.0))
    if options.seed % 32 < 16:
        _compacted(random, options)
    elif seed_without_pause(options.seed):
        _without_pause(options)
    elif not options.liveness:
        _late_markers(options)


def seed_without_pause(seed: int) -> bool:
    """Of the seeds that have transactions."""
    return seed % 64 >= 48


def _late_markers(options: Options) -> None:
    options.transactional, options.at_once_chance = [1, 1], 0.0
    options.transaction_timeout_ms = 8000
    options.seconds = max(options.seconds, 70)
    options.settings |= {
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "replica.lag.time.max.ms": "3000",
    }
    options.conditions.delay_max = min(options.conditions.delay_max, 0.02)
    options.conditions.slow_chance = 0.0
    options.batch_pause_seconds = 0.2
    options.fault_seconds, options.burst_chance = 30.0, 0.0
    options.damages, options.damage_seconds = ["transaction coordinator dies"], 3.0


def _without_pause(options: Options) -> None:
    options.transactional, options.at_once_chance = [2, 2, 1, 2], 0.95
    options.transaction_timeout_ms = 8000
    options.seconds = min(options.seconds, 25)
    options.topics[0].partitions = 1
    options.conditions.delay_max = min(options.conditions.delay_max, 0.005)
    options.conditions.slow_chance, options.conditions.slow_delay_max = 0.3, 0.03
    options.fault_seconds, options.burst_chance = 15.0, 0.0


def _compacted(random: Random, options: Options) -> None:
    options.faults = [fault for fault in options.faults if fault != "step clock"] or ["kill"]
    options.settings |= {
        "log.cleaner.enable": "true",
        "log.cleaner.backoff.ms": str(random.choice((500, 1500))),
        "log.cleaner.min.cleanable.ratio": "0.4",
    }
    settings = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": str(random.choice((300, 600, 1200))),
        "segment.ms": "3000",
        "index.interval.bytes": str(random.choice((0, 200, 4096))),
        "min.cleanable.dirty.ratio": random.choice(("0.1", "0.5")),
        "delete.retention.ms": random.choice(("6000", "12000")),
        "file.delete.delay.ms": str(random.choice((0, 1000))),
        "min.insync.replicas": str(min(options.brokers, 2)),
    }
    options.compacted = [Topic("k0", random.randint(1, 2), options.brokers, settings)]
    options.acts.append("shrink internal segments")
