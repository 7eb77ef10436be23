"""Reports to the controller in which log directory this broker's replicas lie.

Owns `DirectoryAssignments`.

1. A replica whose registration names no directory, or another one than it lies in, is reported
   until the controller has accepted that.
2. A replica that could not be made, because its directory failed before the controller knew of any,
   is reported as LOST: heartbeats report directories only, so nothing else would move its
   leadership. So is one that stopped by itself, or could not take its role, while its directory
   goes on, until this broker starts again.
3. A replica that is about to move is reported with its target directory, and the mover is called
   when the controller has accepted that, by its answer or by the metadata. A replica that stays
   after all is reported with the directory in which it stays.
4. One request is in flight, of at most `MOST_PARTITIONS`; what was refused is sent again behind the
   rest.
5. Below metadata.version 3.7-IV2 the controller knows no directories and refuses the request:
   nothing is sent, and a move need not wait for it. So Kafka moves where no controller is to be
   informed; its own brokers of that level take one directory only. When the level
   rises, all replicas here are compared once.

Source: Kafka's `AssignmentsManager`; KIP-858; KRAFT 3.6. Not here: moves between directories
(`replication.fetcher.alter_log_dirs_manager`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger

from twisted_broker.cluster.controller_channel import (
    ControllerChannel,
    RegisteredBroker,
    check_answer,
)
from twisted_broker.cluster.denials import Denials
from twisted_broker.cluster.records import DIRECTORIES_LEVEL
from twisted_broker.cluster.unexpected_errors import UnexpectedErrors
from twisted_broker.image.entries import LOST, UNASSIGNED, PartitionRegistration
from twisted_broker.image.metadata_image import MetadataDelta
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.wire.messages import log_dirs as log_dirs_messages

_logger = Logger()
# Nobody waits for this: only a failed directory makes the controller need it.
_RETRY_MS = 500
# To make so large a request, and to process its answer, takes some ten milliseconds each.
MOST_PARTITIONS = 1000
_Key = tuple[bytes, int]


class DirectoryAssignments:
    """`located(partition)` gives the id of the directory that holds a replica here, LOST for one
    that could not be made, None when there is none.
    """

    def __init__(
        self,
        runtime: Runtime,
        node_id: int,
        channel: ControllerChannel,
        member: RegisteredBroker,
        located: Callable[[TopicPartition], bytes | None],
    ) -> None:
        self._runtime, self._node_id, self._channel, self._member, self._located = (
            runtime,
            node_id,
            channel,
            member,
            located,
        )
        self._wanted: dict[_Key, bytes] = {}
        self._moving: dict[_Key, tuple[bytes, Callable[[], None]]] = {}
        self._failed: set[_Key] = set()
        self._unexpected_errors = UnexpectedErrors("assignments of directories")
        self._denials = Denials("this broker's assignments of directories")
        self._in_flight = self._stopped = False
        self._is_supported = True

    def apply_delta(self, delta: MetadataDelta) -> None:
        """A subscriber of the image, after the replica manager: compares where replicas are with
        where they should be.
        """
        level = delta.after.metadata_version
        was_supported = self._is_supported
        self._is_supported = not 0 < level < DIRECTORIES_LEVEL
        if not self._is_supported:
            self._accept_all()
        for key, change in delta.partitions.items():
            if change.after is None or self._node_id not in change.after.replicas:
                self._wanted.pop(key, None)
                self._moving.pop(key, None)
                self._failed.discard(key)
            elif self._is_supported:
                self._compare(TopicPartition(change.topic, key[1]), key, change.after)
        if self._is_supported and not was_supported:
            # Nothing was sent so far, and no later delta needs to name them.
            for topic_id, topic in delta.after.topics_by_id.items():
                for number, partition in topic.partitions.items():
                    if self._node_id in partition.replicas:
                        name = TopicPartition(topic.name, number)
                        self._compare(name, (topic_id, number), partition)
        self._send_soon(0)

    def _compare(self, name: TopicPartition, key: _Key, partition: PartitionRegistration) -> None:
        known = partition.directory_of(self._node_id)
        if key in self._failed:
            self._report_lost(key, known)
            return
        moving = self._moving.get(key)
        directory = self._located(name) if moving is None else moving[0]
        if moving is not None and known == moving[0]:
            moving[1]()
        if directory is None or directory == known or (directory == LOST and known != UNASSIGNED):
            self._wanted.pop(key, None)
        else:
            self._wanted[key] = directory

    def assign(
        self,
        topic_id: bytes,
        topic_partition: TopicPartition,
        directory_id: bytes,
        accepted: Callable[[], None],
    ) -> None:
        """The replica moves there once the controller has accepted it: `accepted` is called then,
        perhaps twice.
        """
        if not self._is_supported:
            accepted()
            return
        key = (topic_id, topic_partition.partition)
        self._moving[key] = directory_id, accepted
        self._wanted[key] = directory_id
        self._send_soon(0)

    def failed(self, topic_id: bytes, topic_partition: TopicPartition) -> None:
        """It serves nothing any more, though its directory does."""
        key = (topic_id, topic_partition.partition)
        self._failed.add(key)
        if self._is_supported:
            self._moving.pop(key, None)
            self._wanted[key] = LOST
            self._send_soon(0)

    def _report_lost(self, key: _Key, known: bytes) -> None:
        if known == LOST:
            self._wanted.pop(key, None)
        else:
            self._wanted[key] = LOST

    def _accept_all(self) -> None:
        self._wanted.clear()
        moving, self._moving = self._moving, {}
        for _, accepted in moving.values():
            accepted()

    def moved(self, topic_id: bytes, topic_partition: TopicPartition) -> None:
        """The replica lies in the assigned directory now."""
        self._moving.pop((topic_id, topic_partition.partition), None)

    def revert(self, topic_id: bytes, topic_partition: TopicPartition, directory_id: bytes) -> None:
        """It stays in `directory_id`: the controller may have heard otherwise."""
        key = (topic_id, topic_partition.partition)
        if self._moving.pop(key, None) is not None:
            self._wanted[key] = directory_id
            self._send_soon(0)

    def _send_soon(self, delay_ms: int) -> None:
        if self._wanted and not self._in_flight and not self._stopped:
            self._in_flight = True
            self._runtime.clock.callLater(delay_ms / 1000, self._send)

    def _send(self) -> None:
        if not self._wanted:
            self._in_flight = False
        elif not self._stopped:
            ensureDeferred(self._exchange()).addErrback(
                lambda failure: _logger.failure("sending AssignReplicasToDirs failed", failure)
            )

    async def _exchange(self) -> None:
        sent = dict(islice(self._wanted.items(), MOST_PARTITIONS))
        delay_ms = _RETRY_MS
        try:
            response = await self._channel.send_once(self._request(sent), 0)
            check_answer(response.error_code)
            self._take(response, sent)
            self._unexpected_errors.worked()
            self._denials.succeeded()
            if any(self._wanted.get(key) != directory for key, directory in sent.items()):
                delay_ms = 0
        except Exception as error:
            _logger.debug("AssignReplicasToDirs is sent again: {error}", error=error)
            self._unexpected_errors.failed(error)
            delay_ms = self._denials.pause_ms(error, delay_ms)
        self._in_flight = False
        self._send_soon(delay_ms)

    def _request(self, sent: dict[_Key, bytes]) -> log_dirs_messages.AssignReplicasToDirsRequest:
        directories: dict[bytes, dict[bytes, list[int]]] = {}
        for (topic_id, partition), directory in sent.items():
            directories.setdefault(directory, {}).setdefault(topic_id, []).append(partition)
        return log_dirs_messages.AssignReplicasToDirsRequest(
            broker_id=self._node_id,
            broker_epoch=self._member.broker_epoch,
            directories=[
                log_dirs_messages.AssignReplicasToDirsRequestDirectoryData(
                    id=directory, topics=[_topic(*item) for item in topics.items()]
                )
                for directory, topics in directories.items()
            ],
        )

    def _take(
        self, response: log_dirs_messages.AssignReplicasToDirsResponse, sent: dict[_Key, bytes]
    ) -> None:
        for directory in response.directories:
            for topic in directory.topics:
                for partition in topic.partitions:
                    key = (bytes(topic.topic_id), partition.partition_index)
                    if self._wanted.get(key) != sent.get(key):
                        continue
                    directory_id = self._wanted.pop(key, None)
                    if partition.error_code and directory_id is not None:
                        self._wanted[key] = directory_id
                    elif not partition.error_code:
                        moving = self._moving.get(key)
                        if moving is not None and moving[0] == sent.get(key):
                            moving[1]()

    def stop(self) -> None:
        """Tells nothing any more."""
        self._stopped = True
        self._channel.close()


def _topic(
    topic_id: bytes, partitions: list[int]
) -> log_dirs_messages.AssignReplicasToDirsRequestTopicData:
    listed = [
        log_dirs_messages.AssignReplicasToDirsRequestPartitionData(partition_index=partition)
        for partition in sorted(partitions)
    ]
    return log_dirs_messages.AssignReplicasToDirsRequestTopicData(
        topic_id=topic_id, partitions=listed
    )
