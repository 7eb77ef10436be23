"""The options of one simulated run.

Owns `Options` and `Topic`, plain data. Not here: what a seed makes of them
(`simulation/options.py`, `simulation/workload.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from twisted_broker.simulation.network import NetworkConditions


@dataclass
class Topic:
    """One topic and its own settings."""

    name: str
    partitions: int
    replicas: int
    settings: dict[str, str]


@dataclass
class Options:
    """What a seed means."""

    seed: int
    brokers: int
    liveness: bool
    seconds: int
    """of faults; then everything heals"""
    shuffle: bool
    conditions: NetworkConditions
    settings: dict[str, str]
    topics: list[Topic]
    idempotent: list[bool]
    """one per producer"""
    pace_seconds: float
    """mean pause of a producer between batches"""
    faults: list[str]
    fault_seconds: float
    """mean time between faults"""
    burst_chance: float
    """of a fault to be followed by another one at once"""
    unclean: bool
    broker_ids: list[int]
    controller_only: bool = False
    """n1 is the controller and no broker; of several, all of them"""
    directories: int = 1
    """log directories of each machine"""
    acks: list[int] = field(default_factory=lambda: [-1])
    """what producers draw from for each batch"""
    in_flight: int = 1
    """batches of a producer to one partition at a time"""
    codecs: list[int] = field(default_factory=lambda: [0])
    old_timestamps: bool = False
    """some records are older than those before them"""
    churn: list[Topic] = field(default_factory=list)
    """topics that are deleted and made again"""
    members: int = 0
    """of a classic group"""
    consumer_members: int = 0
    """of a consumer group (KIP-848)"""
    mixed_members: int = 0
    """of each protocol, in one group"""
    streams_members: int = 0
    """of a streams group (KIP-1071)"""
    has_state: bool = False
    """the streams group has a changelog topic, and standbys"""
    share_members: int = 0
    """of a share group (KIP-932)"""
    share_lock_ms: int = 3000
    share_deliveries: int = 5
    """the most of a record"""
    acts: list[str] = field(default_factory=list)
    """what the administrator does (`simulation/admin.py`)"""
    act_seconds: float = 8.0
    """mean time between two acts"""
    log_changes: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """(setting, values) that the administrator draws from"""
    knobs: dict[str, int] = field(default_factory=dict)
    """limits of the production code that are small (`simulation/knobs.py`)"""
    join_seconds: float = 0.0
    """between the first starts of two machines; 0: all at once"""

    transactional: list[int] = field(default_factory=list)
    """one per transactional id: the version of transactions that its producers know"""
    transaction_timeout_ms: int = 5000
    at_once_chance: float = 0.5
    """of a transaction to begin with the answer to the end of the one before"""
    batch_pause_seconds: float = 0.0
    """between two batches of a transaction"""
    compacted: list[Topic] = field(default_factory=list)
    """topics of records with keys"""

    damages: list[str] = field(default_factory=list)
    """faults that an actor of their own draws"""
    damage_seconds: float = 10.0
    """mean time between two of these"""

    controllers: int = 1
    """the first so many machines are"""
    controller_faults: list[str] = field(default_factory=list)
    """of whoever is active, drawn by an actor of their own"""
    controller_fault_seconds: float = 8.0
    """mean time between two of these"""

    zookeeper: str = ""
    """the inter-broker protocol of a cluster in ZooKeeper mode; "": with a metadata log"""

    def __str__(self) -> str:
        return "\n".join(f"  {each.name} = {getattr(self, each.name)}" for each in fields(self))
