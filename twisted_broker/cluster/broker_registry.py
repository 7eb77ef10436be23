"""Brokers register, are fenced, unregister: what the controller decides about membership. The
broker's side is `registration.py` and `broker_lifecycle_manager.py`.

Owns the sessions (`BrokerSessions`), and the decisions on BrokerRegistration, UnregisterBroker and
lapsed sessions.

Its states, and what moves a broker between them:

- fenced (as it registers) -> unfenced: a heartbeat that has caught up and wants neither to stay
  fenced nor to shut down.
- unfenced -> controlled shutdown: a heartbeat that wants to shut down, of a broker that leads
  something.
- unfenced -> fenced: its session is over; a heartbeat that wants to be fenced, or to shut down
  while it leads nothing; no directory left.
- controlled shutdown -> fenced: it leads nothing, and every broker that serves has the metadata
  that says so; its session is over; no directory left.

1. One live incarnation per id: another one is refused while the first one's session holds, unless
   the first one is in controlled shutdown.
2. A registration is accepted only if its feature ranges hold every finalised level, and its
   directories are nobody else's.
3. A session begins with a heartbeat (or registration) heard in this controller's life; a broker
   that was unfenced when the controller started has a full session before it is fenced. Time in
   which the controller's own process did not run does not count.
4. A new incarnation leaves all ISRs. If it does not name the last broker epoch, it stopped
   uncleanly, and is no eligible leader replica of any partition (with ELR).

Source: Kafka's `ClusterControlManager`, `BrokerHeartbeatManager`, `ReplicationControlManager`;
KRAFT 3.4, 3.5; `RL 8.2`. Not here: heartbeats
(`heartbeat_decision.py`); time (an argument, monotonic ms).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from twisted_broker.cluster.cluster_view import ClusterView
from twisted_broker.cluster.features import KRAFT_VERSION
from twisted_broker.cluster.records import (
    DIRECTORIES_LEVEL,
    MINIMUM_METADATA_VERSION,
)
from twisted_broker.image.entries import (
    BrokerRegistration,
    FeatureRange,
    is_reserved_directory,
)
from twisted_broker.image.metadata_image import METADATA_VERSION, MetadataImage
from twisted_broker.stall_tolerance import SESSION_STALL_MS
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.messages.broker_lifecycle import (
    BrokerRegistrationRequest,
)
from twisted_broker.wire.schema import Record


class BrokerSession:
    """What a broker's heartbeats said since this controller leads. Times are monotonic ms; offsets
    -1 and None: nothing yet.
    """

    __slots__ = ("contact_ms", "heard", "metadata_offset", "shutdown_offset")

    def __init__(self, contact_ms: int, heard: bool) -> None:
        self.contact_ms = contact_ms
        self.heard = heard
        self.metadata_offset = -1
        self.shutdown_offset: int | None = None


class BrokerSessions:
    """When each broker was last heard. Times are monotonic ms."""

    __slots__ = ("_looked_ms", "_sessions", "timeout_ms")

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._sessions: dict[tuple[int, int], BrokerSession] = {}
        self._looked_ms: int | None = None

    def touch(self, broker: int, epoch: int, metadata_offset: int, now_ms: int) -> BrokerSession:
        """Notes a heartbeat of a broker under this broker epoch, which knows the metadata up to
        `metadata_offset`. Returns its session, a new one for a new epoch.
        """
        session = self._sessions.get((broker, epoch))
        if session is None:
            for key in [key for key in self._sessions if key[0] == broker]:
                del self._sessions[key]
            session = self._sessions[broker, epoch] = BrokerSession(now_ms, heard=True)
        # A decision that is taken again says once more when its heartbeat came, and a later one may
        # have been heard since.
        session.contact_ms, session.heard = max(session.contact_ms, now_ms), True
        session.metadata_offset = max(session.metadata_offset, metadata_offset)
        return session

    def session_of(self, broker: BrokerRegistration) -> BrokerSession | None:
        """The session of this incarnation; None when there is none yet."""
        return self._sessions.get((broker.id, broker.epoch))

    def forget(self, broker: int, epoch: int) -> None:
        """Drops the session of that incarnation."""
        self._sessions.pop((broker, epoch), None)

    def alive(self, broker: BrokerRegistration, now_ms: int) -> bool:
        """Whether this incarnation was heard within the timeout."""
        session = self._sessions.get((broker.id, broker.epoch))
        return (
            session is not None and session.heard and now_ms - session.contact_ms < self.timeout_ms
        )

    def lapsed(self, image: MetadataImage, now_ms: int) -> list[BrokerRegistration]:
        """Unfenced brokers whose session is over. One that was never heard here has its full
        session from the first look on.

        It is called periodically. When the last call was more than `SESSION_STALL_MS` ago, this
        process could hear no heartbeat meanwhile, and that time does not count.
        """
        if self._looked_ms is not None and now_ms - self._looked_ms > SESSION_STALL_MS:
            for session in self._sessions.values():
                session.contact_ms += now_ms - max(self._looked_ms, session.contact_ms)
        self._looked_ms = now_ms
        found = []
        for broker in image.live_brokers():
            session = self._sessions.setdefault(
                (broker.id, broker.epoch), BrokerSession(now_ms, heard=False)
            )
            if now_ms - session.contact_ms >= self.timeout_ms:
                found.append(broker)
        return found

    def lowest_offset(self, image: MetadataImage) -> int | None:
        """The metadata offset that every serving broker has reached, -1 while one was not heard;
        None when none serves.
        """
        serving = [
            self._sessions.get((broker.id, broker.epoch))
            for broker in image.live_brokers()
            if broker.may_be_in_isr
        ]
        return min(
            (-1 if session is None else session.metadata_offset for session in serving),
            default=None,
        )


class RegistrationDecision(NamedTuple):
    """A registration's outcome: the records to write and the broker's epoch."""

    records: list[Record]
    epoch: int


def register(
    view: ClusterView,
    request: BrokerRegistrationRequest,
    version: int,
    sessions: BrokerSessions,
    cluster_id: str,
    next_offset: int,
    now_ms: int,
    kraft_version: int = 0,
) -> Generator[None, None, RegistrationDecision]:
    """The records of a registration. The epoch of a new incarnation is `next_offset`, the offset of
    the first of them; the same incarnation keeps its own. Pauses where the broker has many
    partitions. Raises BrokerError.
    """
    image = view.image
    existing = image.brokers.get(request.broker_id)
    if request.cluster_id != cluster_id:
        raise BrokerError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"this cluster is {cluster_id}, not {request.cluster_id}",
        )
    same = existing is not None and existing.incarnation_id == bytes(request.incarnation_id)
    if (
        existing is not None
        and not same
        and sessions.alive(existing, now_ms)
        and not existing.in_controlled_shutdown
    ):
        raise BrokerError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"broker {request.broker_id} is registered already, and alive",
        )
    _check_registration(view, request, kraft_version)
    epoch = existing.epoch if existing is not None and same else next_offset
    record = records.RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=epoch,
        end_points=[
            records.BrokerEndpoint(
                name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol
            )
            for e in request.listeners
        ],
        features=[
            records.BrokerFeature(
                name=f.name,
                min_supported_version=f.min_supported_version,
                max_supported_version=f.max_supported_version,
            )
            for f in request.features
        ],
        rack=request.rack,
        fenced=existing.fenced if existing is not None and same else True,
        in_controlled_shutdown=existing.in_controlled_shutdown
        if existing is not None and same
        else False,
        log_dirs=sorted(request.log_dirs) if image.metadata_version >= DIRECTORIES_LEVEL else [],
    )
    found: list[Record] = [record]
    if not same:
        # One that was unregistered without ELR may be in an ISR still, as its last member.
        clean = (
            existing is not None
            and version >= 3
            and request.previous_broker_epoch == existing.epoch
        )
        found += yield from view.changes_without_broker(
            request.broker_id, unclean=not clean and view.elr
        )
    return RegistrationDecision(found, epoch)


def _check_registration(
    view: ClusterView, request: BrokerRegistrationRequest, kraft_version: int
) -> None:
    if request.is_migrating_zk_broker:
        raise BrokerError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, "a broker of a ZooKeeper cluster cannot register"
        )
    if view.image.metadata_version >= DIRECTORIES_LEVEL:
        _check_directories(view.image, request)
    _check_features(view.image, request, kraft_version)


def _check_features(
    image: MetadataImage, request: BrokerRegistrationRequest, kraft_version: int
) -> None:
    ranges = {
        f.name: FeatureRange(f.min_supported_version, f.max_supported_version)
        for f in request.features
    }
    if METADATA_VERSION not in ranges:
        raise BrokerError(
            ErrorCode.INVALID_REGISTRATION,
            f"broker {request.broker_id} names no supported {METADATA_VERSION}",
        )
    for name, level in sorted({**image.features, KRAFT_VERSION: kraft_version}.items()):
        supported = ranges.get(name, FeatureRange(0, 0))
        if not supported.contains(level):
            words = (
                f"{name} is finalised at {level}; the broker supports "
                f"{supported.min_version} to {supported.max_version}"
            )
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, words)
    if ranges[METADATA_VERSION].max_version < MINIMUM_METADATA_VERSION:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"metadata.version below {MINIMUM_METADATA_VERSION} is not supported",
        )


def _check_directories(image: MetadataImage, request: BrokerRegistrationRequest) -> None:
    directories = [bytes(directory) for directory in request.log_dirs]
    words = ""
    if not directories:
        words = "no log directories"
    elif any(map(is_reserved_directory, directories)):
        words = "a reserved log directory id"
    elif len(set(directories)) != len(directories):
        words = "a log directory id twice"
    for other in image.brokers.values():
        if other.id != request.broker_id and not set(directories).isdisjoint(other.directories):
            words = f"a log directory of broker {other.id}"
    if words:
        raise BrokerError(
            ErrorCode.INVALID_REGISTRATION,
            f"the registration of broker {request.broker_id} names {words}",
        )


def check_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerRegistration:
    """The broker's registration; raises BrokerError for one that is not registered, or under
    another epoch.
    """
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise BrokerError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} is not registered")
    if broker.epoch != broker_epoch:
        raise BrokerError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {broker_id} has epoch {broker.epoch}, not {broker_epoch}",
        )
    return broker


def fence(view: ClusterView, broker: BrokerRegistration) -> Generator[None, None, list[Record]]:
    """The records that fence a broker. Pauses where it has many partitions."""
    change = records.BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, fenced=1
    )
    return [*(yield from view.changes_without_broker(broker.id)), change]


def unregister(view: ClusterView, broker_id: int) -> Generator[None, None, list[Record]]:
    """Removes a broker for good. Pauses where it has many partitions. Raises
    BrokerError(BROKER_ID_NOT_REGISTERED).
    """
    broker = view.image.brokers.get(broker_id)
    if broker is None:
        raise BrokerError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered"
        )
    return [
        *(yield from view.changes_without_broker(broker_id, unclean=True)),
        records.UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch),
    ]
