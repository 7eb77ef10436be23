"""The options drawn from a seed: the cluster, its topics and clients, its network, and the faults
of them.

Owns `options_of`.

1. A seed and the number of brokers give the options, and nothing else does: the order of the draws
   is part of what a seed means.
2. Safety seeds: faults anywhere, any time. Liveness seeds (every fourth): n1 (with the controller)
   and n2 stay healthy, and producers must get on.
3. Faults that no seed had at first (`_add_damages`) are drawn by an actor of their own, out of a
   generator of their own: a seed without them is the run that it was.
4. Two of sixteen seeds have transactions, half of these compacted topics, out of a generator of
   their own (`simulation/transactional_workload.py`): the others are the runs that they were.
5. Four of eight seeds aim at situations that uniform faults seldom reach (`_SPECIAL`); half of
   these do nothing else. One of 32 has partitions of one replica.

Source: RELIABILITY 4. Not here: what clients, logs and the
administrator do (`simulation/workload.py`), how a fault is done (`simulation/fault_schedule.py`).
"""

from __future__ import annotations

from random import Random

from twisted_broker.simulation.knobs import STEPS
from twisted_broker.simulation.network import NetworkConditions
from twisted_broker.simulation.node import CLIENT_PORT
from twisted_broker.simulation.replica_acts import add_replica_acts
from twisted_broker.simulation.run_options import Options, Topic
from twisted_broker.simulation.transactional_workload import add_transactions
from twisted_broker.simulation.workload import add_workload

_DAMAGES = ("damage metadata",)
_ANYWHERE_DAMAGES = ("slow reads", "slow writes")
_GROUP_FAULTS = (
    "member joins",
    "member leaves",
    "member crashes",
    "member stalls",
    "coordinator dies",
)

__all__ = ["Options", "Topic", "options_of"]

_USUAL_FAULTS = (
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
    "disk error",
)
_RARER_FAULTS = (
    "disk full",
    "no descriptors",
    "flip",
    "lose directory",
    "stop and power",
    "step clock",
    "hiccup",
    "half open",
    "late",
)


def options_of(seed: int, brokers: int = 3) -> Options:
    """The options of a seed."""
    random = Random(f"options {seed} {brokers}")
    liveness = brokers > 2 and seed % 4 == 3
    unclean = not liveness and random.random() < 0.15
    topics = [
        _topic(random, number, brokers, liveness, unclean and number == 0)
        for number in range(random.randint(1, 2))
    ]
    settings, conditions, faults = (
        _settings(random, brokers),
        _network_conditions(random),
        _faults(random),
    )
    options = Options(
        seed,
        brokers,
        liveness,
        random.randint(40, 90),
        random.random() < 0.7,
        conditions,
        settings,
        topics,
        [random.random() < 0.7 for _ in range(random.randint(1, 3))],
        random.choice((0.1, 0.3, 0.6)),
        faults,
        random.choice((1.5, 3.0, 6.0)),
        random.choice((0.0, 0.3, 0.6)),
        unclean,
        list(range(1, brokers + 1)),
    )
    if seed % 8 not in _SPECIAL or seed % 16 >= 8:
        add_workload(options)
        add_replica_acts(options)
    if brokers > 2 and seed % 8 in _SPECIAL:
        _SPECIAL[seed % 8](options)
    elif brokers > 2:
        _add_damages(options)
    if seed % 32 == _SOLE_REPLICAS:
        _sole_replicas(options)
    if seed % 16 in _TRANSACTIONAL:
        add_transactions(options)
    _add_small_steps(options)
    _add_consumer_members(options)
    _add_mixed_members(options)
    _add_streams_members(options)
    _add_share_members(options)
    return options


def _add_consumer_members(options: Options) -> None:
    """In half of the seeds with a classic group there is a consumer group as well."""
    random = Random(f"consumer members {options.seed} {options.brokers}")
    if options.members and random.random() < 0.5 and options.seed % 32 not in _WITHOUT_CONSUMERS:
        options.consumer_members = random.randint(2, 4)
        options.settings |= _timing("consumer", random)


def _timing(kind: str, random: Random) -> dict[str, str]:
    """Of groups: sessions of two seconds."""
    return {
        f"group.{kind}.min.session.timeout.ms": "1000",
        f"group.{kind}.session.timeout.ms": "2000",
        f"group.{kind}.min.heartbeat.interval.ms": "100",
        f"group.{kind}.heartbeat.interval.ms": "300",
        f"group.{kind}.assignment.interval.ms": str(random.choice((0, 300, 1000))),
    }


