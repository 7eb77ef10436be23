"""A controller of this node: active, and writes the metadata log; or a standby that follows it.

Owns the images (`decided`: everything appended; `committed`: everything committed), the writing of
records, and what happens by the clock: sessions that lapse, empty records, snapshots.

1. Decisions look at `decided`, so that two of them never contradict; answers and readers see
   `committed`.
2. A decision and the append of its records are one step: nothing comes between. One about
   thousands of partitions is taken in steps (`decide`), on one image: where another change came
   meanwhile, it is taken again. Its records are one batch, or one metadata transaction where they
   do not fit.
3. An answer leaves when everything decided before it is committed; when the disk fails, or another
   one leads first, it is NOT_CONTROLLER, which does not mean that it did not happen.
4. The features of a new cluster are finalised in one metadata transaction, before any other
   metadata record.
5. The log's leader becomes active (`_claim`) once its image has the first record of its epoch: then
   it has all that was ever committed, and nothing else. It renounces by `decided = committed`.
6. A standby refuses every decision, and its image follows the high watermark.

Source: Kafka's `QuorumController`; QU 5.1 to 5.11; KIP-500, KIP-631, KIP-835; `RL 8.1`. Not here:
what is decided (`broker_registry`, `topic_changes`, ...), the requests (`api/controller.py`),
reading of the log by others (`raft_requests.py`), who leads (`raft`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.bootstrap import DEFAULT, Bootstrap, bootstrap_records
from twisted_broker.cluster.bootstrap import NAME as BOOTSTRAP_NAME
from twisted_broker.cluster.broker_registry import BrokerSessions, fence
from twisted_broker.cluster.cluster_view import (
    PARTITIONS_PER_STEP,
    ClusterView,
    with_dynamic_defaults,
)
from twisted_broker.cluster.controller_channel import ControllerChannel
from twisted_broker.cluster.controller_registration_manager import (
    ActiveController,
    ControllerRegistrationManager,
)
from twisted_broker.cluster.features import SUPPORTED_FEATURES
from twisted_broker.cluster.image_records import controller_record
from twisted_broker.cluster.metadata_check import MetadataDamage
from twisted_broker.cluster.metadata_events import ELECTIONS, events, unclean_elections
from twisted_broker.cluster.metadata_log import Carrier, MetadataLog
from twisted_broker.cluster.raft_manager import RaftManager
from twisted_broker.cluster.raft_requests import RaftRequests
from twisted_broker.cluster.records import CONTROLLER_LEVEL, TransactionBuffer
from twisted_broker.event_lines import EventLines
from twisted_broker.image.entries import BrokerRegistration, ControllerRegistration, Endpoint
from twisted_broker.image.metadata_image import (
    BROKER_RESOURCE,
    EMPTY,
    METADATA_VERSION,
    RECORDS_PER_STEP,
    TOPIC_RESOURCE,
    MetadataDelta,
    MetadataImage,
)
from twisted_broker.interfaces import Runtime
from twisted_broker.log.errors import CheckpointError, OutOfDescriptors
from twisted_broker.net.connector import PLAIN, Connector
from twisted_broker.periodic import PeriodicTask
from twisted_broker.raft.consequences import Leader
from twisted_broker.raft.replica_key import Endpoint as QuorumEndpoint
from twisted_broker.security.quota.quotas import Quotas
from twisted_broker.settings import text_of
from twisted_broker.turns import Turns
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.primitives import new_uuid
from twisted_broker.wire.schema import Record, run_whole

_logger = Logger()
# Sessions are seconds long: half a second late is early enough to fence.
_TICK_MS = 500
# So often a decision in steps is begun again; then it is taken in one turn, as others change the
# metadata all the time.
_TRIES = 3
T = TypeVar("T")
OpenLog = Callable[[Callable[[int], None], Callable[[BaseException], None], Carrier], MetadataLog]


class Prepared(NamedTuple):
    """What is to be written, made in steps: its batches, and the image `after` it, which is good
    while `before` is what was decided last.
    """

    batches: list[bytearray]
    before: MetadataImage
    after: MetadataImage
    delta: MetadataDelta


class Controller:
    """`open_log(on_committed, on_fatal)` gives its log; `start` makes it the active controller,
    unless `check(image)` raises. `bootstrap()`: what a new cluster begins with. `quotas` follows
    the metadata once it is durable.

    `on_fatal(error)` is called when its disk failed. Since the start: `elections`, changes of a
    partition's leader as the log's lines count them; `unclean_elections`; changes that became
    durable (`commits`), how long that took (`commit_seconds`), and the longest of them.
    """

    def __init__(
        self,
        cluster_id: str,
        runtime: Runtime,
        config: BrokerConfig,
        open_log: OpenLog,
        on_fatal: Callable[[BaseException], None] = lambda error: None,
        check: Callable[[MetadataImage], None] = lambda image: None,
        bootstrap: Callable[[], Bootstrap] = lambda: DEFAULT,
        turns: Turns | None = None,
        quotas: Quotas | None = None,
        connector: Connector = PLAIN,
    ) -> None:
        self.quotas = quotas or Quotas()
        self._turns = turns or Turns(runtime.clock, runtime.marks)
        self._being_fenced: set[int] = set()
        self._is_balancing = self._is_stopped = self._is_election_due = False
        self._bootstrap = bootstrap
        self._check = check
        self.cluster_id, self.runtime = cluster_id, runtime
        self.node_id = config.node_id
        self.raft_manager = RaftManager(
            runtime,
            self.node_id,
            cluster_id,
            config.integer("controller.quorum.request.timeout.ms"),
            self._leader_changed,
            self._snapshot_loaded,
            self._handed_over,
            connector,
        )
        self.log = open_log(self._committed, self._log_failed, self.raft_manager)
        self._on_fatal = on_fatal
        self._is_claimed = self._is_applying = False
        self._leads: Leader | None = None
        self._claimed_at = -1
        self._loaded: MetadataImage | None = None
        self._end: Deferred[None] | None = None
        self.sessions = BrokerSessions(config.integer("broker.session.timeout.ms"))
        self.raft_requests = RaftRequests(self)
        self._incarnation: bytes | None = None
        active = ActiveController(self.node_id, self.log.leader)
        client_id = f"controller-{self.node_id}-registration"
        self._registrar = ControllerRegistrationManager(
            ControllerChannel(runtime, active, client_id, connector=connector),
            runtime.random,
            self._own,
            lambda: self.committed,
            lambda: active.leader_address is not None,
        )
        self.listeners: Sequence[Endpoint] = ()
        self.decided = self.committed = EMPTY
        self._config = config
        self._view: ClusterView | None = None
        self._waiting: deque[tuple[int, MetadataImage, Deferred[int] | None]] = deque()
        self._idle_ms = config.integer("metadata.max.idle.interval.ms")
        self._last_write_ms = self._last_step_ms = self._last_snapshot_ms = (
            self._last_balance_ms
        ) = 0
        # Without the secret there are no tokens.
        self._token_check_ms = (
            config.integer("delegation.token.expiry.check.interval.ms")
            if config.text("delegation.token.secret.key")
            else 0
        )
        self._last_token_check_ms = 0
        self._ticks = PeriodicTask(runtime.clock, self.tick, "the controller's periodic work")
        self.elections = 0
        self._lines = EventLines(_logger, runtime.clock, controller=self.node_id)
        self._unsaid: deque[tuple[int, MetadataDelta]] = deque()  # as long as `_waiting`
        self._written_at: deque[tuple[int, float]] = deque()  # as long as `_waiting`
        self.unclean_elections = self.commits = 0
        self.commit_seconds = self.most_commit_seconds = 0.0

    @property
    def image(self) -> MetadataImage:
        """The committed image."""
        return self.committed

    @property
    def kraft_version(self) -> int:
        return self.log.history.kraft_version

    @property
    def uncommitted(self) -> list[MetadataImage]:
        """The images after each write that is not durable yet, in order; for checkers."""
        return [image for _, image, _ in self._waiting]

    @property
    def is_active(self) -> bool:
        """Whether it decides."""
        log = self.log
        return self._is_claimed and log.failed is None and log.epoch >= 0 and not self._is_stopped

    @property
    def epoch(self) -> int:
        return self.log.epoch

    @property
    def view(self) -> ClusterView:
        """What the next decision looks at.

        Raises BrokerError(NOT_CONTROLLER) when this one decides no more.
        """
        self._check_active()
        if self._view is None:
            self._view = ClusterView(self.decided, self._config)
        return self._view

    # life

    def start(
        self, listeners: Sequence[Endpoint], replayed: MetadataImage | None = None
    ) -> Deferred[int]:
        """Replays the log, unless `replayed` is what `log.replay_in_steps` gave, and takes its
        place in the quorum. The only voter leads a new epoch and registers; fires when that is
        durable. One of several fires at once.

        Raises OSError, MetadataDamage, CheckpointError.
        """
        self.listeners = listeners
        is_alone = self.log.is_alone
        if self.log.torn is not None:
            _logger.warn(
                "truncated the metadata log: {torn} that were never synced, nor acknowledged",
                torn=self.log.torn,
            )
        self.decided = self.committed = self.log.replay() if replayed is None else replayed
        if is_alone:  # of several, one may be behind its own broker until it leads
            self._check(self.decided)
        self._settings_changed(self.decided)
        self.quotas.apply(self.decided.client_quotas, {}, self.decided.client_quotas)
        first = self._bootstrap() if is_alone and not self.decided.features else None
        self._last_snapshot_ms = self.runtime.now_ms()
        self.log.begin_epoch([QuorumEndpoint(e.name, e.host, e.port) for e in self.listeners])
        self._log_voters()
        started = self._claim(first) if is_alone else succeed(self.log.high_watermark - 1)
        self._ticks.start(_TICK_MS / 1000)
        return started

    def _log_voters(self) -> None:
        history, quorum = self.log.history, self.log.quorum
        if not history.voters:
            _logger.warn(
                "this controller knows no voters yet: it looks for the quorum at "
                "controller.quorum.bootstrap.servers, {servers}",
                servers=", ".join(f"{each.host}:{each.port}" for each in quorum.bootstrap),
            )
        elif history.voters_offset is not None and self._config.names("controller.quorum.voters"):
            _logger.info(
                "controller.quorum.voters is not used: the metadata log says who votes, {voters}",
                voters=", ".join(map(str, sorted(history.voters.ids))),
            )

    # leading

    @property
    def leader_id(self) -> int:
        """The active controller, as far as it is known; -1: none."""
        return self.log.leader().leader_id

    def _claim(self, first: Bootstrap | None) -> Deferred[int]:
        """It is the active controller from now on: its image has all that was ever committed, and
        nothing else. `first`: what a new cluster begins with.
        """
        self._is_claimed, self._claimed_at = True, self.log.end_offset
        self.decided, self._view = self.committed, None
        if self.log.transactions.open:
            reason = "the controller that began it leads no more"
            self.log.append([records.AbortTransactionRecord(reason=reason)], 0)
        if first is not None:
            self._append(
                self._first_records(first), metadata_version=first.levels[METADATA_VERSION]
            )
        started = self.write(self._registration() or [records.NoOpRecord()])
        self._last_balance_ms = self._last_token_check_ms = self.runtime.now_ms()
        # An earlier one may have ended between a setting and the elections that follow from it.
        self._turns.start(self._elect())
        return started

    def _leader_changed(self, leader: Leader) -> None:
        self._leads = leader if leader.id == self.node_id else None
        self._registrar.changed()
        if self._leads is None and self._is_claimed:
            self._renounce()
        self._claim_when_ready()

    def _claim_when_ready(self) -> None:
        """Once its image includes the first record of its epoch."""
        leads = self._leads
        if (
            leads is None
            or self._is_claimed
            or self._is_applying
            or self.committed.offset < leads.start_offset
        ):
            return
        try:
            self._check(self.committed)
        except MetadataDamage as error:
            self.log.fail(error)  # what a majority of the voters had is gone
            return
        try:
            first = None if self.committed.features else self._bootstrap()
            self._lines.add("controller active", epoch=leads.epoch, offset=leads.start_offset)
            self._claim(first).addErrback(lambda failure: failure.trap(BrokerError) and None)
        except (OSError, CheckpointError, BrokerError) as error:
            _logger.error(
                "this controller cannot become active, another one shall: {error}", error=error
            )
            self.log.resign()

    def _renounce(self) -> None:
        """Another one leads. What was decided and is not committed may yet be; it then comes as for
        any standby.
        """
        self._lines.add("controller renounces", epoch=self.log.leader().epoch)
        self._is_claimed, self._view = False, None
        self.decided = self.committed
        self.sessions = BrokerSessions(self.sessions.timeout_ms)
        self._being_fenced.clear()
        if self.committed.offset >= self._claimed_at:
            self.log.transactions.abort()
        self._refuse_waiting()
        self._apply_soon()

    def _apply_soon(self) -> None:
        if not self._is_applying and not self._is_claimed:
            self._is_applying = True
            self._turns.start(self._apply())

    def _apply(self) -> Generator[None, None, None]:
        """A standby's image follows what is committed."""
        try:
            while not self._is_claimed and not self.log.is_over:
                before = self.committed
                after = yield from self.log.apply_in_steps(before, self.log.high_watermark)
                if self._loaded is not None:
                    after, self._loaded = self._loaded, None
                    self.log.transactions.abort()
                if after is before:
                    break
                self._follow(before, after)
        except (MetadataDamage, OSError, BrokerError) as error:
            if self._loaded is None and not self.log.is_over:
                self.log.fail(error)
                return
        finally:
            self._is_applying = False
        if self._loaded is not None:
            self._apply_soon()
        else:
            self._claim_when_ready()

    def _follow(self, before: MetadataImage, after: MetadataImage) -> None:
        self.committed = self.decided = after
        self._view = None
        self._registrar.changed()
        if after.client_quotas is not before.client_quotas:
            entities = before.client_quotas.keys() | after.client_quotas.keys()
            self.quotas.apply(entities, before.client_quotas, after.client_quotas)
        if after.configs is not before.configs:
            self._settings_changed(after)

    def _snapshot_loaded(self, image: MetadataImage) -> None:
        self._loaded = image
        self._apply_soon()

    def hand_over(self, timeout_ms: int) -> Deferred[None]:
        """Fires when another controller leads, or time is up. The only one does not wait."""
        if self.log.is_alone or self.log.is_over or not self.log.has_begun:
            return succeed(None)
        self._end = Deferred()
        ended = self._end
        self.log.hand_over(timeout_ms)
        return ended

    def skip_hand_over(self) -> None:
        """Who waits for the next leader waits no more."""
        self._handed_over()

    def _handed_over(self) -> None:
        if self._end is not None and not self._end.called:
            self._end.callback(None)

    def _own(self) -> ControllerRegistration:
        """Of this process."""
        if self._incarnation is None:
            self._incarnation = new_uuid(self.runtime.random.randbytes)
        listeners = {e.name: e for e in self.listeners}
        return ControllerRegistration(
            self.node_id, self._incarnation, listeners, SUPPORTED_FEATURES
        )

    def _registration(self) -> list[Record]:
        """Its own, where it is not there yet; none below the level at which Kafka's brokers know
        such a record.
        """
        if self.decided.metadata_version < CONTROLLER_LEVEL:
            return []
        own = self._own()
        known = self.decided.controllers.get(own.id)
        is_there = known is not None and known.incarnation_id == own.incarnation_id
        return [] if is_there else [controller_record(own)]

    def _first_records(self, bootstrap: Bootstrap) -> list[Record]:
        """The records of a new cluster, in one transaction."""
        if bootstrap.unserved:
            _logger.warn(
                "the new cluster begins without features that {name} names and this controller "
                "does not serve: {unserved}",
                name=BOOTSTRAP_NAME,
                unserved=", ".join(
                    f"{name} {level}" for name, level in sorted(bootstrap.unserved.items())
                ),
            )
        minimum = text_of(self._config["min.insync.replicas"])
        return [
            records.BeginTransactionRecord(name="Bootstrap records"),
            *bootstrap_records(bootstrap.levels),
            *bootstrap.users,
            records.ConfigRecord(
                resource_type=BROKER_RESOURCE,
                resource_name="",
                name="min.insync.replicas",
                value=minimum,
            ),
            records.EndTransactionRecord(),
        ]

    def stop(self) -> None:
        """Decides no more; decisions in steps end, and answers that wait are refused. The log is
        closed, on the disk worker.
        """
        self._is_stopped = True
        self._registrar.close()
        if self._ticks.running:
            self._ticks.stop()
        self.raft_requests.close()
        self.raft_manager.close()
        self._refuse_waiting()
        self._lines.stop()
        self.log.close(self._close_failed)

    def _close_failed(self, error: BaseException) -> None:
        # What was committed is durable already.
        _logger.error(
            "closing the metadata log in {directory} failed: {error}",
            directory=self.log.directory,
            error=error,
        )

    # writing

    def decide(
        self,
        decision: Callable[[ClusterView], Generator[None, None, T]],
        records_of: Callable[[T], Sequence[Record]],
    ) -> Generator[None, None, tuple[T, Prepared | None]]:
        """What `decision(view)` returns, and its records prepared where they are many. The caller
        writes them in the same turn, since nothing else has been decided meanwhile. A short
        decision does not pause. Raises what `decision` raises, BrokerError(NOT_CONTROLLER).
        """
        for _ in range(_TRIES):
            before = self.decided
            outcome = yield from self._noting_steps(decision(self.view))
            prepared, found = None, records_of(outcome)
            if len(found) > RECORDS_PER_STEP and self.decided is before:
                prepared = yield from self._noting_steps(self.prepare(found))
            if self.decided is before:
                return outcome, prepared
        return run_whole(decision(self.view)), None

    def _noting_steps(self, work: Generator[None, None, T]) -> Generator[None, None, T]:
        """Notes when each step ends: an empty record between two would make it begin again."""
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            self._last_step_ms = self.runtime.now_ms()
            yield

    def prepare(self, found: Sequence[Record]) -> Generator[None, None, Prepared]:
        """Encodes and applies in steps what is to be written; good for as long as `decided` is the
        same.
        """
        before = self.decided
        batches = yield from self.log.prepare(found, before.metadata_version)
        after, delta = yield from before.apply_in_steps(found)
        return Prepared(batches, before, after, delta)

    def write(self, found: Sequence[Record], prepared: Prepared | None = None) -> Deferred[int]:
        """Appends what was decided; fires with the last offset when that, and all before it, is
        durable. Without records it fires when all before is durable. `prepared`: what `prepare`
        made of it.
        """
        delta, large = None, set[str]()
        try:
            self._check_active()
            if found:
                delta = self._append(found, prepared)
                large = self._elect_where_allowed(delta)
        except BrokerError:
            return fail()
        if not found and not self._waiting:
            return succeed(self.log.high_watermark - 1)
        done: Deferred[int] = Deferred()
        self._waiting.append((self.log.end_offset - 1, self.decided, done))
        self._written_at.append((self.log.end_offset - 1, self.runtime.clock.seconds()))
        self.log.sync()
        if delta is not None and _may_elect_elsewhere(delta):
            self._turns.start(self._elect())
        elif large:
            self._turns.start(self._elect(large))
        if (
            delta is not None
            and METADATA_VERSION in delta.features
            and self.node_id not in self.decided.controllers
        ):
            self._write_in_background(self._registration())
        return done

    def _elect_where_allowed(self, delta: MetadataDelta) -> set[str]:
        """Topics whose settings changed and allow unclean elections elect leaders for partitions
        without one at once. Topics that together are too large for one turn are returned instead,
        or those for which no descriptor was left: they elect in later turns.
        """
        electing = self.view.electing_uncleanly(
            {name for kind, name in delta.configs if kind == TOPIC_RESOURCE}
        )
        if sum(electing.values()) > PARTITIONS_PER_STEP:
            return set(electing)
        found = run_whole(self.view.unclean_leaders(electing)) if electing else []
        try:
            if found:
                self._append(found)
        except OutOfDescriptors:
            return set(electing)  # what was decided before is written, and answered for
        return set()

    def _elect(self, topics: set[str] | None = None) -> Generator[None, None, None]:
        """Elects leaders in those of `topics` (None: of all) that allow unclean elections."""
        try:
            found, prepared = yield from self.decide(
                lambda view: view.unclean_leaders(topics), lambda found: found
            )
        except BrokerError:
            return  # it decides no more
        if found:
            self.write(found, prepared).addErrback(self._elect_later)

    def _elect_later(self, failure: Failure) -> None:
        """No descriptor was free: the next tick tries again. Nothing else need ever happen."""
        failure.trap(BrokerError)
        self._is_election_due = True

    def _append(
        self,
        found: Sequence[Record],
        prepared: Prepared | None = None,
        metadata_version: int = 0,
    ) -> MetadataDelta:
        """`metadata_version`: while none is finalised."""
        wall_ms = self.runtime.wall_ms()
        before = self.decided
        last = self.log.append(
            found,
            before.metadata_version or metadata_version,
            None if prepared is None else prepared.batches,
        )
        if prepared is not None and prepared.before is before:
            delta = prepared.delta
            self.decided = delta.after = replace(
                prepared.after, offset=last, epoch=self.epoch, timestamp_ms=wall_ms
            )
        else:
            self.decided, delta = before.apply(
                TransactionBuffer().pass_through(found), last, self.epoch, wall_ms
            )
        if delta:
            self._unsaid.append((last, delta))
        self._view = None
        self._last_write_ms = self.runtime.now_ms()
        if (BROKER_RESOURCE, "") in delta.configs or (
            BROKER_RESOURCE,
            str(self.node_id),
        ) in delta.configs:
            self._settings_changed(self.decided)
        return delta

    def _settings_changed(self, image: MetadataImage) -> None:
        self._config, refused = with_dynamic_defaults(self._config, image)
        for line in refused:
            self._lines.warn("a stored setting is refused", reason=line)
        self._view = None

    def _committed(self, upto: int) -> None:
        """Everything below `upto` is committed: it becomes visible, then the answers leave."""
        if not self._is_claimed:
            self._apply_soon()
            return
        ready = []
        while self._waiting and self._waiting[0][0] < upto:
            _, self.committed, done = self._waiting.popleft()
            if done is not None:
                ready.append(done)
        seconds = self.runtime.clock.seconds()
        while self._written_at and self._written_at[0][0] < upto:
            took = seconds - self._written_at.popleft()[1]
            self.commits += 1
            self.commit_seconds += took
            self.most_commit_seconds = max(self.most_commit_seconds, took)
        for done in ready:
            done.callback(upto - 1)
        self._log_changes(upto)

    def _log_changes(self, upto: int) -> None:
        """What became of the metadata, once it is durable."""
        while self._unsaid and self._unsaid[0][0] < upto:
            _, delta = self._unsaid.popleft()
            self.quotas.apply(delta.quotas, delta.before.client_quotas, delta.after.client_quotas)
            self.unclean_elections += unclean_elections(delta)
            try:
                for kind, parts in events(delta):
                    self._lines.add(kind, **parts)
                    if kind in ELECTIONS:
                        self.elections += int(str(parts.get("partitions", 1)))
            except Exception:  # a line that cannot be written must not stop the controller
                _logger.failure("describing a change of the metadata failed; this is a bug")

    def _log_failed(self, error: BaseException) -> None:
        _logger.critical(
            "the metadata log in {directory} failed, this controller stops: {error}",
            directory=self.log.directory,
            error=error,
        )
        self._registrar.close()
        if self._ticks.running:
            self._ticks.stop()
        self._refuse_waiting()
        self.raft_requests.close()
        self.raft_manager.close()
        self._handed_over()
        self._on_fatal(error)

    def _check_active(self) -> None:
        if not self.is_active:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, "this controller is not active")

    def _refuse_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._unsaid.clear()
        self._written_at.clear()
        for _, _, done in waiting:
            if done is not None:
                done.errback(
                    BrokerError(
                        ErrorCode.NOT_CONTROLLER,
                        "the controller stopped before the change was durable",
                    )
                )

    # by the clock

    def tick(self) -> None:
        """What is due by time: lapsed sessions, an empty record, a snapshot."""
        now_ms = self.runtime.now_ms()
        self.log.sync()  # again, where the last one found no free descriptor; else nothing is due
        if self.is_active:
            self._tick_active(now_ms)
        if self._snapshot_due(now_ms):
            self._last_snapshot_ms = now_ms
            self.log.write_snapshot(self.committed)

    def _tick_active(self, now_ms: int) -> None:
        for broker in self.sessions.lapsed(self.decided, now_ms):
            if broker.id not in self._being_fenced:
                self._being_fenced.add(broker.id)
                self._turns.start(self._fence(broker))
        if self._idle_ms and now_ms - max(self._last_write_ms, self._last_step_ms) >= self._idle_ms:
            self._write_in_background([records.NoOpRecord()])
        if self._is_election_due:
            self._is_election_due = False
            self._turns.start(self._elect())
        self._balance(now_ms)
        if self._token_check_ms and now_ms - self._last_token_check_ms >= self._token_check_ms:
            self._last_token_check_ms = now_ms
            if self.decided.tokens:
                self._turns.start(self._remove_tokens())

    def _fence(self, broker: BrokerRegistration) -> Generator[None, None, None]:
        """Fences a broker whose session is over, unless a heartbeat comes before the decision."""

        def decision(view: ClusterView) -> Generator[None, None, list[Record]]:
            now = view.image.brokers.get(broker.id)
            if now is None or now.epoch != broker.epoch or now.fenced:
                return []
            return (yield from fence(view, now))

        try:
            found, prepared = yield from self.decide(decision, lambda found: found)
            if not found or self.sessions.alive(broker, self.runtime.now_ms()):
                return
            _logger.info(
                "fencing broker {broker}: no heartbeat for {timeout} ms "
                "(broker.session.timeout.ms)",
                broker=broker.id,
                timeout=self.sessions.timeout_ms,
            )
            # Where it cannot be written the session stays over: the next tick comes again.
            self.write(found, prepared).addCallbacks(
                lambda _: self.sessions.forget(broker.id, broker.epoch),
                lambda failure: failure.trap(BrokerError) and None,
            )
        except BrokerError:
            return  # it decides no more
        finally:
            self._being_fenced.discard(broker.id)

    def _remove_tokens(self) -> Generator[None, None, None]:
        """Removes the delegation tokens that have expired."""
        from twisted_broker.cluster.token_changes import removals

        wall_ms = self.runtime.wall_ms()
        try:
            found, prepared = yield from self.decide(
                lambda view: removals(view.image, wall_ms), lambda found: found
            )
        except BrokerError:
            return  # it decides no more
        if found:
            self._lines.add("delegation tokens expired", count=len(found))
            self._write_in_background(found, prepared)

    def _balance(self, now_ms: int) -> None:
        """Every so often, preferred leaders get their partitions back."""
        if (
            now_ms - self._last_balance_ms
            >= self._config.integer("leader.imbalance.check.interval.seconds") * 1000
        ):
            self._last_balance_ms = now_ms
            if self._config.boolean("auto.leader.rebalance.enable") and not self._is_balancing:
                self._is_balancing = True
                self._turns.start(self._give_back())

    def _give_back(self) -> Generator[None, None, None]:
        percentage = self._config.integer("leader.imbalance.per.broker.percentage")
        try:
            found, prepared = yield from self.decide(
                lambda view: view.preferred_leaders(percentage), lambda found: found
            )
        except BrokerError:
            return  # it decides no more
        finally:
            self._is_balancing = False
        if found:
            self._write_in_background(found, prepared)

    def _write_in_background(
        self, found: Sequence[Record], prepared: Prepared | None = None
    ) -> None:
        self.write(found, prepared).addErrback(lambda failure: failure.trap(BrokerError) and None)

    def _snapshot_due(self, now_ms: int) -> bool:
        # Also while records wait for the disk: with an empty record in each tick, some always may.
        # But not before the high watermark has passed what the start has replayed.
        if not self._is_claimed and (self._is_applying or self.log.transactions.open):
            return False
        if (
            not self.log.bytes_since_snapshot
            or not 0 <= self.committed.offset < self.log.high_watermark
        ):
            return False
        if self.log.snapshots and self.committed.offset < self.log.snapshots[-1].end_offset:
            return False  # what came since is not durable yet
        interval_ms = self._config.integer("metadata.log.max.snapshot.interval.ms")
        by_time = interval_ms > 0 and now_ms - self._last_snapshot_ms >= interval_ms
        return by_time or self.log.bytes_since_snapshot >= self._config.integer(
            "metadata.log.max.record.bytes.between.snapshots"
        )


def _may_elect_elsewhere(delta: MetadataDelta) -> bool:
    """Whether `unclean.leader.election.enable` of the cluster, or of a node, has changed."""
    name = "unclean.leader.election.enable"
    return any(
        delta.before.configs.get(key, {}).get(name) != delta.after.configs.get(key, {}).get(name)
        for key in delta.configs
        if key[0] == BROKER_RESOURCE
    )
