"""The options drawn from a seed for a cluster in ZooKeeper mode.

Owns `zookeeper_options_of`.

1. A seed and the number of brokers give the options, and nothing else does. All seeds are safety
   seeds: faults anywhere, any time.
2. Even seeds have inter-broker protocol 2.6, odd ones 3.9. Topics are deleted and made again with
   3.9 only: those of 2.6 have no ids, and an old replica is no other than a new one.
3. The usual faults and those of ZooKeeper and the controller are drawn by an actor each.

Not here: seeds with a metadata log (`simulation/options.py`), how a fault is done
(`simulation/zookeeper/faults.py`).
"""

from __future__ import annotations

from random import Random

from twisted_broker.simulation.network import NetworkConditions
from twisted_broker.simulation.run_options import Options, Topic
from twisted_broker.simulation.zookeeper.faults import ZOOKEEPER_FAULTS

_USUAL_FAULTS = (
    "kill",
    "power",
    "flap",
    "crash",
    "stop",
    "pause",
    "partition",
    "one way",
    "cut",
    "stall",
    "slow disk",
    "hiccup",
    "half open",
    "late",
    "stop and power",
    "step clock",
)
_ACTS = (
    "change min.insync.replicas",
    "change log settings",
    "delete records",
    "reassign",
    "elect preferred leaders",
)
_LOG_CHANGES: list[tuple[str, tuple[str, ...]]] = [
    ("internal.segment.bytes", ("300", "600", "2000")),
    ("segment.ms", ("1000", "5000", "60000")),
    ("flush.messages", ("1", "5", "1000000")),
    ("file.delete.delay.ms", ("0", "2000")),
]


def zookeeper_options_of(seed: int, brokers: int = 3) -> Options:
    """The options of a seed."""
    random = Random(f"zookeeper {seed} {brokers}")
    protocol = ("2.6", "3.9")[seed % 2]
    unclean = random.random() < 0.1
    topics = [
        _topic(random, f"t{number}", brokers, unclean and number == 0)
        for number in range(random.randint(1, 2))
    ]
    options = Options(
        seed,
        brokers,
        False,
        random.randint(40, 80),
        random.random() < 0.7,
        _conditions(random),
        _settings(random),
        topics,
        [random.random() < 0.7 for _ in range(random.randint(1, 3))],
        random.choice((0.1, 0.3, 0.6)),
        [fault for fault in _USUAL_FAULTS if random.random() < 0.35] or ["kill"],
        random.choice((2.0, 4.0, 8.0)),
        random.choice((0.0, 0.3)),
        unclean,
        list(range(1, brokers + 1)),
        zookeeper=protocol,
    )
    options.damages = [fault for fault in ZOOKEEPER_FAULTS if random.random() < 0.6]
    options.damage_seconds = random.choice((2.0, 4.0, 8.0))
    options.acts = [act for act in _ACTS if random.random() < 0.5]
    options.act_seconds = random.choice((2.0, 4.0, 10.0))
    options.log_changes = list(_LOG_CHANGES)
    options.in_flight = random.choice((1, 1, 2, 5))
    if random.random() < 0.25:
        options.acks = random.choice(([-1, 1], [-1, 0, 1]))
    if protocol == "3.9" and random.random() < 0.4:
        settings = {"min.insync.replicas": str(min(brokers, 2)), "file.delete.delay.ms": "1000"}
        options.churn = [Topic("d0", random.randint(1, 2), brokers, settings)]
        options.acts.append("remake a topic")
    return options


def _topic(random: Random, name: str, brokers: int, unclean: bool) -> Topic:
    replicas = random.randint(min(2, brokers), brokers)
    settings = {
        "min.insync.replicas": str(random.randint(1, min(replicas, 2))),
        "file.delete.delay.ms": str(random.choice((0, 1000, 60000))),
    }
    if unclean:
        settings["unclean.leader.election.enable"] = "true"
    if random.random() < 0.4:
        settings["internal.segment.bytes"] = str(random.choice((300, 500, 900)))
    if random.random() < 0.2:
        settings["flush.messages"] = random.choice(("1", "3"))
    return Topic(name, random.randint(1, 3), replicas, settings)


def _settings(random: Random) -> dict[str, str]:
    return {
        "zookeeper.session.timeout.ms": str(random.choice((3000, 6000))),
        "zookeeper.connection.timeout.ms": "30000",
        "replica.lag.time.max.ms": str(random.choice((2000, 3000, 6000))),
        "replica.fetch.wait.max.ms": "500",
        "replica.high.watermark.checkpoint.interval.ms": str(random.choice((500, 2000, 5000))),
        "controlled.shutdown.retry.backoff.ms": "500",
        "num.replica.fetchers": str(random.choice((1, 1, 2))),
        "log.cleaner.enable": "false",
    }


def _conditions(random: Random) -> NetworkConditions:
    conditions = NetworkConditions(delay_max=random.choice((0.001, 0.005, 0.02, 0.1)))
    if random.random() < 0.4:
        conditions.slow_chance = random.choice((0.05, 0.2))
        conditions.slow_delay_max = random.choice((0.3, 1.0))
    return conditions