def _add_mixed_members(options: Options) -> None:
    """In a few seeds consumers of both protocols share a group."""
    if options.seed % 64 not in _WITH_MIXED:
        return
    random = Random(f"mixed members {options.seed} {options.brokers}")
    options.mixed_members = random.randint(1, 2)
    options.settings |= _timing("consumer", random)
    options.settings.setdefault("group.min.session.timeout.ms", "1000")


def _add_streams_members(options: Options) -> None:
    """In a few seeds there is a streams group."""
    if options.seed % 64 not in _WITH_STREAMS:
        return
    random = Random(f"streams members {options.seed} {options.brokers}")
    options.streams_members = random.randint(2, 3)
    options.has_state = random.random() < 0.5
    options.settings |= _timing("streams", random)
    options.settings |= {
        "group.streams.initial.rebalance.delay.ms": str(random.choice((0, 500, 3000))),
        "group.streams.num.standby.replicas": str(int(options.has_state)),
    }


def _add_share_members(options: Options) -> None:
    """In a few seeds there is a share group as well."""
    if options.seed % 64 not in _WITH_SHARES:
        return
    random = Random(f"share members {options.seed} {options.brokers}")
    options.share_members = random.randint(2, 4)
    options.share_lock_ms = random.choice((1000, 3000, 6000))
    options.share_deliveries = random.randint(2, 5)
    options.settings |= _timing("share", random)
    options.settings |= {
        "group.share.initialize.retry.interval.ms": "1000",
        "group.share.min.record.lock.duration.ms": "1000",
        "group.share.record.lock.duration.ms": str(options.share_lock_ms),
        "group.share.delivery.count.limit": str(options.share_deliveries),
        "share.coordinator.snapshot.update.records.per.snapshot": str(random.choice((2, 10, 500))),
        "share.coordinator.state.topic.prune.interval.ms": str(random.choice((3000, 300000))),
        "share.coordinator.cold.partition.snapshot.interval.ms": str(random.choice((5000, 300000))),
    }


def _add_small_steps(options: Options) -> None:
    """In a quarter of the seeds what is long takes many turns of the reactor."""
    random = Random(f"steps {options.seed} {options.brokers}")
    if random.random() < 0.25:
        options.knobs |= {
            name: random.choice(step.values)
            for name, step in STEPS.items()
            if random.random() < 0.5
        }


def _add_damages(options: Options) -> None:
    """What no seed had at first is drawn by itself: a seed without it is the run that it was."""
    random = Random(f"damages {options.seed} {options.brokers}")
    # The controller of a liveness run stays healthy.
    kinds = _ANYWHERE_DAMAGES if options.liveness else (*_DAMAGES * 3, *_ANYWHERE_DAMAGES)
    if random.random() < 0.8:
        options.damages = [kind for kind in kinds if random.random() < 0.5]
        options.damage_seconds = random.choice((4.0, 8.0, 16.0))
    if random.random() < 0.4:
        options.damages += ["flip"] * 2
    if random.random() < 0.4:
        options.members = max(options.members, random.randint(2, 4))
        options.damages += [kind for kind in _GROUP_FAULTS if random.random() < 0.7]
        options.damage_seconds /= 2
    # The core of a liveness run cannot make topics of three replicas before the third has joined.
    if not options.liveness and random.random() < 0.3:
        options.join_seconds = random.choice((0.5, 1.0, 2.0))


def _topic(random: Random, number: int, replicas: int, liveness: bool, unclean: bool) -> Topic:
    settings = {
        "min.insync.replicas": str(
            min(replicas, 2) if liveness else random.randint(1, min(replicas, 2))
        )
    }
    if unclean:
        settings["unclean.leader.election.enable"] = "true"
    return Topic(f"t{number}", random.randint(1, 3), replicas, settings)


def _settings(random: Random, brokers: int) -> dict[str, str]:
    return {
        "replica.lag.time.max.ms": str(random.choice((3000, 6000))),
        "broker.session.timeout.ms": str(random.choice((3000, 6000, 9000))),
        "broker.heartbeat.interval.ms": str(random.choice((500, 1000))),
        "replica.fetch.wait.max.ms": "500",
        "min.insync.replicas": str(min(brokers, 2)),
    }


