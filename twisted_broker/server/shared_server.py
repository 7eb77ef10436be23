"""The parts that both roles of a node share: its directories and logs, its settings, and the steps
of a stop.

Owns `SharedServer`: the cluster's id as the directories have it, the start and stop of the logs,
and the steps that a stop takes back.

1. Directories that were not loaded are only released: they may be another process's, so nothing is
   written to them.
2. A stop takes the steps back in the reverse order; each happens whatever became of the one before.

Ring 1. Source: Kafka's `SharedServer`. Not here: ports (`socket_server.py`), the roles
(`controller_server.py`, `broker_server.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable

from twisted.logger import Logger

from twisted_broker.api.audit import audit_lines
from twisted_broker.broker_config import LiveConfig
from twisted_broker.cluster.metadata_check import Applied, holds_records, read_applied
from twisted_broker.interfaces import Runtime
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.log.log_directory import LOCK, LogDirMismatch
from twisted_broker.log.log_manager import LogManager
from twisted_broker.log.meta_properties import read_meta_properties
from twisted_broker.net.connection_limits import DescriptorShares
from twisted_broker.security.quota.connection_rates import ConnectionRates
from twisted_broker.security.quota.quotas import quotas_of
from twisted_broker.topic_names import METADATA_DIRECTORY
from twisted_broker.turns import Turns
from twisted_broker.wire.primitives import new_uuid, uuid_text

_logger = Logger(namespace="replog")


class SharedServer:
    """`cluster_id` None: the directories', or a new one. `on_directory_failure(path, error)`."""

    def __init__(
        self,
        config: LiveConfig,
        runtime: Runtime,
        cluster_id: str | None,
        descriptors: int,
        on_fatal: Callable[[str], None],
        on_directory_failure: Callable[[str, OSError], None],
    ) -> None:
        self.config, self.runtime = config, runtime
        self.fatal = ""
        """why it cannot go on"""
        self._fatal_listener = on_fatal
        self.shares = DescriptorShares(descriptors, len(config.log_directories))
        self._is_formatted = False
        # before this process takes the lock: whether any did on what `kafka-storage format` made
        self._was_started = runtime.files.exists(posixpath.join(self.metadata_directory, LOCK))
        self.cluster_id = self._cluster_id(cluster_id)
        self.turns = Turns(runtime.clock, runtime.marks)
        self.audit = audit_lines(runtime.clock, config.node_id)
        self.log_manager = LogManager(
            runtime,
            config,
            on_directory_failure=on_directory_failure,
            most_files=self.shares.files,
            turns=self.turns,
        )
        self.connection_rates = ConnectionRates(
            config.integer("quota.window.num"),
            config.integer("quota.window.size.seconds") * 1000,
        )
        self.quotas = quotas_of(config, self.connection_rates.set_ip_rate)
        self.controller_quotas = quotas_of(config)
        self._undo: list[Callable[[], Awaitable[None]]] = []
        self.stopping = False
        config.subscribe(lambda live: self.log_manager.cleaner.settings_changed())

    @property
    def roles(self) -> tuple[str, ...]:
        return self.config.names("process.roles")

    @property
    def metadata_directory(self) -> str:
        return self.config.metadata_directory

    def on_fatal(self, reason: str) -> None:
        """It cannot go on."""
        self.fatal = self.fatal or reason
        self._fatal_listener(reason)

    def _cluster_id(self, wanted: str | None) -> str:
        """The cluster id of the log directories; "" when only a remote controller knows it.

        Raises LogDirMismatch when it is not `wanted`, and OSError when no directory that can be
        read has one: a disk that fails under one of several takes only that one offline, later.
        """
        unreadable: OSError | None = None
        for path in dict.fromkeys((*self.config.log_directories, self.metadata_directory)):
            try:
                found = read_meta_properties(self.runtime.files, path)
            except FileNotFoundError:
                continue
            except OSError as error:
                if path == self.metadata_directory and "controller" in self.roles:
                    raise
                unreadable = unreadable or error
                continue
            if found is not None and found.cluster_id is not None:
                if wanted not in (None, found.cluster_id):
                    raise LogDirMismatch(
                        f"{path} belongs to cluster {found.cluster_id}, not to {wanted}: "
                        "change --cluster-id or log.dirs"
                    )
                self._is_formatted = True
                return found.cluster_id
        if unreadable is not None:
            raise unreadable
        if wanted is None:
            self._check_unnamed()
        if wanted is None and "controller" not in self.roles:
            return ""
        voters = self.config.names("controller.quorum.voters")
        if wanted is None and len(voters) > 1:
            # Each would make one of its own.
            raise LogDirMismatch(
                f"{self.metadata_directory} is of no cluster yet, and controller.quorum.voters "
                f"names {len(voters)} controllers: give all of them one id, with `replog format "
                "--cluster-id` or --cluster-id"
            )
        if wanted is None and not voters and self._joins():
            raise LogDirMismatch(
                f"{self.metadata_directory} is of no cluster yet, and "
                "controller.quorum.bootstrap.servers names other controllers: format it with "
                "`replog format --cluster-id ID --no-initial-controllers`"
            )
        return wanted or uuid_text(new_uuid(self.runtime.random.randbytes))

    def _joins(self) -> bool:
        """Whether the quorum is one of other controllers."""
        from twisted_broker.cluster.raft_manager import other_controllers

        return bool(other_controllers(self.config))

    def _check_unnamed(self) -> None:
        """No directory says which cluster it is of. LogDirMismatch where one holds its metadata."""
        for path in {*self.config.log_directories, self.metadata_directory}:
            directory = posixpath.join(path, METADATA_DIRECTORY)
            if holds_records(self.runtime.files, directory):
                raise LogDirMismatch(
                    f"{directory} holds a cluster's metadata, but {path}/meta.properties, which "
                    "says which, is missing: put it back, or name the cluster with --cluster-id "
                    "(another node's meta.properties has it)"
                )

    async def start_logs(self, broker_epoch: Callable[[], int]) -> None:
        """`broker_epoch()`: of this broker's registration when it stops; -1: there was none."""
        is_controller = "controller" in self.roles
        try:
            await self.log_manager.start(
                self.cluster_id,
                {self.metadata_directory: self._format_metadata} if is_controller else None,
            )
        except GeneratorExit:  # this coroutine is thrown away: nothing may be waited for
            for directory in self.log_manager.directories.claimed():
                directory.stop_workers()
                directory.release()
            raise
        except BaseException:
            await self.log_manager.shutdown()
            raise

        async def stop_logs() -> None:
            epoch = broker_epoch()
            await self.log_manager.shutdown(None if epoch < 0 else epoch)

        self.on_stop(stop_logs)
        self._log_formatted()

    def _log_formatted(self) -> None:
        """A directory that was expected to hold data, and was empty, is seen by these lines."""
        founds = "controller" in self.roles and not self._is_formatted
        for directory in self.log_manager.directories.claimed():
            if founds and directory.path == posixpath.normpath(self.metadata_directory):
                _logger.info(
                    "formatted {path} as new cluster {id}", path=directory.path, id=self.cluster_id
                )
            elif directory.is_new:
                _logger.info(
                    "formatted {path} for node {node} of cluster {id}: it was empty",
                    path=directory.path,
                    node=self.config.node_id,
                    id=self.cluster_id,
                )

    def _format_metadata(self) -> None:
        """The metadata of a new cluster, before the directory bears its id.

        MetadataDamage: the cluster is not new, and its metadata is gone.
        """
        from twisted_broker.cluster.metadata_log import format_metadata

        format_metadata(
            self.runtime.files,
            self.metadata_directory,
            self.cluster_id,
            is_new=not self._is_formatted,
            was_started=self._was_started,
            others=self.config.log_directories,
        )

    def applied(self) -> Applied:
        """How far this node is known to have applied the metadata."""
        online = self.log_manager.directories.online()
        return read_applied(self.runtime.files, [each.path for each in online])

    def check_directories(self) -> None:
        """Raises LogDirFailure where none is left for replicas."""
        if not self.log_manager.directories.online():
            raise LogDirFailure(", ".join(self.log_manager.directories.by_path), None)

    # stopping

    def on_stop(self, step: Callable[[], Awaitable[None]]) -> int:
        """A stop takes `step` before all that were named earlier. How many there are."""
        self._undo.append(step)
        return len(self._undo)

    async def take_back(self, left: int) -> None:
        """All steps but the first `left`; never raises."""
        undo, self._undo = self._undo[left:], self._undo[:left]
        for step in reversed(undo):
            try:
                await step()
            except Exception:
                _logger.failure("a step of the shutdown failed; the shutdown continues")
