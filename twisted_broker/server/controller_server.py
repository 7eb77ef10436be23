"""A node's role `controller`: its metadata log opened, its listener, then its epoch.

Owns `ControllerServer`.

1. The listener is open before the epoch begins; the only controller answers once it leads, one of
   several at once. A leader of several hands over before it stops.
2. Metadata that is older than this node's logs, or than its broker has applied, is refused before
   it leads. One of several voters may be behind its own broker: until then it takes part.

Ring 1. Source: Kafka's `ControllerServer`. Not here: decisions (`cluster/controller.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from twisted_broker.api import broker_loggers
from twisted_broker.cluster.bootstrap import read_bootstrap
from twisted_broker.cluster.controller import Controller
from twisted_broker.cluster.features import SUPPORTED_FEATURES
from twisted_broker.cluster.metadata_check import NOT_APPLIED, check_applied, check_logs
from twisted_broker.cluster.metadata_log import MetadataLog, opened_in_steps
from twisted_broker.cluster.quorum_state import read_quorum_state
from twisted_broker.cluster.raft_manager import quorum_of
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.log.errors import CheckpointError, LogDirFailure, is_out_of_descriptors
from twisted_broker.server.shared_server import SharedServer
from twisted_broker.server.socket_server import SocketServer
from twisted_broker.topic_names import METADATA_DIRECTORY
from twisted_broker.wire.errors import BrokerError, ErrorCode

T = TypeVar("T")
_HAND_OVER_MS = 5_000


@contextmanager
def _naming(directory: str) -> Iterator[None]:
    """The system's error of a write names no file: LogDirFailure names the directory."""
    try:
        yield
    except OSError as error:
        if is_out_of_descriptors(error):
            raise
        raise LogDirFailure(directory, error) from error


class ControllerServer:
    """`renew_parts(features)`: the controller is there, and part of what is served."""

    def __init__(
        self,
        shared: SharedServer,
        sockets: SocketServer,
        renew_parts: Callable[[Mapping[str, tuple[int, int]]], None],
    ) -> None:
        self.controller: Controller | None = None
        self.steps = 0
        """how many steps of a stop there are with it: where only the broker ends, they stay"""
        self._shared, self._sockets, self._renew_parts = shared, sockets, renew_parts
        self._hand_over_ms = _HAND_OVER_MS
        self._applied = NOT_APPLIED

    async def start(self) -> None:
        """Ends when it leads."""
        shared, sockets = self._shared, self._sockets
        broker_loggers.apply()  # to what was loaded just now
        directory = shared.metadata_directory
        directory_id = shared.log_manager.directories.at(directory).directory_id
        has_led = self._has_led(posixpath.join(directory, METADATA_DIRECTORY))
        quorum = quorum_of(shared.config, directory_id, shared.runtime.random, has_led)
        self._applied = shared.applied()
        opening = opened_in_steps(
            shared.runtime.files,
            shared.log_manager.directories.worker(directory),
            directory,
            shared.config.node_id,
            shared.runtime.wall_ms(),
            applied=self._applied if quorum.is_alone else NOT_APPLIED,
            is_alone=quorum.is_alone,
            listener=quorum.listener,
        )
        with _naming(directory):
            opened = await shared.turns.whole(self._until_stopped(opening))
            controller = self.controller = Controller(
                shared.cluster_id,
                shared.runtime,
                shared.config,
                lambda on_committed, on_fatal, carrier: MetadataLog(
                    opened,
                    shared.config.node_id,
                    shared.runtime.wall_ms,
                    on_committed,
                    on_fatal,
                    carrier,
                    quorum,
                ),
                lambda error: shared.on_fatal(f"the metadata log failed: {error}"),
                self._check_image,
                partial(read_bootstrap, shared.runtime.files, directory),
                shared.turns,
                shared.controller_quotas,
                sockets.security.to_controllers,
            )
        self._renew_parts(SUPPORTED_FEATURES)
        self.steps = shared.on_stop(self._stop)
        with _naming(directory):
            log = controller.log
            # What is above the committed end is another leader's to keep or to take back.
            upto = None if log.is_alone else log.committed_at_open
            replayed = await shared.turns.whole(self._until_stopped(log.replay_in_steps(upto)))
        found = [
            await sockets.listen(endpoint, is_controller=True)
            for endpoint in sockets.plan.controller
        ]
        with _naming(directory):
            await controller.start(sockets.endpoints(of_controller=True), replayed)
        if any(each.name not in sockets.plan.early for each in found):
            sockets.start_accepting(lambda listener: listener.is_controller)

    def _has_led(self, directory: str) -> bool:
        """Whether quorum-state says that this node led last."""
        try:
            known = read_quorum_state(self._shared.runtime.files, directory)
        except (CheckpointError, OSError):
            return False  # the check of the log raises for it
        return known is not None and known.leader_id == self._shared.config.node_id

    def _until_stopped(self, work: Generator[None, None, T]) -> Generator[None, None, T]:
        """Runs `work`; closes its directory where this broker was stopped meanwhile. Raises
        BrokerError.
        """
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            yield
            if self._shared.stopping:
                work.close()
                raise BrokerError(ErrorCode.NOT_CONTROLLER, "stopped while it started")

    def _check_image(self, image: MetadataImage) -> None:
        """Checks the metadata of this node's controller before it leads. Raises MetadataDamage
        where it is older than this node's logs, or than what an earlier process applied.
        """
        check_logs(image, self._shared.log_manager)
        check_applied(self._shared.metadata_directory, image.offset + 1, self._applied)

    def skip_hand_over(self) -> None:
        """A stop, also one under way, does not wait until another one leads."""
        self._hand_over_ms = 0
        if self.controller is not None:
            self.controller.skip_hand_over()

    async def _stop(self) -> None:
        assert self.controller is not None
        await self.controller.hand_over(self._hand_over_ms)
        self.controller.stop()
        await self._sockets.stop(on_controller=True)