def _network_conditions(random: Random) -> NetworkConditions:
    conditions = NetworkConditions(delay_max=random.choice((0.001, 0.005, 0.02, 0.1)))
    if random.random() < 0.5:
        conditions.slow_chance, conditions.slow_delay_max = (
            random.choice((0.05, 0.2, 0.5)),
            random.choice((0.3, 1.0, 3.0)),
        )
    return conditions


def _faults(random: Random) -> list[str]:
    usual = [fault for fault in _USUAL_FAULTS if random.random() < 0.5]
    return [*usual, *(fault for fault in _RARER_FAULTS if random.random() < 0.25)] or ["kill"]


# seeds that look somewhere


def _handovers(options: Options) -> None:
    """Leaders die just after another replica left, while messages between brokers travel
    slowly.
    """
    for topic in options.topics:
        topic.settings["min.insync.replicas"] = "2"
    _slow_between_brokers(options.conditions, 0.3)
    options.faults = ["handover"]


def _relapses(options: Options) -> None:
    """Machines fall out of their ISRs, are about to come back, and stop again."""
    options.conditions.delay_max, options.conditions.slow_chance = 0.005, 0.0
    options.settings |= {
        "replica.lag.time.max.ms": "2000",
        "broker.session.timeout.ms": "9000",
        "broker.heartbeat.interval.ms": "500",
    }
    options.faults = ["relapse", "relapse", "relapse", "cut"]


def _starvation(options: Options) -> None:
    """A leader is alone with what it took in, below its minimum ISR, and dies: another may be
    elected that lacks it.
    """
    for topic in options.topics:
        topic.replicas, topic.partitions, topic.settings["min.insync.replicas"] = 2, 3, "2"
    options.conditions.delay_max, options.conditions.slow_chance = 0.005, 0.0
    options.settings |= {
        "replica.lag.time.max.ms": "2000",
        "broker.session.timeout.ms": "9000",
        "broker.heartbeat.interval.ms": "500",
    }
    options.faults, options.acts = ["starve"], []


def _late_arrivals(options: Options) -> None:
    """Machines come back before what they sent arrives; a session outlives its process."""
    _slow_between_brokers(options.conditions, 4.0)
    options.settings |= {"broker.session.timeout.ms": "800", "broker.heartbeat.interval.ms": "200"}
    options.faults = ["flap", "flap", "pause"]


def _sole_replicas(options: Options) -> None:
    """Each partition has one replica: its machine leads again after every restart, whatever its
    recovery or its last stop got wrong. Answers are lost with it: batches of a producer come once
    more, some of which are older than the last snapshot of its state.
    """
    settings = {"min.insync.replicas": "1"}
    options.topics = [
        Topic("t0", 3, 1, settings | {"internal.segment.bytes": "300"}),
        Topic("t1", 3, 1, settings),
    ]
    options.idempotent, options.in_flight, options.acks = [True, True], 5, [-1]
    options.pace_seconds, options.acts, options.churn = 0.1, [], []
    options.settings |= {"log.flush.offset.checkpoint.interval.ms": "200"}
    options.faults = ["kill before answers", "kill before answers", "stop and power"]
    options.fault_seconds, options.unclean = 3.0, False


def _slow_between_brokers(conditions: NetworkConditions, seconds: float) -> None:
    conditions.delay_max, conditions.slow_chance, conditions.slow_delay_max = 0.005, 0.5, seconds
    conditions.slow_callers, conditions.slow_ports = "n", (CLIENT_PORT,)


_TRANSACTIONAL = (14, 15)
"""The rest of a seed divided by 16, where there are transactions; none of these is recorded."""
_SOLE_REPLICAS = 25
"""The rest of a seed divided by 32, where partitions have one replica."""
_WITHOUT_CONSUMERS = (29, 30)
"""The rest of a seed divided by 32, where there is no consumer group: mistakes that few seeds
notice are recorded with two of these.
"""
_WITH_SHARES = frozenset({12, 23, 28, 32, 35, 38, 44, 48, 54, 59})
"""The rest of a seed divided by 64, where there is a share group: none that is recorded."""
_WITH_MIXED = frozenset({17, 20, 26, 39, 45, 51, 55, 56, 60})
"""The same, where consumers of both protocols share a group."""
_WITH_STREAMS = frozenset({1, 18, 33, 41, 49, 53, 55, 58, 59})
"""The same, where there is a streams group."""
_SPECIAL = {1: _handovers, 2: _relapses, 4: _starvation, 5: _late_arrivals}
"""The rest of a seed divided by 8 -> what it looks at."""
